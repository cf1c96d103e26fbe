"""Measures every compiled kernel that is worth it on many shapes and writes the plan table.

    python -m cudal2.search.sweep --dtype f16 --layout nn,tn --shapes grid --lt --out h200.csv --log f16.csv.gz
    python -m cudal2.search.sweep --dtype bf16 --layout nn,tn --seed-log f16.csv.gz --out h200.csv --log bf16.csv.gz

An existing --out is added to: its rows for other problems stay. Sweeps that run at once (--shard) need an --out each;
cudal2.search.merge joins them. With --resume, problems that it holds already are left out too. A kernel that hangs or
takes the device's context down ends the worker process; the parent starts another, which first runs that problem's
kernels one by one to find the culprit, and goes on without it.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from cudal2 import plans, progress, shapes
from cudal2.plans import Key, Plan, Table
from cudal2.search import journal
from cudal2.search.journal import Candidate, Entry, Journal
from cudal2.spec import ALL_DTYPES, LAYOUTS, KernelSpec

CRASHED = 75
MOST_RESTARTS = 20
SAVE_SECONDS = 15.0


def main(argv: list[str] | None = None) -> int:
    """Run a sweep; returns the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    options = _parser().parse_args(arguments)
    if options.worker:
        return _work(options)
    started = time.monotonic()
    for restart in range(MOST_RESTARTS + 1):
        remaining = options.budget_seconds - (time.monotonic() - started)
        command = [sys.executable, "-m", "cudal2.search.sweep", *arguments, "--worker"]
        command += ["--budget-seconds", f"{remaining:.1f}"]
        if restart:
            command.append("--resume")
        code = subprocess.call(command)
        if code != CRASHED:
            return code if code >= 0 else 1
        print(f"sweep: a kernel took the device down; starting again without it ({restart + 1})", file=sys.stderr)
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m cudal2.search.sweep", description=__doc__.split("\n")[0])
    parser.add_argument("--dtype", default="f16", choices=ALL_DTYPES)
    parser.add_argument("--layout", default="nn,tn", help="nn, tn or nn,tn")
    parser.add_argument("--shapes", default="grid", help="grid, llama, M,N,K or a CSV file with columns m,n,k")
    parser.add_argument("--sample", type=int, help="only this many of the shapes, chosen by the seed")
    parser.add_argument("--out", required=True, help="plan table to write or add to")
    parser.add_argument("--log", required=True, help="CSV of every measurement; gzip if it ends in .gz")
    parser.add_argument("--seed-log", help="log of another dtype's sweep: time only the kernels that ranked best there")
    parser.add_argument("--top", type=int, default=4, help="how many of them (default 4)")
    parser.add_argument("--keep", type=int, default=40, help="kernels timed per problem (default 40)")
    parser.add_argument("--lt", action="store_true", help="also autotune cuBLASLt, for the lt_us column")
    parser.add_argument("--budget-seconds", type=float, default=math.inf, help="stop, with what there is, after this")
    parser.add_argument("--problem-seconds", type=float, default=4.0, help="skip the knobs stage past this")
    parser.add_argument("--shard", default="0/1", help="i/n: only every n-th shape, starting with the i-th")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0, help="of data, sample and order")
    parser.add_argument("--resume", action="store_true", help="go on where --out and --log stop")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser


def selection(options: argparse.Namespace) -> list[shapes.Shape]:
    """The shapes to sweep, in an order that spreads sizes evenly over time."""
    chosen = shapes.load(options.shapes)
    chosen = shapes.sample(chosen, len(chosen) if options.sample is None else options.sample, options.seed)
    index, _, count = options.shard.partition("/")
    if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise SystemExit(f"--shard {options.shard}: expected i/n, with i from 0 to n - 1")
    return chosen[int(index) :: int(count)]


