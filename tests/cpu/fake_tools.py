"""Compilers and packages that only look like ones, for the tests of the build, and where the real CUDA headers are.

Makes build_tools importable."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
if not (ROOT / "build_tools").is_dir():
    pytest.skip("tests of the build need the source tree", allow_module_level=True)
sys.path.append(str(ROOT))  # last, so that the source tree does not shadow an installed cudal2

from build_tools import cuda  # noqa: E402
from build_tools.errors import BuildError  # noqa: E402

FAKE_NVCC = """#!/bin/sh
case "$1" in
  --version) echo "Cuda compilation tools, release 13.0, V13.0.88" ;;
  --list-gpu-code) printf 'sm_75\\nsm_80\\nsm_90\\nsm_100\\n' ;;
  --dryrun) echo "#\\$ TOP={top}" ;;
esac
"""


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


def fake_toolkit(root: Path, library_folder: str = "lib64") -> Path:
    """A folder that looks like a CUDA toolkit. Returns its nvcc."""
    for file in (root / "include" / "cuda_runtime.h", root / library_folder / "libcudart_static.a"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    return executable(root / "bin" / "nvcc", FAKE_NVCC.format(top=root))


def fake_torch(site: Path, version: str = "2.13.0+cpu", *, headers: bool = True) -> Path:
    """A folder that looks like site-packages with torch in it. Returns `site`."""
    header = site / "torch" / "include/torch/csrc/stable/library.h"
    header.parent.mkdir(parents=True, exist_ok=True)
    if headers:
        header.touch()
    (site / "torch" / "version.py").write_text(f"__version__ = '{version}'\n", encoding="utf-8")
    return site


def cuda_headers() -> tuple[Path, ...]:
    """Folders of the real CUDA headers; empty where there is no toolkit."""
    nvcc = cuda.find_nvcc()
    try:
        return cuda.inspect(nvcc).includes if nvcc else ()
    except BuildError:
        return ()
