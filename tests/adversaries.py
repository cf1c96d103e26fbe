"""Contenders that cheat or err, each in one way that a careless benchmark would not notice. For any device.

`issue` is how honest work is queued: on a GPU it runs at once (the stream keeps the order); on a CPU it goes through a
LazyLane, which stands for the stream.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.guard import Call, Lane
from cudal2.search.measure import Operands

Issue = Callable[[Callable[[], object]], object]


class LazyLane(Lane):
    """A stream on the CPU: what is queued happens when it is waited for, in order."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self._steps: list[Callable[[], object]] = []

    def queue(self, step: Callable[[], object]) -> None:
        self._steps.append(step)

    def finish(self) -> None:
        steps, self._steps = self._steps, []
        for step in steps:
            step()


class Honest:
    """Computes what it should, with fp32 accumulation, into the given output."""

    name, layout, strict = "honest", "nn", True

    def __init__(self, issue: Issue, layout: str = "nn", strict: bool = True):
        self.issue, self.layout, self.strict = issue, layout, strict

    def bind(self, operands: Operands) -> Call:
        return lambda: self.issue(lambda: self.compute(operands)) and None

    def compute(self, operands: Operands) -> Any:
        operands.c.copy_(self.product(operands.a, operands.b))

    def product(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a.float() @ b.float()


class OtherStream(Honest):
    """Does not wait for the measured stream, nor does that wait for it."""

    def bind(self, operands: Operands) -> Call:
        if operands.a.device.type == "cpu":
            return lambda: self.compute(operands)
        side = torch.cuda.Stream()

        def call() -> None:
            with torch.cuda.stream(side):
                self.compute(operands)

        return call


class Cached(Honest):
    """Returns what it computed first for these addresses."""

    def __init__(self, issue: Issue):
        super().__init__(issue)
        self.kept: dict[int, torch.Tensor] = {}

    def compute(self, operands: Operands) -> None:
        key = operands.a.data_ptr()
        if key not in self.kept:
            self.kept[key] = self.product(operands.a, operands.b)
        operands.c.copy_(self.kept[key])


class Zeroing(Honest):
    """Leaves zeros in its inputs, so that all later launches run on zeros."""

    def compute(self, operands: Operands) -> None:
        super().compute(operands)
        operands.a.zero_()
        operands.b.zero_()


class Scaling(Honest):
    """Changes its inputs, though not to zeros."""

    def compute(self, operands: Operands) -> None:
        super().compute(operands)
        operands.a[0, 0] += 1


class Stray(Honest):
    """Writes one element behind its output."""

    def compute(self, operands: Operands) -> None:
        super().compute(operands)
        c = operands.c
        c.as_strided((1,), (1,), c.storage_offset() + c.numel()).fill_(0)


class Late(Honest):
    """Returns the product that the call before should have returned."""

    def __init__(self, issue: Issue):
        super().__init__(issue)
        self.next: torch.Tensor | None = None

    def compute(self, operands: Operands) -> None:
        product = self.product(operands.a, operands.b)
        operands.c.copy_(product if self.next is None else self.next)
        self.next = product


class Adding(Honest):
    """Adds to a workspace that it does not clear."""

    def __init__(self, issue: Issue):
        super().__init__(issue)
        self.sum: torch.Tensor | float = 0.0

    def compute(self, operands: Operands) -> None:
        self.sum = self.product(operands.a, operands.b) + self.sum
        operands.c.copy_(self.sum)


class Half(Honest):
    """Accumulates in fp16, 16 of K at a time, as tensor cores do."""

    def product(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float16, device=a.device)
        for start in range(0, a.shape[1], 16):
            chunk = slice(start, start + 16)
            total = (total.float() + a[:, chunk].float() @ b[chunk].float()).half()
        return total


class HalfSplit(Honest):
    """Splits K in two, and adds the halves in fp16: what some of cuBLAS's split-K kernels do."""

    def product(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        half = a.shape[1] // 2
        parts = [a[:, part].float() @ b[part].float() for part in (slice(half), slice(half, None))]
        return parts[0].half() + parts[1].half()


class Lazy(Honest):
    """Leaves the last row unwritten."""

    def compute(self, operands: Operands) -> None:
        operands.c[:-1].copy_(self.product(operands.a, operands.b)[:-1])


class Sloppy(Honest):
    """Drops the last of K."""

    def product(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a[:, :-1].float() @ b[:-1].float()


CAUGHT: list[tuple[type[Honest], str]] = [
    (OtherStream, "does not run on the measured stream"),
    (Cached, "returns a cached output"),
    (Zeroing, "its inputs are zeros after the call"),
    (Scaling, "changes its inputs"),
    (Stray, "writes outside its output: "),
    (Late, "depends on a previous call: it returns that call's result"),
    (Adding, "depends on a previous call: .* differ for the same inputs"),
    (Half, "accumulates in fp16"),
    (HalfSplit, "accumulates in fp16"),
    (Lazy, "leaves .* elements of its output unwritten"),
    (Sloppy, "wrong on random data"),
]
"""Each with its own message."""
