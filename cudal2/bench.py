"""`cudal2 bench` and `cudal2 report`: the harness in benchmarks/, which the source tree has and a wheel has not."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from types import ModuleType


class Harness:
    """A command that a module of benchmarks/ implements, loaded when it is asked for."""

    def __init__(self, module: str, title: str):
        self._module = module
        self.__doc__ = title

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """The module's options; none without the source tree."""
        module = self._load()
        if module is not None:
            module.add_arguments(parser)

    @property
    def available(self) -> bool:
        """Whether there is a source tree. Without one, `run` says so whatever it is given."""
        return self._load() is not None

    def run(self, options: argparse.Namespace) -> int:
        """Run the command. Raises RuntimeError where this installation has no source tree."""
        module = self._load()
        if module is None:
            raise RuntimeError("the benchmarks are not part of the wheel: run this in a clone of cudal2's repository")
        return int(module.run(options))

    def _load(self) -> ModuleType | None:
        # The tree around this package, or the one that an installed cudal2 is called in.
        trees = [Path(__file__).resolve().parents[1], Path.cwd(), *map(Path, sys.path)]
        root = next((tree for tree in trees if (tree / "benchmarks" / "guard.py").is_file()), None)
        if root is None:
            return None
        if str(root) not in sys.path:
            sys.path.insert(0, str(root))
        return importlib.import_module(f"benchmarks.{self._module}")


bench = Harness("run", "time contenders side by side on many shapes")
report = Harness("report", "a page and plots from results")
