"""Measures the plans of a table again, against torch.matmul and, if asked, against rivals; all of it decides dispatch.

    python -m cudal2.search.confirm h200.csv --log confirm.csv
    python -m cudal2.search.confirm h200.csv --log confirm.csv --rivals earlier.csv --rivals-log sweep.csv.gz

A sweep keeps the fastest of many, so its winners are a little flattered, and one graph of a kernel can differ from the
next by more than its replays do (where its buffers lie). So each plan is timed in fresh graphs over fresh operands,
`--instances` times, interleaved with torch. Rivals, the plans of other tables and the best of a sweep's log, of either
dtype, take part in the same races; the fastest over all instances that computes rightly becomes the plan, with the
times that chose it: confirm again without rivals for times that are not flattered. Dispatch then runs the own kernel
only where the median speed-up over the sweep's figure and the new ones is a gain and no new one loses more than 3 %.
The table's times become the new medians.

Kernels rank differently at the clock of a device that has rested and at that of one that has settled to its power
(measure). So every other instance of a long product begins rested, if its race is over before that matters; all others
begin settled, and what counts is the mean. The log's column `clock` says which.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TextIO

import torch

from cudal2 import check, plans, progress, tools
from cudal2.plans import Plan
from cudal2.search import journal, measure, provenance
from cudal2.search.journal import Candidate
from cudal2.search.measure import MOST_LAUNCHES, REPLAY_US, native_knobs
from cudal2.search.tuner import OWN_MARGIN
from cudal2.spec import ALL_DTYPES

WORST_LOSS = 0.97

Problem = tuple[str, int, int, int]
"""layout, m, n, k."""


def main(argv: list[str] | None = None) -> int:
    """Confirm a table in place; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m cudal2.search.confirm", description=__doc__.split("\n")[0])
    parser.add_argument("table", help="plan table to confirm and rewrite")
    parser.add_argument("--log", required=True, help="CSV to write: one row per plan, or rival, and instance")
    parser.add_argument("--dtype", choices=ALL_DTYPES, help="only the plans of this dtype")
    parser.add_argument("--rivals", action="append", default=[], help="another plan table; may be given several times")
    parser.add_argument("--rivals-log", help="a sweep's log, of which the best --top of each problem are rivals")
    parser.add_argument("--top", type=int, default=3, help="how many of them (default 3)")
    parser.add_argument("--instances", type=int, default=2, help="fresh measurements of each plan (default 2)")
    parser.add_argument("--rounds", type=int, default=7, help="replays of each graph (default 7)")
    parser.add_argument("--budget-seconds", type=float, default=math.inf, help="stop, with what there is, after this")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    for name in ("top", "instances", "rounds"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} {getattr(options, name)}; expected 1 or more")
    if not torch.cuda.is_available():
        print("confirm: no GPU that this torch can use; it measures, so it needs one", file=sys.stderr)
        return 3
    try:
        table = measured_here(options.table)
        rivals = rivals_of([measured_here(path) for path in options.rivals], options.rivals_log, options.top)
        file = open(options.log, "w", newline="")  # noqa: SIM115  (before anything is measured)
    except (OSError, plans.PlanError, journal.JournalError) as error:
        print(f"confirm: {error}", file=sys.stderr)
        return 2
    confirmed: list[Plan] = []
    try:
        with file:
            _confirm(table, rivals, options, file, confirmed)
    finally:  # what there is, should the device fail
        if confirmed:
            table.header["confirmed"] = f"{len(confirmed)} of {len(table.plans)} plans, {options.instances} instances"
            plans.write(options.table, table)
    print(summary(confirmed))
    return 0


def measured_here(path: str) -> plans.Table:
    """A table whose plans were measured on this GPU. Raises PlanError where they were not, or it is malformed."""
    table = plans.read(Path(path))
    if table.rules:
        raise plans.PlanError(f"{path} comes from rules: there are no measurements to confirm")
    gpu = provenance.provenance()["gpu"]
    if table.gpu != gpu:
        raise plans.PlanError(f"{path} was measured on {table.gpu}, and this is {gpu}")
    return table


