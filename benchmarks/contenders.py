"""What is compared: torch, cuBLAS and cuBLASLt as baselines, cudal2 as dispatched, and its kernels alone.

    torch           torch.matmul as users call it, allocating its output (torch_again: the same once more, for noise)
    cublas          cublasGemmEx, fp32 compute
    lt_heuristic    cuBLASLt's first suggestion
    lt_autotune     the fastest of up to 100 of cuBLASLt's suggestions
    tunableop       torch.matmul under TunableOp, where the installed torch has it on CUDA
    cudal2          cudal2.matmul as users call it, under cudal2.pdl(False) (cudal2_again: once more, for noise)
    own             the plan's kernel, whatever dispatch would run, without programmatic dependent launch
    own_pdl         the same with it
    own_pdl_plan    the same with it where the plan says that the kernel gains from it
    cudal2_pdl      cudal2.matmul under cudal2.pdl(True): own_pdl_plan where dispatch runs the own kernel, else cuBLAS
    own:FAMILY      the fastest of that family's kernels (own:sm90, ...): of 12 that the cost model likes, default knobs
    cutlass2x       the fastest of CUTLASS 2.x's sm_80-style kernels (benchmarks/peers/cutlass2x.py, to be built first)

own:FAMILY and cutlass2x are chosen as lt_autotune is, and take part only where --contenders names them. No kernel of
cutlass2x splits K.

All but torch, tunableop, cudal2 and cutlass2x are prepared calls in C (csrc/calls.h, csrc/cublas.h): in the wall-clock
modes they cost what they cost a C program, but for one cheap call from Python. With the suffix _c even that falls away.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import cudal2
from benchmarks.guard import Call
from benchmarks.peers import cutlass2x
from cudal2 import plans, tools
from cudal2.plans import Key, Knobs, Plan
from cudal2.search import cost, cublaslt
from cudal2.search.measure import Operands, Stopwatch, native_knobs
from cudal2.spec import MAX_SMEM, KernelSpec

BASELINES = ("torch", "torch_again", "cublas", "lt_heuristic", "lt_autotune", "tunableop")
OWN = ("cudal2", "cudal2_again", "cudal2_pdl", "own", "own_pdl", "own_pdl_plan")
IN_C = ("own_c", "cublas_c", "lt_heuristic_c", "lt_autotune_c")
"""Prepared calls that are queued and timed in C altogether; in the wall-clock modes only."""
_USUAL = (*BASELINES, *OWN, *IN_C)
FAMILIES = tuple(f"own:{family}" for family in MAX_SMEM)
ALL = (*_USUAL, *FAMILIES, "cutlass2x")

_PDL = ("cudal2_pdl", "own_pdl", "own_pdl_plan")
_DEVICE = tuple(name for name in (*BASELINES, *OWN) if name != "torch_again")
DEFAULTS = {
    "graph": _DEVICE,
    "isolated": _DEVICE,
    "cold": tuple(name for name in _DEVICE if name not in ("cudal2_pdl", "own_pdl_plan")),
    "sustained": ("torch", "lt_autotune", "cudal2", "own"),
    "offline": tuple(name for name in _USUAL if name not in ("torch_again", "tunableop", *_PDL)),
    "server": ("torch", "cublas", "lt_heuristic", "lt_autotune", "cudal2", "own"),
    "overhead": ("torch", "torch_again", "cublas", "lt_heuristic", "cudal2", "cudal2_again", "own"),
}
"""By mode: what takes part unless --contenders says otherwise."""

MOST_WRONG = 4
"""So many of autotuning's favourites may be wrong before the contender is."""

FAMILY_KERNELS = 12
"""So many of a family's kernels are raced for own:FAMILY."""

