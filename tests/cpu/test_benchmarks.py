"""The benchmark harness, on a fake GPU, and its report on figures that are known."""

from __future__ import annotations

import csv
import importlib
from pathlib import Path
from types import ModuleType

import pytest
import torch
from fake_gpu import TORCH_US, FakeGpu, FakeWatch, install

from cudal2 import verify
from cudal2.search import cublaslt, measure

ROOT = Path(__file__).parents[2]

RESULTS = """\
# gpu: NVIDIA H200
# mode: graph
mode,dtype,layout,m,n,k,contender,us,low_us,high_us,ran
graph,f16,nn,64,64,64,torch,3.0,3,3,
graph,f16,nn,64,64,64,torch_again,3.0,3,3,
graph,f16,nn,64,64,64,lt_autotune,2.4,3,3,
graph,f16,nn,64,64,64,cudal2,2.0,3,3,k
graph,f16,nn,4096,4096,4096,torch,200,3,3,
graph,f16,nn,4096,4096,4096,torch_again,202,3,3,
graph,f16,nn,4096,4096,4096,cudal2,400,3,3,k
graph,f16,tn,64,64,64,lt_autotune,2.2,3,3,
graph,f16,tn,64,64,64,cudal2,2.0,3,3,k
"""


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("benchmarks.report")


@pytest.fixture
def results(tmp_path: Path) -> str:
    path = tmp_path / "results.csv"
    path.write_text(RESULTS)
    return str(path)


class TestReport:
    def test_speedups_and_noise(self, report: ModuleType, results: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert report.main([results]) == 0
        out = capsys.readouterr().out
        assert "gpu: NVIDIA H200" in out
        assert "== graph f16 nn, 2 shapes" in out
        line = next(line for line in out.splitlines() if line.startswith("cudal2     torch "))
        assert line.split() == ["cudal2", "torch", "0.866", "1.000", "50.0%", "0.500", "1.500"]
        assert "noise: geomean 0.9950" in out
        assert "4096,4096,4096       0.500     400.00 µs" in out

    def test_max_is_the_faster_layout(self, report: ModuleType, results: str) -> None:
        _, groups = report.read([results])
        assert groups["graph", "f16", "nn"][64, 64, 64]["lt_autotune_max"] == 2.2
        assert groups["graph", "f16", "tn"][64, 64, 64]["lt_autotune_max"] == 2.2
        assert "lt_autotune_max" not in groups["graph", "f16", "nn"][4096, 4096, 4096]

    def test_plots(self, report: ModuleType, results: str, tmp_path: Path) -> None:
        pytest.importorskip("matplotlib", reason="plots need matplotlib (the report extra)")
        assert report.main([results, "--plots", str(tmp_path)]) == 0
        assert {path.name for path in tmp_path.glob("*.png")} == {"graph-f16-nn.png", "graph-f16-tn.png"}


class TestRun:
    @pytest.fixture
    def run(self, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
        gpu: FakeGpu = install(monkeypatch)
        monkeypatch.syspath_prepend(str(ROOT))
        module = importlib.import_module("benchmarks.run")
        monkeypatch.setattr(module, "Pool", measure.Pool)
        monkeypatch.setattr(module, "Stopwatch", lambda device, seed: FakeWatch(gpu))
        monkeypatch.setattr(cublaslt, "Handle", object)
        monkeypatch.setattr(verify, "table_in_use", lambda: None)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: None)
        return module

    @pytest.mark.parametrize("mode", ["graph", "isolated", "offline", "server", "overhead"])
    def test_rows(self, mode: str, run: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        out = tmp_path / "out.csv"
        names = "torch,torch_again,cudal2,own"
        options = ["--mode", mode, "--shapes", "16,24,32", "--contenders", names, "--rounds", "3", "--rate", "1000"]
        assert run.main([*options, "--out", str(out)]) == 0
        text = out.read_text().splitlines()
        assert "# gpu: NVIDIA H200" in text
        rows = list(csv.DictReader(line for line in text if not line.startswith("#")))
        assert [(row["layout"], row["contender"]) for row in rows] == [
            (layout, name) for layout in ("nn", "tn") for name in ("torch", "torch_again", "cudal2")
        ]
        assert all((row["mode"], row["m"], row["n"], row["k"]) == (mode, "16", "24", "32") for row in rows)
        assert all(float(row["low_us"]) <= float(row["us"]) <= float(row["high_us"]) for row in rows)
        if mode == "graph":
            assert {float(row["us"]) for row in rows} == {TORCH_US}
            assert {row["ran"] for row in rows if row["contender"] == "cudal2"} == {"torch"}
        assert "skipped own: " in capsys.readouterr().err

    def test_a_wrong_kernel_is_not_timed(
        self, run: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        contenders = importlib.import_module("benchmarks.contenders")
        monkeypatch.setattr(contenders.cudal2, "matmul", lambda a, b, out: out.zero_())
        out = tmp_path / "out.csv"
        assert run.main(["--shapes", "16,24,32", "--contenders", "torch,cudal2", "--out", str(out)]) == 1
        assert "cudal2" not in out.read_text()
        assert "WRONG cudal2 on 16,24,32 f16 nn: max error" in capsys.readouterr().err

    def test_an_unknown_contender_is_named(self, run: ModuleType, tmp_path: Path) -> None:
        with pytest.raises(SystemExit, match="unknown fastest; expected of torch, "):
            run.main(["--shapes", "8,8,8", "--contenders", "fastest", "--out", str(tmp_path / "out.csv")])
