"""What each technique of the multistage kernels is worth: kernels that differ in one of them, raced on many shapes.

    python -m benchmarks.ablation --emit build/ablation                      # the kernels that the library lacks
    CUDAL2_EXTRA_KERNELS=build/ablation TORCH_CUDA_ARCH_LIST=9.0a python -m build_tools
    python -m benchmarks.ablation --out ablation.csv                         # about a minute on an H200
    python -m benchmarks.ablation --report ablation.csv --out ablation       # ablation.md and ablation.png

A technique belongs to a few bases; a race is between a base and its variants on one shape and layout, as graphs that
are replayed interleaved. A row of the CSV is a variant's median time beside its base's in the same race.
"""

from __future__ import annotations

import argparse
import csv
import functools
import itertools
import math
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import torch

from benchmarks import ablation_report
from benchmarks.ablation_report import COLUMNS
from benchmarks.clocks import Clocks
from benchmarks.summary import log_size
from cudal2 import check, progress, shapes, tools
from cudal2.plans import Knobs
from cudal2.search import cost, emit, knobs, measure, provenance, space
from cudal2.search.journal import Candidate
from cudal2.search.measure import Operands, launches_for, native_knobs
from cudal2.search.tuner import Tuner
from cudal2.shapes import Shape
from cudal2.spec import LAYOUTS, KernelSpec, SpecError

# What is compared --------------------------------------------------------------------------------------------------


class Base(NamedTuple):
    """A kernel, as a line of `space`, and the shapes that it is for: `low` <= log2(M*N*K) <= `high`."""

    line: str
    low: int
    high: int


LARGE = Base("256x128x64 s3 4x2k1", 31, 37)
MIDDLE = Base("128x128x32 s4 2x4k1 sk", 27, 35)
DEEP = Base("128x128x64 s3 2x2k1", 27, 35)
SMALL = Base("64x64x64 s4 2x2k1 sk", 20, 31)
TINY = Base("32x32x64 s4 1x2k2", 18, 26)
BASES = (LARGE, MIDDLE, DEEP, SMALL, TINY)

# Compile time: a field of KernelSpec, and the values that it takes in turn, in every base where they are valid.
FIELDS: dict[str, tuple[Any, ...]] = {
    "prefetch": (0, 1),
    "copies": ("early", "stagger", "spread"),
    "stages": (2, 3, 4, 5, 6, 8),
    "stream_k": (False, True),  # the ability alone: no launch shares a tile
}

# Compile time, more than a field: bases, and the kernels that stand in for them.
LINES: dict[str, dict[Base, tuple[str, ...]]] = {
    "warps_k": {
        Base("64x64x64 s4 2x2k1", SMALL.low, SMALL.high): (
            "64x64x64 s4 2x2k1 p0",
            "64x64x64 s4 2x1k2",
            "64x64x64 s4 1x2k2",
            "64x64x64 s4 2x1k2 p0",
            "64x64x64 s4 1x1k4 p0",
        ),
        TINY: ("32x32x64 s4 2x2k1", "32x32x64 s4 2x2k1 p0", "32x32x64 s4 1x2k2 p0", "32x32x64 s4 1x1k4 p0"),
    },
    "tile": {
        Base("128x128x32 s5 2x2k1", MIDDLE.low, MIDDLE.high): (
            *("160x128x32 s5 2x2k1", "160x128x32 s4 2x2k1", "160x128x32 s4 2x4k1"),
            "128x128x32 s4 2x4k1",
        )
    },
}

SHARED_WORK = "stream-k"
# Run time: the knobs that replace Knobs(), of the bases where they change anything.
LAUNCHES: dict[str, tuple[Base, ...]] = {
    "split-k": (MIDDLE, SMALL),
    SHARED_WORK: (MIDDLE, SMALL),
    "order": (LARGE, MIDDLE, DEEP, SMALL),
}
ORDERS = [Knobs(group=group, raster=raster) for raster in (0, 1) for group in (8, 1, 4, 16)]

NOISE = "noise"
"""The base twice, in two graphs: what a difference must exceed to be one."""

TECHNIQUES = (*FIELDS, *LINES, *LAUNCHES, NOISE)
ALWAYS = {"128x128x32 s5 2x2k1": [Shape(8192, 512, 2048)]}
"""Shapes that a base is timed on whatever the seed."""


def bases(technique: str) -> tuple[Base, ...]:
    """The bases that a technique is tried on."""
    return tuple(LINES.get(technique, LAUNCHES.get(technique, BASES)))


