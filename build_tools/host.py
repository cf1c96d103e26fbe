"""The host's tools: C++ compiler, ninja, pybind11, and the Python interpreters to build the tooling module for."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from build_tools.errors import BuildError

_ASK_PYTHON = (
    "import json, sysconfig; "
    "print(json.dumps([sysconfig.get_paths()['include'], sysconfig.get_config_var('EXT_SUFFIX')]))"
)
_GIB_PER_JOB = 2.5
"""Memory that one nvcc process may take at its peak."""

OWN_TOOLS = "Without build isolation the build's own tools come first: pip install ninja pybind11 nvidia-cutlass"


@dataclass(frozen=True)
class Interpreter:
    """A Python that the tooling module is built for: where its headers are, and what its modules' file names end in."""

    include: Path
    suffix: str


def find_cxx(env: Mapping[str, str] = os.environ) -> str:
    """The C++ compiler: CXX, else g++ or c++ on PATH. Raises BuildError if there is none."""
    path = env.get("PATH", "")
    if named := env.get("CXX"):
        if found := shutil.which(named, path=path):
            return found
        raise BuildError(f"CXX={named} is not a program on PATH. Name one, or unset CXX to use g++.")
    for name in ("g++", "c++"):
        if found := shutil.which(name, path=path):
            return found
    raise BuildError(
        "no C++ compiler: tried g++ and c++ on PATH. Install g++ (Debian, Ubuntu: apt install g++) or set CXX."
    )


def find_ninja(env: Mapping[str, str] = os.environ) -> str:
    """The ninja that pip installed beside this Python, else the one on PATH. Raises BuildError if there is none."""
    spec = importlib.util.find_spec("ninja")
    if spec and spec.origin:
        import ninja

        packaged = Path(ninja.BIN_DIR) / "ninja"
        if packaged.is_file():
            return str(packaged)
    on_path = shutil.which("ninja", path=env.get("PATH", ""))
    if not on_path:
        raise BuildError(f"no ninja. {OWN_TOOLS}")
    return on_path


def package_folder(package: str, *parts: str) -> Path | None:
    """A folder inside an installed Python package, found without importing it; None where either is missing."""
    spec = importlib.util.find_spec(package)
    for location in (spec.submodule_search_locations or []) if spec else []:
        if (folder := Path(location, *parts)).is_dir():
            return folder
    return None


def cutlass_include() -> Path:
    """CUTLASS's headers, CuTe among them. Raises BuildError if they are not installed."""
    folder = package_folder("cutlass_library", "source", "include")
    if folder is None:
        raise BuildError(f"no CUTLASS headers (cute/tensor.hpp). {OWN_TOOLS}")
    return folder


def pybind11_include() -> Path:
    """pybind11's headers. Raises BuildError if it is not installed."""
    folder = package_folder("pybind11", "include")
    if folder is None:
        raise BuildError(f"no pybind11. {OWN_TOOLS}")
    return folder


def interpreters(env: Mapping[str, str] = os.environ) -> list[Interpreter]:
    """The Pythons to build the tooling module for: this one, and those named in CUDAL2_TOOLS_PYTHONS (colon-separated).

    This one is left out if its headers are not installed: everything but the tooling module works without it. One that
    was named must have them; raises BuildError otherwise.
    """
    found = {}
    for executable in [sys.executable, *filter(None, env.get("CUDAL2_TOOLS_PYTHONS", "").split(":"))]:
        try:
            run = subprocess.run([executable, "-c", _ASK_PYTHON], capture_output=True, text=True, check=True)
            include, suffix = json.loads(run.stdout)
        except (OSError, subprocess.CalledProcessError, ValueError) as error:
            raise BuildError(f"CUDAL2_TOOLS_PYTHONS: {executable!r} does not run as a Python: {error}") from error
        if (Path(include) / "Python.h").is_file():
            found[suffix] = Interpreter(Path(include), suffix)
        elif executable != sys.executable:
            raise BuildError(f"CUDAL2_TOOLS_PYTHONS: {executable!r} has no Python.h in {include}: install its headers.")
    return list(found.values())


def jobs(env: Mapping[str, str] = os.environ) -> int:
    """Compilers to run at once: MAX_JOBS (BuildError if not a number), else what processors and free memory allow."""
    text = env.get("MAX_JOBS", "").strip()
    if text:
        if not text.isdigit() or int(text) < 1:
            raise BuildError(f"MAX_JOBS={text!r}: expected a whole number of at least 1.")
        return int(text)
    memory = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return max(1, min(len(os.sched_getaffinity(0)), int(memory / _GIB_PER_JOB)))
