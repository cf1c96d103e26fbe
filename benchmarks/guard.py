"""What a contender must pass before it is timed. The same code runs on a GPU and, in the tests, on a CPU.

Every call works on the same tensors, whose values change in place between calls:

    exact   0/1 operands with pairs of large products that cancel: any accumulator narrower than fp32 loses ones
    real    normal random values, written late on the measured stream, just before the call
    other   other values
    real    the first again: the bits must be the same

Before each call the output, and the guard bands around it, are filled with NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from cudal2 import check as checks
from cudal2 import problem
from cudal2.problem import TORCH_DTYPES, Output
from cudal2.search.measure import Operands
from cudal2.shapes import Shape

Call = Callable[[], Any]
"""Queues one GEMM on the current stream. Returns the output where the contender allocates it, else None."""

DELAY_CYCLES = 400_000  # 0.2 ms: time for the host to queue the late write and the call behind it
CARRIER = (64.0, 32.0)
MOST_RMS = 0.8
"""No rms error may pass this many units in the last place of the reference's rms, whatever torch's own error is."""


class Checked(Protocol):
    """What a guard needs to know of a contender."""

    @property
    def name(self) -> str: ...

    @property
    def layout(self) -> str: ...

    @property
    def strict(self) -> bool:
        """Ours: accumulates in fp32 throughout. Baselines may reduce the partial sums of a split in half precision."""

    def bind(self, operands: Operands) -> Call: ...


class Lane:
    """How work gets onto the measured stream: at once, in order. (On a CPU, tests put a stream's laziness here.)"""

    def __init__(self, device: torch.device):
        self._gpu = device.type == "cuda"

    def queue(self, step: Callable[[], object]) -> None:
        step()

    def delay(self) -> None:
        """Keep the stream busy for a while."""
        if self._gpu:
            torch.cuda._sleep(DELAY_CYCLES)

    def finish(self) -> None:
        """All that was queued is done, or will be before anything that is queued later."""

    def settle(self) -> None:
        """All that was queued is done."""
        self.finish()
        if self._gpu:
            torch.cuda.current_stream().synchronize()


@dataclass(frozen=True)
class Values:
    """Operand values: a [M,K], b [K,N], row-major."""

    a: torch.Tensor
    b: torch.Tensor


@dataclass(frozen=True)
class Verdict:
    """Why a contender may not be timed (empty: it may), and what else is to be said of it."""

    problem: str = ""
    note: str = ""


class Guard:
    """Checks contenders on one shape and dtype; they share the tensors, values and references."""

    def __init__(
        self,
        shape: Shape,
        dtype: str,
        device: torch.device,
        seed: int,
        layouts: Sequence[str] = ("nn", "tn"),
        lane: Lane | None = None,
    ):
        self.shape, self.dtype, self.layouts = shape, dtype, layouts
        self.lane = lane or Lane(device)
        self._source = problem.generator(seed, shape, device)
        self.real, self.other = self._normal(), self._normal()
        self.wanted = checks.reference(self.real.a, self.real.b)
        self.wanted_other = checks.reference(self.other.a, self.other.b)
        self.exact = self._zero_one()
        _add_carriers(self.exact, self._source)
        self.exact_product = _exact(self.exact)
        self.output = Output(shape, TORCH_DTYPES[dtype], device)
        a, b = self.real.a.clone(), self.real.b.clone()
        stored = {"nn": b, "tn": b.t().contiguous().t()}
        self._operands = {name: Operands(a, stored[name], self.output.c, dtype, name) for name in layouts}
        self.bound_other = self._bound(self.other, self.wanted_other)
        self.bound = self._bound(self.real, self.wanted)
        """What errors on `real` are held against."""

    def operands(self, layout: str) -> Operands:
        """The tensors that contenders of a layout work on. After every check they hold `real`."""
        return self._operands[layout]

    def check(self, contender: Checked) -> Verdict:
        """Run the checks on a contender."""
        operands = self.operands(contender.layout)
        call = contender.bind(operands)
        trial = _Trial(self, operands, call)
        runs = [trial.run(self.exact), trial.run_late(), trial.run(self.other), trial.run(self.real)]
        numbers = [
            *checks.errors(runs[1], self.wanted),
            *checks.errors(runs[2], self.wanted_other),
            *checks.errors(runs[3], self.wanted),
            (runs[0] != self.exact_product).sum(),
            (runs[3] != runs[1]).sum(),
            trial.strays(),
            *_changes(operands, self.real),
        ]
        found = torch.stack([number.double() for number in numbers]).tolist()
        return self._judge(contender, operands, call, runs, _Found(*found))

    def result(self, output: torch.Tensor) -> torch.Tensor:
        """[max, rms] error of an output that should be real's product, on the device."""
        return checks.errors(output, self.wanted)

    def poison(self, output: torch.Tensor | None) -> None:
        """Fill an output (None: the guarded one) with NaN."""
        if output is None:
            self.output.poison()
        else:
            output.fill_(math.nan)

    def restore(self) -> None:
        """Load `real` again, whatever a contender has done to the operands."""
        for operands in self._operands.values():
            operands.a.copy_(self.real.a)
            operands.b.copy_(self.real.b)

    def inputs_problem(self, layouts: Sequence[str] | None = None) -> str:
        """Why the operands are not what a kernel should be timed on; empty: they are."""
        for layout in layouts or self.layouts:
            operands = self.operands(layout)
            changed, zeros = torch.stack(_changes(operands, self.real)).tolist()
            if changed:
                return _spoilt(operands, zeros)
        return ""

    # ------------------------------------------------------------------------------------------------------------------

    def _normal(self) -> Values:
        m, n, k = self.shape
        dtype, device = TORCH_DTYPES[self.dtype], self._source.device
        a, b = (torch.empty(size, dtype=dtype, device=device) for size in ((m, k), (k, n)))
        return Values(a.normal_(generator=self._source), b.normal_(generator=self._source))

    def _zero_one(self) -> Values:
        return Values(*problem.zero_one_factors(self.shape, TORCH_DTYPES[self.dtype], self._source))

    def _bound(self, values: Values, wanted: torch.Tensor) -> checks.Bound:
        """From torch.matmul's own error, the larger of the layouts', with a cap on rms. Leaves `values` loaded."""
        own = []
        for operands in self._operands.values():
            operands.a.copy_(values.a)
            operands.b.copy_(values.b)
            own.append(checks.errors(torch.matmul(operands.a, operands.b), wanted))
        *errors, size = torch.stack([*own, checks.magnitude(wanted)]).tolist()
        self.torch_rms = max(rms for _, rms in errors)
        dtype = TORCH_DTYPES[self.dtype]
        errors_of_torch = max(worst for worst, _ in errors), self.torch_rms
        bound = checks.Bound.of(errors_of_torch, (size[0], size[1]), self.dtype, self.shape.k)
        return checks.Bound(bound.max, min(bound.rms, MOST_RMS * torch.finfo(dtype).eps * size[1]))

    def _judge(
        self, contender: Checked, operands: Operands, call: Call, runs: list[torch.Tensor], found: _Found
    ) -> Verdict:
        if found.strays:
            return Verdict(f"writes outside its output: {found.strays:.0f} elements of the guard bands")
        if found.changed:
            return Verdict(_spoilt(operands, found.zeros))
        wrong = (
            self.bound.problem(found.real) or self.bound_other.problem(found.other) or self.bound.problem(found.again)
        )
        if wrong:
            return Verdict(self._why(call, operands, runs, found, wrong))
        if contender.strict and found.repeat:
            return Verdict(f"depends on a previous call: {found.repeat:.0f} elements differ for the same inputs")
        if found.inexact:
            count = self._wrong_on_zero_one(call, operands)
            if count:
                return Verdict(f"wrong on 0/1 inputs: {count} elements")
            if contender.strict:
                return Verdict(self._narrow(found))
            return Verdict(note="split sums reduced in half precision")
        return Verdict()

    def _why(self, call: Call, operands: Operands, runs: list[torch.Tensor], found: _Found, wrong: str) -> str:
        """Words for a wrong result."""
        exact, late, other, again = runs
        if _fits(late, self.wanted_other, self.bound_other):
            return "does not run on the measured stream: it did not see what was written there just before"
        missing = int(torch.isnan(late).sum())
        if missing:
            return f"leaves {missing} elements of its output unwritten"
        if _fits(other, self.wanted, self.bound):
            return "depends on a previous call: it returns that call's result"
        if _same_bits(late, exact) or _same_bits(other, late):
            return "returns a cached output: the same bits for other inputs"
        differ = int((late != again).sum())
        if differ:
            return f"depends on a previous call: {differ} elements differ for the same inputs"
        if self._wrong_on_zero_one(call, operands) == 0:
            return self._narrow(found)
        return f"wrong on random data: {wrong}"

    def _narrow(self, found: _Found) -> str:
        ratio = found.real[1] / self.torch_rms if self.torch_rms else math.inf
        return (
            f"accumulates in fp16: right on 0/1 inputs, but {found.inexact:.0f} elements are wrong where partial sums "
            f"pass 2048, and rms error on random data is {ratio:.1f}x torch's"
        )

    def _wrong_on_zero_one(self, call: Call, operands: Operands) -> int:
        """How many elements are wrong on plain 0/1 inputs."""
        plain = self._zero_one()
        trial = _Trial(self, operands, call)
        output = trial.run(plain)
        wrong = int((output != _exact(plain)).sum())
        trial.load(self.real)
        self.lane.finish()
        return wrong


class _Found:
    """The numbers of one contender's runs."""

    def __init__(self, *numbers: float):
        self.real, self.other, self.again = ((numbers[i], numbers[i + 1]) for i in (0, 2, 4))
        self.inexact, self.repeat, self.strays, self.changed, self.zeros = numbers[6:]


class _Trial:
    """Runs one contender's call on values that change in place."""

    def __init__(self, guard: Guard, operands: Operands, call: Call):
        self._guard, self._operands, self._call = guard, operands, call
        self._allocates = False
        self._strays: list[torch.Tensor] = []

    def load(self, values: Values) -> None:
        def copy() -> None:
            self._operands.a.copy_(values.a)
            self._operands.b.copy_(values.b)

        self._guard.lane.queue(copy)

    def run(self, values: Values) -> torch.Tensor:
        """Poison the output, load the values, call. Returns a copy of the output."""
        self._guard.lane.queue(self._poison)
        self.load(values)
        return self._run()

    def run_late(self) -> torch.Tensor:
        """`real`, written on the measured stream after a delay, behind which the call must stay. Before: `other`."""
        guard = self._guard
        guard.lane.queue(self._poison)
        self.load(guard.other)
        guard.lane.settle()
        guard.lane.delay()
        self.load(guard.real)
        return self._run()

    def _run(self) -> torch.Tensor:
        lane, output = self._guard.lane, self._guard.output
        result = self._call()
        kept: list[torch.Tensor] = []

        def keep() -> None:
            kept.append((output.c if result is None else result).clone())
            self._strays.append(output.strays())

        lane.queue(keep)
        lane.finish()
        self._allocates = result is not None
        return kept[0]

    def _poison(self) -> None:
        """NaN into the guarded output, and into the block that the allocator will hand out next for another."""
        self._guard.output.poison()
        if self._allocates:
            torch.full_like(self._guard.output.c, math.nan)

    def strays(self) -> torch.Tensor:
        return torch.stack(self._strays).sum()


def _exact(values: Values) -> torch.Tensor:
    inputs = problem.Inputs(values.a, values.b, values.b)
    return problem.exact_product(inputs).to(values.a.dtype)


def _add_carriers(values: Values, source: torch.Generator) -> None:
    """Up to 8 pairs of products +2048 and -2048, one early and one late in K: partial sums then need 12 bits and more.

    The sums stay integers that fp32 holds exactly, in any order; fp16 rounds the odd ones off.
    """
    k = values.a.shape[1]
    quarter = k // 4
    if quarter == 0:
        return
    pairs = max(1, min(8, k // 64))
    early = torch.randperm(quarter, generator=source, device=source.device)[:pairs]
    late = k - 1 - torch.randperm(quarter, generator=source, device=source.device)[:pairs]
    values.a[:, early] = CARRIER[0]
    values.a[:, late] = CARRIER[0]
    values.b[early] = CARRIER[1]
    values.b[late] = -CARRIER[1]


def _fits(output: torch.Tensor, wanted: torch.Tensor, bound: checks.Bound) -> bool:
    worst, rms = checks.errors(output, wanted).tolist()
    return bound.problem((worst, rms)) is None


def _same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    return torch.equal(first.contiguous().view(torch.int16), second.contiguous().view(torch.int16))


def _changes(operands: Operands, values: Values) -> list[torch.Tensor]:
    """How many elements of a and b are not the values', and how many are zero."""
    pairs = [(operands.a, values.a), (operands.b, values.b)]
    changed = torch.stack([(mine != theirs).sum() for mine, theirs in pairs]).sum()
    zeros = torch.stack([(mine == 0).sum() for mine, _ in pairs]).sum()
    return [changed.double(), zeros.double()]


def _spoilt(operands: Operands, zeros: float) -> str:
    if zeros > 0.5 * (operands.a.numel() + operands.b.numel()):
        return "its inputs are zeros after the call: it would be timed on zeros, which run faster"
    return "changes its inputs"
