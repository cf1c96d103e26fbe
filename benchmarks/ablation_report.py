"""The ablation's tables and plot: speed-ups of variants over their bases (see ablation.py). 1.05: 5 % faster."""

from __future__ import annotations

import csv
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.summary import geomean, log_size
from cudal2.shapes import Shape

COLUMNS = [
    *("technique", "base", "layout", "variant", "instead_of", "m", "n", "k"),
    *("us", "base_us", "kernel", "knobs"),
]
"""A variant on a problem: `variant` is what it has and `instead_of` what the base has; us and base_us are medians."""

MARGIN = 1.01
"""From this speed-up on a variant counts as faster."""
SIZES = (24, 28, 32, 36)
"""Where a class of sizes ends and the next begins, in log2(M*N*K)."""
CHOICE = "the best of all"
"""The fastest of the base and its variants on each problem: what having the choice is worth, less the noise."""


class Row(NamedTuple):
    """A variant on a problem."""

    technique: str
    base: str
    variant: str
    instead_of: str
    layout: str
    shape: Shape
    speedup: float


def read(path: Path) -> tuple[dict[str, str], list[Row]]:
    """Header, and rows by technique and base, with those of CHOICE. Raises ValueError where the file is no ablation."""
    lines = path.read_text(encoding="utf-8").splitlines()
    header = dict(line[2:].partition(": ")[::2] for line in lines if line.startswith("# "))
    table = csv.DictReader(line for line in lines if not line.startswith("#"))
    if list(table.fieldnames or ()) != COLUMNS:
        raise ValueError(f"{path} is no ablation: expected the columns {','.join(COLUMNS)}")
    rows = [_row(line) for line in table]
    if not rows:
        raise ValueError(f"{path} has no rows: nothing was measured")
    rows += _choices(rows)
    techniques, bases = (list(dict.fromkeys(row[index] for row in rows)) for index in (0, 1))
    return header, sorted(rows, key=lambda row: (techniques.index(row.technique), bases.index(row.base)))


def _row(line: dict[str, str]) -> Row:
    shape = Shape(int(line["m"]), int(line["n"]), int(line["k"]))
    what = {name: line[name] for name in ("technique", "base", "variant", "instead_of", "layout")}
    return Row(**what, shape=shape, speedup=float(line["base_us"]) / float(line["us"]))


def _choices(rows: Sequence[Row]) -> list[Row]:
    by_base = _grouped(rows, lambda row: (row.technique, row.base))
    several = {key for key, group in by_base.items() if len({row.variant for row in group}) > 1}
    races = _grouped(rows, lambda row: (row.technique, row.base, row.layout, row.shape))
    return [
        race[0]._replace(variant=CHOICE, speedup=max(1.0, *(row.speedup for row in race)))
        for key, race in races.items()
        if key[:2] in several
    ]


def _grouped(rows: Iterable[Row], key: Callable[[Row], Any]) -> dict[Any, list[Row]]:
    groups: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return groups


def write(source: Path, folder: Path) -> list[Path]:
    """Write ablation.md and ablation.png. Raises ValueError, or RuntimeError without matplotlib."""
    header, rows = read(source)
    folder.mkdir(parents=True, exist_ok=True)
    plot, page = folder / "ablation.png", folder / "ablation.md"
    _plot(rows, plot)
    page.write_text(markdown(header, rows), encoding="utf-8")
    return [page, plot]


# Tables --------------------------------------------------------------------------------------------------------------


def markdown(header: dict[str, str], rows: list[Row]) -> str:
    """The report as text."""
    short = _grouped(rows, lambda row: (row.technique, row.variant, row.instead_of))
    full = _grouped(rows, lambda row: (row.technique, row.base, row.variant, row.instead_of))
    known = {
        key: header[key] for key in ("gpu", "date", "commit", "clocks", "left_out", "spills", "wrong") if key in header
    }
    return "\n".join(
        [
            "# Ablation of the multistage kernels\n",
            "Speed-up of a variant over its base, geomean over the problems (shape and layout) that both ran on; "
            f"faster and slower: on what share of them by more than {100 * (MARGIN - 1):.0f} %. "
            f"*{CHOICE[0].upper()}{CHOICE[1:]}*: the fastest of base and variants on each problem. The *noise* rows "
            "time the base twice.\n",
            *(f"- {key}: {value}" for key, value in known.items()),
            "\n## In short: all bases together\n",
            *_table(
                ["technique", "variant", "instead of", *_SHARES],
                [[key[0], key[1], key[2], *_shares(group)] for key, group in short.items()],
            ),
            "\n## By base and size\n",
            "Sizes are log2(M·N·K).\n\n![speed-ups](ablation.png)\n",
            *_table(
                ["technique", "base", "variant", "instead of", *_SHARES, "nn", "tn", *_classes(), "best", "worst"],
                [
                    [key[0], f"`{key[1]}`", key[2], key[3], *_shares(group), *_parts(group), *_extremes(group)]
                    for key, group in full.items()
                ],
            ),
        ]
    )


