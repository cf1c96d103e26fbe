"""Where nvcc is, what it is, and what it can compile for.

Looked for in CUDA_HOME, then on PATH, then in pip's nvidia-cuda-nvcc wheel (CUDA 13: site-packages/nvidia/cu13;
CUDA 12: site-packages/nvidia/cuda_nvcc, with headers and libraries in sibling folders). The wheel may lie in the build
environment or, under pip's build isolation, in the environment that is installed into.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from build_tools.errors import BuildError

WHEEL_LAYOUTS = ("nvidia/cu13", "nvidia/cuda_nvcc")
USUAL_PLACE = Path("/usr/local/cuda/bin/nvcc")
"""Not searched (it may be another CUDA than the user means), but named in the message when nothing was found."""


@dataclass(frozen=True)
class Toolkit:
    """One CUDA toolkit: nvcc, its version, and the folders that host code needs."""

    nvcc: Path
    version: str
    architectures: frozenset[str]
    includes: tuple[Path, ...]
    """Folders of the CUDA headers, for the host compiler."""
    foreign_includes: tuple[Path, ...]
    """Those of them that nvcc does not search by itself."""
    cudart: Path
    """Folder of libcudart_static.a."""

    def __str__(self) -> str:
        return f"nvcc {self.version} ({self.nvcc})"


def site_folders() -> list[Path]:
    """Where packages may be installed: the build environment's sys.path, then the target environment's site-packages.

    pip's build isolation takes the target's site-packages off sys.path, but sysconfig still names them.
    """
    paths = sysconfig.get_paths()
    candidates = [*sys.path, paths["platlib"], paths["purelib"]]
    return [Path(path) for path in dict.fromkeys(candidates) if path and Path(path).is_dir()]


def find_nvcc(env: Mapping[str, str] = os.environ, folders: Iterable[Path] | None = None) -> Path | None:
    """The nvcc to use, or None. `folders` are searched for the wheel; by default site_folders()."""
    home = env.get("CUDA_HOME")
    if home and _is_executable(nvcc := Path(home) / "bin" / "nvcc"):
        return nvcc
    on_path = shutil.which("nvcc", path=env.get("PATH", ""))
    if on_path:
        return Path(on_path)
    for folder in site_folders() if folders is None else folders:
        for layout in WHEEL_LAYOUTS:
            if _is_executable(nvcc := folder / layout / "bin" / "nvcc"):
                return nvcc
    return None


def not_found_message(env: Mapping[str, str] = os.environ, usual_place: Path = USUAL_PLACE) -> str:
    """Why there is no nvcc, in one sentence with what to do about it."""
    home = env.get("CUDA_HOME")
    where = f"CUDA_HOME={home}" if home else "CUDA_HOME (not set)"
    hint = (
        f"There is one at {usual_place}: set CUDA_HOME={usual_place.parents[1]}." if _is_executable(usual_place) else ""
    )
    advice = hint or "Install the CUDA toolkit and set CUDA_HOME, or: pip install nvidia-cuda-nvcc nvidia-cuda-cccl."
    return f"no nvcc in {where}, on PATH, or in an nvidia-cuda-nvcc package. {advice}"


def inspect(nvcc: Path) -> Toolkit:
    """Ask `nvcc` for its version, architectures and folders. Raises BuildError if it does not answer as nvcc does."""
    version = re.search(r"\bV(\d+\.\d+\.\d+)", _output(nvcc, "--version"))
    if not version:
        raise BuildError(f"{nvcc} --version prints no version: is it nvcc?")
    architectures = frozenset(re.findall(r"sm_\d+", _output(nvcc, "--list-gpu-code")))
    if not architectures:
        raise BuildError(f"{nvcc} --list-gpu-code lists no architecture: cudal2 needs nvcc 12.0 or later.")
    own, foreign = _roots(nvcc)
    roots = [*own, *foreign]
    includes = _includes(roots)
    if not any((folder / "cuda_runtime.h").is_file() for folder in includes):
        raise BuildError(f"{nvcc}: no cuda_runtime.h in {_listed(roots)}. pip's package for it is nvidia-cuda-runtime.")
    cudart = next(
        (f for root in roots for f in (root / "lib64", root / "lib") if (f / "libcudart_static.a").is_file()), None
    )
    if cudart is None:
        raise BuildError(
            f"{nvcc}: no libcudart_static.a in {_listed(roots)}. pip's package for it is nvidia-cuda-runtime."
        )
    return Toolkit(nvcc, version[1], architectures, includes, _includes(foreign), cudart)


def _roots(nvcc: Path) -> tuple[list[Path], list[Path]]:
    """Folders that hold include/ and lib/: nvcc's own, and the sibling folders of CUDA 12's split wheels.

    nvcc is asked, since the one on PATH may be a script that calls another.
    """
    dry_run = _output(nvcc, "--dryrun", "-c", "x.cu")
    top = re.search(r"^#\$ TOP=(.+)$", dry_run, re.MULTILINE)
    root = Path(top[1]).resolve() if top else nvcc.resolve().parents[1]
    target = re.search(r"^#\$ _TARGET_DIR_=(\S+)$", dry_run, re.MULTILINE)
    own = [root / target[1], root] if target else [root]
    split = root.name == "cuda_nvcc"
    return own, [root.with_name("cuda_runtime"), root.with_name("cuda_cccl")] if split else []


def _includes(roots: Iterable[Path]) -> tuple[Path, ...]:
    folders = [folder.resolve() for root in roots for folder in (root / "include", root / "include" / "cccl")]
    return tuple(folder for folder in dict.fromkeys(folders) if folder.is_dir())


def _output(nvcc: Path, *arguments: str) -> str:
    try:
        run = subprocess.run([nvcc, *arguments], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{nvcc} {' '.join(arguments)} does not run: {error}") from error
    return run.stdout + run.stderr


def _is_executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _listed(folders: Iterable[Path]) -> str:
    return ", ".join(map(str, folders))
