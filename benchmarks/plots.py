"""Plots of benchmark results: speedup against size, sorted speedups, and the share of the roofline reached."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from benchmarks.contenders import OWN
from benchmarks.report import Group, Times, baselines, speedups
from cudal2.explain import roofline_us


def draw(groups: dict[Group, Times], directory: Path) -> Iterator[Path]:
    """Write a figure per mode, dtype and layout; yields the files."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    directory.mkdir(parents=True, exist_ok=True)
    for group, times in sorted(groups.items()):
        own = next((name for name in OWN if any(name in t for t in times.values())), None)
        if own is None:
            continue
        figure, axes = pyplot.subplots(1, 3, figsize=(18, 5))
        figure.suptitle(f"{own}: {' '.join(group)}")
        _against_size(axes[0], times, own)
        _sorted(axes[1], times, own)
        _roofline(axes[2], times, own)
        path = directory / f"{'-'.join(group)}.png"
        figure.savefig(path, dpi=110, bbox_inches="tight")
        pyplot.close(figure)
        yield path


def _against_size(axis, times: Times, own: str) -> None:  # type: ignore[no-untyped-def]
    ratios = speedups(times, own, "torch")
    axis.axhline(1, color="grey", linewidth=0.8)
    axis.scatter([math.log2(s.m * s.n * s.k) for s in ratios], list(ratios.values()), s=6)
    axis.set(xlabel="log2(MNK)", ylabel="speedup over torch.matmul", yscale="log")


def _sorted(axis, times: Times, own: str) -> None:  # type: ignore[no-untyped-def]
    axis.axhline(1, color="grey", linewidth=0.8)
    for name in baselines():
        ratios = sorted(speedups(times, own, name).values())
        if ratios and name != "torch_again":
            axis.plot([100 * i / len(ratios) for i in range(len(ratios))], ratios, label=name)
    axis.set(xlabel="% of shapes", ylabel="speedup", yscale="log")
    axis.legend()


def _roofline(axis, times: Times, own: str) -> None:  # type: ignore[no-untyped-def]
    for name in (own, "torch"):
        known = {shape: t[name] for shape, t in times.items() if name in t}
        sizes = [math.log2(s.m * s.n * s.k) for s in known]
        axis.scatter(sizes, [100 * roofline_us(shape) / us for shape, us in known.items()], s=6, label=name)
    axis.set(xlabel="log2(MNK)", ylabel="% of the roofline")
    axis.legend()
