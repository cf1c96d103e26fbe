"""Device times: operands, contenders captured as CUDA graphs, and races between them.

A contender is a graph of R launches of one GEMM. A race replays contenders interleaved in random order, several rounds,
with one synchronization at the end; a contender's figure is the median of its replays. This is the `graph` mode of the
reports: back to back, operands warm in L2 where they fit, programmatic dependent launch only where the knobs say so.

Long products run at a clock that power sets, and it falls by an eighth some 20 ms after the device begins to work: in a
race that begins at rest, a contender's median is of either clock, as its turns happen to fall. So such a race begins
settled: on a device that has just been busy for longer than that.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from cudal2 import tools
from cudal2.plans import Knobs
from cudal2.problem import TORCH_DTYPES
from cudal2.shapes import Shape

K = TypeVar("K", bound=Hashable)

LONG_US = 20.0
"""From here on a product is long: races of it begin settled."""

SETTLED_US, SETTLED_FOR_S = 40_000.0, 0.01
"""A device is settled that has worked so long without a break, and stays so for this long after a settled race."""

REST_S, RESTED_US = 0.05, 15_000.0
"""A device that has rested so long keeps its clock for so much work."""

IDLE_S, WAKE_US = 0.5, 20_000.0
"""A device that has been idle for so long has lowered its clocks; so much work brings them back."""

REPLAY_US, MOST_LAUNCHES = 250.0, 50
"""What a replay takes whose figure is reported, and the launches that it holds at most."""


@dataclass(frozen=True)
class Operands:
    """One problem's tensors: a [M,K] row-major; b [K,N], with stride (N,1) under nn and (1,K) under tn; c [M,N]."""

    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor
    dtype: str
    layout: str

    @property
    def shape(self) -> Shape:
        return Shape(self.a.shape[0], self.b.shape[1], self.a.shape[1])

    def gemm(self, bias: torch.Tensor | None = None) -> Any:
        """The problem as the native tools take it: pointers, pitches, sizes."""
        return tools.require().Gemm(
            a=self.a.data_ptr(),
            b=self.b.data_ptr(),
            c=self.c.data_ptr(),
            bias=0 if bias is None else bias.data_ptr(),
            m=self.shape.m,
            n=self.shape.n,
            k=self.shape.k,
            lda=self.a.stride(0),
            ldb=self.b.stride(0) if self.layout == "nn" else self.b.stride(1),
            ldc=self.c.stride(0),
            dtype=self.dtype,
            layout=self.layout,
        )


