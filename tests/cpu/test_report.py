"""The report, the comparison, and the results files that both read: on figures that are known."""

from __future__ import annotations

import gzip
import re
import sys
from pathlib import Path

import pytest

from cudal2 import cli
from cudal2.shapes import Shape

ROOT = Path(__file__).parents[2]
if not (ROOT / "benchmarks").is_dir():
    pytest.skip("the benchmarks need the source tree", allow_module_level=True)
sys.path.append(str(ROOT))

import benchmarks  # noqa: E402
from benchmarks import compare, results_file, summary  # noqa: E402
from benchmarks.results_file import Group  # noqa: E402

SMALL, LARGE = Shape(64, 64, 64), Shape(4096, 4096, 4096)
HEADER = {"gpu": "NVIDIA H200", "date": "2026-01-02", "commit": "abc", "suite": "grid", "seed": "0", "dtype": "f16"}
TIMES = {
    ("nn", SMALL): {"torch": 3.0, "lt_autotune": 2.4, "cudal2": 2.0, "cudal2_again": 2.0, "own": 2.0},
    ("tn", SMALL): {"torch": 3.2, "lt_autotune": 2.2, "cudal2": 2.0, "cudal2_again": 2.02},
    ("nn", LARGE): {"torch": 200.0, "lt_autotune": 190.0, "cudal2": 400.0, "cudal2_again": 404.0},
}


def _write(path: Path, mode: str = "graph", scale: float = 1.0, **moved: float) -> Path:
    writer = results_file.Writer(path, HEADER)
    for (layout, shape), times in TIMES.items():
        group = Group(mode, "f16", layout)
        writer.problem(
            [
                results_file.row(group, shape, name, [us * scale * moved.get(name, 1.0)] * 3, f"kernel of {name}", "")
                for name, us in times.items()
            ]
        )
    return path


