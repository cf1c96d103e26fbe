"""How time is taken: device modes replay CUDA graphs, wall-clock modes read the host's clock. All interleave.

graph     R launches of a contender back to back
isolated  each launch behind a plain kernel of about 5 µs, whose own time is subtracted
cold      as graph, over operand sets of more than twice L2 in all, so that they come from memory
sustained a contender alone for more than a second, taking turns: what power leaves of the clock, which is noted
offline   call, synchronize: wall clock of each, shuffled
server    as offline, with exponential gaps between the calls
overhead  host time of a call while the queue is never empty

R is the same for all contenders of a problem: whatever launching a graph costs, it adds the same to each. Races of long
products begin on a settled device (cudal2.search.measure).
"""

from __future__ import annotations

import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from benchmarks.clocks import Clocks
from benchmarks.guard import Call
from cudal2.search.measure import LONG_US, MOST_LAUNCHES, REPLAY_US, Operands, Stopwatch, launches_for
from cudal2.shapes import Shape

DEVICE = ("graph", "isolated", "cold", "sustained")
WALL = ("offline", "server", "overhead")
ROUNDS = {"graph": 7, "isolated": 9, "cold": 7, "sustained": 5, "offline": 20, "server": 2, "overhead": 9}

Name = tuple[str, str]
"""A contender's layout and name."""

Samples = dict[Name, list[float]]
"""µs per call."""

LARGE_US = 1000.0
"""From here on fewer rounds do: noise is relatively small."""

SUSTAINED_US = 2_200_000.0
"""How long a turn of sustained mode takes: NVML's power is the average of the last second."""

_SPACER_CYCLES = 9_000  # about 5 µs
_SPACER = ("", "spacer")
_L2_TIMES = 2.2
_MOST_SETS = 64


