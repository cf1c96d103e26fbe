"""Where torch's headers and libraries are, as files: torch is never imported here.

The ops library compiles against torch's stable ABI, so any torch from 2.10 on serves, whichever is used at run time.
Looked for in the build environment, then in the environment that is installed into (under pip's build isolation the
first has none). backend.py asks pip for one in the build environment where neither has.
"""

from __future__ import annotations

import importlib.util
import re
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from build_tools.errors import BuildError

MINIMUM = (2, 10)
REQUIREMENT = f"torch>={MINIMUM[0]}.{MINIMUM[1]}"
TARGET_VERSION = f"0x{MINIMUM[0]:02x}{MINIMUM[1]:02x}000000000000"
"""TORCH_TARGET_VERSION: the stable ABI's own spelling of the version that the library must still load under."""

_STABLE_HEADER = "include/torch/csrc/stable/library.h"


@dataclass(frozen=True)
class Torch:
    """An installed torch: its package folder and version."""

    root: Path
    version: str

    @property
    def includes(self) -> tuple[Path, ...]:
        return (self.root / "include",)

    @property
    def libraries(self) -> Path:
        return self.root / "lib"


def candidates() -> list[Path]:
    """Folders that may hold a torch package, the build environment's first."""
    spec = importlib.util.find_spec("torch")
    found = [Path(location).parent for location in (spec.submodule_search_locations or [])] if spec else []
    paths = sysconfig.get_paths()
    return list(dict.fromkeys([*found, Path(paths["platlib"]), Path(paths["purelib"])]))


def find(folders: Iterable[Path] | None = None) -> Torch | None:
    """The first torch in `folders` (by default candidates()), or None. Raises BuildError if it is too old."""
    for folder in candidates() if folders is None else folders:
        version = _version(folder)
        if version is None:
            continue
        root = folder / "torch"
        numbers = re.match(r"(\d+)\.(\d+)", version)
        if not numbers or (int(numbers[1]), int(numbers[2])) < MINIMUM:
            raise BuildError(f"torch {version} in {root} is too old: cudal2 needs {REQUIREMENT}. Upgrade it first.")
        if not (root / _STABLE_HEADER).is_file():
            raise BuildError(f"torch {version} in {root} has no {_STABLE_HEADER}: reinstall it with its headers.")
        return Torch(root, version)
    return None


def require(folders: Iterable[Path] | None = None) -> Torch:
    """As find, but raises BuildError where there is none."""
    torch = find(folders)
    if torch is None:
        raise BuildError(
            f"no torch found: the build needs its headers. Install {REQUIREMENT} into this environment first "
            f"(pip install '{REQUIREMENT}'), then install cudal2."
        )
    return torch


def _version(folder: Path) -> str | None:
    """The version of folder/torch from its version.py, or None where there is no torch."""
    try:
        text = (folder / "torch" / "version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    match = re.search(r"^__version__\s*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    return match[1] if match else None