_SHARES = ["problems", "speed-up", "faster", "slower"]


def _shares(rows: Sequence[Row]) -> list[str]:
    faster = sum(row.speedup > MARGIN for row in rows) / len(rows)
    slower = sum(row.speedup < 1 / MARGIN for row in rows) / len(rows)
    return [str(len(rows)), f"**{geomean(row.speedup for row in rows):.3f}**", f"{faster:.0%}", f"{slower:.0%}"]


def _parts(rows: Sequence[Row]) -> list[str]:
    parts = [[row.speedup for row in rows if row.layout == layout] for layout in ("nn", "tn")]
    by_class = _grouped(rows, lambda row: _class(row.shape))
    parts += [[row.speedup for row in by_class.get(index, [])] for index in range(len(SIZES) + 1)]
    return [f"{geomean(part):.3f}" if part else "" for part in parts]


def _class(shape: Shape) -> int:
    return sum(log_size(shape) >= edge for edge in SIZES)


def _classes() -> list[str]:
    middle = [f"{low}–{high - 1}" for low, high in itertools.pairwise(SIZES)]
    return [f"–{SIZES[0] - 1}", *middle, f"{SIZES[-1]}–"]


def _extremes(rows: Sequence[Row]) -> list[str]:
    ends = (max(rows, key=lambda row: row.speedup), min(rows, key=lambda row: row.speedup))
    return [f"{row.speedup:.2f} at {row.shape} {row.layout}" for row in ends]


def _table(head: list[str], body: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *body)]


# Plot ----------------------------------------------------------------------------------------------------------------


def _plot(rows: list[Row], path: Path) -> None:
    try:
        from matplotlib import pyplot

        from benchmarks.plots import LOSS, WIN
    except ImportError as error:
        raise RuntimeError(f"{error}: the report needs matplotlib (pip install 'cudal2[report]')") from error
    bars = _grouped(rows, lambda row: (row.technique, row.base, row.variant))
    techniques = list(dict.fromkeys(technique for technique, _, _ in bars))
    counts = [sum(key[0] == technique for key in bars) for technique in techniques]
    figure, panels = pyplot.subplots(
        *(len(techniques), 1),
        figsize=(9, 0.19 * sum(counts) + 0.45 * len(techniques) + 0.6),
        height_ratios=[count + 1 for count in counts],
        sharex=True,
        squeeze=False,
        layout="constrained",
    )
    for technique, panel in zip(techniques, panels[:, 0]):
        mine = {key[1:]: group for key, group in bars.items() if key[0] == technique}
        gains = [100 * (geomean(row.speedup for row in group) - 1) for group in mine.values()]
        panel.barh(range(len(mine)), gains, color=[WIN if gain >= 0 else LOSS for gain in gains])
        panel.set_yticks(range(len(mine)), [f"{variant}   |   {base}" for base, variant in mine], fontsize=7)
        panel.set_ylim(len(mine) - 0.4, -0.6)
        panel.set_title(f"{technique}, instead of {_instead(mine.values())}", fontsize=9, loc="left")
        panel.axvline(0, color="#888888", linewidth=0.8)
        panel.tick_params(labelsize=7)
        for index, gain in enumerate(gains):
            panel.annotate(f"{gain:+.1f}", (max(gain, 0), index), (3, 0), textcoords="offset points", **_SMALL)
    panels[-1, 0].set_xlabel("geomean speed-up over the base, %")
    limit = max(5.0, *(math.fabs(value) for value in panels[-1, 0].get_xlim()))
    panels[-1, 0].set_xlim(max(-60.0, -limit), min(60.0, limit))
    figure.savefig(path, dpi=110, metadata={"Software": ""})
    pyplot.close(figure)


_SMALL: dict[str, Any] = {"fontsize": 6, "va": "center"}


def _instead(groups: Iterable[list[Row]]) -> str:
    values = dict.fromkeys(group[0].instead_of for group in groups)
    return next(iter(values)) if len(values) == 1 else "the base's"
