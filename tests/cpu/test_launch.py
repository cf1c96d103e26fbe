"""A launch goes through the driver where it can, else through the runtime: launch_main.cpp, with both of its own."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from fake_tools import ROOT, cuda_headers

RUNTIME = ROOT / "csrc" / "runtime"
SOURCES = [Path(__file__).with_name("launch_main.cpp"), RUNTIME / "launch.cpp", RUNTIME / "launch_mma.cpp"]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    headers, compiler = cuda_headers(), shutil.which("g++")
    if not headers or compiler is None:
        pytest.skip("needs g++ and CUDA's headers")
    target = tmp_path_factory.mktemp("launch") / "main"
    includes = [f"-I{ROOT / 'csrc'}", *(word for folder in headers for word in ("-isystem", str(folder)))]
    flags = ["-std=c++17", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-pthread"]
    subprocess.run([compiler, *flags, *includes, *map(str, SOURCES), "-o", str(target)], check=True)
    return target


@pytest.mark.parametrize("arguments", [[], ["no_driver"]])
def test_launches(program: Path, arguments: list[str]) -> None:
    run = subprocess.run([str(program), *arguments], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stdout + run.stderr
