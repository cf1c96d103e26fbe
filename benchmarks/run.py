"""The benchmark: contenders side by side on many shapes, in one mode, into one CSV file.

    python -m benchmarks.run --mode graph --dtype f16 --layout nn,tn --shapes grid --out results.csv
    python -m benchmarks.run --mode overhead --shapes 64,64,64 --out overhead.csv
    python -m benchmarks.report results.csv --plots plots/

Each kernel of ours is checked against an fp32 reference on the very operands, before it is timed; one that fails is
reported and left out. The file starts with where the figures come from; a row is one contender on one shape:
mode,dtype,layout,m,n,k,contender,us,low_us,high_us,ran  (median, and the 10th and 90th percentile of the replays).
"""

from __future__ import annotations

import argparse
import csv
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks import contenders, modes
from benchmarks.contenders import Call, Field, Skipped
from cudal2 import check, progress, shapes, verify
from cudal2.search import cublaslt, measure
from cudal2.search.measure import Operands, Pool, Stopwatch

COLUMNS = ["mode", "dtype", "layout", "m", "n", "k", "contender", "us", "low_us", "high_us", "ran"]


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark. Returns 0, or 1 if a kernel was wrong."""
    options = _parser().parse_args(argv)
    if not torch.cuda.is_available():
        print("benchmarks: no GPU that this torch can use", file=sys.stderr)
        return 3
    chosen = shapes.load(options.shapes)
    if options.sample:
        chosen = shapes.sample(chosen, options.sample, options.seed)
    bench = Bench(options, chosen)
    with open(options.out, "w", newline="") as file:
        for name, value in bench.header().items():
            file.write(f"# {name}: {value}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        problems = [(shape, layout) for shape in chosen for layout in options.layout.split(",")]
        for shape, layout in progress.bar(problems, "problem"):
            writer.writerows(bench.rows(shape, layout))
    for name, reason in sorted(bench.skipped.items()):
        print(f"skipped {name}: {reason}", file=sys.stderr)
    for line in bench.wrong:
        print(f"WRONG {line}", file=sys.stderr)
    return 1 if bench.wrong else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__.split("\n")[0])
    parser.add_argument("--mode", default="graph", choices=(*modes.DEVICE, *modes.WALL))
    parser.add_argument("--dtype", default="f16", choices=("f16", "bf16"))
    parser.add_argument("--layout", default="nn,tn")
    parser.add_argument("--shapes", default="grid", help="grid, llama, M,N,K or a CSV file with columns m,n,k")
    parser.add_argument("--sample", type=int, help="only this many of the shapes, chosen by the seed")
    parser.add_argument("--contenders", default=",".join(contenders.DEFAULT), help=f"of {','.join(contenders.ALL)}")
    parser.add_argument("--rounds", type=int, default=9, help="replays of each contender (calls, in wall-clock modes)")
    parser.add_argument("--rate", type=float, default=100.0, help="server mode: calls a second")
    parser.add_argument(
        "--weights-only", action="store_true", help="cold mode: B alone comes from memory, as in a layer"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", required=True)
    return parser


class Bench:
    """Measures one problem after another in the mode of the options."""

    def __init__(self, options: argparse.Namespace, chosen: list[shapes.Shape]):
        self.options = options
        self.names = options.contenders.split(",")
        if unknown := set(self.names) - set(contenders.ALL):
            known = ", ".join(contenders.ALL)
            raise SystemExit(f"--contenders: unknown {', '.join(sorted(unknown))}; expected of {known}")
        self.pool = Pool(options.dtype, chosen, options.seed)
        self.watch = Stopwatch(torch.cuda.current_device(), options.seed)
        self.field = Field(self.watch, verify.table_in_use(), cublaslt.Handle())
        torch.cuda.synchronize()
        self.skipped: dict[str, str] = {}
        self.wrong: list[str] = []

    def header(self) -> dict[str, str]:
        return {**measure.provenance(), "mode": self.options.mode, "clocks": _clocks(), "seed": str(self.options.seed)}

    def rows(self, shape: shapes.Shape, layout: str) -> list[list[Any]]:
        """The rows of one problem."""
        operands = self.pool.operands(shape, layout)
        if self.options.mode in modes.WALL:
            samples, ran = self._wall(operands), dict[str, str]()
        else:
            with self.watch.scope():
                samples, ran = self._device(operands)
        head = [self.options.mode, self.options.dtype, layout, *shape]
        return [[*head, name, *_spread(values), ran.get(name, "")] for name, values in samples.items()]

    def _device(self, operands: Operands) -> tuple[modes.Samples, dict[str, str]]:
        calls: dict[str, Call] = {}
        ran: dict[str, str] = {}
        for name in self.names:
            try:
                calls[name], ran[name] = self.field.call(name, operands)
            except Skipped as reason:
                self.skipped[name] = str(reason)
        calls = self._right(calls, operands)
        if self.options.mode == "cold":
            sets = modes.cold_sets(
                self.options.dtype, operands.layout, operands.shape, self.options.seed, self.options.weights_only
            )
            return modes.cold(self.watch, calls, sets, self.options.rounds), ran
        timed = modes.graph if self.options.mode == "graph" else modes.isolated
        return timed(self.watch, calls, operands, self.options.rounds), ran

    def _wall(self, operands: Operands) -> modes.Samples:
        calls = {name: call for name, call in contenders.HOST.items() if name in self.names}
        for name in set(self.names) - calls.keys():
            self.skipped[name] = "not timed by the wall clock: it has no call of its own in Python"
        if self.options.mode == "overhead":
            return modes.overhead(calls, operands, self.options.rounds)
        rate = self.options.rate if self.options.mode == "server" else None
        return modes.wall(calls, operands, self.options.rounds, rate, self.options.seed)

    def _right(self, calls: dict[str, Call], operands: Operands) -> dict[str, Call]:
        """The calls without those of ours that compute wrongly."""
        wanted = check.reference(operands.a, operands.b)
        by_torch = check.errors(torch.matmul(operands.a, operands.b), wanted)
        bound: check.Bound | None = None
        kept = dict(calls)
        for name in contenders.OWN:
            if name not in calls:
                continue
            operands.c.fill_(float("nan"))
            calls[name](operands)
            found = torch.stack([by_torch, check.magnitude(wanted), check.errors(operands.c, wanted)]).tolist()
            bound = bound or check.Bound.of(tuple(found[0]), tuple(found[1]), operands.c.dtype)
            problem = bound.problem(tuple(found[2]))
            if problem:
                self.wrong.append(f"{name} on {operands.shape} {operands.dtype} {operands.layout}: {problem}")
                del kept[name]
        return kept


def _spread(values: list[float]) -> list[str]:
    ordered = sorted(values)
    low, high = ordered[len(ordered) // 10], ordered[-1 - len(ordered) // 10]
    return [f"{us:.3f}" for us in (statistics.median(ordered), low, high)]


def _clocks() -> str:
    query = ["nvidia-smi", "--query-gpu=clocks.sm,clocks.mem,power.draw", "--format=csv,noheader"]
    try:
        found = subprocess.run(query, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    lines = found.stdout.strip().splitlines()
    return f"{lines[0]} at start" if lines else "unknown"


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    sys.exit(main())
