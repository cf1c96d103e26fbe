"""The order of tiles, which kernels compute by multiplication where the host has divided: schedule_main.cpp."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from fake_tools import ROOT


def test_orders_visit_every_tile_once(tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++")
    program, source = str(tmp_path / "main"), str(Path(__file__).with_name("schedule_main.cpp"))
    flags = ["-std=c++17", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", f"-I{ROOT / 'csrc'}"]
    subprocess.run([compiler, *flags, source, "-o", program], check=True)
    run = subprocess.run([program], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stdout + run.stderr
