"""The CSV files of the benchmark: where the figures come from, then a row per mode, problem and contender.

Comment lines `# key: value` say where the figures come from; those that are known only at the end (clocks, what was
skipped or wrong) follow the rows, and the last of a key counts. All rows of a problem are written at once, so that a
run that was cut off can go on with the problems that are missing.
"""

from __future__ import annotations

import csv
import io
import os
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from cudal2.explain import roofline_us
from cudal2.shapes import Shape

COLUMNS = [
    *("mode", "dtype", "layout", "m", "n", "k", "contender"),
    *("us", "low_us", "high_us", "tflops", "gbps", "roofline", "count", "ran", "note", "samples"),
]
"""us: median; low_us, high_us: 10th and 90th percentile; roofline: share of it that was reached; count: figures that
the median is of; samples: all of them, in the wall-clock modes."""

IDENTITY = ("gpu", "arch", "torch", "cublas", "driver", "commit", "dtype", "layout", "qps", "seed", "table")
"""Header keys in which two runs must agree to share a file."""

MAXIMA = ("cublas", "lt_heuristic", "lt_autotune")
"""Baselines that also count as the faster of the two layouts, as <name>_max."""


class ResultsError(ValueError):
    """A results file that cannot be read, or does not belong to this run."""


class Group(NamedTuple):
    """Figures that are reported together."""

    mode: str
    dtype: str
    layout: str

    def __str__(self) -> str:
        return " ".join(self)


@dataclass
class Cell:
    """One contender on one problem."""

    us: float
    low_us: float
    high_us: float
    ran: str = ""
    note: str = ""
    samples: list[float] = field(default_factory=list)


Cells = dict[Shape, dict[str, Cell]]
"""By shape and contender."""


@dataclass
class Results:
    """What one or more files hold. `_max` baselines are in where both layouts are."""

    header: dict[str, str]
    groups: dict[Group, Cells]
    names: list[str] = field(default_factory=list)


def row(group: Group, shape: Shape, name: str, values: list[float], ran: str, note: str) -> list[str]:
    """A contender's row, from all its figures (µs)."""
    us, low, high = spread(values)
    safe = max(us, 1e-3)
    derived = (shape.flops / safe / 1e6, shape.bytes / safe / 1e3, roofline_us(shape) / safe)
    samples = ";".join(f"{value:.2f}" for value in values) if group.mode in ("offline", "server") else ""
    return [
        *(*group, *map(str, shape), name),
        *(f"{value:.3f}" for value in (us, low, high)),
        *(f"{derived[0]:.4g}", f"{derived[1]:.4g}", f"{derived[2]:.4f}"),
        *(str(len(values)), ran, note, samples),
    ]


def spread(values: Iterable[float]) -> tuple[float, float, float]:
    """Median, 10th and 90th percentile."""
    ordered = sorted(values)
    tenth = len(ordered) // 10
    return statistics.median(ordered), ordered[tenth], ordered[-1 - tenth]


class Writer:
    """Adds to a results file, problem by problem."""

    def __init__(self, path: Path, header: Mapping[str, str]):
        """Open a new file, or one that a run with the same IDENTITY has left. Raises ResultsError."""
        self._path = path
        self.done: set[tuple[str, Shape]] = set()
        """Modes and shapes that the file has already."""
        if path.exists() and path.stat().st_size:
            self._go_on(header)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.comment(header)
            self._append([COLUMNS])

    def problem(self, rows: list[list[str]]) -> None:
        """Write all rows of a problem."""
        self._append(rows)

    def comment(self, entries: Mapping[str, str]) -> None:
        lines = "".join(f"# {key}: {_one_line(value)}\n" for key, value in entries.items())
        with open(self._path, "a") as file:
            file.write(lines)

    def _append(self, rows: list[list[str]]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        with open(self._path, "a") as file:
            file.write(text.getvalue())
            file.flush()
            os.fsync(file.fileno())

    def _go_on(self, header: Mapping[str, str]) -> None:
        text = self._path.read_text()
        if not text.endswith("\n"):  # cut off while writing: the last problem is measured again
            lines = text.splitlines()[:-1]
            last = _problem(lines[-1])
            text = "".join(f"{line}\n" for line in lines if _problem(line) != last)
            self._path.write_text(text)
        before, rows = _parse(self._path)
        for key in IDENTITY:
            if before.get(key, "") != header.get(key, ""):
                raise ResultsError(
                    f"{self._path} is of another run: its {key} is {before.get(key, '')!r}, this one's is "
                    f"{header.get(key, '')!r}. Name another --out, or start it anew with --fresh"
                )
        self.done = {(row["mode"], _shape(row)) for row in rows}


def read(files: Iterable[str | Path]) -> Results:
    """All rows of the files, with the maxima added. The header is the first file's, and what others add to it.

    Raises ResultsError where a file is not one of results.
    """
    found = Results({}, defaultdict(lambda: defaultdict(dict)))
    for path in files:
        header, rows = _parse(Path(path))
        found.names.append(Path(path).name)
        for key, value in header.items():
            known = found.header.setdefault(key, value)
            if known != value and value not in known.split(" | "):
                found.header[key] = f"{known} | {value}"
        for line in rows:
            try:
                shape, cell = _shape(line), _cell(line)
            except (ValueError, TypeError):  # the latter: columns are missing
                start = ",".join(line[name] or "" for name in COLUMNS[:8])
                raise ResultsError(f"{path}: a row is cut off or holds no figures: {start}") from None
            found.groups[Group(line["mode"], line["dtype"], line["layout"])][shape][line["contender"]] = cell
    for group, cells_by_shape in list(found.groups.items()):
        other = found.groups.get(group._replace(layout="tn" if group.layout == "nn" else "nn"), {})
        for shape, cells in cells_by_shape.items():
            for name in (f"{name}{suffix}" for name in MAXIMA for suffix in ("", "_c") if shape in other):
                both = [side[name] for side in (cells, other[shape]) if name in side]  # what was wrong is not there
                if both:
                    cells[maximum(name)] = min(both, key=lambda cell: cell.us)
    return found


def maximum(name: str) -> str:
    """What the faster layout of a baseline is called."""
    return f"{name.removesuffix('_c')}_max{'_c' if name.endswith('_c') else ''}"


def _parse(path: Path) -> tuple[dict[str, str], list[dict[str, str]]]:
    refusal = ResultsError(f"{path} is no results file: expected the columns {','.join(COLUMNS)}")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:  # compressed, say
        raise refusal from None
    header: dict[str, str] = {}
    for line in lines:
        if line.startswith("# "):
            key, _, value = line[2:].partition(": ")
            header[key] = value
    reader = csv.DictReader(line for line in lines if not line.startswith("#"))
    try:
        if set(COLUMNS) <= set(reader.fieldnames or ()):
            return header, list(reader)
    except csv.Error:
        pass
    raise refusal


def _cell(line: Mapping[str, str]) -> Cell:
    samples = [float(value) for value in line["samples"].split(";")] if line["samples"] else []
    us, low_us, high_us = (float(line[name]) for name in ("us", "low_us", "high_us"))
    return Cell(us, low_us, high_us, line["ran"], line["note"], samples)


def _problem(line: str) -> list[str]:
    """Mode, M, N and K of a row's text."""
    fields = line.split(",")
    return [fields[0], *fields[3:6]]


def _shape(line: Mapping[str, str]) -> Shape:
    return Shape(int(line["m"]), int(line["n"]), int(line["k"]))


def _one_line(text: str) -> str:
    return " ".join(str(text).split())
