"""cuBLASLt as a contender, through ctypes: its suggestions for a GEMM, each of which can be run and timed.

Row-major C = A @ B is column-major C^T = B^T @ A^T, so our B is cuBLASLt's first operand: as stored under nn,
transposed under tn. fp32 compute, alpha 1, beta 0, a workspace of 32 MiB.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from cudal2.search.measure import Operands, Stopwatch

WORKSPACE_BYTES = 32 << 20
MOST_SUGGESTIONS = 100

_CUDA_TYPES = {"f16": 2, "bf16": 14}  # CUDA_R_16F, CUDA_R_16BF
_COMPUTE_32F, _CUDA_R_32F = 68, 0
_DESC_TRANSA = 3
_OP_N, _OP_T = 0, 1
_PREF_MAX_WORKSPACE_BYTES = 1
_ONE, _ZERO = ctypes.c_float(1), ctypes.c_float(0)


class LtError(RuntimeError):
    """A cuBLASLt call that failed."""


class _Result(ctypes.Structure):  # cublasLtMatmulHeuristicResult_t
    _fields_ = [
        ("algo", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    ]


@functools.cache
def _library() -> ctypes.CDLL:
    """The cuBLASLt that torch itself has loaded. Raises OSError where there is none."""
    if torch.version.cuda is None:
        raise OSError("this torch is built without CUDA")
    library = ctypes.CDLL(f"libcublasLt.so.{torch.version.cuda.split('.')[0]}")
    library.cublasLtGetVersion.restype = ctypes.c_size_t
    return library


def version() -> str:
    """cuBLASLt's version as its library reports it (130100 is 13.1.0). Raises OSError where it is not there."""
    return str(_library().cublasLtGetVersion())


def _check(status: int, what: str) -> None:
    if status != 0:
        raise LtError(f"{what}: cuBLAS status {status}")


class _Object:
    """An opaque cuBLASLt object: created in the constructor, destroyed with it."""

    def __init__(self, kind: str, *arguments: object):
        self._destroy = getattr(_library(), f"cublasLt{kind}Destroy")
        self.pointer = ctypes.c_void_p()
        _check(getattr(_library(), f"cublasLt{kind}Create")(ctypes.byref(self.pointer), *arguments), f"{kind}Create")
        self._kind = kind

    def set(self, attribute: int, value: ctypes.c_int32 | ctypes.c_uint64) -> None:
        setter = getattr(_library(), f"cublasLt{self._kind}SetAttribute")
        size = ctypes.c_size_t(ctypes.sizeof(value))
        _check(setter(self.pointer, ctypes.c_int(attribute), ctypes.byref(value), size), f"{self._kind}SetAttribute")

    def __del__(self) -> None:
        if getattr(self, "pointer", None):
            self._destroy(self.pointer)


class Handle:
    """A cuBLASLt handle and workspace on the current device. Shared by all problems of one timing stream."""

    def __init__(self) -> None:
        self.pointer = ctypes.c_void_p()
        _check(_library().cublasLtCreate(ctypes.byref(self.pointer)), "cublasLtCreate")
        self.workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
        self.preference = _Object("MatmulPreference")
        self.preference.set(_PREF_MAX_WORKSPACE_BYTES, ctypes.c_uint64(WORKSPACE_BYTES))


@dataclass
class Problem:
    """One GEMM's descriptors, and cuBLASLt's suggestions for it, its own favourite first."""

    handle: Handle
    operands: Operands

    def __post_init__(self) -> None:
        m, n, k = self.operands.shape
        kind = ctypes.c_int(_CUDA_TYPES[self.operands.dtype])
        transposed = self.operands.layout == "tn"
        b = self.operands.b.t() if transposed else self.operands.b  # as stored: row-major
        self._desc = _Object("MatmulDesc", ctypes.c_int(_COMPUTE_32F), ctypes.c_int(_CUDA_R_32F))
        self._desc.set(_DESC_TRANSA, ctypes.c_int32(_OP_T if transposed else _OP_N))

        def layout(rows: int, columns: int, pitch: int) -> _Object:
            return _Object("MatrixLayout", kind, ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(pitch))

        self._first = layout(k, n, b.stride(0)) if transposed else layout(n, k, b.stride(0))
        self._second = layout(k, m, self.operands.a.stride(0))
        self._output = layout(n, m, self.operands.c.stride(0))
        self.suggestions = self._suggest()

    def _suggest(self) -> list[_Result]:
        results = (_Result * MOST_SUGGESTIONS)()
        count = ctypes.c_int()
        status = _library().cublasLtMatmulAlgoGetHeuristic(
            self.handle.pointer,
            self._desc.pointer,
            self._first.pointer,
            self._second.pointer,
            self._output.pointer,
            self._output.pointer,
            self.handle.preference.pointer,
            ctypes.c_int(MOST_SUGGESTIONS),
            results,
            ctypes.byref(count),
        )
        _check(status, "cublasLtMatmulAlgoGetHeuristic")
        usable = [result for result in results[: count.value] if result.state == 0]
        if not usable:
            raise LtError(f"cuBLASLt has no algorithm for {self.operands.shape} {self.operands.layout}")
        return usable

    def launcher(
        self, suggestion: _Result, stream: torch.cuda.Stream, operands: Operands | None = None
    ) -> Callable[[int], None]:
        """A call, for Stopwatch.calls, that queues one GEMM on `stream`.

        On the problem's operands, or others of the same shape and pitches.
        """
        operands = operands or self.operands
        a, b, c = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (operands.a, operands.b, operands.c))
        arguments = (
            self.handle.pointer,
            self._desc.pointer,
            ctypes.byref(_ONE),
            b,
            self._first.pointer,
            a,
            self._second.pointer,
            ctypes.byref(_ZERO),
            c,
            self._output.pointer,
            c,
            self._output.pointer,
            ctypes.byref(suggestion.algo),
            ctypes.c_void_p(self.handle.workspace.data_ptr()),
            ctypes.c_size_t(WORKSPACE_BYTES),
            ctypes.c_void_p(stream.cuda_stream),
        )
        matmul = _library().cublasLtMatmul

        def launch(_: int) -> None:
            status = matmul(*arguments)
            if status != 0:
                raise LtError(f"cublasLtMatmul: cuBLAS status {status}")

        return launch


def graphs(problem: Problem, watch: Stopwatch, launches: int) -> dict[int, Any]:
    """A graph for each suggestion that runs, by its index.

    Large problems are captured without a run before, which would double what autotuning them takes; where that fails
    (first use may load a library) they run first after all.
    """
    captured: dict[int, Any] = {}
    for index, suggestion in enumerate(problem.suggestions):
        launch = problem.launcher(suggestion, watch.stream)
        for warm in (launches > 1, True):
            with contextlib.suppress(LtError, RuntimeError):
                captured[index] = watch.calls(launch, launches, warm)
                break
    return captured


def autotune(problem: Problem, watch: Stopwatch, launches: int, rounds: int = 5, finalists: int = 5) -> int:
    """The index of the fastest suggestion: one replay of all, then `rounds` of the finalists."""
    captured = graphs(problem, watch, launches)
    if not captured:
        raise LtError(f"no suggestion for {problem.operands.shape} {problem.operands.layout} runs")
    first = watch.medians(captured, 1 if launches == 1 else 2)
    best = sorted(first, key=first.__getitem__)[:finalists]
    last = watch.medians({index: captured[index] for index in best}, rounds)
    return min(last, key=last.__getitem__)