class TestResults:
    def test_a_row_says_rates_and_roofline(self, tmp_path: Path) -> None:
        row = dict(
            zip(results_file.COLUMNS, results_file.row(Group("graph", "f16", "nn"), LARGE, "own", [200.0], "k", ""))
        )
        assert float(row["tflops"]) == pytest.approx(2 * 4096**3 / 200e-6 / 1e12, rel=1e-3)
        assert float(row["gbps"]) == pytest.approx(6 * 4096**2 / 200e-6 / 1e9, rel=1e-3)
        assert float(row["roofline"]) == pytest.approx(2 * 4096**3 / 800e12 / 200e-6, rel=1e-3)
        assert row["samples"] == ""

    def test_maxima_are_the_faster_layout(self, tmp_path: Path) -> None:
        found = results_file.read([_write(tmp_path / "a.csv")])
        for layout in ("nn", "tn"):
            assert found.groups[Group("graph", "f16", layout)][SMALL]["lt_autotune_max"].us == 2.2
        assert "lt_autotune_max" not in found.groups[Group("graph", "f16", "nn")][LARGE]

    def test_a_wrong_baseline_is_left_out_of_the_maxima(self, tmp_path: Path) -> None:
        path = _write(tmp_path / "a.csv")
        lines = [line for line in path.read_text().splitlines() if not line.startswith("graph,f16,tn,64,64,64,lt_")]
        path.write_text("".join(f"{line}\n" for line in lines))
        found = results_file.read([path])
        for layout in ("nn", "tn"):
            assert found.groups[Group("graph", "f16", layout)][SMALL]["lt_autotune_max"].us == 2.4

    def test_what_is_known_at_the_end_counts_last(self, tmp_path: Path) -> None:
        path = _write(tmp_path / "a.csv")
        results_file.Writer(path, HEADER).comment({"clocks": "SM 1\nMHz"})
        results_file.Writer(path, HEADER).comment({"clocks": "SM 2 MHz"})
        assert results_file.read([path]).header["clocks"] == "SM 2 MHz"

    def test_headers_that_differ_are_both_shown(self, tmp_path: Path) -> None:
        first, second = _write(tmp_path / "a.csv"), _write(tmp_path / "b.csv", mode="cold")
        second.write_text(second.read_text().replace("commit: abc", "commit: def"))
        found = results_file.read([first, second])
        assert found.header["commit"] == "abc | def"
        assert {group.mode for group in found.groups} == {"graph", "cold"}

    def test_another_file_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "x.csv"
        path.write_text("a,b\n1,2\n")
        with pytest.raises(results_file.ResultsError, match=r"x\.csv is no results file: expected the columns mode"):
            results_file.read([path])

    @pytest.mark.parametrize("content", [gzip.compress(b"mode,dtype\n"), b"\0\0\n", b"", b"# gpu: x\n"])
    def test_what_is_no_csv_is_refused_alike(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "x.csv.gz"
        path.write_bytes(content)
        with pytest.raises(
            results_file.ResultsError, match=r"x\.csv\.gz is no results file: expected the columns mode"
        ):
            results_file.read([path])

    @pytest.mark.parametrize("cut", [",2.000,2.000,2.000", ",2.000,2.000", "2.000,2.000"])
    def test_a_row_that_was_cut_off_is_named(self, tmp_path: Path, cut: str) -> None:
        path = _write(tmp_path / "a.csv")
        text = path.read_text()
        path.write_text(text[: text.index(cut, text.index("nn,64,64,64,cudal2"))] + "\n")
        with pytest.raises(results_file.ResultsError, match=r"a row is cut off .*: graph,f16,nn,64,64,64,cudal2"):
            results_file.read([path])


class TestSummary:
    def test_speedups(self, tmp_path: Path) -> None:
        cells = results_file.read([_write(tmp_path / "a.csv")]).groups[Group("graph", "f16", "nn")]
        over_torch, over_lt, over_max = summary.speedups(cells, "cudal2")
        assert over_torch.ratios == {SMALL: 1.5, LARGE: 0.5}
        assert over_torch.geomean == pytest.approx(0.75**0.5)
        assert (over_torch.mean, over_torch.wins) == (1.0, 0.5)
        assert (over_lt.baseline, over_max.ratios) == ("lt_autotune", {SMALL: pytest.approx(1.1)})
        assert summary.reference(cells) == "lt_autotune"
        assert summary.worst(cells, "cudal2", "torch", 1) == [(LARGE, 0.5)]

    def test_noise(self, tmp_path: Path) -> None:
        cells = results_file.read([_write(tmp_path / "a.csv")]).groups[Group("graph", "f16", "nn")]
        (noise,) = summary.noise(cells)
        assert (noise.name, noise.count, noise.worst) == ("cudal2", 2, (LARGE, pytest.approx(1.01)))
        assert noise.geomean == pytest.approx(1.01**0.5)
        assert noise.p95 == pytest.approx(0.01)

    def test_sizes(self, tmp_path: Path) -> None:
        cells = results_file.read([_write(tmp_path / "a.csv")]).groups[Group("graph", "f16", "nn")]
        small, large = summary.by_size(cells, "cudal2")
        assert (small.title, small.shapes, large.title, large.shapes) == ("18–19", [SMALL], "36–37", [LARGE])
        assert small.speedups["torch"] == 1.5
        assert [found.title for found in summary.by_rows(cells, "cudal2")] == ["64", "4096"]


class TestCompare:
    def test_what_moved_beyond_the_noise_is_marked(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        old, new = (
            _write(tmp_path / "old.csv"),
            _write(tmp_path / "new.csv", torch=1.008, cudal2=1.05, cudal2_again=1.05, own=0.9),
        )
        assert cli.main(["bench", "--compare", str(old), str(new)]) == 0
        out = capsys.readouterr().out
        lines = out.split("== graph f16 nn")[1].split("\n==")[0].splitlines()
        counts = {words[0]: words[1:] for line in lines if len(words := line.split()) == 5}
        assert counts["torch"] == ["2", "1.0080", "0", "0"]
        assert counts["cudal2"] == ["2", "1.0500", "0", "2"]
        assert counts["own"] == ["1", "0.9000", "1", "0"]
        assert re.search(r"- SLOWER cudal2 +64,64,64 +1\.050 +2\.00 -> +2\.10 µs", out)
        assert re.search(r"\+ faster own +64,64,64 +0\.900", out)

    def test_the_limit_is_what_the_runs_measured(self, tmp_path: Path) -> None:
        one, two = (results_file.read([_write(tmp_path / name)]).groups for name in ("a.csv", "b.csv"))
        group = Group("graph", "f16", "nn")
        assert compare.noise_limit(one[group], two[group])[0] == pytest.approx(0.01)
        alone = {SMALL: {"torch": one[group][SMALL]["torch"]}}
        assert compare.noise_limit(alone, alone) == (compare.UNKNOWN_NOISE, "assumed: no contender ran twice")

    def test_nothing_in_common(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        old, new = _write(tmp_path / "old.csv"), _write(tmp_path / "new.csv", mode="cold")
        assert cli.main(["bench", "--compare", str(old), str(new)]) == 2
        assert "have no mode, dtype and layout in common" in capsys.readouterr().err


class TestReport:
    @pytest.fixture
    def page(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
        pytest.importorskip("matplotlib", reason="plots need matplotlib (the report extra)")
        graph, server = _write(tmp_path / "graph.csv"), _write(tmp_path / "server.csv", mode="server")
        results_file.Writer(graph, HEADER).comment({"wrong": "lt_autotune on 1,1,1: <wrong>; own on 2,2,2: worse"})
        assert cli.main(["report", str(graph), str(server)]) == 0
        self.out = capsys.readouterr().out
        return (tmp_path / "report" / "report.html").read_text()

    def test_it_holds_everything_and_needs_nothing_else(self, page: str, tmp_path: Path) -> None:
        assert not re.search(r"(src|href)=['\"](?!data:|#)", page)
        assert page.count("src='data:image/png;base64,") == len(list((tmp_path / "report").glob("*.png")))
        assert {path.name for path in (tmp_path / "report").glob("*.png")} == {
            f"{mode}-f16-{layout}-{what}.png"
            for mode in ("graph", "server")
            for layout in ("nn", "tn")
            for what in ("size", "sorted", "roofline", *(["latency"] if mode == "server" else []))
        }
        for text in ("0.866×", "faster on 50 % of 2 shapes", "NVIDIA H200", "4096 × 4096 × 4096", "36–37", "2 wrong"):
            assert text in page
        assert "&lt;wrong&gt;" in page
        assert page.index("graph · f16") < page.index("server · f16") < page.index("Provenance")

    def test_the_headline_is_printed(self, page: str) -> None:
        line = next(line for line in self.out.splitlines() if re.match(r"cudal2 +torch ", line))
        assert line.split() == ["cudal2", "torch", "2", "0.866", "1.000", "50.0%", "0.500", "1.500"]

    def test_a_result_without_ours(self, tmp_path: Path) -> None:
        pytest.importorskip("matplotlib", reason="plots need matplotlib (the report extra)")
        path = tmp_path / "a.csv"
        row = results_file.row(Group("overhead", "f16", "nn"), SMALL, "torch", [18.0], "", "")
        results_file.Writer(path, HEADER).problem([row])
        assert cli.main(["report", str(path), "--out", str(tmp_path / "new")]) == 0
        assert "18.00" in (tmp_path / "new" / "report.html").read_text()

    def test_without_matplotlib_nothing_is_begun(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        monkeypatch.delitem(sys.modules, "benchmarks.plots", raising=False)
        monkeypatch.delattr(benchmarks, "plots", raising=False)
        assert cli.main(["report", str(_write(tmp_path / "a.csv"))]) == 2
        printed = capsys.readouterr()
        assert re.fullmatch(
            r"cudal2 report: .*the report needs matplotlib \(pip install 'cudal2\[report\]'\)\n", printed.err
        )
        assert printed.out == ""
        assert not (tmp_path / "report").exists()

    def test_a_file_that_is_not_there(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        pytest.importorskip("matplotlib", reason="plots need matplotlib (the report extra)")
        path = tmp_path / "none.csv"
        assert cli.main(["report", str(path)]) == 2
        assert capsys.readouterr().err == f"cudal2 report: {path}: No such file or directory\n"