def rivals_of(tables: Iterable[plans.Table], log: str | None, top: int) -> dict[Problem, list[Candidate]]:
    """What tables and the best of a sweep's log run, by problem."""
    rivals: dict[Problem, list[Candidate]] = {}
    for table in tables:
        for key, plan in table.plans.items():
            rivals.setdefault(key[1:], []).append(Candidate(plan.kernel, plan.knobs))
    for problem, candidates in (journal.best(log, top) if log else {}).items():
        rivals.setdefault(problem, []).extend(candidates)
    return rivals


def contenders(plan: Plan, rivals: Sequence[Candidate], compiled: set[str]) -> list[Candidate]:
    """The plan's kernel and its rivals for the plan's dtype, without programmatic dependent launch: those compiled."""
    found: dict[Candidate, None] = {}
    for candidate in (Candidate(plan.kernel, plan.knobs), *rivals):
        if same := candidate.for_dtype(plan.key.dtype, compiled):
            found[replace(same, knobs=replace(same.knobs, pdl=False))] = None
    return list(found)


def _confirm(
    table: plans.Table,
    rivals: Mapping[Problem, Sequence[Candidate]],
    options: argparse.Namespace,
    file: TextIO,
    confirmed: list[Plan],
) -> None:
    """Replaces plans of the table by confirmed ones, and adds these to `confirmed`."""
    end = time.monotonic() + options.budget_seconds
    compiled = set(tools.kernel_names())
    header = {**provenance.provenance(), "mode": "graph, PDL off", "table": table.header.get("commit", "unknown")}
    file.writelines(f"# {name}: {value}\n" for name, value in header.items())
    log = csv.writer(file, lineterminator="\n")
    log.writerow([*plans.COLUMNS[:10], "instance", "clock", "us", "torch_us"])
    for dtype in sorted({key.dtype for key in table.plans if options.dtype in (None, key.dtype)}):
        rows = [plan for key, plan in table.plans.items() if key.dtype == dtype]
        pool = measure.Pool(dtype, [plan.key.shape for plan in rows], options.seed)
        watch = measure.Stopwatch(seed=options.seed)
        for plan in progress.bar(rows, "plan"):
            if time.monotonic() > end:
                print(f"confirm: budget spent after {len(confirmed)} plans", file=sys.stderr)
                return
            candidates = contenders(plan, rivals.get(plan.key[1:], ()), compiled)
            runs = [
                instance(watch, pool, plan, candidates, options.rounds, rested=index % 2 == 1)
                for index in range(options.instances)
            ]
            for index, run in enumerate(runs):
                for candidate, us in run.times.items():
                    how = [*candidate.knobs.fields[:4], index, run.clock]
                    log.writerow([*plan.key, candidate.kernel, *how, f"{us:.3f}", f"{run.torch_us:.3f}"])
            if winner := fastest(plan, runs, partial(computes_rightly, watch, pool, plan)):
                table.plans[plan.key] = winner
                confirmed.append(winner)
        del pool


@dataclass(frozen=True)
class Instance:
    """µs of candidates and of torch.matmul in one race, and the clock that it began at: settled, rested, or none that
    matters."""

    times: Mapping[Candidate, float]
    torch_us: float
    clock: str = ""


