"""Prints one optional-dependency group of pyproject.toml, for `pip install -r`: python -m build_tools.requirements dev

So that the Makefile can install the tools before, and without, the project itself.
"""

from __future__ import annotations

import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:  # Python 3.10: pip has a copy
    from pip._vendor import tomli as tomllib


def group(name: str, pyproject: Path) -> list[str]:
    """The requirements of an optional-dependency group. Raises KeyError if there is no such group."""
    with pyproject.open("rb") as file:
        requirements: list[str] = tomllib.load(file)["project"]["optional-dependencies"][name]
    return requirements


if __name__ == "__main__":
    print("\n".join(group(sys.argv[1], Path(__file__).resolve().parents[1] / "pyproject.toml")))
