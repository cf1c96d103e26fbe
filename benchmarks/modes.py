"""How time is taken: device modes replay CUDA graphs, host modes read the clock. All interleave their contenders.

graph     R launches of a contender back to back
isolated  each launch behind a plain kernel of about 5 µs, whose own time is subtracted
cold      as graph, over enough operands (more than twice L2) that they come from memory
offline   call, synchronize: wall clock of each, shuffled
server    as offline, with exponential gaps between the calls
overhead  host time of a call while the queue is never empty
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from benchmarks.contenders import Call
from cudal2.search.measure import Operands, Pool, Stopwatch, launches_for
from cudal2.shapes import Shape

DEVICE = ("graph", "isolated", "cold")
WALL = ("offline", "server", "overhead")

Samples = dict[str, list[float]]
"""µs per call, by contender."""

_SPACER_CYCLES = 9_000  # about 5 µs
_SPACER = "spacer"


def graph(watch: Stopwatch, calls: Mapping[str, Call], operands: Operands, rounds: int) -> Samples:
    """Back to back, operands warm in L2 where they fit."""
    launches = launches_for(_first_guess(watch, operands), target_us=200.0)
    graphs = {name: watch.calls(_on([operands], call), launches) for name, call in calls.items()}
    return watch.race(graphs, rounds)


def isolated(watch: Stopwatch, calls: Mapping[str, Call], operands: Operands, rounds: int) -> Samples:
    """Each behind a spacer kernel; the spacers' time is taken off."""
    launches = launches_for(_first_guess(watch, operands), target_us=200.0)

    def behind_a_spacer(call: Call) -> Callable[[int], object]:
        def step(_: int) -> None:
            torch.cuda._sleep(_SPACER_CYCLES)
            call(operands)

        return step

    graphs: dict[str, Any] = {name: watch.calls(behind_a_spacer(call), launches) for name, call in calls.items()}
    graphs[_SPACER] = watch.calls(lambda _: torch.cuda._sleep(_SPACER_CYCLES), launches)
    times = watch.race(graphs, rounds)
    spacer = sorted(times.pop(_SPACER))[rounds // 2]
    return {name: [us - spacer for us in values] for name, values in times.items()}


def cold(watch: Stopwatch, calls: Mapping[str, Call], sets: list[Operands], rounds: int) -> Samples:
    """One launch on each of the operand sets in turn."""
    graphs = {name: watch.calls(_on(sets, call), len(sets)) for name, call in calls.items()}
    return watch.race(graphs, rounds)


def cold_sets(dtype: str, layout: str, shape: Shape, seed: int, weights_only: bool) -> list[Operands]:
    """Operand sets of more than twice L2 in all: of A, B and C, or (as in a layer) of B alone."""
    l2 = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    each = 2 * shape.k * shape.n if weights_only else shape.bytes
    count = min(256, max(2, math.ceil(2.2 * l2 / each)))
    first = Pool(dtype, [shape], seed).operands(shape, layout)
    sets = [first]
    for _ in range(1, count):
        b = torch.empty_strided(first.b.shape, first.b.stride(), dtype=first.b.dtype, device="cuda").normal_()
        if weights_only:
            sets.append(Operands(first.a, b, first.c, dtype, layout))
        else:
            sets.append(Operands(torch.randn_like(first.a), b, torch.empty_like(first.c), dtype, layout))
    torch.cuda.synchronize()
    return sets


def _on(sets: list[Operands], call: Call) -> Callable[[int], None]:
    """The call on each of the operand sets in turn."""
    return lambda index: call(sets[index % len(sets)])


def _first_guess(watch: Stopwatch, operands: Operands) -> float:
    return watch.medians({"torch": watch.matmul(operands, 5)}, 1)["torch"]


HostCall = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def wall(calls: Mapping[str, HostCall], operands: Operands, count: int, rate: float | None, seed: int) -> Samples:
    """Call and synchronize, `count` times each in shuffled order; `rate` calls a second on average, or at once."""
    source = random.Random(seed)
    order = [name for name in calls for _ in range(count)]
    source.shuffle(order)
    for call in calls.values():
        call(operands.a, operands.b)
    torch.cuda.synchronize()
    times: Samples = {name: [] for name in calls}
    for name in order:
        if rate is not None:
            time.sleep(source.expovariate(rate))
        call = calls[name]
        start = time.perf_counter_ns()
        call(operands.a, operands.b)
        torch.cuda.synchronize()
        times[name].append((time.perf_counter_ns() - start) / 1000)
    return times


def overhead(calls: Mapping[str, HostCall], operands: Operands, rounds: int, burst: int = 200) -> Samples:
    """Host µs per eager call, in bursts behind a kernel that keeps the queue from running empty."""
    for call in calls.values():
        for _ in range(20):
            call(operands.a, operands.b)
    times: Samples = {name: [] for name in calls}
    source = random.Random(0)
    for _ in range(rounds):
        for name in source.sample(list(calls), len(calls)):
            call = calls[name]
            torch.cuda.synchronize()
            torch.cuda._sleep(30_000_000)  # some 15 ms
            start = time.perf_counter_ns()
            for _ in range(burst):
                call(operands.a, operands.b)
            times[name].append((time.perf_counter_ns() - start) / 1000 / burst)
    torch.cuda.synchronize()
    return times
