"""The benchmark: contenders side by side on many shapes, in one mode or several, into one CSV file.

    cudal2 bench --suite grid --mode graph --dtype f16 --layout nn,tn --out graph.csv
    cudal2 bench --suite grid --sample 200 --mode offline,server --qps 100 --out wall.csv
    cudal2 bench --suite models --mode graph,cold --out models.csv
    cudal2 bench --suite 64,64,64 --mode overhead --out overhead.csv
    cudal2 bench --compare old.csv new.csv
    cudal2 report graph.csv wall.csv --out report

Each contender is checked on every shape before it is timed (guard.py), and its graph once more; one that fails is
reported and left out. The same command again goes on where the file stops.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import cudal2
from benchmarks import compare, contenders, modes, results_file, suites
from benchmarks.clocks import Clocks
from benchmarks.contenders import Contender, Field, Skipped
from benchmarks.guard import Guard
from benchmarks.modes import Captured, Name, Samples
from cudal2 import plans, progress, verify
from cudal2.search import provenance
from cudal2.search.measure import Stopwatch
from cudal2.shapes import Shape
from cudal2.spec import DTYPES, LAYOUTS

NO_GPU = 3
ALL_MODES = (*modes.DEVICE, *modes.WALL)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `cudal2 bench`."""
    parser.add_argument("--compare", nargs=2, metavar=("OLD", "NEW"), help="compare two results files, and run nothing")
    parser.add_argument("--suite", default="grid", help="grid, models, M,N,K or a CSV file with columns m,n,k")
    parser.add_argument("--mode", default="graph", help=f"one or more of {', '.join(ALL_MODES)}; with commas between")
    parser.add_argument("--dtype", default="f16", choices=DTYPES)
    parser.add_argument("--layout", help="nn, tn or nn,tn (default; models: tn)")
    parser.add_argument("--sample", type=int, metavar="N", help="only this many of the shapes, chosen by the seed")
    parser.add_argument("--seed", type=int, default=0, help="of sample, order and data")
    parser.add_argument("--qps", type=float, default=100.0, help="server mode: calls a second (default 100)")
    defaults = ", ".join(f"{mode} {rounds}" for mode, rounds in modes.ROUNDS.items())
    parser.add_argument("--rounds", type=int, help=f"figures of each contender (default: {defaults})")
    parser.add_argument("--contenders", help=f"of {', '.join(contenders.ALL)} (default: as fits the mode)")
    parser.add_argument("--weights-only", action="store_true", help="cold mode: B alone rotates (models: always)")
    parser.add_argument("--budget-seconds", type=float, help="stop, with what there is, after this")
    parser.add_argument(
        "--out", default="results.csv", help="results file; what it holds already is not measured again"
    )
    parser.add_argument("--fresh", action="store_true", help="start --out anew")


def run(options: argparse.Namespace) -> int:
    """Run the benchmark, or compare. Returns 0, 1 if a contender of ours was wrong, or 3 without a GPU."""
    if options.compare:
        print("\n".join(compare.lines(*options.compare)))
        return 0
    _check(options)
    if not torch.cuda.is_available():
        print("bench: no GPU that this torch can use; timing needs one", file=sys.stderr)
        return NO_GPU
    if options.fresh:
        Path(options.out).unlink(missing_ok=True)
    bench = Bench(options)
    with cudal2.pdl(False):  # whatever CUDAL2_PDL says: contenders that use PDL say so
        bench.run()
    for name, reason in sorted(bench.skipped.items()):
        print(f"skipped {name}: {reason}", file=sys.stderr)
    for line in bench.wrong:
        print(f"WRONG {line}", file=sys.stderr)
    print(f"{options.out}: {bench.summary()}", file=sys.stderr)
    return 1 if bench.own_wrong else 0