def kernels(technique: str, base: Base, layout: str) -> dict[str, KernelSpec]:
    """By label, the base's first: the kernels that a technique compares. Without those that cannot be compiled."""
    first = space.multistage(base.line, layout=layout)
    if technique in FIELDS:
        return {_label(getattr(spec, technique)): spec for spec in _one_field(first, technique)}
    others = LINES.get(technique, {}).get(base, ())
    specs = {base.line: first, **{line: space.multistage(line, layout=layout) for line in others}}
    return {label: spec for label, spec in specs.items() if _valid(spec)}


def _one_field(spec: KernelSpec, name: str) -> Iterator[KernelSpec]:
    yield spec
    for value in FIELDS[name]:
        other = replace(spec, **{name: value})
        if other != spec and _valid(other):
            yield other


def _label(value: Any) -> str:
    return {True: "with", False: "without"}[value] if isinstance(value, bool) else str(value)


def _valid(spec: KernelSpec) -> bool:
    try:
        spec.validate()
    except SpecError:
        return False
    return True


def launches(technique: str, spec: KernelSpec, shape: Shape, slots: int) -> dict[str, Knobs]:
    """By label, the base's first: the launches of a kernel that a run-time technique compares on a shape."""
    tiles = cost.tiles(spec, shape)
    if technique == "split-k":
        others = {other.split: other for other in knobs.variants(spec, shape, slots, Knobs()) if other.split > 1}
        return {"1": Knobs(), **{str(split): other for split, other in others.items()}}
    if technique == SHARED_WORK:
        ctas = min(slots, knobs.most_sharing(spec))  # the device's, or as many as the workspace has room for
        units = math.prod(tiles) * math.ceil(shape.k / spec.bk)
        shares = units > ctas and math.prod(tiles) <= knobs.WORKSPACE_COUNTERS and math.prod(tiles) % ctas
        return {"off": Knobs(), **({"on": Knobs(ctas=ctas)} if shares else {})}
    # A group ends with the tiles: those that come to the same are timed once.
    different = {(min(order.group, tiles[order.raster]), order.raster): order for order in reversed(ORDERS)}
    if min(tiles) == 1:
        return {_order_label(Knobs()): Knobs()}
    return {_order_label(order): order for order in ORDERS if order in different.values()}


def _order_label(order: Knobs) -> str:
    return f"group {order.group}, {'along N' if order.raster else 'along M'}"


def candidates(technique: str, base: Base, layout: str, shape: Shape, slots: int) -> dict[str, Candidate]:
    """By label, the base's first: what a technique races on a shape. `slots`: the base's, as in `knobs`."""
    spec = space.multistage(base.line, layout=layout)
    if technique in LAUNCHES:
        return {label: Candidate(spec.name, other) for label, other in launches(technique, spec, shape, slots).items()}
    # One launch for all: the base's, but where some could not split K.
    alike = Knobs() if technique == "stream_k" else knobs.first(spec, shape, slots)
    raced = {label: Candidate(spec.name, alike) for label, spec in kernels(technique, base, layout).items()}
    return {"once": raced[base.line], "again": raced[base.line]} if technique == NOISE else raced


def extra_kernels(techniques: Iterable[str] = TECHNIQUES, layouts: Iterable[str] = LAYOUTS) -> list[KernelSpec]:
    """The kernels of these techniques that are not among the library's own."""
    combinations = [(name, base, layout) for name in techniques for base in bases(name) for layout in layouts]
    specs = dict.fromkeys(spec for combination in combinations for spec in kernels(*combination).values())
    return [spec for spec in specs if spec not in space.compiled()]


def suited(base: Base, count: int, seed: int) -> list[Shape]:
    """`count` grid shapes of the base's sizes that are no smaller than its tile, chosen and ordered by the seed."""
    spec = space.multistage(base.line)
    known = ALWAYS.get(base.line, [])
    grid = [shape for shape in shapes.grid() if base.low <= log_size(shape) <= base.high and shape not in known]
    grid = [shape for shape in grid if shape.m >= spec.bm and shape.n >= spec.bn]
    return [*known, *shapes.sample(grid, count - len(known), seed)][:count]


# Measuring -----------------------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """A base on one problem: operands and reference serve all its techniques."""

    base: Base
    layout: str
    shape: Shape