class Pool:
    """Normal random data for shapes of any size up to a limit, allocated once per dtype.

    `operands` takes views at random offsets (256-byte aligned), so that every shape, and every call, sees other data.
    """

    SLACK = 1 << 20

    def __init__(self, dtype: str, shapes: Sequence[Shape], seed: int, device: str | torch.device = "cuda"):
        self.dtype = dtype
        self._random = random.Random(seed)
        generator = torch.Generator(device=device).manual_seed(seed)

        def buffer(elements: int) -> torch.Tensor:
            data = torch.empty(elements + self.SLACK, dtype=TORCH_DTYPES[dtype], device=device)
            return data.normal_(generator=generator)

        self._a = buffer(max(shape.m * shape.k for shape in shapes))
        self._b = buffer(max(shape.k * shape.n for shape in shapes))
        self._c = buffer(max(shape.m * shape.n for shape in shapes))

    def operands(self, shape: Shape, layout: str) -> Operands:
        m, n, k = shape
        a = self._view(self._a, m, k)
        b = self._view(self._b, k, n) if layout == "nn" else self._view(self._b, n, k).t()
        return Operands(a, b, self._view(self._c, m, n), self.dtype, layout)

    def _view(self, buffer: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
        offset = self._random.randrange(0, self.SLACK, 128)
        return buffer[offset : offset + rows * columns].view(rows, columns)


def launches_for(us: float, target_us: float = 40.0, most: int = 20) -> int:
    """Launches to put into one graph so that a replay takes about `target_us`: 1 to `most`."""
    return max(1, min(most, math.ceil(target_us / max(us, 1e-3))))


class Stopwatch:
    """Captures contenders on a stream of its own and races them. One per device and thread."""

    def __init__(self, device: int = 0, seed: int = 0):
        torch.cuda.init()
        self.device = device
        self.timer = tools.require().Timer(device)
        self.stream = torch.cuda.ExternalStream(self.timer.stream, device=torch.device("cuda", device))
        self.sms = torch.cuda.get_device_properties(device).multi_processor_count
        self.busy_us = 0.0
        """Device time of all races so far."""
        self._random = random.Random(seed)
        self._idle_s = IDLE_S
        self._raced_at = -math.inf  # when the last race ended
        self._settled_at = -math.inf  # and the last that was settled

    def scope(self) -> AbstractContextManager[Any]:
        """Makes the timing stream torch's current one: work on operands then needs no synchronization with it."""
        return torch.cuda.stream(self.stream)

    def kernel(self, name: str, knobs: Knobs, problems: Sequence[Any], launches: int) -> Any:
        """A graph of `launches` launches of a compiled kernel, over the problems (`Operands.gemm()`) in turn.

        Raises ValueError where the kernel cannot run a problem, RuntimeError where the launch fails.
        """
        return self.timer.capture(name, native_knobs(knobs), list(problems), launches)

    def calls(self, call: Callable[[int], object], launches: int, warm: bool = True) -> Any:
        """A graph of call(0), call(1), ... call(launches - 1): foreign work, issued on torch's current stream.

        `call` runs once before capture, so that what it loads or allocates on first use stays out of the graph.
        """
        with self.scope():
            if warm:
                call(0)
            self.timer.begin()
            try:
                for index in range(launches):
                    call(index)
            except BaseException:
                self.timer.abort()
                raise
            return self.timer.end(launches)

    def matmul(self, operands: Operands, launches: int) -> Any:
        """A graph of torch.matmul on the operands."""
        return self.calls(lambda _: torch.matmul(operands.a, operands.b, out=operands.c), launches)

    def race(
        self,
        graphs: Mapping[K, Any],
        rounds: int,
        timeout_s: float = 30.0,
        before: Any = None,
        settled: bool = False,
    ) -> dict[K, list[float]]:
        """µs per launch of each replay, by contender: `rounds` replays each, in a new random order every round.

        `before` is a graph to replay, untimed, before each of them. `settled`: first keep the device busy with the same
        graphs, unless a settled race has only just ended. Raises RuntimeError on a kernel's own error, or if the device
        does not finish in time.
        """
        if settled:
            self._settle(graphs, timeout_s, before)
        elif time.monotonic() - self._raced_at > self._idle_s:
            self._keep_busy(WAKE_US, graphs, timeout_s, before)
        names = list(graphs)
        order: list[int] = []
        for _ in range(rounds):
            order += self._random.sample(range(len(names)), len(names))
        natives = [graphs[name] for name in names]
        replayed = order
        if before is not None:
            natives.append(before)
            replayed = [index for contender in order for index in (len(names), contender)]
        times: dict[K, list[float]] = {name: [] for name in names}
        busy = 0.0
        for index, us in zip(replayed, self.timer.race(natives, replayed, timeout_s), strict=True):
            if index < len(names):
                times[names[index]].append(us)
            busy += us * natives[index].launches
        self.busy_us += busy
        self._raced_at = time.monotonic()
        self._settled_at = self._raced_at if settled else -math.inf
        return times

    def rest(self) -> None:
        """Let the device recover the clock that it has at rest."""
        self.synchronize()
        time.sleep(REST_S)
        self._settled_at = -math.inf

    def _settle(self, graphs: Mapping[K, Any], timeout_s: float, before: Any) -> None:
        if time.monotonic() - self._settled_at > SETTLED_FOR_S:
            self._keep_busy(SETTLED_US, graphs, timeout_s, before)

    def _keep_busy(self, us: float, graphs: Mapping[K, Any], timeout_s: float, before: Any) -> None:
        """Race untimed for so long: once, and as often again as by the time of that it takes."""
        if not graphs:
            return
        self._raced_at = time.monotonic()  # the device is being woken
        start = self.busy_us
        self.race(graphs, 1, timeout_s, before)
        once = self.busy_us - start
        if 0 < once < us:
            self.race(graphs, math.ceil(us / once) - 1, timeout_s, before)

    def medians(self, graphs: Mapping[K, Any], rounds: int, settled: bool = False) -> dict[K, float]:
        """The median of `race` by contender."""
        return {name: statistics.median(times) for name, times in self.race(graphs, rounds, settled=settled).items()}

    def replay(self, graph: Any) -> None:
        """Queue one replay of a graph, untimed."""
        self.timer.replay(graph)

    def synchronize(self, timeout_s: float = 30.0) -> None:
        """Wait for the timing stream. Raises RuntimeError as `race` does."""
        self.timer.synchronize(timeout_s)


def native_knobs(knobs: Knobs) -> Any:
    """The knobs as the native tools take them."""
    return tools.require().Knobs(
        group=knobs.group, raster=knobs.raster, ctas=knobs.ctas, split=knobs.split, pdl=knobs.pdl
    )
