"""The smallest set of kernels that keeps every problem of a sweep within a tolerance of its best.

    python -m cudal2.search.smallest f16.csv.gz [bf16.csv.gz ...] --within 1.01 [--keep KERNEL ...]

Kernels that differ in dtype and layout alone count as one, since one line of the search space makes all of them. The
set is found greedily: always the kernel that brings most problems within the tolerance, until none is left (greedy set
cover, at most ln n + 1 times the least; Chvátal, 1979). What a kernel takes on a problem is its ratio to the fastest in
the same stage of the same race, in the best stage it reached: the quick stage, which all enter, has the noise of two
replays, so a tolerance of 1 % keeps some kernels for noise alone.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable
from pathlib import Path

from cudal2.plans import Key
from cudal2.search import journal
from cudal2.search.journal import Entry
from cudal2.spec import KernelSpec, SpecError

STAGES = ("quick", "top", "knobs", "final")
Ratios = dict[Key, dict[str, float]]
"""By problem and kernel: time over the problem's best."""


def ratios(entries: Iterable[Entry]) -> Ratios:
    """What each kernel takes on each problem, over the fastest. Kernels go by their name for fp16 and tn."""
    times: dict[tuple[Key, str], dict[str, float]] = defaultdict(dict)
    for entry in entries:
        if entry.us is None or entry.stage not in STAGES or (name := _base(entry.candidate.kernel)) is None:
            continue
        raced = times[entry.key, entry.stage]
        raced[name] = min(entry.us, raced.get(name, entry.us))
    found: Ratios = defaultdict(dict)
    for stage in STAGES:  # a later stage's figure replaces an earlier one's: it is measured better
        for (key, of_stage), by_kernel in times.items():
            if of_stage == stage:
                best = min(by_kernel.values())
                found[key].update({name: us / best for name, us in by_kernel.items()})
    return dict(found)


def cover(found: Ratios, within: float, keep: Collection[str] = ()) -> list[tuple[str, int]]:
    """The kernels of the set, in the order chosen, each with the problems it was chosen for. `keep` come first.

    Raises ValueError if `within` is below 1, for then nothing is within it.
    """
    if not within >= 1:
        raise ValueError(f"within={within}; expected 1 or more: a ratio to the best time")
    left = {key: {name for name, ratio in by_kernel.items() if ratio <= within} for key, by_kernel in found.items()}
    chosen: list[tuple[str, int]] = []
    for name in keep:
        chosen.append((name, _take(left, name)))
    while left:
        counts: dict[str, int] = defaultdict(int)
        for names in left.values():
            for name in names:
                counts[name] += 1
        best = max(counts, key=lambda name: (counts[name], name))
        chosen.append((best, _take(left, best)))
    return chosen


def loss(found: Ratios, kernels: Collection[str]) -> tuple[float, float]:
    """Mean and worst ratio to the best when only these kernels are there, over the problems that one of them ran."""
    best = [min(ratio for name, ratio in by.items() if name in kernels) for by in found.values() if by.keys() & kernels]
    return (sum(best) / len(best), max(best)) if best else (float("nan"), float("nan"))


def _take(left: dict[Key, set[str]], name: str) -> int:
    covered = [key for key, names in left.items() if name in names]
    for key in covered:
        del left[key]
    return len(covered)


def _base(kernel: str) -> str | None:
    try:
        return KernelSpec.parse(kernel).variant("f16", "tn").name
    except SpecError:  # a baseline
        return None


def main(argv: list[str] | None = None) -> int:
    """Print the set; returns 0, or 2 with one line on stderr for logs that cannot be read."""
    parser = argparse.ArgumentParser(
        prog="python -m cudal2.search.smallest", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("logs", nargs="+", help="logs of sweeps")
    parser.add_argument("--within", type=float, default=1.01, help="time over the best that is good enough (1.01)")
    parser.add_argument("--keep", nargs="*", default=[], help="kernels that are in the set anyway, by fp16 tn name")
    options = parser.parse_args(argv)
    try:
        found = ratios(e for log in options.logs for e in journal.read(Path(log)))
        if not found:
            raise ValueError(f"no measurements in {', '.join(options.logs)}")
        if unknown := set(options.keep) - {name for by_kernel in found.values() for name in by_kernel}:
            raise ValueError(f"--keep {' '.join(sorted(unknown))}: not among the kernels measured")
        chosen = cover(found, options.within, dict.fromkeys(options.keep))
    except (OSError, ValueError) as error:
        print(f"smallest: {error}", file=sys.stderr)
        return 2
    names: set[str] = set()
    print("kernels  chosen for  mean loss  worst  kernel")
    for name, problems in chosen:
        names.add(name)
        mean, worst = loss(found, names)
        print(f"{len(names):7d}  {problems:10d}  {100 * (mean - 1):8.2f} %  {worst:5.2f}  {name}")
    tried = {name for by_kernel in found.values() for name in by_kernel}
    print(f"{len(names)} of {len(tried)} kernels keep {len(found)} problems within {options.within}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
