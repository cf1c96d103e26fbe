"""What is compared, for one problem: torch, cuBLAS and cuBLASLt as baselines, cudal2 as dispatched, its kernel alone.

A contender gives a call for device modes, which queues one GEMM on given operands into their output. `Host` modes time
the calls that a user makes, allocation included: see HOST.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

import cudal2
from cudal2 import plans
from cudal2.plans import Key, Plan
from cudal2.search import cublaslt
from cudal2.search.measure import Operands, Stopwatch, launches_for

Call = Callable[[Operands], None]

BASELINES = ("torch", "torch_again", "cublas", "lt_heuristic", "lt_autotune", "tunableop")
OWN = ("cudal2", "own", "own_pdl")
ALL = (*BASELINES, *OWN)
DEFAULT = tuple(name for name in ALL if name != "tunableop")
"""torch_again is torch a second time: their difference is the noise of the run."""

HOST = {"torch": torch.matmul, "torch_again": torch.matmul, "cudal2": cudal2.matmul}
"""What the wall-clock modes call: cuBLAS through ctypes would be timed with ctypes' own overhead."""


class Skipped(Exception):
    """A contender that cannot take part; the message says why."""


@dataclass
class Field:
    """Makes contenders for problems on one device."""

    watch: Stopwatch
    table: plans.Table | None
    lt: cublaslt.Handle

    def call(self, name: str, operands: Operands) -> tuple[Call, str]:
        """A contender's call and what it runs (a kernel's name, where known). Raises Skipped."""
        if name in ("torch", "torch_again"):
            return _matmul, ""
        if name == "tunableop":
            return _tunable(), ""
        if name == "cublas":
            return functools.partial(_cublas().gemm, self.watch.stream.cuda_stream), ""
        if name in ("lt_heuristic", "lt_autotune"):
            return self._lt(operands, tune=name == "lt_autotune"), ""
        if name == "cudal2":
            return self._dispatch(operands)
        return self._own(operands, pdl=name == "own_pdl")

    def plan(self, operands: Operands) -> Plan:
        """The problem's plan. Raises Skipped."""
        plan = self.table.plans.get(Key(operands.dtype, operands.layout, *operands.shape)) if self.table else None
        if plan is None:
            raise Skipped("no plan for this shape")
        return plan

    def _own(self, operands: Operands, pdl: bool) -> tuple[Call, str]:
        plan = self.plan(operands)
        knobs = replace(plan.knobs, pdl=pdl)

        def gemm(o: Operands) -> None:
            torch.ops.cudal2.gemm(o.a, o.b, o.c, None, plan.kernel, knobs.group, knobs.raster, knobs.ctas, knobs.pdl)

        return gemm, plan.kernel

    def _dispatch(self, operands: Operands) -> tuple[Call, str]:
        def matmul(o: Operands) -> None:
            cudal2.matmul(o.a, o.b, out=o.c)

        cudal2.last_path()  # forget what ran before
        matmul(operands)
        return matmul, cudal2.last_path()

    def _lt(self, operands: Operands, tune: bool) -> Call:
        try:
            problem = cublaslt.Problem(self.lt, operands)
            choice = 0
            if tune:
                us = self.watch.medians({"torch": self.watch.matmul(operands, 5)}, 1)["torch"]
                choice = cublaslt.autotune(problem, self.watch, launches_for(us, most=8))
        except cublaslt.LtError as error:
            raise Skipped(str(error)) from error
        suggestion = problem.suggestions[choice]
        launchers: dict[int, Callable[[int], None]] = {}

        def matmul(o: Operands) -> None:
            launch = launchers.get(id(o))
            if launch is None:
                launch = launchers[id(o)] = problem.launcher(suggestion, self.watch.stream, o)
            launch(0)

        return matmul


def _matmul(operands: Operands) -> None:
    torch.matmul(operands.a, operands.b, out=operands.c)


def _tunable() -> Call:
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < (2, 14):
        raise Skipped(f"TunableOp has no CUDA backend in torch {torch.__version__}; from 2.14 on")

    def matmul(operands: Operands) -> None:
        torch.cuda.tunable.enable(True)
        try:
            _matmul(operands)
        finally:
            torch.cuda.tunable.enable(False)

    return matmul


class _Cublas:
    """cublasGemmEx with fp32 compute, through ctypes. Row-major C = A @ B is column-major C^T = B^T @ A^T."""

    _TYPES = {"f16": 2, "bf16": 14}
    _COMPUTE_32F, _DEFAULT_ALGORITHM = 68, -1

    def __init__(self) -> None:
        assert torch.version.cuda is not None
        self._library = ctypes.CDLL(f"libcublas.so.{torch.version.cuda.split('.')[0]}")
        self._handle = ctypes.c_void_p()
        self._check(self._library.cublasCreate_v2(ctypes.byref(self._handle)), "cublasCreate")
        self._workspace = torch.empty(cublaslt.WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
        self._one, self._zero = ctypes.c_float(1), ctypes.c_float(0)

    def gemm(self, stream: int, operands: Operands) -> None:
        m, n, k = operands.shape
        transposed = operands.layout == "tn"
        kind = ctypes.c_int(self._TYPES[operands.dtype])
        pitch_b = operands.b.stride(1) if transposed else operands.b.stride(0)
        library = self._library
        self._check(library.cublasSetStream_v2(self._handle, ctypes.c_void_p(stream)), "cublasSetStream")
        workspace = ctypes.c_void_p(self._workspace.data_ptr())
        size = ctypes.c_size_t(cublaslt.WORKSPACE_BYTES)
        self._check(library.cublasSetWorkspace_v2(self._handle, workspace, size), "cublasSetWorkspace")
        status = library.cublasGemmEx(
            self._handle,
            ctypes.c_int(1 if transposed else 0),
            ctypes.c_int(0),
            ctypes.c_int(n),
            ctypes.c_int(m),
            ctypes.c_int(k),
            ctypes.byref(self._one),
            ctypes.c_void_p(operands.b.data_ptr()),
            kind,
            ctypes.c_int(pitch_b),
            ctypes.c_void_p(operands.a.data_ptr()),
            kind,
            ctypes.c_int(operands.a.stride(0)),
            ctypes.byref(self._zero),
            ctypes.c_void_p(operands.c.data_ptr()),
            kind,
            ctypes.c_int(operands.c.stride(0)),
            ctypes.c_int(self._COMPUTE_32F),
            ctypes.c_int(self._DEFAULT_ALGORITHM),
        )
        self._check(status, "cublasGemmEx")

    @staticmethod
    def _check(status: int, what: str) -> None:
        if status != 0:
            raise Skipped(f"{what}: cuBLAS status {status}")


@functools.cache
def _cublas() -> _Cublas:
    return _Cublas()
