"""What is compared: torch, cuBLAS and cuBLASLt as baselines, cudal2 as dispatched, and its kernels alone.

    torch           torch.matmul as users call it, allocating its output (torch_again: the same once more, for noise)
    cublas          cublasGemmEx, fp32 compute
    lt_heuristic    cuBLASLt's first suggestion
    lt_autotune     the fastest of up to 100 of cuBLASLt's suggestions
    tunableop       torch.matmul under TunableOp, where the installed torch has it on CUDA
    cudal2          cudal2.matmul as users call it (cudal2_again: the same once more, for noise)
    own             the plan's kernel, whatever dispatch would run, without programmatic dependent launch
    own_pdl         the same with it

All but torch, tunableop and cudal2 are prepared calls in C (csrc/calls.h, csrc/cublas.h): in the wall-clock modes they
cost what they cost a C program, but for one cheap call from Python. With the suffix _c even that falls away.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

import cudal2
from benchmarks.guard import Call
from cudal2 import plans
from cudal2.plans import Key, Plan
from cudal2.search import cublaslt
from cudal2.search.measure import Operands, Stopwatch, native_knobs

BASELINES = ("torch", "torch_again", "cublas", "lt_heuristic", "lt_autotune", "tunableop")
OWN = ("cudal2", "cudal2_again", "own", "own_pdl")
IN_C = ("own_c", "cublas_c", "lt_heuristic_c", "lt_autotune_c")
"""Prepared calls that are queued and timed in C altogether; in the wall-clock modes only."""
ALL = (*BASELINES, *OWN, *IN_C)

_DEVICE = ("torch", "cublas", "lt_heuristic", "lt_autotune", "tunableop", "cudal2", "cudal2_again", "own", "own_pdl")
DEFAULTS = {
    "graph": _DEVICE,
    "isolated": _DEVICE,
    "cold": _DEVICE,
    "offline": tuple(name for name in ALL if name not in ("torch_again", "tunableop", "own_pdl")),
    "server": ("torch", "cublas", "lt_heuristic", "lt_autotune", "cudal2", "own"),
    "overhead": ("torch", "torch_again", "cublas", "lt_heuristic", "cudal2", "cudal2_again", "own"),
}
"""By mode: what takes part unless --contenders says otherwise."""

MOST_WRONG = 4
"""So many of autotuning's favourites may be wrong before the contender is."""


class Skipped(Exception):
    """A contender that cannot take part; the message says why."""


@dataclass(frozen=True)
class Contender:
    """One way to compute a product. `make` prepares it for operands: a call that queues it on torch's current stream.

    A call returns the output that it allocated, or None where it wrote `operands.c`. `ran`: what it runs, where known.
    """

    name: str
    layout: str
    make: Callable[[Operands], Call]
    ran: str = ""
    strict: bool = False

    def bind(self, operands: Operands) -> Call:
        return self.make(operands)


def plain_name(name: str) -> str:
    """A contender's name without the suffix for being called from C."""
    return name.removesuffix("_c") if name in IN_C else name


@dataclass
class Field:
    """Makes contenders for problems on one device, on the timing stream."""

    watch: Stopwatch
    table: plans.Table | None
    lt_busy_us: float = 0.0
    """Device time that autotuning cuBLASLt has taken."""

    def candidates(self, name: str, operands: Operands, us: float) -> Iterator[Contender]:
        """A contender, or several of which the first right one counts, the fastest first. Raises Skipped.

        `us`: about what the product takes.
        """
        if name in ("torch", "torch_again"):
            yield Contender(name, operands.layout, _torch)
        elif name == "tunableop":
            _require_tunableop()
            yield Contender(name, operands.layout, _tunable)
        elif name == "cublas":
            blas = _blas()
            yield Contender(name, operands.layout, lambda o: blas.call(o, self._stream))
        elif name in ("lt_heuristic", "lt_autotune"):
            yield from self._lt(name, operands, us)
        elif name in ("cudal2", "cudal2_again"):
            cudal2.last_path()  # forget what ran before
            cudal2.matmul(operands.a, operands.b)
            yield Contender(name, operands.layout, _cudal2, cudal2.last_path(), strict=True)
        else:
            yield self._own(name, operands)

    @property
    def _stream(self) -> int:
        return self.watch.stream.cuda_stream

    def plan(self, operands: Operands) -> Plan:
        """The problem's plan. Raises Skipped."""
        plan = self.table.plans.get(Key(operands.dtype, operands.layout, *operands.shape)) if self.table else None
        if plan is None:
            raise Skipped("no plan for some shapes" if self.table else "no plan table for this GPU")
        return plan

    def _own(self, name: str, operands: Operands) -> Contender:
        plan = self.plan(operands)
        knobs = native_knobs(replace(plan.knobs, pdl=name == "own_pdl"))

        def make(o: Operands) -> Call:
            return self.watch.timer.prepare(plan.kernel, knobs, o.gemm(), self._stream)

        return Contender(name, operands.layout, make, plan.kernel, strict=True)

    def _lt(self, name: str, operands: Operands, us: float) -> Iterator[Contender]:
        try:
            tune = name == "lt_autotune"
            problem = cublaslt.Problem(_lt(), operands, most=cublaslt.MOST_SUGGESTIONS if tune else 1)
            order, of = [0], ""
            if tune:
                ranking = cublaslt.autotune(problem, self.watch, us)
                self.lt_busy_us += ranking.busy_us
                order, of = list(ranking.order[:MOST_WRONG]), f" of {ranking.tried}"
        except cublaslt.LtError as error:
            raise Skipped(str(error)) from error

        for index in order:

            def make(o: Operands, index: int = index) -> Call:
                return problem.call(index, self._stream, o)

            yield Contender(name, operands.layout, make, f"suggestion {index}{of}")


def _torch(operands: Operands) -> Call:
    return functools.partial(torch.matmul, operands.a, operands.b)


def _cudal2(operands: Operands) -> Call:
    return functools.partial(cudal2.matmul, operands.a, operands.b)


def _tunable(operands: Operands) -> Call:
    def matmul() -> torch.Tensor:
        torch.cuda.tunable.enable(True)
        try:
            return torch.matmul(operands.a, operands.b)
        finally:
            torch.cuda.tunable.enable(False)

    matmul()  # tunes
    return matmul


def _require_tunableop() -> None:
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < (2, 14):
        raise Skipped(f"TunableOp has no CUDA backend in torch {torch.__version__}; from 2.14 on")
    torch.cuda.tunable.set_filename(str(Path(tempfile.gettempdir()) / "cudal2_tunableop.csv"))


@functools.cache
def _blas() -> cublaslt.Blas:
    try:
        return cublaslt.Blas()
    except cublaslt.LtError as error:
        raise Skipped(str(error)) from error


@functools.cache
def _lt() -> cublaslt.Handle:
    return cublaslt.Handle()
