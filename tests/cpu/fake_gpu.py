"""A GPU for the tests of search and benchmarks: kernels "run" on the CPU, and take the time that the cost model gives
them; cuBLASLt has five suggestions, whose times LT_US says."""

from __future__ import annotations

import contextlib
import ctypes
import math
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cudal2 import tools
from cudal2.problem import TORCH_DTYPES
from cudal2.search import cost, cublaslt, measure, provenance
from cudal2.shapes import Shape
from cudal2.spec import DTYPES, LAYOUTS, KernelSpec

TORCH_US = 5.0
BLAS_US = 4.5
LT_US = [4.0, 3.5, 9.0, 3.0, 8.0]

SPECS = [
    KernelSpec.parse(name)
    for name in (
        "sm90_f16_tn_128x256x64_s4_c1x1_coop2",
        "sm90_f16_tn_128x256x64_s4_c2x1_coop2",
        "sm90_f16_tn_128x128x64_s6_c1x1_ping2",
        "sm90_f16_tn_128x128x64_s5_c1x1_coop2",
        "sm90_f16_tn_128x128x64_s5_c2x1_coop2",
        "sm90_f16_tn_128x128x64_s5_c1x1k2_coop2",
        "sm90_f16_tn_64x64x64_s8_c1x1_coop1",
        "sm90_f16_tn_64x64x64_s8_c1x1k4_coop1",
        "sm90_f16_tn_64x16x128_s6_c1x1_coop1",
        "wmma_f16_tn_32x32x64_s4_w2x2k1",
        "wmma_f16_tn_64x64x64_s3_w2x2k2",
    )
]
"""The kernels of the fake build, for one dtype and layout; it has their variants for the others."""


class FakeGpu:
    """Stands in for cudal2._tools. `wrong` kernels miscompute, `crashing` ones take the device down, `refusing` ones
    cannot be captured; `us` overrides a kernel's time, and `pdl_gain` is what its launches with PDL divide it by: one
    figure, or one for each of its next graphs."""

    def __init__(self) -> None:
        self.wrong: set[str] = set()
        self.crashing: set[str] = set()
        self.refusing: set[str] = set()
        self.us: dict[str, float] = {}
        self.pdl_gain: dict[str, float | list[float]] = {}
        self.wrong_suggestions: set[int] = set()
        self.queued_us = TORCH_US
        self.spacers = 0
        self.captured: list[tuple[str, Any, int]] = []
        self.raced: list[int] = []
        self.operands: measure.Operands | None = None
        self._failure = ""

    # cudal2._tools ---------------------------------------------------------------------------------------------------

    def Gemm(self, **fields: Any) -> Any:
        return SimpleNamespace(**fields)

    def Knobs(self, **fields: Any) -> Any:
        return SimpleNamespace(**fields)

    def prepare(self, kernel: str, knobs: Any, gemm: Any, stream: int) -> Callable[[], None]:
        if kernel in self.refusing:
            raise ValueError(f"{kernel}: pitch")
        return self._call(gemm, self._us(kernel, knobs, gemm), kernel in self.wrong)

    def Blas(self, library: str, workspace: int, workspace_bytes: int) -> Any:
        return SimpleNamespace(prepare=lambda gemm, stream: self._call(gemm, BLAS_US))

    def Lt(self, library: str, workspace: int, workspace_bytes: int) -> Any:
        return object()

    def LtProblem(self, lt: Any, gemm: Any, most: int) -> Any:
        return FakeSuggestions(self, min(most, len(LT_US)))

    def _us(self, kernel: str, knobs: Any, gemm: Any) -> float:
        us = self.us.get(kernel) or cost.predict_us(KernelSpec.parse(kernel), Shape(gemm.m, gemm.n, gemm.k))
        gain = self.pdl_gain.get(kernel, 1.0) if knobs.pdl else 1.0
        return us / (gain.pop(0) if isinstance(gain, list) else gain)

    def _call(self, gemm: Any, us: float, wrong: bool = False) -> Callable[[], None]:
        def call() -> None:
            self.queued_us = us
            multiply(gemm, wrong)

        return call

    def kernels(self) -> list[dict[str, Any]]:
        specs = [spec.variant(dtype, layout) for spec in SPECS for dtype in DTYPES for layout in LAYOUTS]
        return [{"name": s.name, "family": s.family, "dtype": s.dtype, "layout": s.layout} for s in specs]

    # Timer -----------------------------------------------------------------------------------------------------------

    def occupancy(self, kernel: str, knobs: Any, gemm: Any) -> dict[str, int]:
        return {"ctas_per_sm": 1}

    def launch(self, kernel: str, knobs: Any, gemm: Any) -> None:
        if kernel in self.crashing:
            self._failure = kernel
            return
        assert self.operands is not None
        result = self.operands.a.float() @ self.operands.b.float()
        if kernel in self.wrong:
            result[-1, -1] += 10
        self.operands.c.copy_(result)

    def synchronize(self, timeout_s: float) -> None:
        if self._failure:
            raise RuntimeError("an illegal memory access was encountered")

    def capture(self, kernel: str, knobs: Any, problems: list[Any], launches: int) -> Any:
        if kernel in self.refusing:
            raise ValueError(f"{kernel}: pitch")
        self.captured.append((kernel, knobs, launches))
        return SimpleNamespace(kernel=kernel, us=self._us(kernel, knobs, problems[0]), launches=launches)

    def begin(self) -> None:
        pass

    def end(self, launches: int) -> Any:
        return SimpleNamespace(kernel="torch", us=TORCH_US, launches=launches)

    def abort(self) -> None:
        raise AssertionError("torch.matmul failed under capture")

    def replay(self, graph: Any) -> None:
        graph.again()

    def wall(self, calls: list[Callable[[], None]], order: list[int], gaps_us: list[float]) -> list[float]:
        assert len(gaps_us) in (0, len(order))
        times = []
        for index in order:
            calls[index]()
            times.append(self.queued_us)
        return times

    def race(self, graphs: list[Any], order: list[int], timeout_s: float) -> list[float]:
        self.raced += order
        if any(graph.kernel in self.crashing for graph in graphs):
            raise RuntimeError("an illegal memory access was encountered")
        return [graphs[index].us for index in order]


