"""Figures of merit from results: speed-ups over each baseline, noise, sizes, the worst shapes. A speed-up is the
baseline's time over ours; torch_again and cudal2_again, the same version twice, give the noise."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.results_file import Cells
from cudal2.explain import roofline_us
from cudal2.shapes import Shape

BASELINES = (
    *("torch", "cublas", "cublas_max", "lt_heuristic", "lt_heuristic_max", "lt_autotune", "lt_autotune_max"),
    "tunableop",
)
OURS = ("cudal2", "own", "own_pdl", "own_pdl_plan", "cudal2_pdl")
IN_C = ("cublas_c", "cublas_max_c", "lt_heuristic_c", "lt_heuristic_max_c", "lt_autotune_c", "lt_autotune_max_c")
TWICE = (("cudal2", "cudal2_again"), ("torch", "torch_again"))

LABELS = {
    "torch": "torch.matmul",
    "cublas": "cuBLAS",
    "cublas_max": "cuBLAS, better layout",
    "lt_heuristic": "cuBLASLt heuristic",
    "lt_heuristic_max": "cuBLASLt heuristic, better layout",
    "lt_autotune": "cuBLASLt autotuned",
    "lt_autotune_max": "cuBLASLt autotuned, better layout",
    "tunableop": "TunableOp",
    "cudal2": "cudal2 as dispatched",
    "own": "own kernels only",
    "own_pdl": "own kernels, PDL on",
    "own_pdl_plan": "own kernels, PDL on where the plan says so",
    "cudal2_pdl": "cudal2 as dispatched, PDL on",
}


def label(name: str) -> str:
    """A contender in words."""
    plain = name.removesuffix("_c")
    return LABELS.get(plain, plain) + (" (loop in C)" if plain != name else "")


@dataclass(frozen=True)
class Speedup:
    """Ours against one baseline, over the shapes that have both."""

    ours: str
    baseline: str
    ratios: dict[Shape, float]

    @property
    def geomean(self) -> float:
        return geomean(self.ratios.values())

    @property
    def mean(self) -> float:
        return statistics.fmean(self.ratios.values())

    @property
    def wins(self) -> float:
        """Share of shapes on which ours is faster."""
        return sum(ratio > 1 for ratio in self.ratios.values()) / len(self.ratios)

    def ordered(self) -> list[float]:
        return sorted(self.ratios.values())


@dataclass(frozen=True)
class Noise:
    """The same version twice: geomean of the ratios, and what 95 % of the shapes stay within (0.01: 1 %)."""

    name: str
    geomean: float
    p95: float
    worst: tuple[Shape, float]
    count: int


def geomean(ratios: Iterable[float]) -> float:
    known = list(ratios)
    return statistics.geometric_mean(known) if known else math.nan


def ratios(cells: Cells, ours: str, baseline: str) -> dict[Shape, float]:
    """Baseline over ours, where both were timed (and neither came out as zero or less, as `isolated` can)."""
    found = {}
    for shape, by_name in cells.items():
        mine, theirs = by_name.get(ours), by_name.get(baseline)
        if mine and theirs and min(mine.us, theirs.us) > 0:
            found[shape] = theirs.us / mine.us
    return found


def speedups(cells: Cells, ours: str) -> list[Speedup]:
    """Against every baseline that is there."""
    against = IN_C if ours.endswith("_c") else BASELINES
    found = (Speedup(ours, name, ratios(cells, ours, name)) for name in against)
    return [speedup for speedup in found if speedup.ratios]


def ours_in(cells: Cells) -> list[str]:
    """Our contenders that are there."""
    return [name for name in (*OURS, "own_c") if any(name in by_name for by_name in cells.values())]


def noise(cells: Cells) -> list[Noise]:
    """Of each contender that ran twice."""
    found = []
    for name, again in TWICE:
        pairs = ratios(cells, name, again)
        if not pairs:
            continue
        off = sorted(abs(math.log(ratio)) for ratio in pairs.values())
        worst = max(pairs.items(), key=lambda item: abs(math.log(item[1])))
        p95 = math.exp(off[math.ceil(0.95 * len(off)) - 1]) - 1
        found.append(Noise(name, geomean(pairs.values()), p95, worst, len(pairs)))
    return found


def log_size(shape: Shape) -> float:
    return math.log2(shape.m * shape.n * shape.k)


@dataclass(frozen=True)
class Bin:
    """Shapes of about one size."""

    title: str
    shapes: list[Shape]
    roofline: float
    """Geomean of the share of the roofline that ours reaches."""
    speedups: dict[str, float]
    """Geomean by baseline."""


def by_size(cells: Cells, ours: str) -> list[Bin]:
    """Bins of two in log2(MNK)."""
    groups: dict[int, list[Shape]] = defaultdict(list)
    for shape in cells:
        groups[int(log_size(shape)) // 2 * 2].append(shape)
    return [_bin(f"{low}–{low + 1}", shapes, cells, ours) for low, shapes in sorted(groups.items())]


def by_rows(cells: Cells, ours: str) -> list[Bin]:
    """Bins of one M each: for layers, the number of tokens."""
    groups: dict[int, list[Shape]] = defaultdict(list)
    for shape in cells:
        groups[shape.m].append(shape)
    return [_bin(str(m), shapes, cells, ours) for m, shapes in sorted(groups.items())]


def _bin(title: str, shapes: list[Shape], cells: Cells, ours: str) -> Bin:
    within = {shape: cells[shape] for shape in shapes}
    reached = [roofline_us(shape) / c[ours].us for shape, c in within.items() if ours in c and c[ours].us > 0]
    return Bin(title, shapes, geomean(reached), {s.baseline: s.geomean for s in speedups(within, ours)})


def worst(cells: Cells, ours: str, baseline: str, count: int = 10) -> list[tuple[Shape, float]]:
    """The shapes with the smallest speed-ups."""
    return sorted(ratios(cells, ours, baseline).items(), key=lambda item: item[1])[:count]


def reference(cells: Cells) -> str:
    """The baseline that the worst shapes are shown against: the strongest that (nearly) all shapes have."""
    for name in ("lt_autotune_max", "lt_autotune", "cublas_max", "cublas", "torch"):
        if sum(name in by_name for by_name in cells.values()) > 0.9 * len(cells):
            return name
    return ""


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