class Ablation:
    """Races the techniques' variants, and writes a row for each."""

    def __init__(self, techniques: Sequence[str], layouts: Sequence[str], count: int, seed: int):
        self.techniques = techniques
        self.by_base: dict[Base, list[str]] = defaultdict(list)
        for name in techniques:
            for base in bases(name):
                self.by_base[base].append(name)
        chosen = {base: suited(base, count, seed) for base in self.by_base}
        # One shape of each base after the other, so that time that runs out costs all of them alike.
        rounds = itertools.zip_longest(*chosen.values())
        problems = [(base, shape) for shapes in rounds for base, shape in zip(chosen, shapes) if shape is not None]
        self.steps = [Step(base, layout, shape) for base, shape in problems for layout in layouts]
        self.built = set(tools.kernel_names(family="multistage", dtype="f16"))
        self.missing = [spec.name for spec in extra_kernels(techniques, layouts) if spec.name not in self.built]
        self.watch = measure.Stopwatch(torch.cuda.current_device(), seed)
        self.tuner = Tuner(self.watch, {})
        self.pool = measure.Pool("f16", list({step.shape: None for step in self.steps}), seed)
        torch.cuda.synchronize()
        self.local_bytes: dict[str, int] = {}
        """Of each kernel: above 0 it spills registers, and its time says little of a technique."""
        self.refused: dict[str, str] = {}
        self.wrong: list[str] = []

    def run(self, write: Callable[[list[list[str]]], None], seconds: float, after: Callable[[], None]) -> list[Step]:
        """Measure until the time is up; `after` is called after each step. Returns the steps that were left out."""
        end = time.monotonic() + seconds
        for index, step in enumerate(progress.bar(self.steps, "shape")):
            if time.monotonic() > end:
                return self.steps[index:]
            with self.watch.scope():
                write(list(self.rows(step)))
            after()
        return []

    def rows(self, step: Step) -> Iterator[list[str]]:
        """The rows of one base and problem. Raises RuntimeError if a kernel hangs or takes the device down."""
        operands = self.pool.operands(step.shape, step.layout)
        gemm = operands.gemm()
        spec = space.multistage(step.base.line, layout=step.layout)
        slots = self.tuner.slots(spec, gemm)
        races = {name: candidates(name, *step, slots) for name in self.by_base[step.base]}
        races = {name: {k: c for k, c in race.items() if c.kernel in self.built} for name, race in races.items()}
        races = {name: race for name, race in races.items() if len(race) > 1}
        right = self.right_ones(step, operands, {c for race in races.values() for c in race.values()})
        expected = cost.predict_us(spec, step.shape)
        count = launches_for(expected, target_us=100.0)
        for technique, race in races.items():
            graphs = {
                label: self.watch.kernel(candidate.kernel, candidate.knobs, [gemm], count)
                for label, candidate in race.items()
                if candidate in right
            }
            base = next(iter(race))
            if base not in graphs or len(graphs) < 2:
                continue
            times = self.watch.medians(graphs, 9 if expected < 300 else 5)
            base_us = times.pop(base)
            for label, us in times.items():
                kernel, other = race[label].kernel, race[label].knobs
                figures = (*step.shape, f"{us:.3f}", f"{base_us:.3f}", kernel, other)
                yield [technique, step.base.line, step.layout, label, base, *map(str, figures)]

    def right_ones(self, step: Step, operands: Operands, raced: Iterable[Candidate]) -> set[Candidate]:
        """Those that can run the problem and compute it within check.Bound."""
        a, b, c = operands.a, operands.b, operands.c
        wanted = check.reference(a, b)
        torch.matmul(a, b, out=c)
        numbers = [check.errors(c, wanted), check.magnitude(wanted)]
        ran = []
        for candidate in sorted(raced, key=str):
            c.fill_(float("nan"))
            try:
                self.note_spills(candidate.kernel, operands)
                self.watch.timer.launch(candidate.kernel, native_knobs(candidate.knobs), operands.gemm())
            except ValueError as error:
                self.refused[candidate.kernel] = f"{step.shape} {candidate.knobs}: {error}"
                continue
            numbers.append(check.errors(c, wanted))
            ran.append(candidate)
        self.watch.synchronize(timeout_s=10.0)
        torch_errors, size, *own = (tuple(pair) for pair in torch.stack(numbers).tolist())
        bound = check.Bound.of(torch_errors, size, operands.dtype, step.shape.k)
        right = set()
        for candidate, errors in zip(ran, own, strict=True):
            if problem := bound.problem(errors):
                self.wrong.append(f"{candidate.kernel} on {step.shape}, {candidate.knobs}: {problem}")
            else:
                right.add(candidate)
        return right

    def note_spills(self, kernel: str, operands: Operands) -> None:
        if kernel not in self.local_bytes:
            taken = self.watch.timer.occupancy(kernel, native_knobs(Knobs()), operands.gemm())
            self.local_bytes[kernel] = taken.get("local_bytes", 0)

    @property
    def spills(self) -> str:
        return "; ".join(f"{name} {size} bytes" for name, size in self.local_bytes.items() if size) or "none"


