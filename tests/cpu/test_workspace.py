"""Workspaces never serve two launches that may run at once: workspace_main.cpp, with a CUDA runtime of its own."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from fake_tools import ROOT, cuda_headers

SOURCES = [Path(__file__).with_name("workspace_main.cpp"), ROOT / "csrc" / "runtime" / "workspace.cpp"]


@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_launches_that_may_run_at_once_share_nothing(sanitizer: str, tmp_path: Path) -> None:
    headers, compiler = cuda_headers(), shutil.which("g++")
    if not headers or compiler is None:
        pytest.skip("needs g++ and CUDA's headers")
    includes = [f"-I{ROOT / 'csrc'}", *(word for folder in headers for word in ("-isystem", str(folder)))]
    flags = ["-std=c++17", "-O1", "-g", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-pthread"]
    program = str(tmp_path / "main")
    subprocess.run([compiler, *flags, *includes, *map(str, SOURCES), "-o", program], check=True)
    environment = {"ASAN_OPTIONS": "detect_leaks=0"}  # workspaces live as long as the process
    run = subprocess.run([program], env=environment, capture_output=True, text=True, timeout=120)
    if "unexpected memory mapping" in run.stderr:
        pytest.skip("this kernel's address-space layout is not for the thread sanitizer")
    assert run.returncode == 0, run.stdout + run.stderr
