"""cuBLAS and cuBLASLt as contenders: prepared calls (csrc/cublas.h), and the fastest of cuBLASLt's suggestions.

Each handle has a workspace of 32 MiB. The libraries are those that torch itself has loaded, else those of the
nvidia-cublas wheel that torch depends on.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from cudal2 import tools
from cudal2.search.measure import LONG_US, Operands, Stopwatch, launches_for

WORKSPACE_BYTES = 32 << 20
MOST_SUGGESTIONS = 100
BUDGET_US = 40_000.0
"""Device time for trying the suggestions once, about."""
DEVICE = "cuda"


class LtError(RuntimeError):
    """cuBLAS or cuBLASLt is not there, or a call of it failed."""


def library(name: str) -> str:
    """What to load "cublas" or "cublasLt" by: a soname or a file. Raises LtError where torch brings none."""
    if torch.version.cuda is None:
        raise LtError("this torch is built without CUDA, so it brings no cuBLAS")
    soname = f"lib{name}.so.{torch.version.cuda.split('.')[0]}"
    try:
        ctypes.CDLL(soname)
        return soname
    except OSError as error:
        spec = importlib.util.find_spec("nvidia")
        for folder in (spec.submodule_search_locations or []) if spec else []:
            for path in sorted(Path(folder).glob(f"*/lib/{soname}")):
                return str(path)
        raise LtError(f"{error}; nor does an nvidia-cublas wheel hold {soname}") from error


@functools.cache
def version() -> str:
    """cuBLASLt's version as its library reports it (130100 is 13.1.0). Raises LtError where it is not there."""
    loaded = ctypes.CDLL(library("cublasLt"))
    loaded.cublasLtGetVersion.restype = ctypes.c_size_t
    return str(loaded.cublasLtGetVersion())


def _opened(kind: str, name: str, workspace: torch.Tensor) -> Any:
    try:
        return getattr(tools.require(), kind)(library(name), workspace.data_ptr(), WORKSPACE_BYTES)
    except LtError:
        raise
    except RuntimeError as error:
        raise LtError(str(error)) from error


class Blas:
    """A cuBLAS handle and workspace on the current device, for one stream at a time."""

    def __init__(self) -> None:
        self.workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=DEVICE)
        self._native = _opened("Blas", "cublas", self.workspace)

    def call(self, operands: Operands, stream: int) -> Any:
        """cublasGemmEx on the operands, prepared for a stream (cudaStream_t): call it to queue it."""
        return self._native.prepare(operands.gemm(), stream)


class Handle:
    """A cuBLASLt handle and workspace on the current device, for one stream at a time."""

    def __init__(self) -> None:
        self.workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=DEVICE)
        self.native = _opened("Lt", "cublasLt", self.workspace)


class Problem:
    """cuBLASLt's suggestions for one GEMM, its own favourite first. Raises LtError where it has none."""

    def __init__(self, handle: Handle, operands: Operands, most: int = MOST_SUGGESTIONS):
        self.operands = operands
        try:
            self._native = tools.require().LtProblem(handle.native, operands.gemm(), most)
        except RuntimeError as error:
            raise LtError(f"{operands.shape} {operands.dtype} {operands.layout}: {error}") from error

    def __len__(self) -> int:
        return len(self._native)

    def call(self, index: int, stream: int, operands: Operands | None = None) -> Any:
        """A suggestion, prepared for a stream (cudaStream_t): call it to queue one GEMM.

        On the problem's operands, or others of the same shape and pitches.
        """
        return self._native.prepare(index, (operands or self.operands).gemm(), stream)


class Suggestions(Protocol):
    """Ways to compute one GEMM, by index, the most promising first: a Problem, or anything else to be autotuned."""

    @property
    def operands(self) -> Operands: ...

    def __len__(self) -> int: ...

    def call(self, index: int, stream: int, operands: Operands | None = None) -> Any: ...


@dataclass(frozen=True)
class Ranking:
    """Suggestions that run, the fastest first, out of `tried`; finding it took `busy_us` of device time."""

    order: Sequence[int]
    tried: int
    busy_us: float


def autotune(
    problem: Suggestions, watch: Stopwatch, us: float, budget_us: float = BUDGET_US, finalists: int = 4
) -> Ranking:
    """Rank a problem's suggestions by successive halving: all of them, then 16, then `finalists`, ever more replays.

    Those of a long product race on a settled device, as what they are compared with later.
    `us`: about what one launch takes. Where a single launch of all would take more than `budget_us`, only the first
    (cuBLASLt's favourites) are tried, at least 10. Raises LtError if none runs.
    """
    start = watch.busy_us
    tried = min(len(problem), max(10, int(budget_us / (1.4 * us))))
    launches = launches_for(us, target_us=10.0, most=4)
    captured = graphs(problem, watch, range(tried), launches)
    if not captured:
        raise LtError(f"{problem.operands.shape} {problem.operands.layout}: none of {tried} suggestions runs")
    settled = us >= LONG_US
    order = _ranked(watch, captured, 2 if us < 200 else 1, settled)
    stages = [(16, 40.0, 3), (finalists, 100.0, 5)] if us < 1000 else [(finalists, 0.0, 3)]
    for keep, target_us, rounds in stages:
        again = launches_for(us, target_us, most=40)
        if again > launches:
            launches, captured = again, graphs(problem, watch, order[:keep], again)
        order = _ranked(watch, {index: captured[index] for index in order[:keep] if index in captured}, rounds, settled)
    return Ranking(order, tried, watch.busy_us - start)


def graphs(problem: Suggestions, watch: Stopwatch, indices: Sequence[int], launches: int) -> dict[int, Any]:
    """A graph for each of the suggestions that run, by its index.

    Large problems are captured without a run before, which would double what autotuning them takes; where that fails
    (first use may load a library) they run first after all.
    """
    captured: dict[int, Any] = {}
    for index in indices:
        try:
            call = problem.call(index, watch.stream.cuda_stream)
        except ValueError:  # a kernel that cannot run these operands
            continue
        for warm in (launches > 1, True):
            try:
                captured[index] = watch.calls(lambda _, call=call: call(), launches, warm)  # type: ignore[misc]
                break
            except RuntimeError:
                continue
    return captured


def _ranked(watch: Stopwatch, captured: dict[int, Any], rounds: int, settled: bool) -> list[int]:
    times = watch.medians(captured, rounds, settled)
    return sorted(times, key=times.__getitem__)