class Captured:
    """A contender's graph, with the output of its last launch (None: the guarded one)."""

    def __init__(
        self, watch: Stopwatch, calls: Sequence[Call], launches: int, before: Callable[[], None] | None = None
    ):
        self.output: Any = None

        def step(index: int) -> None:
            if before is not None:
                before()
            self.output = None  # so that every launch writes the same block, as in a loop of a user's
            self.output = calls[index % len(calls)]()

        self.graph = watch.calls(step, launches, warm=False)
        self.launches = launches
        self._spacers = launches if before is not None else 0

    @property
    def kernels(self) -> str:
        """What one launch consists of, by the graph's nodes."""
        names = self.graph.work
        each = names[: max(1, len(names) // self.launches)]
        return " + ".join(dict.fromkeys(name for name in each if "spin_kernel" not in name))

    @property
    def is_empty(self) -> bool:
        """Whether launches are missing: they were queued on some other stream."""
        return len(self.graph.work) < self.launches + self._spacers


# Device modes ---------------------------------------------------------------------------------------------------------


def launches(us: float) -> int:
    """R for a product of about `us`."""
    return max(2 if us < LARGE_US else 1, launches_for(us, REPLAY_US, MOST_LAUNCHES))


def rounds_for(rounds: int, us: float) -> int:
    return rounds if us < LARGE_US else max(3, rounds // 2 + 1)


def spacer() -> None:
    """Queue the isolated mode's spacer kernel."""
    torch.cuda._sleep(_SPACER_CYCLES)


def graph(watch: Stopwatch, graphs: Mapping[Name, Captured], rounds: int, us: float, before: Any = None) -> Samples:
    """Replays of the graphs, interleaved, of a product of about `us`; another graph `before` each, untimed."""
    contenders = {name: captured.graph for name, captured in graphs.items()}
    return watch.race(contenders, rounds, before=before, settled=us >= LONG_US)


def isolated(watch: Stopwatch, graphs: Mapping[Name, Captured], rounds: int, us: float) -> Samples:
    """Replays of graphs with a spacer before each launch; the spacers' time is taken off."""
    count = next(iter(graphs.values())).launches
    contenders = {name: captured.graph for name, captured in graphs.items()}
    contenders[_SPACER] = watch.calls(lambda _: spacer(), count)
    times = watch.race(contenders, rounds, settled=us >= LONG_US)
    alone = statistics.median(times.pop(_SPACER))
    return {name: [us - alone for us in values] for name, values in times.items()}


def sustained(
    watch: Stopwatch, graphs: Mapping[Name, Captured], rounds: int, clocks: Callable[[], Clocks]
) -> tuple[Samples, dict[Name, str]]:
    """Each contender's median over the second half of a turn, by turns; and clocks and power at the end of each."""
    times: Samples = {name: [] for name in graphs}
    seen = {name: clocks() for name in graphs}
    for turn in range(rounds):
        for name in sorted(graphs, reverse=turn % 2 == 1):
            graph = {name: graphs[name].graph}
            once = watch.race(graph, 1)[name][0] * graphs[name].launches
            half = max(2, math.ceil(SUSTAINED_US / 2 / once))
            watch.race(graph, half)
            times[name].append(statistics.median(watch.race(graph, half)[name]))
            for _ in range(math.ceil(20_000 / once)):  # busy while the clocks are read
                watch.replay(graphs[name].graph)
            seen[name].sample()
            watch.synchronize()
    return times, {name: samples.summary() for name, samples in seen.items()}


class Cold:
    """Operand sets that together pass twice L2. Where that takes too many, L2 is flushed before each replay instead.

    A and B rotate, or (weights_only, as in a layer) B alone. The output does not: those that allocate it get the same
    block each time.
    """

    def __init__(self, first: Mapping[str, Operands], weights_only: bool):
        device = next(iter(first.values())).a.device
        l2 = torch.cuda.get_device_properties(device).L2_cache_size
        shape = next(iter(first.values())).shape
        each = 2 * shape.k * (shape.n if weights_only else shape.n + shape.m)
        wanted = max(2, math.ceil(_L2_TIMES * l2 / each))
        self.count = min(_MOST_SETS, wanted)
        self._flush = torch.empty(4096, math.ceil(_L2_TIMES * l2 / 4 / 4096), device=device).normal_()
        self._sink = torch.empty(4096, device=device)
        self.flushed = wanted > _MOST_SETS
        self.sets = {layout: [operands, *self._more(operands, weights_only)] for layout, operands in first.items()}

    def _more(self, first: Operands, weights_only: bool) -> list[Operands]:
        others = []
        for _ in range(1, self.count):
            b = torch.empty_strided(first.b.shape, first.b.stride(), dtype=first.b.dtype, device=first.b.device)
            a = first.a if weights_only else torch.randn_like(first.a)
            others.append(Operands(a, b.normal_(), first.c, first.dtype, first.layout))
        return others

    def race(self, watch: Stopwatch, graphs: Mapping[Name, Captured], rounds: int, us: float) -> Samples:
        flush = watch.calls(lambda _: torch.amax(self._flush, dim=1, out=self._sink), 1) if self.flushed else None
        return graph(watch, graphs, rounds, us, before=flush)


# Wall-clock modes -----------------------------------------------------------------------------------------------------


def wall(
    watch: Stopwatch,
    calls: Mapping[Name, Call],
    in_c: Mapping[Name, Call],
    count: int,
    rate: float | None,
    source: random.Random,
) -> Samples:
    """Call and synchronize, `count` times each in shuffled order; `rate` calls a second on average, or at once.

    `in_c` are prepared calls whose loop runs in C, after the others.
    """
    for call in (*calls.values(), *in_c.values()):
        for _ in range(2):
            call()
    torch.cuda.synchronize()
    order = [name for name in calls for _ in range(count)]
    source.shuffle(order)
    times: Samples = {name: [] for name in (*calls, *in_c)}
    gc.disable()
    try:
        for name in order:
            if rate is not None:
                time.sleep(source.expovariate(rate))
            call = calls[name]
            start = time.perf_counter_ns()
            call()
            torch.cuda.synchronize()
            times[name].append((time.perf_counter_ns() - start) / 1000)
    finally:
        gc.enable()
    names = list(in_c)
    places = [index for index in range(len(names)) for _ in range(count)]
    source.shuffle(places)
    gaps = [] if rate is None else [1e6 * source.expovariate(rate) for _ in places]
    if places:
        for place, us in zip(places, watch.timer.wall([in_c[name] for name in names], places, gaps), strict=True):
            times[names[place]].append(us)
    return times


def overhead(calls: Mapping[Name, Call], rounds: int, source: random.Random, burst: int = 200) -> Samples:
    """Host µs per eager call, in bursts behind a kernel that keeps the queue from running empty."""
    for call in calls.values():
        for _ in range(20):
            call()
    times: Samples = {name: [] for name in calls}
    gc.disable()
    try:
        for _ in range(rounds):
            for name in source.sample(list(calls), len(calls)):
                call = calls[name]
                torch.cuda.synchronize()
                torch.cuda._sleep(30_000_000)  # some 15 ms
                start = time.perf_counter_ns()
                for _ in range(burst):
                    call()
                times[name].append((time.perf_counter_ns() - start) / 1000 / burst)
    finally:
        gc.enable()
    torch.cuda.synchronize()
    return times


def wall_count(rounds: int, shape: Shape) -> int:
    """Calls of each contender: fewer where one takes milliseconds."""
    return rounds if shape.flops < 5e11 else max(2, rounds // 4)
