"""Finds the plans whose kernel gains from programmatic dependent launch (PDL), and sets their `pdl` flag.

    python -m cudal2.search.pdl h200.csv --log pdl.csv

For a table that is swept and confirmed. Every own kernel that dispatch runs races itself: graphs of launches back to
back, with PDL and without, over the same operands, replayed interleaved. The flag is set where a launch with PDL takes
at least 0.5 % less, in fresh graphs over fresh operands `--instances` times; the first that says otherwise settles it.
Where dispatch runs cuBLAS, and above 300 µs, where 0.5 % are more than a launch and a prologue take, it is 0
unmeasured. The table's times stay those without PDL. A plan takes some 10 ms of the device at most, beside what
settling it takes; the smallest come first, and those that a budget leaves out keep the flag they have. The flag says
what is to be gained; whether dispatch uses it is the user's choice, cudal2.pdl.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from cudal2 import plans, progress
from cudal2.plans import Plan
from cudal2.search import confirm, measure
from cudal2.search.journal import Candidate, Entry, Journal

GAIN = 1.005
"""The least gain, as time without PDL over time with it, in every instance: about the noise of such a race."""
MOST_US = 300.0
"""Kernels that take longer are not measured."""
ROUNDS = 5
REPLAY_US, MOST_LAUNCHES = 300.0, 50
"""What a replay should take, and the launches that it holds at most. The first of them follows none: it cannot gain."""
LEAST_ARCH = 9.0
"""The least compute capability that has PDL."""


def main(argv: list[str] | None = None) -> int:
    """Set the flags of a table in place; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m cudal2.search.pdl", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("table", help="plan table to complete and rewrite")
    parser.add_argument("--log", required=True, help="CSV of every measurement; gzip if it ends in .gz")
    parser.add_argument("--instances", type=int, default=2, help="measurements that must all show the gain (default 2)")
    parser.add_argument("--budget-seconds", type=float, default=math.inf, help="stop, with what there is, after this")
    parser.add_argument("--seed", type=int, default=2, help="of data and order")
    options = parser.parse_args(argv)
    if options.instances < 1:
        parser.error(f"--instances {options.instances}; expected 1 or more")
    if not torch.cuda.is_available():
        print("pdl: no GPU that this torch can use; it measures, so it needs one", file=sys.stderr)
        return 3
    try:
        table = confirm.measured_here(options.table)
    except (OSError, plans.PlanError) as error:
        print(f"pdl: {error}", file=sys.stderr)
        return 2
    for key, plan in table.plans.items():
        if not worth_racing(plan, table):
            table.plans[key] = flagged(plan, False)
    log = Journal(options.log, resume=False)
    raced = _race(table, options, log)
    log.close()
    gaining = sum(race.gains for race in raced)
    if raced or not any(worth_racing(plan, table) for plan in table.plans.values()):
        table.header["pdl"] = f"{gaining} plans gain, of {len(raced)} raced"
        plans.write(options.table, table)
    print(summary(raced))
    return 0


@dataclass(frozen=True)
class Race:
    """A plan's kernel against itself: its gains, time without PDL over time with it, by instance."""

    plan: Plan
    ratios: tuple[float, ...]

    @property
    def gains(self) -> bool:
        return min(self.ratios) >= GAIN


def worth_racing(plan: Plan, table: plans.Table) -> bool:
    """Whether the flag of a measured plan is open: on other devices, kernels and sizes it is 0."""
    us, _ = plan.measured
    return plan.use == "own" and us <= MOST_US and float(table.header.get("arch", "0")) >= LEAST_ARCH


def flagged(plan: Plan, pdl: bool) -> Plan:
    """The plan with this flag."""
    return replace(plan, knobs=replace(plan.knobs, pdl=pdl))


def _race(table: plans.Table, options: argparse.Namespace, log: Journal) -> list[Race]:
    """Race what is worth it, the smallest first, until time is up; sets the flags of what was raced."""
    end = time.monotonic() + options.budget_seconds
    raced: list[Race] = []
    for dtype in sorted({key.dtype for key in table.plans}):
        rows = [plan for plan in table.plans.values() if plan.key.dtype == dtype and worth_racing(plan, table)]
        if not rows:
            continue
        rows.sort(key=lambda plan: plan.measured)
        pool = measure.Pool(dtype, [plan.key.shape for plan in rows], options.seed)
        watch = measure.Stopwatch(seed=options.seed)
        for count, plan in enumerate(progress.bar(rows, f"{dtype} plan")):
            if time.monotonic() > end:
                print(f"pdl: budget spent after {count} of {len(rows)} {dtype} plans", file=sys.stderr)
                break
            race = _instances(watch, pool, plan, options.instances, log)
            table.plans[plan.key] = flagged(plan, race.gains)
            raced.append(race)
        del pool
    return raced


def _instances(watch: measure.Stopwatch, pool: measure.Pool, plan: Plan, most: int, log: Journal) -> Race:
    ratios: list[float] = []
    while len(ratios) < most and (not ratios or ratios[-1] >= GAIN):
        times = instance(watch, pool, plan)
        entries = {pdl: Candidate(plan.kernel, flagged(plan, pdl).knobs) for pdl in times}
        log.add(Entry(plan.key, entries[pdl], us, "pdl", f"instance {len(ratios)}") for pdl, us in times.items())
        ratios.append(times[False] / times[True])
    return Race(plan, tuple(ratios))


def instance(watch: measure.Stopwatch, pool: measure.Pool, plan: Plan) -> dict[bool, float]:
    """µs of a launch of the plan's kernel without (False) and with (True) PDL, in graphs made for this measurement."""
    gemm = pool.operands(plan.key.shape, plan.key.layout).gemm()
    launches = max(2, measure.launches_for(plan.measured[0], REPLAY_US, MOST_LAUNCHES))
    with watch.scope():
        graphs = {pdl: watch.kernel(plan.kernel, flagged(plan, pdl).knobs, [gemm], launches) for pdl in (False, True)}
        return watch.medians(graphs, ROUNDS, settled=plan.measured[0] >= measure.LONG_US)


def summary(raced: Sequence[Race]) -> str:
    """How many plans gain, and how much, by dtype and layout."""
    groups: dict[tuple[str, str], list[Race]] = {}
    for race in raced:
        groups.setdefault((race.plan.key.dtype, race.plan.key.layout), []).append(race)
    lines = []
    for (dtype, layout), group in sorted(groups.items()):
        gains = [min(race.ratios) for race in group if race.gains]
        by = f", by a geomean of {statistics.geometric_mean(gains):.3f}, at most {max(gains):.3f}" if gains else ""
        lines.append(f"{dtype} {layout}: {len(gains)} of {len(group)} plans gain from PDL{by}")
    return "\n".join(lines) or "pdl: no plan is worth racing"


if __name__ == "__main__":
    sys.exit(main())