def _work(options: argparse.Namespace) -> int:
    import torch

    from cudal2 import tools
    from cudal2.search import cublaslt, measure, provenance
    from cudal2.search.tuner import DeviceFailure, Tuner

    end = time.monotonic() + options.budget_seconds
    layouts = options.layout.split(",")
    if not set(layouts) <= set(LAYOUTS):
        raise SystemExit(f"--layout {options.layout}: expected nn, tn or nn,tn")
    if not torch.cuda.is_available():
        print("sweep: no GPU that this torch can use; a sweep measures, so it needs one", file=sys.stderr)
        return 3
    torch.cuda.set_device(options.device)
    out = Path(options.out)
    try:
        chosen = selection(options)
        seeds = journal.best(options.seed_log, options.top) if options.seed_log else {}  # before a log of that name is
        table = _compiled_only(plans.read(out), set(tools.kernel_names())) if out.exists() else Table({}, {})
    except (OSError, ValueError) as error:
        raise SystemExit(f"sweep: {error}") from None
    if table.rules:
        raise SystemExit(f"--out {out}: its plans come from rules, and a sweep's are measured: name another file")
    source = provenance.provenance(options.device)
    if table.plans and table.gpu != source["gpu"]:
        raise SystemExit(f"--out {out}: measured on {table.gpu}, and this is {source['gpu']}: name another file")
    table.header = {**table.header, **source, "mode": "graph, PDL off"}
    log = Journal(options.log, options.resume)
    done = log.finished() & set(table.plans)
    crashes, culprits = log.crashes(), log.culprits()

    pool = measure.Pool(options.dtype, chosen, options.seed)
    torch.cuda.synchronize()
    watch = measure.Stopwatch(options.device, options.seed)
    lt = cublaslt.Handle() if options.lt else None
    tuners = {
        layout: Tuner(watch, _specs(tools.kernel_names(dtype=options.dtype, layout=layout), culprits), options.keep, lt)
        for layout in layouts
    }
    for tuner in tuners.values():
        tuner.seconds = options.problem_seconds
    measured: list[Plan] = []
    saved = time.monotonic()
    problems = [Key(options.dtype, layout, *shape) for shape in chosen for layout in layouts]
    problems = [key for key in problems if key not in done and crashes[key] < 3]
    bar = progress.bar(problems, "problem")
    for key in bar:
        if time.monotonic() > end:
            print(f"sweep: budget spent after {len(measured)} of {len(problems)} problems", file=sys.stderr)
            break
        tuner = tuners[key.layout]
        known = seeds.get((key.layout, key.m, key.n, key.k), [])
        start = [seed for candidate in known if (seed := candidate.for_dtype(options.dtype, tuner.specs))]
        try:
            plan = tuner.tune(pool.operands(key.shape, key.layout), start, careful=crashes[key] > 0)
        except DeviceFailure as error:
            log.add([*tuner.entries, Entry(key, Candidate(error.kernel), None, journal.CRASH, str(error))])
            log.close()
            plans.write(out, table)
            print(f"sweep: {error}", file=sys.stderr)
            return CRASHED
        log.add(tuner.entries)
        if plan is not None:
            table.plans[key] = plan
            measured.append(plan)
        if time.monotonic() - saved > SAVE_SECONDS:
            saved = time.monotonic()
            log.flush()
            plans.write(out, table)
            bar.set_postfix_str(_brief(measured))
    plans.write(out, table)
    log.close()
    print(summary(measured))
    return 0


def _compiled_only(table: Table, names: set[str]) -> Table:
    """The table without plans whose kernel is no longer compiled: the runtime refuses a table that has one."""
    kept = {key: plan for key, plan in table.plans.items() if plan.kernel in names}
    if len(kept) < len(table.plans):
        print(f"sweep: dropping {len(table.plans) - len(kept)} plans whose kernel is not compiled", file=sys.stderr)
    return Table(table.header, kept)


def _specs(names: Iterable[str], culprits: set[str]) -> dict[str, KernelSpec]:
    return {name: KernelSpec.parse(name) for name in names if name not in culprits}


def _geomean(ratios: list[float]) -> float:
    return statistics.geometric_mean(ratios) if ratios else math.nan


def _brief(measured: list[Plan]) -> str:
    return f"own/torch speed {_geomean([plan.speedup for plan in measured]):.3f}"


def summary(measured: Iterable[Plan]) -> str:
    """Speed relative to torch.matmul and cuBLASLt by dtype and layout, with the worst shapes."""
    lines = []
    groups: dict[tuple[str, str], list[Plan]] = {}
    for plan in measured:
        groups.setdefault((plan.key.dtype, plan.key.layout), []).append(plan)
    for (dtype, layout), group in sorted(groups.items()):
        own = [plan.speedup for plan in group]
        dispatched = [plan.speedup if plan.use == "own" else 1.0 for plan in group]
        tuned = [plan.lt_us / plan.measured[0] for plan in group if plan.lt_us]
        wins = sum(plan.use == "own" for plan in group)
        lines.append(
            f"{dtype} {layout}: {len(group)} shapes, geomean over torch: own {_geomean(own):.3f}, "
            f"as dispatched {_geomean(dispatched):.3f}, own used on {100 * wins / len(group):.1f} %"
            + (f"; own over cuBLASLt-AutoTuning {_geomean(tuned):.3f}" if tuned else "")
        )
        for plan in sorted(group, key=lambda plan: plan.speedup)[:5]:
            us, torch_us = plan.measured
            lines.append(
                f"  worst {plan.key.shape}: {plan.speedup:.3f}  {us:.2f} µs, torch {torch_us:.2f}  {plan.kernel}"
            )
    return "\n".join(lines) or "sweep: nothing was measured"


if __name__ == "__main__":
    code = main()
    if code == CRASHED:  # a kernel may still hang: leave without tearing CUDA down
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