def main(argv: list[str] | None = None) -> int:
    """`python -m benchmarks.run`: as `cudal2 bench`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__.split("\n")[0])
    add_arguments(parser)
    try:
        return run(parser.parse_args(argv))
    except (ValueError, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2


def _check(options: argparse.Namespace) -> None:
    if options.layout is None:
        options.layout = "tn" if options.suite == "models" else "nn,tn"
    if options.suite == "models":
        options.weights_only = True
    for name, known in (("mode", ALL_MODES), ("layout", LAYOUTS), ("contenders", contenders.ALL)):
        given = getattr(options, name)
        chosen = [] if given is None else given.split(",")
        unknown = ", ".join(value or "nothing" for value in chosen if value not in known)
        if unknown:
            raise ValueError(f"--{name}: unknown {unknown}; expected of {', '.join(known)}")
    for name in ("sample", "rounds", "qps", "budget_seconds"):
        value = getattr(options, name)
        if value is not None and not value > 0:  # nan is not, either
            raise ValueError(f"--{name.replace('_', '-')} {value}; expected a positive number")
    suites.load(options.suite, options.sample, options.seed)  # raises, if it must, before --fresh removes anything


class Bench:
    """Measures one problem after another in the modes of the options, and writes the results file."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.modes = options.mode.split(",")
        self.layouts = options.layout.split(",")
        self.skipped: dict[str, str] = {}
        self.wrong: list[str] = []
        self.own_wrong = 0
        index = torch.cuda.current_device()
        self.device = _device(index)
        self.watch = Stopwatch(index, options.seed)
        self.table = verify.table_in_use()
        self.field = Field(self.watch, self.table)
        self.clocks = Clocks(index)
        self.started = time.monotonic()
        self.writer = results_file.Writer(Path(options.out), self.header())

    def header(self) -> dict[str, str]:
        """Where the figures come from, as far as it is known at the start."""
        options = self.options
        return {
            **provenance.provenance(self.watch.device),
            "mode": options.mode,
            "dtype": options.dtype,
            "layout": options.layout,
            "suite": Path(options.suite).name,
            "sample": str(options.sample or "all"),
            "seed": str(options.seed),
            "qps": f"{options.qps:g}",
            "table": describe_table(self.table),
        }

    def run(self) -> None:
        """Measure what the file does not hold yet."""
        chosen = suites.load(self.options.suite, self.options.sample, self.options.seed)
        missing = [shape for shape in chosen if any((mode, shape) not in self.writer.done for mode in self.modes)]
        bar = progress.bar(missing, "shape")
        end = self.started + (self.options.budget_seconds or float("inf"))
        for measured, shape in enumerate(bar):
            if time.monotonic() > end:
                print(f"bench: time is up after {measured} of {len(missing)} shapes", file=sys.stderr)
                break
            with self.watch.scope():
                for mode, rows in self.problem(shape):
                    if (mode, shape) not in self.writer.done:
                        self.writer.problem(rows)
            self.clocks.sample()
        self.writer.comment(self._footer())

    def _footer(self) -> dict[str, str]:
        footer = {
            "clocks": self.clocks.summary(),
            "seconds": f"{time.monotonic() - self.started:.0f}",
            "race_gpu_seconds": f"{self.watch.busy_us / 1e6:.1f}",
            "lt_autotune_gpu_seconds": f"{self.field.lt_busy_us / 1e6:.1f}",
        }
        footer.update({f"skipped_{name}": reason for name, reason in sorted(self.skipped.items())})
        if self.wrong:
            footer["wrong"] = "; ".join(self.wrong)
        return footer

    def summary(self) -> str:
        footer = self._footer()
        return (
            f"{footer['seconds']} s in all; device time of races {footer['race_gpu_seconds']} s, of which autotuning "
            f"cuBLASLt {footer['lt_autotune_gpu_seconds']} s; clocks {footer['clocks']}"
        )

    # One problem -----------------------------------------------------------------------------------------------------

    def problem(self, shape: Shape) -> Iterator[tuple[str, list[list[str]]]]:
        """The rows of a shape, mode by mode. The timing stream must be torch's current one."""
        guard = Guard(shape, self.options.dtype, self.device, self._seed(shape), self.layouts)
        us = self._first_guess(guard)
        wanted = {mode: self._names(mode) for mode in self.modes}
        plain = dict.fromkeys(contenders.plain_name(name) for names in wanted.values() for name in names)
        fit, notes = self._fit(guard, list(plain), us)
        for mode, names in wanted.items():
            mine = {
                (layout, name): fit[layout, contenders.plain_name(name)]
                for layout in self.layouts
                for name in names
                if (layout, contenders.plain_name(name)) in fit
            }
            clocks: dict[Name, str] = {}
            samples, ran = self._time(mode, guard, mine, us, clocks)
            self._still_fit(guard, shape, mode, samples)
            groups = {layout: results_file.Group(mode, self.options.dtype, layout) for layout in self.layouts}
            rows = []
            for (layout, name), values in samples.items():
                said = notes[layout, contenders.plain_name(name)], clocks.get((layout, name))
                note = "; ".join(filter(None, said))
                rows.append(results_file.row(groups[layout], shape, name, values, ran[layout, name], note))
            yield mode, rows

    def _names(self, mode: str) -> list[str]:
        chosen = self.options.contenders.split(",") if self.options.contenders else contenders.DEFAULTS[mode]
        return [name for name in chosen if mode in ("offline", "server") or name not in contenders.IN_C]

    def _seed(self, shape: Shape) -> int:
        return random.Random(f"{self.options.seed} {shape}").randrange(1 << 30)

    def _first_guess(self, guard: Guard) -> float:
        """About what the product takes: by torch.matmul."""
        operands = guard.operands(self.layouts[0])
        return self.watch.medians({"torch": self.watch.matmul(operands, 3)}, 1)["torch"]

    def _fit(self, guard: Guard, names: list[str], us: float) -> tuple[dict[Name, Contender], dict[Name, str]]:
        """The contenders that may be timed, with what is to be said of them."""
        fit: dict[Name, Contender] = {}
        notes: dict[Name, str] = {}
        for layout in self.layouts:
            for name in names:
                try:
                    for contender in self.field.candidates(name, guard.operands(layout), us):
                        verdict = guard.check(contender)
                        if not verdict.problem:
                            fit[layout, name], notes[layout, name] = contender, verdict.note
                            break
                        self._report(contender, guard.shape, verdict.problem)
                except (Skipped, ValueError, RuntimeError) as reason:  # the latter two: it cannot run these operands
                    self.skipped[name] = str(reason)
        guard.restore()
        return fit, notes

    def _report(self, contender: Contender, shape: Shape, problem: str) -> None:
        ran = f" ({contender.ran})" if contender.ran else ""
        self.wrong.append(f"{contender.name}{ran} on {shape} {self.options.dtype} {contender.layout}: {problem}")
        self.own_wrong += contender.strict

    def _time(
        self, mode: str, guard: Guard, fit: dict[Name, Contender], us: float, clocks: dict[Name, str]
    ) -> tuple[Samples, dict[Name, str]]:
        rounds = self.options.rounds or modes.ROUNDS[mode]
        ran = {name: contender.ran for name, contender in fit.items()}
        if mode in modes.DEVICE:
            return self._on_device(mode, guard, fit, modes.rounds_for(rounds, us), us, ran, clocks)
        source = random.Random(self._seed(guard.shape))
        calls = {name: contender.bind(guard.operands(name[0])) for name, contender in fit.items()}
        if mode == "overhead":
            return modes.overhead(calls, rounds, source), ran
        in_c = {name: calls.pop(name) for name in list(calls) if name[1] in contenders.IN_C}
        count = modes.wall_count(rounds, guard.shape)
        rate = self.options.qps if mode == "server" else None
        return modes.wall(self.watch, calls, in_c, count, rate, source), ran

    def _on_device(
        self,
        mode: str,
        guard: Guard,
        fit: dict[Name, Contender],
        rounds: int,
        us: float,
        ran: dict[Name, str],
        clocks: dict[Name, str],
    ) -> tuple[Samples, dict[Name, str]]:
        sets: Any = {layout: [guard.operands(layout)] for layout in self.layouts}
        cold = None
        if mode == "cold":
            cold = modes.Cold({layout: guard.operands(layout) for layout in self.layouts}, self.options.weights_only)
            sets = {
                layout: list(reversed(of_layout)) for layout, of_layout in cold.sets.items()
            }  # the checked one last
        count = cold.count if cold else modes.launches(us)
        graphs: dict[Name, Captured] = {}
        for name, contender in fit.items():
            try:
                calls = [contender.bind(operands) for operands in sets[name[0]]]
                graphs[name] = Captured(self.watch, calls, count, modes.spacer if mode == "isolated" else None)
            except RuntimeError as error:
                self.skipped[name[1]] = f"cannot be captured in a CUDA graph: {error}"
        graphs = self._right_graphs(guard, fit, graphs)
        for name, captured in graphs.items():
            ran[name] = ran[name] if fit[name].strict and ran[name] != "torch" else captured.kernels
        if not graphs:
            return {}, ran
        if mode == "sustained":
            samples, seen = modes.sustained(self.watch, graphs, rounds, lambda: Clocks(self.watch.device))
            clocks.update(seen)
            return samples, ran
        if cold:
            return cold.race(self.watch, graphs, rounds, us), ran
        return (modes.graph if mode == "graph" else modes.isolated)(self.watch, graphs, rounds, us), ran

    def _right_graphs(
        self, guard: Guard, fit: dict[Name, Contender], graphs: dict[Name, Captured]
    ) -> dict[Name, Captured]:
        """The graphs whose replay computes what the contender did when it was checked."""
        errors = []
        for captured in graphs.values():
            guard.poison(captured.output)
            self.watch.replay(captured.graph)
            errors.append(guard.result(guard.output.c if captured.output is None else captured.output))
        found = torch.stack(errors).tolist() if errors else []
        right = {}
        for (name, captured), (worst, rms) in zip(graphs.items(), found, strict=True):
            problem = guard.bound.problem((worst, rms))
            if captured.is_empty:
                problem = "queues nothing on the measured stream: its graph lacks launches"
            if problem is None:
                right[name] = captured
            else:
                self._report(fit[name], guard.shape, f"in a CUDA graph: {problem}")
        return right

    def _still_fit(self, guard: Guard, shape: Shape, mode: str, samples: Samples) -> None:
        """Drop what was timed on inputs that are no longer those that were checked."""
        problem = guard.inputs_problem()
        if problem:
            self.wrong.append(f"all of {shape} {self.options.dtype} in mode {mode}: {problem}")
            self.own_wrong += 1
            samples.clear()


def _device(index: int) -> torch.device:
    return torch.device("cuda", index)


def describe_table(table: plans.Table | None) -> str:
    """A plan table in a few words, for the header."""
    if table is None:
        return "none"
    return ", ".join(f"{key} {table.header[key]}" for key in ("gpu", "date", "commit") if key in table.header)


if __name__ == "__main__":
    sys.exit(main())
