"""Which devices a build has code for: the rule of csrc/runtime/registry.cpp, by the architectures of the build."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "csrc" / "runtime" / "registry.cpp"
if not SOURCE.is_file() or shutil.which("g++") is None:
    pytest.skip("needs the source tree and g++", allow_module_level=True)


@pytest.mark.parametrize(
    ("build", "runs", "does_not_run"),
    [
        ("nvcc 13.0.88, sm_80 sm_90a", (80, 86, 89, 90), (75, 100, 103, 120)),
        ("nvcc 13.0.88, sm_80", (80, 86, 89), (75, 90)),
        ("nvcc 13.0.88, sm_86", (86, 89), (80, 90)),
        ("nvcc 13.0.88, sm_80 compute_80", (80, 89, 90, 100, 120), (75,)),
        ("nvcc 13.0.88, sm_90a", (90,), (80, 100)),
        ("fallback-only: no nvcc was found when it was built", (), (80, 90)),
    ],
)
def test_compiled_for(tmp_path: Path, build: str, runs: tuple[int, ...], does_not_run: tuple[int, ...]) -> None:
    library = tmp_path / "registry.so"
    include = f"-I{SOURCE.parents[1]}"
    flags = ["-std=c++17", "-shared", "-fPIC", f'-DCUDAL2_BUILD_INFO="{build}"', include, str(SOURCE)]
    subprocess.run(["g++", *flags, "-o", str(library)], check=True)
    compiled_for = ctypes.CDLL(str(library))["_ZN6cudal212compiled_forEi"]
    compiled_for.restype = ctypes.c_bool
    assert [arch for arch in (*runs, *does_not_run) if compiled_for(arch)] == list(runs)
