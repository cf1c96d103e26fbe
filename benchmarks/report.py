"""Tables and plots from the CSV files of benchmarks.run.

    python -m benchmarks.report results.csv [more.csv ...] [--plots directory]

For each mode, dtype and layout: how our contenders stand against each baseline (geomean, mean, win rate), by size, and
the worst ten shapes. Where both layouts of a baseline are there, <name>_max is the faster of the two. A speedup is the
baseline's time over ours. `noise` is torch against torch again, in the same run: less than that is no difference.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
from collections import defaultdict
from pathlib import Path

from benchmarks.contenders import BASELINES, OWN
from cudal2.explain import roofline_us
from cudal2.shapes import Shape

Times = dict[Shape, dict[str, float]]
"""µs by shape and contender."""

Group = tuple[str, str, str]
"""Mode, dtype, layout."""


def main(argv: list[str] | None = None) -> int:
    """Print the report. Returns 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+")
    parser.add_argument("--plots", help="directory to write PNG plots to (needs matplotlib)")
    options = parser.parse_args(argv)
    header, groups = read(options.files)
    print("\n".join(f"{name}: {value}" for name, value in header.items()))
    for group, times in sorted(groups.items()):
        print("\n" + "\n".join(lines(group, times)))
    if options.plots:
        from benchmarks.plots import draw

        for path in draw(groups, Path(options.plots)):
            print(path)
    return 0


def read(files: list[str]) -> tuple[dict[str, str], dict[Group, Times]]:
    """The header of the first file, and the times of all, with the _max baselines added."""
    header: dict[str, str] = {}
    groups: dict[Group, Times] = defaultdict(lambda: defaultdict(dict))
    for name in files:
        with open(name, newline="") as file:
            text = file.read().splitlines()
        for line in text:
            if line.startswith("# "):
                key, _, value = line[2:].partition(": ")
                header.setdefault(key, value)
        for row in csv.DictReader(line for line in text if not line.startswith("#")):
            shape = Shape(int(row["m"]), int(row["n"]), int(row["k"]))
            groups[row["mode"], row["dtype"], row["layout"]][shape][row["contender"]] = float(row["us"])
    for (mode, dtype, layout), times in list(groups.items()):
        other = groups.get((mode, dtype, "tn" if layout == "nn" else "nn"), {})
        for shape, by_name in times.items():
            for name in ("cublas", "lt_autotune"):
                if name in by_name and name in other.get(shape, {}):
                    by_name[f"{name}_max"] = min(by_name[name], other[shape][name])
    return header, groups


def baselines() -> list[str]:
    """Every baseline that may be in a report."""
    return [*BASELINES, "cublas_max", "lt_autotune_max"]


def speedups(times: Times, own: str, baseline: str) -> dict[Shape, float]:
    """Baseline over own, for the shapes that have both."""
    return {shape: t[baseline] / t[own] for shape, t in times.items() if baseline in t and own in t}


def geomean(ratios: list[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def lines(group: Group, times: Times) -> list[str]:
    """The report of one mode, dtype and layout."""
    found = [f"== {' '.join(group)}, {len(times)} shapes"]
    noise = speedups(times, "torch_again", "torch")
    if noise:
        spread = sorted(abs(math.log(ratio)) for ratio in noise.values())
        worst = math.exp(spread[int(0.95 * (len(spread) - 1))]) - 1
        found.append(f"noise: geomean {geomean(list(noise.values())):.4f}, 95 % of shapes within {100 * worst:.1f} %")
    found.append(f"{'':10} {'against':16} {'geomean':>8} {'mean':>8} {'wins':>7} {'worst':>7} {'best':>7}")
    for own in OWN:
        for baseline in baselines():
            ratios = list(speedups(times, own, baseline).values())
            if not ratios or baseline == "torch_again":
                continue
            wins = 100 * sum(ratio > 1 for ratio in ratios) / len(ratios)
            numbers = f"{geomean(ratios):8.3f} {sum(ratios) / len(ratios):8.3f} {wins:6.1f}%"
            found.append(f"{own:10} {baseline:16} {numbers} {min(ratios):7.3f} {max(ratios):7.3f}")
    first = next((name for name in OWN if any(name in t for t in times.values())), None)
    return found if first is None else found + _by_size(times, first) + _worst(times, first)


def _by_size(times: Times, own: str) -> list[str]:
    names = [name for name in baselines() if name != "torch_again" and speedups(times, own, name)]
    head = f"{'':9} {'shapes':>6} {'roofline':>8} "
    found = [f"by log2(MNK): {own} over", head + " ".join(f"{name:>15}" for name in names)]
    bins: dict[int, list[Shape]] = defaultdict(list)
    for shape in times:
        bins[int(math.log2(shape.m * shape.n * shape.k)) // 2 * 2].append(shape)
    for size, members in sorted(bins.items()):
        fractions = [roofline_us(shape) / times[shape][own] for shape in members if own in times[shape]]
        columns = []
        for name in names:
            ratios = [times[s][name] / times[s][own] for s in members if name in times[s] and own in times[s]]
            columns.append(f"{geomean(ratios):15.3f}" if ratios else f"{'':15}")
        share = f"{100 * geomean(fractions):7.0f}%" if fractions else f"{'':8}"
        found.append(f"{size:4}-{size + 1:<4} {len(members):6} {share} " + " ".join(columns))
    return found


def _worst(times: Times, own: str) -> list[str]:
    ratios = speedups(times, own, "torch")
    found = [f"worst ten of {own} over torch:"]
    for shape, ratio in sorted(ratios.items(), key=lambda item: item[1])[:10]:
        us = times[shape][own]
        rates = f"{shape.flops / us / 1e6:6.1f} TFLOP/s {shape.bytes / us / 1e3:6.0f} GB/s"
        found.append(f"  {shape!s:20} {ratio:.3f}  {us:9.2f} µs, torch {times[shape]['torch']:9.2f}  {rates}")
    return found


if __name__ == "__main__":
    sys.exit(main())