class FakeSuggestions:
    """Stands in for cudal2._tools.LtProblem."""

    def __init__(self, gpu: FakeGpu, count: int):
        self._gpu, self._count = gpu, count

    def __len__(self) -> int:
        return self._count

    def prepare(self, index: int, gemm: Any, stream: int) -> Callable[[], None]:
        return self._gpu._call(gemm, LT_US[index], index in self._gpu.wrong_suggestions)


def multiply(gemm: Any, wrong: bool = False) -> None:
    """What a prepared call computes: from the pointers and pitches of a Gemm, on the CPU."""
    dtype = TORCH_DTYPES[gemm.dtype]

    def matrix(pointer: int, rows: int, columns: int, pitch: int) -> torch.Tensor:
        memory = (ctypes.c_int16 * ((rows - 1) * pitch + columns)).from_address(pointer)
        return torch.frombuffer(memory, dtype=torch.int16).view(dtype).as_strided((rows, columns), (pitch, 1))

    b = (
        matrix(gemm.b, gemm.k, gemm.n, gemm.ldb)
        if gemm.layout == "nn"
        else matrix(gemm.b, gemm.n, gemm.k, gemm.ldb).t()
    )
    c = matrix(gemm.c, gemm.m, gemm.n, gemm.ldc)
    c.copy_(matrix(gemm.a, gemm.m, gemm.k, gemm.lda).float() @ b.float())
    if wrong:
        c[-1, -1] += 10


class FakeWatch(measure.Stopwatch):
    """A Stopwatch on a FakeGpu, with nothing to set up. A graph's replay makes its last call once more."""

    def __init__(self, gpu: FakeGpu) -> None:
        self.timer = gpu
        self.stream = SimpleNamespace(cuda_stream=0)
        self.busy_us = 0.0
        self.device = 0
        self.sms = 132
        self._random = random.Random(0)
        self._settled_at = -math.inf
        self._raced_at = -math.inf
        self._idle_s = math.inf  # however slow the CPU is

    def calls(self, call: Callable[[int], object], launches: int, warm: bool = True) -> Any:
        self.timer.queued_us = TORCH_US
        spacers = self.timer.spacers
        for index in range(-warm, launches):
            call(max(0, index))
        return SimpleNamespace(
            kernel="call",
            us=self.timer.queued_us,
            launches=launches,
            work=["fake_kernel"] * launches + ["spin_kernel"] * (self.timer.spacers - spacers),
            again=lambda: call(launches - 1),
        )

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()


def install(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """Make the search run on a FakeGpu, in this process."""
    gpu = FakeGpu()
    describe = measure.Operands.gemm
    make_pool = measure.Pool

    def gemm(operands: measure.Operands, bias: torch.Tensor | None = None) -> Any:
        gpu.operands = operands
        return describe(operands, bias)

    monkeypatch.setattr(measure.Operands, "gemm", gemm)
    monkeypatch.setattr(measure, "Pool", lambda dtype, shapes, seed: make_pool(dtype, shapes, seed, device="cpu"))
    monkeypatch.setattr(measure, "Stopwatch", lambda device=0, seed=0: FakeWatch(gpu))
    monkeypatch.setattr(provenance, "provenance", lambda device=0: {"gpu": "NVIDIA H200", "arch": "9.0", "sms": "132"})
    monkeypatch.setattr(tools, "require", lambda: gpu)
    monkeypatch.setattr(cublaslt, "library", lambda name: name)
    monkeypatch.setattr(cublaslt, "DEVICE", "cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: setattr(gpu, "spacers", gpu.spacers + 1))
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return gpu
