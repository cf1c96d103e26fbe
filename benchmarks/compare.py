"""Two results files side by side: what moved by more than the noise that the runs measured themselves."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from benchmarks import results_file, summary
from benchmarks.results_file import Cells
from cudal2.shapes import Shape

LEAST = 0.005
"""No move below this counts, however quiet a run was."""
UNKNOWN_NOISE = 0.03
"""Assumed where no contender ran twice."""
MOST_LISTED = 10


def lines(old_file: str | Path, new_file: str | Path) -> list[str]:
    """The comparison as text. Raises ResultsError."""
    old, new = results_file.read([old_file]), results_file.read([new_file])
    found = [f"old  {_origin(old)}", f"new  {_origin(new)}", "times, new over old: below 1 is faster now"]
    shared = sorted(old.groups.keys() & new.groups.keys())
    if not shared:
        raise results_file.ResultsError(f"{old_file} and {new_file} have no mode, dtype and layout in common")
    for group in shared:
        before, after = old.groups[group], new.groups[group]
        limit, source = noise_limit(before, after)
        found += ["", f"== {group}: moved means by more than {100 * limit:.1f} % ({source})"]
        found.append(f"   {'':18} {'shapes':>6} {'geomean':>8} {'faster':>7} {'slower':>7}")
        details: list[str] = []
        for name in _names(before, after):
            moves = _moves(before, after, name)
            faster = sum(move < 1 / (1 + limit) for move in moves.values())
            slower = sum(move > 1 + limit for move in moves.values())
            found.append(f"   {name:18} {len(moves):6} {summary.geomean(moves.values()):8.4f} {faster:7} {slower:7}")
            if name in summary.OURS:
                details += _listed(name, moves, limit, before, after)
        found += details
    return found


def noise_limit(before: Cells, after: Cells) -> tuple[float, str]:
    """By how much a time may differ without meaning anything, and where that comes from."""
    known = [noise.p95 for cells in (before, after) for noise in summary.noise(cells)]
    if not known:
        return UNKNOWN_NOISE, "assumed: no contender ran twice"
    # Each time carries the noise of one run; a ratio within a run carries it twice, as the ratio of two runs does.
    return max(LEAST, max(known)), "95 % of the same version's shapes, run twice"


def _moves(before: Cells, after: Cells, name: str) -> dict[Shape, float]:
    return {
        shape: after[shape][name].us / before[shape][name].us
        for shape in before.keys() & after.keys()
        if name in before[shape] and name in after[shape] and min(before[shape][name].us, after[shape][name].us) > 0
    }


def _names(before: Cells, after: Cells) -> list[str]:
    """Contenders that both have, in the order of the files; maxima are left to their parts."""
    first = dict.fromkeys(name for cells in before.values() for name in cells)
    second = {name for cells in after.values() for name in cells}
    return [name for name in first if name in second and "_max" not in name and _moves(before, after, name)]


def _listed(name: str, moves: dict[Shape, float], limit: float, before: Cells, after: Cells) -> Iterator[str]:
    """The largest moves, each with a mark."""
    moved = [shape for shape, move in moves.items() if abs(math.log(move)) > math.log(1 + limit)]
    moved.sort(key=lambda shape: -abs(math.log(moves[shape])))
    for shape in moved[:MOST_LISTED]:
        mark = "+ faster" if moves[shape] < 1 else "- SLOWER"
        old, new = before[shape][name], after[shape][name]
        kernels = f"  {old.ran} -> {new.ran}" if old.ran != new.ran else ""
        yield f"   {mark} {name:8} {shape!s:20} {moves[shape]:.3f}  {old.us:9.2f} -> {new.us:9.2f} µs{kernels}"
    if len(moved) > MOST_LISTED:
        yield f"   ... and {len(moved) - MOST_LISTED} more of {name}"


def _origin(found: results_file.Results) -> str:
    told = (f"{key} {found.header.get(key, '?')}" for key in ("gpu", "date", "commit", "clocks"))
    return f"{found.names[0]}: {', '.join(told)}"