KERNELS_BUDGET_US = 200_000.0
"""Device time of trying the kernels of own:FAMILY or cutlass2x once; on the largest problems only the first are."""


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
        elif name in ("cudal2", "cudal2_again", "cudal2_pdl"):
            cudal2.last_path()  # forget what ran before
            cudal2.matmul(operands.a, operands.b)
            make = _cudal2_pdl if name == "cudal2_pdl" else _cudal2
            yield Contender(name, operands.layout, make, cudal2.last_path(), strict=True)
        elif name in FAMILIES:
            yield from self._fastest(name, _Family(self.watch, name.removeprefix("own:"), operands), us)
        elif name == "cutlass2x":
            yield from self._fastest(name, _peer(operands), us)
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
        pdl = plan.knobs.pdl if name == "own_pdl_plan" else name == "own_pdl"
        knobs = native_knobs(replace(plan.knobs, pdl=pdl))

        def make(o: Operands) -> Call:
            return self.watch.timer.prepare(plan.kernel, knobs, o.gemm(), self._stream)

        return Contender(name, operands.layout, make, plan.kernel, strict=True)

    def _lt(self, name: str, operands: Operands, us: float) -> Iterator[Contender]:
        tune = name == "lt_autotune"
        try:
            problem = cublaslt.Problem(_lt(), operands, most=cublaslt.MOST_SUGGESTIONS if tune else 1)
        except cublaslt.LtError as error:
            raise Skipped(str(error)) from error
        if not tune:
            yield self._suggested(name, problem, 0, "suggestion 0", strict=False)
            return
        ranking = self._ranking(problem, us)
        self.lt_busy_us += ranking.busy_us
        for index in ranking.order[:MOST_WRONG]:
            yield self._suggested(name, problem, index, f"suggestion {index} of {ranking.tried}", strict=False)

    def _fastest(self, name: str, kernels: _Family | cutlass2x.Problem, us: float) -> Iterator[Contender]:
        for index in self._ranking(kernels, us, KERNELS_BUDGET_US).order[:MOST_WRONG]:
            yield self._suggested(name, kernels, index, kernels.name(index), strict=True)

    def _ranking(
        self, problem: cublaslt.Suggestions, us: float, budget_us: float = cublaslt.BUDGET_US
    ) -> cublaslt.Ranking:
        try:
            return cublaslt.autotune(problem, self.watch, us, budget_us)
        except cublaslt.LtError as error:
            raise Skipped(str(error)) from error

    def _suggested(self, name: str, problem: cublaslt.Suggestions, index: int, ran: str, *, strict: bool) -> Contender:
        def make(o: Operands) -> Call:
            return problem.call(index, self._stream, o)

        return Contender(name, problem.operands.layout, make, ran, strict)


def _torch(operands: Operands) -> Call:
    return functools.partial(torch.matmul, operands.a, operands.b)


def _cudal2(operands: Operands) -> Call:
    return functools.partial(cudal2.matmul, operands.a, operands.b)


def _cudal2_pdl(operands: Operands) -> Call:
    def matmul() -> torch.Tensor:
        with cudal2.pdl(True):
            return cudal2.matmul(operands.a, operands.b)

    return matmul


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


class _Family:
    """A family's kernels that are worth racing on a problem, default knobs. Raises Skipped where there are none."""

    def __init__(self, watch: Stopwatch, family: str, operands: Operands):
        self.watch, self.operands = watch, operands
        compiled = tools.kernel_names(family, operands.dtype, operands.layout)
        specs = cost.shortlist(map(KernelSpec.parse, compiled), operands.shape, FAMILY_KERNELS)
        self._names = [spec.name for spec in specs]
        if not specs:
            raise Skipped(f"no {family} kernels are compiled for {operands.dtype} {operands.layout}")

    def __len__(self) -> int:
        return len(self._names)

    def name(self, index: int) -> str:
        return self._names[index]

    def call(self, index: int, stream: int, operands: Operands | None = None) -> Any:
        """A kernel, prepared for a stream. Raises ValueError where it cannot run the operands."""
        gemm = (operands or self.operands).gemm()
        return self.watch.timer.prepare(self._names[index], native_knobs(Knobs()), gemm, stream)


def _peer(operands: Operands) -> cutlass2x.Problem:
    try:
        return cutlass2x.Problem(_cutlass2x(), operands)
    except cutlass2x.PeerError as error:
        raise Skipped(str(error)) from error


@functools.cache
def _cutlass2x() -> cutlass2x.Library:
    return cutlass2x.Library()


@functools.cache
def _blas() -> cublaslt.Blas:
    try:
        return cublaslt.Blas()
    except cublaslt.LtError as error:
        raise Skipped(str(error)) from error


@functools.cache
def _lt() -> cublaslt.Handle:
    return cublaslt.Handle()
