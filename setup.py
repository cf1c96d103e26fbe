"""Adds the native build to setuptools: everything else is in pyproject.toml, and how the build works in build_tools/.

Environment: CUDA_HOME, TORCH_CUDA_ARCH_LIST (default 8.0;9.0a), MAX_JOBS, CXX, CUDAL2_TOOLS_PYTHONS (further Pythons to
build the tooling module for, colon-separated executables).
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import setuptools
from setuptools import Command, Distribution, setup
from setuptools.command.build import build

ROOT = Path(__file__).resolve().parent
SETUPTOOLS = (77, 0)

if tuple(int(part) for part in setuptools.__version__.split(".")[:2]) < SETUPTOOLS:
    sys.exit(
        f"cudal2: setuptools {setuptools.__version__} is too old. Upgrade it first: pip install -U 'setuptools>=77'"
    )

from setuptools.command.bdist_wheel import bdist_wheel  # noqa: E402  (only since setuptools 70.1)

from build_tools import native  # noqa: E402
from build_tools.errors import BuildError  # noqa: E402


class BuildNative(Command):
    """Runs the native build and puts its results into the wheel, or (editable install) into the source tree."""

    description = "build cudal2's native libraries"
    user_options = [("build-lib=", "b", "directory to build to")]

    build_lib: str | None
    editable_mode: bool

    def initialize_options(self) -> None:
        self.build_lib = None  # set_undefined_options replaces None alone
        self.editable_mode = False
        self.placed: list[Path] = []

    def finalize_options(self) -> None:
        self.set_undefined_options("build", ("build_lib", "build_lib"))

    def run(self) -> None:
        try:
            result = native.build(ROOT)
            package = ROOT / "cudal2" if self.editable_mode else Path(str(self.build_lib)).resolve() / "cudal2"
            self.placed = native.place(result, package, link_plans=self.editable_mode)
        except BuildError as error:
            sys.exit(f"cudal2: {error}")

    def get_outputs(self) -> list[str]:
        return [str(path) for path in self.placed]

    def get_output_mapping(self) -> dict[str, str]:
        return {}

    def get_source_files(self) -> list[str]:
        return []


class Build(build):
    """build, with the native build at its end, into an empty folder: setuptools would keep files that are gone."""

    sub_commands = [*build.sub_commands, ("build_native", None)]

    def run(self) -> None:
        if Path(self.build_lib).is_dir():
            shutil.rmtree(self.build_lib)
        super().run()


class Wheel(bdist_wheel):
    """One wheel for every Python: the libraries do not depend on it, and the tooling module is optional."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


class BinaryDistribution(Distribution):
    """Has native code, though setuptools builds none of it."""

    def has_ext_modules(self) -> bool:
        return True


setup(
    cmdclass={"build": Build, "build_native": BuildNative, "bdist_wheel": Wheel},
    distclass=BinaryDistribution,
)