def left_out(steps: Iterable[Step]) -> str:
    """How many problems of which bases."""
    counts: dict[str, int] = defaultdict(int)
    for step in steps:
        counts[step.base.line] += 1
    return "; ".join(f"{line}: {count} problems" for line, count in counts.items()) or "nothing"


def measure_all(options: argparse.Namespace) -> int:
    """Measure into --out. Returns 0, or 1 if a kernel computed wrongly."""
    if not torch.cuda.is_available():
        raise ValueError("no GPU that this torch can use; timing needs one (--emit and --report do not)")
    started = time.monotonic()
    ablation = Ablation(options.techniques, options.layout, options.shapes, options.seed)
    if ablation.missing:
        print(f"ablation: {len(ablation.missing)} kernels are not built: see --emit; without them", file=sys.stderr)
    device = ablation.watch.device
    clocks = Clocks(device)
    out = Path(options.out or "ablation.csv")
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", newline="") as file:
        header = {"mode": "graph, PDL off", "dtype": "f16", "shapes": options.shapes, "seed": options.seed}
        _comment(file, {**provenance.provenance(device), **header})
        table = csv.writer(file, lineterminator="\n")
        table.writerow(COLUMNS)
        left = ablation.run(table.writerows, options.budget_seconds, clocks.sample)
        footer = {"clocks": clocks.summary(), "seconds": f"{time.monotonic() - started:.0f}"}
        footer["race_gpu_seconds"] = f"{ablation.watch.busy_us / 1e6:.1f}"
        footer["left_out"] = left_out(left)
        footer["not_built"] = ", ".join(ablation.missing) or "none"
        footer["spills"] = ablation.spills
        footer["refused"] = "; ".join(f"{name} {reason}" for name, reason in ablation.refused.items()) or "none"
        footer["wrong"] = "; ".join(ablation.wrong) or "none"
        _comment(file, footer)
    for line in ablation.wrong:
        print(f"WRONG {line}", file=sys.stderr)
    done = len(ablation.steps) - len(left)
    print(f"{out}: {done} problems in {footer['seconds']} s; left out: {footer['left_out']}", file=sys.stderr)
    return 1 if ablation.wrong else 0


def _comment(file: TextIO, entries: dict[str, Any]) -> None:
    file.writelines(f"# {key}: {' '.join(str(value).split())}\n" for key, value in entries.items())


# Command line --------------------------------------------------------------------------------------------------------


def write_kernels(folder: Path, techniques: Sequence[str], layouts: Sequence[str]) -> int:
    """Bring the .cu files of `extra_kernels` in `folder` up to date. Returns how many kernels they hold."""
    if folder.resolve() == emit.ROOT:
        raise ValueError(f"--emit {folder}: the library's own kernels are there; name another folder")
    specs = extra_kernels(techniques, layouts)
    emit.write(folder, specs)
    return len(specs)


def _listed(text: str, known: Sequence[str]) -> list[str]:
    chosen = list(dict.fromkeys(text.split(",")))
    if unknown := [name for name in chosen if name not in known]:
        raise argparse.ArgumentTypeError(f"unknown {', '.join(unknown)}; expected of {', '.join(known)}")
    return chosen


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected a positive integer")
    return int(text)


def main(argv: list[str] | None = None) -> int:
    """`python -m benchmarks.ablation`; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ablation", description=__doc__.split("\n")[0])
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--emit", type=Path, metavar="DIR", help="write the kernels that the library lacks, and stop")
    what.add_argument("--report", type=Path, metavar="CSV", help="write the tables and the plot of a file, and stop")
    parser.add_argument("--out", help="the CSV file (ablation.csv), or the folder of the report (the file's)")
    parser.add_argument("--shapes", type=_positive, default=60, metavar="N", help="shapes of each base (default 60)")
    parser.add_argument("--seed", type=int, default=0, help="of shapes, data and order")
    parser.add_argument("--budget-seconds", type=float, default=math.inf, help="stop, with what there is, after this")
    layout = functools.partial(_listed, known=LAYOUTS)
    parser.add_argument("--layout", type=layout, default="nn,tn", help="nn, tn or nn,tn (default)")
    techniques = functools.partial(_listed, known=TECHNIQUES)
    every = ",".join(TECHNIQUES)
    parser.add_argument("--techniques", type=techniques, default=every, help=f"of {every} (default: all)")
    options = parser.parse_args(argv)
    try:
        if options.emit:
            print(f"{options.emit}: {write_kernels(options.emit, options.techniques, options.layout)} kernels")
            return 0
        if options.report:
            folder = Path(options.out) if options.out else options.report.parent
            for path in ablation_report.write(options.report, folder):
                print(path)
            return 0
        return measure_all(options)
    except (ValueError, OSError, RuntimeError) as error:
        print(f"ablation: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
