"""Figures from results: speed-up against size, sorted speed-ups, share of the roofline, latencies. Needs matplotlib."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot

from benchmarks import summary
from benchmarks.results_file import Cells, Group
from benchmarks.summary import Speedup, label
from cudal2.explain import roofline_us

matplotlib.use("Agg")

WIN, LOSS, INK, GRID = "#0072B2", "#D55E00", "#222222", "#dddddd"
COLOURS = {
    "torch": "#555555",
    "cublas": "#E69F00",
    "cublas_max": "#E69F00",
    "lt_heuristic": "#009E73",
    "lt_heuristic_max": "#009E73",
    "lt_autotune": "#CC79A7",
    "lt_autotune_max": "#CC79A7",
    "tunableop": "#56B4E9",
    "cudal2": WIN,
    "own": "#003f5c",
}
TICKS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.3, 1.5, 1.75, 2, 2.5, 3, 4, 6)


def draw(group: Group, cells: Cells, ours: str, directory: Path) -> dict[str, Path]:
    """Write the figures of a group. Returns their files, by what they show."""
    pyplot.rcParams.update(
        {
            "font.size": 10,
            "axes.edgecolor": "#888888",
            "axes.labelcolor": INK,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.color": GRID,
            "grid.linewidth": 0.6,
            "axes.axisbelow": True,
            "legend.frameon": False,
        }
    )
    figures: dict[str, Callable[..., Any]] = {"roofline": _roofline}
    if _shown(cells, ours):
        figures = {"size": _against_size, "sorted": _sorted, **figures}
    if any(cell.samples for by_name in cells.values() for cell in by_name.values()):
        figures["latency"] = _latency
    directory.mkdir(parents=True, exist_ok=True)
    files = {}
    for name, make in figures.items():
        figure = make(group, cells, ours)
        files[name] = directory / f"{'-'.join(group)}-{name}.png"
        figure.savefig(files[name], dpi=110, bbox_inches="tight", metadata={"Software": ""})
        pyplot.close(figure)
    return files


def _shown(cells: Cells, ours: str) -> list[Speedup]:
    """One curve per library: the better of the two layouts where both were measured."""
    found = {speedup.baseline: speedup for speedup in summary.speedups(cells, ours)}
    return [speedup for name, speedup in found.items() if f"{name}_max" not in found]


def _title(group: Group, ours: str, what: str) -> str:
    return f"{what}: {label(ours)}, {group.mode} mode, {group.dtype} {group.layout}"


def _against_size(group: Group, cells: Cells, ours: str) -> Any:
    shown = _shown(cells, ours)
    columns = 2 if len(shown) > 1 else 1
    rows = math.ceil(len(shown) / columns)
    figure, grid = pyplot.subplots(
        rows, columns, figsize=(6 * columns, 0.4 + 2.9 * rows), sharex=True, sharey=True, squeeze=False
    )
    limits = _limits(shown)
    for axis, speedup in zip(grid.flat, shown):
        sizes = [summary.log_size(shape) for shape in speedup.ratios]
        # What lies beyond the limits is drawn on them.
        values = [min(max(ratio, limits[0]), limits[1]) for ratio in speedup.ratios.values()]
        colours = [WIN if ratio > 1 else LOSS for ratio in speedup.ratios.values()]
        axis.scatter(sizes, values, s=9, c=colours, alpha=0.55, linewidths=0)
        axis.axhline(1, color=INK, linewidth=0.9)
        axis.plot(*_trend(speedup), color=INK, linewidth=1.6)
        axis.set_title(
            f"over {label(speedup.baseline)}: {speedup.geomean:.3f}, wins {100 * speedup.wins:.0f} %",
            fontsize=10,
            loc="left",
        )
        _ratio_axis(axis, limits)
    for axis in grid[-1]:
        axis.set_xlabel("log2(M·N·K)")
    for axis in grid.flat[len(shown) :]:
        axis.set_visible(False)
    for row in grid:
        row[0].set_ylabel("speed-up")
    figure.suptitle(_title(group, ours, "Speed-up against size"), x=0.02, ha="left")
    figure.text(0.02, -0.01, "line: geomean by size; orange: slower than the baseline", fontsize=9, color="#666666")
    figure.tight_layout()
    return figure


def _trend(speedup: Speedup) -> tuple[list[float], list[float]]:
    """Geomean of the ratios by log2(MNK), in steps of one."""
    bins: dict[int, list[float]] = {}
    for shape, ratio in speedup.ratios.items():
        bins.setdefault(round(summary.log_size(shape)), []).append(ratio)
    sizes = sorted(bins)
    return [float(size) for size in sizes], [summary.geomean(bins[size]) for size in sizes]


def _limits(shown: list[Speedup]) -> tuple[float, float]:
    """What the axis of speed-ups spans: all but the most extreme, and every trend."""
    every = [ratio for speedup in shown for ratio in speedup.ratios.values()]
    trends = [mean for speedup in shown for mean in _trend(speedup)[1]]
    low = min(0.85, 0.97 * min(summary.percentile(every, 0.003), *trends))
    return low, max(1.2, 1.03 * max(summary.percentile(every, 0.997), *trends))


def _ratio_axis(axis: Any, limits: tuple[float, float]) -> None:
    axis.set_yscale("log")
    axis.set_ylim(limits)
    ticks = [tick for tick in TICKS if limits[0] <= tick <= limits[1]]
    axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()


def _sorted(group: Group, cells: Cells, ours: str) -> Any:
    figure, axis = pyplot.subplots(figsize=(8, 4.4))
    shown = _shown(cells, ours)
    for speedup in shown:
        ordered = speedup.ordered()
        share = [100 * (index + 0.5) / len(ordered) for index in range(len(ordered))]
        text = f"{label(speedup.baseline)}: wins {100 * speedup.wins:.0f} %, geomean {speedup.geomean:.3f}"
        axis.plot(share, ordered, label=text, color=COLOURS[speedup.baseline], linewidth=2)
    axis.axhline(1, color=INK, linewidth=0.9)
    _ratio_axis(axis, _limits(shown))
    axis.set(xlabel="shapes, sorted (%)", ylabel="speed-up", xlim=(0, 100))
    axis.legend(loc="best", fontsize=9, title="against", alignment="left")
    axis.set_title(_title(group, ours, "Sorted speed-ups"), loc="left", fontsize=11)
    figure.tight_layout()
    return figure


def _roofline(group: Group, cells: Cells, ours: str) -> Any:
    figure, axis = pyplot.subplots(figsize=(8, 4.4))
    for name in dict.fromkeys(("torch", summary.reference(cells), ours)):
        known = {
            shape: by_name[name].us for shape, by_name in cells.items() if name in by_name and by_name[name].us > 0
        }
        if not known:
            continue
        reached = {shape: 100 * roofline_us(shape) / us for shape, us in known.items()}
        colour = COLOURS.get(name, INK)
        if name == ours:
            axis.scatter(
                [summary.log_size(s) for s in reached], list(reached.values()), s=8, alpha=0.35, color=colour, lw=0
            )
        sizes, means = _trend(Speedup(name, "", reached))
        axis.plot(sizes, means, color=colour, linewidth=2.4 if name == ours else 1.6, label=label(name))
    axis.axhline(100, color=INK, linewidth=0.9)
    axis.set(xlabel="log2(M·N·K)", ylabel="% of max(FLOP at 800 T/s, bytes at 4.3 TB/s)", ylim=(0, None))
    axis.legend(loc="upper left", fontsize=9)
    axis.set_title(_title(group, ours, "Share of the roofline"), loc="left", fontsize=11)
    figure.tight_layout()
    return figure


def _latency(group: Group, cells: Cells, ours: str) -> Any:
    figure, (absolute, relative) = pyplot.subplots(1, 2, figsize=(12, 4.4), sharey=True)
    names = [name for name in ("torch", "cublas", "lt_heuristic", "lt_autotune", "cudal2", "own") if _has(cells, name)]
    for name in names:
        style = {"color": COLOURS[name], "linewidth": 2.4 if name == ours else 1.4, "label": label(name)}
        _distribution(
            absolute, [us for by_name in cells.values() if name in by_name for us in by_name[name].samples], style
        )
        _distribution(
            relative,
            [
                us / by_name["torch"].us
                for by_name in cells.values()
                if name in by_name and "torch" in by_name
                for us in by_name[name].samples
            ],
            style,
        )
    absolute.set(xlabel="µs from call to result", ylabel="% of calls", xscale="log", ylim=(0, 100))
    relative.set(xlabel="time over torch.matmul's median on the same shape", xlim=(0.3, 2.5))
    relative.axvline(1, color=INK, linewidth=0.9)
    absolute.legend(loc="lower right", fontsize=9)
    figure.suptitle(_title(group, ours, "Latency of single calls"), x=0.02, ha="left")
    figure.tight_layout()
    return figure


def _has(cells: Cells, name: str) -> bool:
    return any(name in by_name and by_name[name].samples for by_name in cells.values())


def _distribution(axis: Any, values: list[float], style: dict[str, Any]) -> None:
    ordered = sorted(values)
    axis.plot(ordered, [100 * (index + 1) / len(ordered) for index in range(len(ordered))], **style)