def instance(
    watch: measure.Stopwatch,
    pool: measure.Pool,
    plan: Plan,
    candidates: Iterable[Candidate],
    rounds: int,
    rested: bool = False,
) -> Instance:
    """A race of the candidates and torch.matmul, over operands and graphs made for this measurement.

    Candidates that cannot run the problem are left out. A long product's race begins `rested` if it is so short that it
    ends before that matters, else settled.
    """
    operands = pool.operands(plan.key.shape, plan.key.layout)
    expected = min(plan.measured)
    launches = measure.launches_for(expected, REPLAY_US, MOST_LAUNCHES)
    with watch.scope():
        graphs = {}
        for candidate in candidates:
            try:
                graphs[candidate] = watch.kernel(candidate.kernel, candidate.knobs, [operands.gemm()], launches)
            except (ValueError, RuntimeError):
                continue
        baseline = Candidate("torch")
        graphs[baseline] = watch.matmul(operands, launches)
        rounds = rounds if expected < 1000 else max(3, rounds // 2)
        clock = "settled" if expected >= measure.LONG_US else ""
        short_rounds = int(measure.RESTED_US / (len(graphs) * launches * expected))
        if clock and rested and short_rounds >= 2:
            clock, rounds = "rested", min(rounds, short_rounds)
            watch.rest()
        times = watch.medians(graphs, rounds, settled=clock == "settled")
    return Instance(times, times.pop(baseline), clock)


def computes_rightly(watch: measure.Stopwatch, pool: measure.Pool, plan: Plan, candidate: Candidate) -> bool:
    """Whether a candidate's result is within check.Bound on random data."""
    operands = pool.operands(plan.key.shape, plan.key.layout)
    with watch.scope():
        judge = check.Judge(operands.a, operands.b, operands.dtype)
        operands.c.fill_(float("nan"))
        watch.timer.launch(candidate.kernel, native_knobs(candidate.knobs), operands.gemm())
        watch.synchronize(timeout_s=10.0)
        return judge.problem(operands.c) is None


def fastest(plan: Plan, runs: Sequence[Instance], is_right: Callable[[Candidate], bool]) -> Plan | None:
    """The plan of the candidate that was fastest over all runs; None if none took part in all.

    The plan's own kernel was checked when it was tuned; of rivals those count that are right.
    """
    common = [candidate for candidate in runs[0].times if all(candidate in run.times for run in runs)]
    common.sort(key=lambda candidate: statistics.geometric_mean([run.times[candidate] for run in runs]))
    own = Candidate(plan.kernel, replace(plan.knobs, pdl=False))
    for best in common:
        if best != own and not is_right(best):
            continue
        pairs = [(run.times[best], run.torch_us) for run in runs]
        if best == own:
            return decide(plan, pairs, [plan.speedup])
        return decide(replace(plan, kernel=best.kernel, knobs=best.knobs), pairs)
    return None


def decide(plan: Plan, pairs: Iterable[tuple[float, float]], earlier: Sequence[float] = ()) -> Plan:
    """The plan with the times of new (own, torch) measurements, and what dispatch should run by these and `earlier`
    speed-ups.

    Where that is cuBLAS, the plan's pdl flag falls: it is for kernels that dispatch runs.
    """
    own, other = zip(*pairs, strict=True)
    fresh = [theirs / ours for ours, theirs in zip(own, other, strict=True)]
    gain = statistics.median([*earlier, *fresh])
    use = "own" if gain * OWN_MARGIN >= 1 and min(fresh) >= WORST_LOSS else "cublas"
    knobs = replace(plan.knobs, pdl=plan.knobs.pdl and use == "own")
    return replace(plan, knobs=knobs, us=statistics.median(own), torch_us=statistics.median(other), use=use)


def summary(confirmed: Iterable[Plan]) -> str:
    """Speed-ups over torch.matmul by dtype and layout, of own kernels and as dispatched."""
    groups: dict[tuple[str, str], list[Plan]] = {}
    for plan in confirmed:
        groups.setdefault((plan.key.dtype, plan.key.layout), []).append(plan)
    lines = []
    for (dtype, layout), group in sorted(groups.items()):
        own = [plan.speedup for plan in group]
        dispatched = [plan.speedup if plan.use == "own" else 1.0 for plan in group]
        lines.append(
            f"{dtype} {layout}: {len(group)} plans, geomean over torch: own {statistics.geometric_mean(own):.3f} "
            f"(worst {min(own):.3f}), as dispatched {statistics.geometric_mean(dispatched):.3f} "
            f"(worst {min(dispatched):.3f}), own used on {100 * sum(p.use == 'own' for p in group) / len(group):.1f} %"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
