"""The prepared calls of cuBLAS and cuBLASLt hand over the right pointers, sizes, pitches and flags.

They are run against a library of the same functions that computes on the CPU.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from cudal2 import tools
from cudal2.problem import TORCH_DTYPES
from cudal2.search.measure import Operands

if tools.load() is None:
    pytest.skip("cudal2._tools is not built for this Python", allow_module_level=True)

SOURCE = Path(__file__).with_name("fake_cublas.cpp")
WORKSPACE = torch.empty(4096, dtype=torch.uint8)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++")
    path = tmp_path_factory.mktemp("cublas") / "libcublas_fake.so"
    command = [compiler, "-O1", "-std=c++17", "-shared", "-fPIC", "-o", str(path), str(SOURCE)]
    built = subprocess.run(command, capture_output=True, text=True)
    if "_Float16" in built.stderr:
        pytest.skip("needs a g++ that knows _Float16")
    assert built.returncode == 0, built.stderr
    return str(path)


def _operands(dtype: str, layout: str) -> Operands:
    """11 x 7 x 13, with rows farther apart than they are long."""

    def matrix(rows: int, columns: int, pitch: int) -> torch.Tensor:
        return torch.randn(rows, pitch).to(TORCH_DTYPES[dtype])[:, :columns]

    b = matrix(13, 7, 9) if layout == "nn" else matrix(7, 13, 16).t()
    return Operands(
        matrix(11, 13, 17), b, torch.full((11, 10), torch.nan, dtype=TORCH_DTYPES[dtype])[:, :7], dtype, layout
    )


def _is_right(operands: Operands) -> bool:
    wanted = operands.a.float() @ operands.b.float()
    return torch.allclose(operands.c.float(), wanted, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("layout", ["nn", "tn"])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
class TestCalls:
    def test_cublas(self, dtype: str, layout: str, library: str) -> None:
        blas = tools.require().Blas(library, WORKSPACE.data_ptr(), 4096)
        operands = _operands(dtype, layout)
        for stream in (0, 64, 64, 0):  # each change of stream takes the workspace away: the handle must set it again
            operands.c.fill_(torch.nan)
            blas.prepare(operands.gemm(), stream)()
            assert _is_right(operands)

    def test_cublaslt(self, dtype: str, layout: str, library: str) -> None:
        operands = _operands(dtype, layout)
        problem = tools.require().LtProblem(_lt(library), operands.gemm(), 100)
        assert len(problem) == 2, "what cuBLASLt itself says cannot run is left out"
        problem.prepare(0, operands.gemm(), 0)()
        assert _is_right(operands)
        other = _operands(dtype, layout)
        problem.prepare(0, other.gemm(), 0)()
        assert _is_right(other)
        with pytest.raises(RuntimeError, match=r"cublasLtMatmul: cuBLAS status 15 \(not supported\)"):
            problem.prepare(1, operands.gemm(), 0)()
        with pytest.raises(RuntimeError, match="suggestion 2 of 2"):
            problem.prepare(2, operands.gemm(), 0)


def _lt(library: str) -> Any:
    lt = tools.require().Lt(library, WORKSPACE.data_ptr(), 4096)
    assert lt.version == 990100
    return lt


def test_a_library_that_is_not_there_is_named() -> None:
    with pytest.raises(RuntimeError, match=r"libnowhere\.so"):
        tools.require().Blas("libnowhere.so", 0, 0)


def test_a_library_without_the_functions_is_named() -> None:
    with pytest.raises(RuntimeError, match=r"libdl\.so\.2 has no cublasLtCreate"):
        tools.require().Lt("libdl.so.2", 0, 0)
