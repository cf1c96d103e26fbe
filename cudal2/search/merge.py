"""Joins plan tables of one GPU that were measured apart (shards, dtypes, other shapes) into one.

    python -m cudal2.search.merge generated_kernels/plans/h200.csv first.csv second.csv

A later file's plan replaces an earlier one's for the same problem. The output may be among the inputs.
"""

from __future__ import annotations

import argparse
import sys

from cudal2 import plans
from cudal2.plans import PlanError, Table


def main(argv: list[str] | None = None) -> int:
    """Merge. Returns 0, or 2 with one line on stderr: tables malformed or of different kinds, or an OSError."""
    parser = argparse.ArgumentParser(prog="python -m cudal2.search.merge", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("out")
    parser.add_argument("tables", nargs="+")
    options = parser.parse_args(argv)
    try:
        merged = merge([plans.read(path) for path in options.tables])
        plans.write(options.out, merged)
    except (PlanError, OSError) as error:
        print(f"merge: {error}", file=sys.stderr)
        return 2
    print(f"{options.out}: {len(merged.plans)} plans")
    return 0


def merge(tables: list[Table]) -> Table:
    """The plans of all, the last one's header. Raises PlanError if they are of several GPUs, or some of rules only."""
    gpus = sorted({table.gpu for table in tables})
    if len(gpus) != 1:
        raise PlanError(f"tables of several GPUs: {', '.join(map(repr, gpus))}")
    if len({table.rules for table in tables}) != 1:
        raise PlanError(
            "some tables were measured and some come from rules: a table says one of the two of all its plans"
        )
    merged = Table(dict(tables[-1].header), {})
    for table in tables:
        merged.plans.update(table.plans)
    return merged


if __name__ == "__main__":
    sys.exit(main())
