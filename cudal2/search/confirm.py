"""Measures the plans of a table a second time, against torch.matmul alone, and lets all measurements decide dispatch.

    python -m cudal2.search.confirm h200.csv --log confirm.csv

A sweep keeps the fastest of many, so its winners are a little flattered, and one graph of a kernel can differ from the
next by more than its replays do (where its buffers lie). So each plan is timed in fresh graphs over fresh operands,
`--instances` times, interleaved with torch. Dispatch then runs the own kernel only where the median speed-up over the
sweep's figure and the new ones is a gain and no new one loses more than 3 %. The table's times become the new medians.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch

from cudal2 import plans, progress
from cudal2.plans import Plan
from cudal2.search import measure, provenance
from cudal2.search.tuner import OWN_MARGIN

WORST_LOSS = 0.97


def main(argv: list[str] | None = None) -> int:
    """Confirm a table in place; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m cudal2.search.confirm", description=__doc__.split("\n")[0])
    parser.add_argument("table", help="plan table to confirm and rewrite")
    parser.add_argument("--log", required=True, help="CSV to write: one row per plan and instance")
    parser.add_argument("--instances", type=int, default=2, help="fresh measurements of each plan (default 2)")
    parser.add_argument("--rounds", type=int, default=7, help="replays of each graph (default 7)")
    parser.add_argument("--budget-seconds", type=float, default=math.inf, help="stop, with what there is, after this")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("confirm: no GPU that this torch can use; it measures, so it needs one", file=sys.stderr)
        return 3
    try:
        table = measured_here(options.table)
    except (OSError, plans.PlanError) as error:
        print(f"confirm: {error}", file=sys.stderr)
        return 2
    end = time.monotonic() + options.budget_seconds
    confirmed = []
    with open(options.log, "w", newline="") as file:
        header = {**provenance.provenance(), "mode": "graph, PDL off", "table": table.header.get("commit", "unknown")}
        file.writelines(f"# {name}: {value}\n" for name, value in header.items())
        log = csv.writer(file, lineterminator="\n")
        log.writerow(
            ["dtype", "layout", "m", "n", "k", "kernel", "instance", "us", "torch_us", "sweep_us", "sweep_torch_us"]
        )
        for dtype in sorted({key.dtype for key in table.plans}):
            rows = [plan for key, plan in table.plans.items() if key.dtype == dtype]
            pool = measure.Pool(dtype, [plan.key.shape for plan in rows], options.seed)
            watch = measure.Stopwatch(seed=options.seed)
            for plan in progress.bar(rows, "plan"):
                if time.monotonic() > end:
                    break
                pairs = [instance(watch, pool, plan, options.rounds) for _ in range(options.instances)]
                for index, (own, other) in enumerate(pairs):
                    times = [f"{us:.3f}" for us in (own, other, *plan.measured)]
                    log.writerow([*plan.key, plan.kernel, index, *times])
                table.plans[plan.key] = decide(plan, pairs)
                confirmed.append(table.plans[plan.key])
            del pool
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


def instance(watch: measure.Stopwatch, pool: measure.Pool, plan: Plan, rounds: int) -> tuple[float, float]:
    """µs of the plan's kernel and of torch.matmul, over operands and graphs made for this measurement."""
    operands = pool.operands(plan.key.shape, plan.key.layout)
    launches = measure.launches_for(min(plan.measured), target_us=100.0)
    with watch.scope():
        graphs = {
            "own": watch.kernel(plan.kernel, replace(plan.knobs, pdl=False), [operands.gemm()], launches),
            "torch": watch.matmul(operands, launches),
        }
        times = watch.medians(graphs, rounds if plan.measured[1] < 1000 else max(3, rounds // 2))
    return times["own"], times["torch"]


def decide(plan: Plan, pairs: Iterable[tuple[float, float]]) -> Plan:
    """The plan with the times of new (own, torch) measurements, and what dispatch should run by all of them.

    Where that is cuBLAS, the plan's pdl flag falls: it is for kernels that dispatch runs.
    """
    own, other = zip(*pairs, strict=True)
    fresh = [theirs / ours for ours, theirs in zip(own, other, strict=True)]
    gain = statistics.median([plan.speedup, *fresh])
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
