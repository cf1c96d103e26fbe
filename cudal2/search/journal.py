"""The log of a sweep: every (key, kernel, knobs, µs) it measured, read again to resume or to seed another sweep."""

from __future__ import annotations

import csv
import gzip
import math
import zlib
from collections import Counter, defaultdict
from collections.abc import Container, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TextIO, cast

from cudal2.plans import Key, Knobs
from cudal2.spec import KernelSpec, SpecError

COLUMNS = ["dtype", "layout", "m", "n", "k", "kernel", "group", "raster", "ctas", "split", "pdl", "us", "stage", "note"]
CRASH = "crash"
RANKED_STAGES = ("top", "knobs", "final")
CHECK = "check"


class JournalError(ValueError):
    """A file that is no log of a search, or a malformed line of one; the message names them."""


@dataclass(frozen=True)
class Candidate:
    """A kernel with the knobs to launch it by."""

    kernel: str
    knobs: Knobs = field(default_factory=Knobs)

    def for_dtype(self, dtype: str, names: Container[str]) -> Candidate | None:
        """The same for a dtype; None if its kernel is not among the names, or its own name is of another version."""
        try:
            spec = KernelSpec.parse(self.kernel)
        except SpecError:
            return None
        name = spec.variant(dtype, spec.layout).name
        return replace(self, kernel=name) if name in names else None


@dataclass(frozen=True)
class Entry:
    """One measurement, or one failure (us is None). Baselines stand as kernels torch, lt and lt_heuristic."""

    key: Key
    candidate: Candidate
    us: float | None
    stage: str
    note: str = ""


class Journal:
    """A log being written: a CSV file, gzip if it ends in .gz. `entries` is what it held when resumed."""

    def __init__(self, path: str | Path, resume: bool):
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.entries = list(read(self.path)) if resume and self.path.exists() else []
        self._file = _open(self.path, "wt")  # anew, since gzip cannot be added to where it was cut short
        self._writer = csv.writer(self._file, lineterminator="\n")
        self._writer.writerow(COLUMNS)
        self.add(self.entries)
        self.flush()

    def add(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            knobs = entry.candidate.knobs
            us = "" if entry.us is None else f"{entry.us:.3f}"
            self._writer.writerow([*entry.key, entry.candidate.kernel, *knobs.fields, us, entry.stage, entry.note])

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def finished(self) -> set[Key]:
        """The keys that a plan was made for."""
        return {entry.key for entry in self.entries if entry.stage == "final"}

    def crashes(self) -> Counter[Key]:
        """How often each key's measurement took the device down."""
        return Counter(entry.key for entry in self.entries if entry.stage == CRASH)

    def culprits(self) -> set[str]:
        """Kernels seen to take the device down."""
        return {entry.candidate.kernel for entry in self.entries if entry.stage == CRASH and entry.candidate.kernel}


def read(path: str | Path) -> Iterable[Entry]:
    """The entries of a log. A last line that was cut short by a crash is left out.

    Logs from before the knob `split` have no such column: it was 1. Raises JournalError, naming file and line, if it is
    no log, and OSError if it is not there.
    """
    with _open(Path(path), "rt") as file:
        rows = csv.DictReader(file)
        try:
            missing = [name for name in COLUMNS if name != "split" and name not in (rows.fieldnames or ())]
        except (EOFError, OSError, zlib.error, ValueError, csv.Error) as error:
            raise JournalError(f"{path}: no log of a search: {error}") from None
        if missing:
            raise JournalError(f"{path}: no log of a search: it has no column {', '.join(missing)}")
        while True:
            try:
                row = next(rows, None)
                entry = None if row is None or None in row.values() or None in row else _entry(row)
            except (EOFError, OSError, zlib.error):
                return
            except (ValueError, csv.Error) as error:
                raise JournalError(f"{path}:{rows.line_num}: {error}") from None
            if row is None:
                return
            if entry is not None:
                yield entry


def _entry(row: dict[str, str]) -> Entry:
    key = Key(row["dtype"], row["layout"], int(row["m"]), int(row["n"]), int(row["k"]))
    group, raster, ctas, split = (int(row.get(name, "1")) for name in ("group", "raster", "ctas", "split"))
    knobs = Knobs(group, raster, ctas, split, row["pdl"] == "1")
    us = float(row["us"]) if row["us"] else None
    if us is not None and not (math.isfinite(us) and us > 0):
        raise ValueError(f"us={row['us']}; expected a time in µs, above 0")
    return Entry(key, Candidate(row["kernel"], knobs), us, row["stage"], row["note"])


def best(path: str | Path, top: int) -> dict[tuple[str, int, int, int], list[Candidate]]:
    """By (layout, m, n, k), the `top` candidates that ranked fastest in a log, one entry per kernel, fastest first.

    Not those that computed wrongly, whatever their knobs.
    """
    found: dict[tuple[str, int, int, int], dict[str, tuple[int, float, Candidate]]] = defaultdict(dict)
    wrong: set[str] = set()
    for entry in read(path):
        if entry.us is None and entry.stage == CHECK:
            wrong.add(entry.candidate.kernel)
        if entry.us is None or entry.stage not in RANKED_STAGES or "_" not in entry.candidate.kernel:
            continue
        if entry.candidate.kernel.startswith("lt"):
            continue
        kernels = found[(entry.key.layout, entry.key.m, entry.key.n, entry.key.k)]
        rank = (-RANKED_STAGES.index(entry.stage), entry.us, entry.candidate)  # a later stage measured better
        old = kernels.get(entry.candidate.kernel)
        if old is None or rank[:2] < old[:2]:
            kernels[entry.candidate.kernel] = rank
    ranked = {key: sorted(kernels.values(), key=lambda rank: rank[:2]) for key, kernels in found.items()}
    return {
        key: [candidate for *_, candidate in ranks if candidate.kernel not in wrong][:top]
        for key, ranks in ranked.items()
    }


def _open(path: Path, mode: str) -> TextIO:
    opener = gzip.open if path.suffix == ".gz" else open
    return cast(TextIO, opener(path, mode, newline=""))
