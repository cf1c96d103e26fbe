"""The cutlass2x peer, without a GPU: what it hands to its library, and what it says where something is missing."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_gpu import multiply

from cudal2.problem import TORCH_DTYPES
from cudal2.search.measure import Operands

ROOT = Path(__file__).parents[2]
if not (ROOT / "benchmarks").is_dir():
    pytest.skip("the benchmarks need the source tree", allow_module_level=True)
sys.path.append(str(ROOT))

from benchmarks.peers import cutlass2x  # noqa: E402
from build_tools.errors import BuildError  # noqa: E402

SIZE, POINTER = ctypes.c_int64, ctypes.c_void_p
UNSUPPORTED = -1
STREAM = 1 << 40


def _supports(index: int, m: int, n: int, k: int, lda: int, ldb: int, ldc: int) -> int:
    return int(index != 1 and not any(size % 8 for size in (n, k, lda, ldb, ldc)))


def _run(
    index: int, bf16: int, tn: int, m: int, n: int, k: int, a: int, lda: int, b: int, ldb: int, c: int, ldc: int, s: int
) -> int:
    if index == 1 or s != STREAM:
        return UNSUPPORTED
    dtype, layout = "bf16" if bf16 else "f16", "tn" if tn else "nn"
    multiply(SimpleNamespace(m=m, n=n, k=k, a=a, b=b, c=c, lda=lda, ldb=ldb, ldc=ldc, dtype=dtype, layout=layout))
    return 0


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> cutlass2x.Library:
    """Loaded from functions with the C signatures of cutlass2x.cu, which compute on the CPU."""

    def name(index: int) -> bytes:
        return (b"one", b"two", b"three")[index]

    def error(status: int) -> bytes:
        return b"this kernel cannot run the problem"

    supports = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, *[SIZE] * 6)
    run = ctypes.CFUNCTYPE(
        *(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int, SIZE, SIZE, SIZE),
        *(POINTER, SIZE, POINTER, SIZE, POINTER, SIZE, POINTER),
    )
    native = SimpleNamespace(
        cutlass2x_count=lambda: 3,
        cutlass2x_name=name,
        cutlass2x_error=error,
        cutlass2x_supports=supports(_supports),
        cutlass2x_run=run(_run),
    )
    path = tmp_path / "libcutlass2x.so"
    path.touch()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: native)
    return cutlass2x.Library(path)


def _operands(dtype: str = "f16", layout: str = "nn", n: int = 8) -> Operands:
    """11 x n x 16, with rows farther apart than they are long."""

    def matrix(rows: int, columns: int, pitch: int) -> torch.Tensor:
        return torch.randn(rows, pitch).to(TORCH_DTYPES[dtype])[:, :columns]

    b = matrix(16, n, 24) if layout == "nn" else matrix(n, 16, 32).t()
    return Operands(matrix(11, 16, 40), b, torch.full((11, 48), torch.nan).to(b.dtype)[:, :n], dtype, layout)


class TestProblem:
    @pytest.mark.parametrize("layout", ["nn", "tn"])
    @pytest.mark.parametrize("dtype", ["f16", "bf16"])
    def test_pointers_sizes_and_pitches(self, library: cutlass2x.Library, dtype: str, layout: str) -> None:
        problem = cutlass2x.Problem(library, _operands(dtype, layout))
        operands = _operands(dtype, layout)
        problem.call(1, STREAM, operands)()
        wanted = operands.a.float() @ operands.b.float()
        assert torch.allclose(operands.c.float(), wanted, rtol=1e-2, atol=1e-2)
        assert problem.operands.c.isnan().all()

    def test_kernels_that_cannot_run_it_are_left_out(self, library: cutlass2x.Library) -> None:
        problem = cutlass2x.Problem(library, _operands())
        assert [problem.name(index) for index in range(len(problem))] == ["one", "three"]

    def test_no_kernel_at_all(self, library: cutlass2x.Library) -> None:
        with pytest.raises(cutlass2x.PeerError, match="11,9,16: sizes and pitches must be multiples of 8"):
            cutlass2x.Problem(library, _operands(n=9))

    def test_a_failing_call_says_why(self, library: cutlass2x.Library) -> None:
        call = library.call(1, _operands(), STREAM)
        with pytest.raises(cutlass2x.PeerError, match="two on 11,8,16: this kernel cannot run the problem"):
            call()


class TestLibrary:
    def test_not_built(self, tmp_path: Path) -> None:
        with pytest.raises(cutlass2x.PeerError, match=r"not built: python -m benchmarks\.peers\.cutlass2x --build"):
            cutlass2x.Library(tmp_path / "libcutlass2x.so")

    def test_not_a_library(self, tmp_path: Path) -> None:
        path = tmp_path / "libcutlass2x.so"
        path.write_text("not ELF")
        with pytest.raises(cutlass2x.PeerError, match="build it anew: python -m"):
            cutlass2x.Library(path)

    def test_another_version_s(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "libcutlass2x.so"
        path.touch()
        monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace())
        with pytest.raises(cutlass2x.PeerError, match="cutlass2x_supports.*build it anew"):
            cutlass2x.Library(path)


class TestBuild:
    @pytest.fixture(autouse=True)
    def _all_there(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        toolkit = SimpleNamespace(foreign_includes=(Path("runtime"),), cudart=Path("lib"))
        monkeypatch.setattr(cutlass2x.host, "package_folder", lambda *parts: Path("cutlass"))
        monkeypatch.setattr(cutlass2x.host, "find_cxx", lambda: "g++")
        monkeypatch.setattr(cutlass2x.cuda, "find_nvcc", lambda: Path("nvcc"))
        monkeypatch.setattr(cutlass2x.cuda, "inspect", lambda nvcc: toolkit)

    def test_the_result_appears_in_one_step(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        library = tmp_path / "peers" / "libcutlass2x.so"
        ran: list[list[str]] = []

        def compile(command: list[str]) -> Any:
            ran.append(command)
            assert not library.exists()
            Path(command[-1]).write_text("built")
            return SimpleNamespace(returncode=0)

        monkeypatch.setattr(cutlass2x.subprocess, "run", compile)
        assert cutlass2x.build(library).read_text() == "built"
        assert [path.name for path in library.parent.iterdir()] == ["libcutlass2x.so"]
        assert ran[0][0] == "nvcc"
        assert {"-Icutlass", "-Iruntime", "-Llib", "-gencode=arch=compute_90,code=sm_90"} <= set(ran[0])

    def test_a_failure_of_the_compiler(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cutlass2x.subprocess, "run", lambda command: SimpleNamespace(returncode=1))
        with pytest.raises(BuildError, match="compiling cutlass2x failed"):
            cutlass2x.build(tmp_path / "libcutlass2x.so")

    def test_without_headers(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        monkeypatch.setattr(cutlass2x.host, "package_folder", lambda *parts: None)
        assert cutlass2x.main(["--build"]) == 1
        assert "cutlass2x: no CUTLASS headers: the peer needs them from pip's nvidia-cutlass" in capsys.readouterr().err

    def test_without_nvcc(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        monkeypatch.setattr(cutlass2x.cuda, "find_nvcc", lambda: None)
        assert cutlass2x.main(["--build"]) == 1
        assert "cutlass2x: no nvcc in CUDA_HOME" in capsys.readouterr().err
