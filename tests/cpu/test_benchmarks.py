"""The benchmark harness, on a fake GPU: what it runs, checks, writes, and goes on with."""

from __future__ import annotations

import csv
import functools
import importlib
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import fake_gpu
import pytest
import torch
from fake_gpu import BLAS_US, LT_US, SPECS, TORCH_US, FakeGpu, FakeWatch, install

import cudal2
from cudal2 import cli, plans, verify
from cudal2.plans import Key, Knobs, Plan, Table
from cudal2.search import cublaslt, measure
from cudal2.shapes import Shape

ROOT = Path(__file__).parents[2]
if not (ROOT / "benchmarks").is_dir():
    pytest.skip("the benchmarks need the source tree", allow_module_level=True)
sys.path.append(str(ROOT))

from benchmarks import contenders, modes, results_file, suites  # noqa: E402
from benchmarks.peers import cutlass2x  # noqa: E402

SHAPE = Shape(16, 24, 32)
KERNELS = {"nn": SPECS[-1].variant("f16", "nn").name, "tn": SPECS[-1].name}
OWN_US = 2.5


@pytest.fixture
def planned() -> dict[Key, Plan]:
    """The plans in use, to be changed."""
    return {
        key: Plan(key, kernel, Knobs(), OWN_US, TORCH_US)
        for layout, kernel in KERNELS.items()
        for key in [Key("f16", layout, *SHAPE)]
    }


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, planned: dict[Key, Plan]) -> FakeGpu:
    fake = install(monkeypatch)
    fake.us = dict.fromkeys(KERNELS.values(), OWN_US)
    run = importlib.import_module("benchmarks.run")
    monkeypatch.setattr(run, "Stopwatch", lambda device, seed: FakeWatch(fake))
    monkeypatch.setattr(verify, "table_in_use", lambda: Table({"gpu": "NVIDIA H200", "date": "2026-01-01"}, planned))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(run, "_device", lambda index: torch.device("cpu"))
    monkeypatch.setattr(run, "Clocks", FakeClocks)
    monkeypatch.setattr(contenders, "_blas", cublaslt.Blas)
    monkeypatch.setattr(contenders, "_lt", cublaslt.Handle)
    monkeypatch.setattr(contenders, "_require_tunableop", _no_tunableop)  # the same contenders under every torch
    return fake


def _no_tunableop() -> None:
    raise contenders.Skipped("TunableOp has no CUDA backend here")


@pytest.mark.parametrize(
    ("version", "there"), [("2.10.0", False), ("2.13.0+cpu", False), ("2.14.1+cu130", True), ("3.0.0a0", True)]
)
def test_which_torch_has_tunableop(monkeypatch: pytest.MonkeyPatch, version: str, there: bool) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    monkeypatch.setattr(torch.cuda.tunable, "set_filename", lambda name: None)
    if there:
        contenders._require_tunableop()
    else:
        with pytest.raises(contenders.Skipped, match="from 2.14 on"):
            contenders._require_tunableop()


class FakeClocks:
    def __init__(self, device: int) -> None:
        self.sampled = 0

    def sample(self) -> None:
        self.sampled += 1

    def summary(self) -> str:
        return f"SM 1980 MHz ({self.sampled} samples)"


def _bench(out: Path, *options: str) -> int:
    return cli.main(["bench", "--suite", str(SHAPE), "--out", str(out), *options])


def _rows(out: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(line for line in out.read_text().splitlines() if not line.startswith("#")))


@pytest.mark.usefixtures("gpu")
class TestRows:
    @pytest.mark.parametrize("mode", ["graph", "isolated", "cold", "sustained", "offline", "server", "overhead"])
    def test_every_mode(
        self, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(modes, "Cold", FakeCold)
        out = tmp_path / "out.csv"
        assert _bench(out, "--mode", mode, "--rounds", "3", "--qps", "1000") == 0, capsys.readouterr().err
        rows = _rows(out)
        expected = [name for name in contenders.DEFAULTS[mode] if name != "tunableop"]
        assert [(row["layout"], row["contender"]) for row in rows if "_c" not in row["contender"]] == [
            (layout, name) for layout in ("nn", "tn") for name in expected if "_c" not in name
        ]
        assert {row["contender"] for row in rows} == set(expected)
        assert all((row["mode"], row["m"], row["n"], row["k"]) == (mode, *map(str, SHAPE)) for row in rows)
        assert all(float(row["low_us"]) <= float(row["us"]) <= float(row["high_us"]) for row in rows)
        assert {row["count"] for row in rows} == {"3"}
        header = results_file.read([out]).header
        assert header["gpu"] == "NVIDIA H200"
        assert header["clocks"] == "SM 1980 MHz (1 samples)"
        assert header["table"] == "gpu NVIDIA H200, date 2026-01-01"
        if "tunableop" in contenders.DEFAULTS[mode]:
            assert "TunableOp has no CUDA backend" in header["skipped_tunableop"]

    def test_figures_are_the_contenders_own(self, gpu: FakeGpu, tmp_path: Path) -> None:
        gpu.pdl_gain = dict.fromkeys(KERNELS.values(), 2.0)
        out = tmp_path / "out.csv"
        assert _bench(out) == 0
        times = {row["contender"]: float(row["us"]) for row in _rows(out) if row["layout"] == "tn"}
        assert times == {
            "torch": TORCH_US,
            "cublas": BLAS_US,
            "lt_heuristic": LT_US[0],
            "lt_autotune": min(LT_US),
            "cudal2": TORCH_US,
            "cudal2_again": TORCH_US,
            "own": OWN_US,
            "cudal2_pdl": TORCH_US,
            "own_pdl": OWN_US / 2,
            "own_pdl_plan": OWN_US,
        }
        ran = {row["contender"]: row["ran"] for row in _rows(out) if row["layout"] == "tn"}
        assert ran["own"] == KERNELS["tn"]
        assert ran["torch"] == ran["cudal2"] == "fake_kernel"

    @pytest.mark.parametrize("mode", ["graph", "isolated"])
    def test_pdl_where_the_plan_says_so(
        self, gpu: FakeGpu, planned: dict[Key, Plan], tmp_path: Path, mode: str
    ) -> None:
        gpu.pdl_gain = dict.fromkeys(KERNELS.values(), 2.0)
        key = Key("f16", "tn", *SHAPE)  # nn's stays without the flag
        planned[key] = replace(planned[key], knobs=Knobs(pdl=True))
        out = tmp_path / "out.csv"
        assert _bench(out, "--mode", mode, "--contenders", "own,own_pdl,own_pdl_plan") == 0
        spacer = TORCH_US if mode == "isolated" else 0.0  # it is taken off
        times = {(row["layout"], row["contender"]): float(row["us"]) + spacer for row in _rows(out)}
        assert times == {
            **{(layout, "own"): OWN_US for layout in KERNELS},
            **{(layout, "own_pdl"): OWN_US / 2 for layout in KERNELS},
            ("nn", "own_pdl_plan"): OWN_US,
            ("tn", "own_pdl_plan"): OWN_US / 2,
        }

    @pytest.mark.parametrize(("contender", "pdl"), [("cudal2", False), ("cudal2_pdl", True)])
    @pytest.mark.parametrize("outside", [False, True])
    def test_who_dispatches_with_pdl(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, contender: str, pdl: bool, outside: bool
    ) -> None:
        def noting(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            seen.append(cudal2.pdl_enabled())
            return torch.matmul(a, b)

        seen: list[bool] = []
        monkeypatch.setattr(cudal2, "matmul", noting)
        with cudal2.pdl(outside):  # as CUDAL2_PDL might
            assert _bench(tmp_path / "out.csv", "--layout", "tn", "--contenders", contender) == 0
        assert seen[0] is False, "asks for the path, and times nothing"
        assert set(seen[1:]) == {pdl}

    def test_several_modes_share_the_checks(self, tmp_path: Path) -> None:
        out = tmp_path / "out.csv"
        assert _bench(out, "--mode", "offline,server", "--rounds", "2", "--qps", "1000", "--layout", "tn") == 0
        assert {row["mode"] for row in _rows(out)} == {"offline", "server"}
        assert all(len(row["samples"].split(";")) == 2 for row in _rows(out))

    def test_a_shape_without_plan_has_no_own_kernel(self, tmp_path: Path) -> None:
        out = tmp_path / "out.csv"
        assert cli.main(["bench", "--suite", "8,8,8", "--out", str(out)]) == 0
        assert {row["contender"] for row in _rows(out)}.isdisjoint({"own", "own_pdl", "own_pdl_plan"})
        assert results_file.read([out]).header["skipped_own"] == "no plan for some shapes"


class FakeCold(modes.Cold):
    """Two sets, whatever L2 is."""

    def __init__(self, first: Any, weights_only: bool):
        self.count, self.flushed = 2, False
        self.sets = {layout: [operands, *self._more(operands, weights_only)] for layout, operands in first.items()}


class TestGoingOn:
    def test_what_is_there_is_not_measured_again(self, gpu: FakeGpu, tmp_path: Path) -> None:
        out = tmp_path / "out.csv"
        assert _bench(out) == 0
        before = _rows(out)
        gpu.us = dict.fromkeys(KERNELS.values(), 99.0)
        assert _bench(out) == 0
        assert _rows(out) == before
        assert _bench(out, "--fresh") == 0
        assert {row["us"] for row in _rows(out) if row["contender"] == "own"} == {"99.000"}

    @pytest.mark.usefixtures("gpu")
    def test_a_problem_that_was_cut_off_is_measured_again(self, tmp_path: Path) -> None:
        shapes = tmp_path / "shapes.csv"
        shapes.write_text("m,n,k\n16,24,32\n8,8,8\n24,16,8\n")
        out = tmp_path / "out.csv"
        command = ["bench", "--suite", str(shapes), "--out", str(out), "--contenders", "torch,cublas"]
        assert cli.main(command) == 0
        whole = _rows(out)
        text = "".join(f"{line}\n" for line in out.read_text().splitlines() if not line.startswith("# clocks"))
        out.write_text(text[: text.rindex("cublas") + 3])
        assert cli.main(command) == 0
        assert sorted(map(str, _rows(out))) == sorted(map(str, whole))

    @pytest.mark.usefixtures("gpu")
    def test_another_run_s_file_is_refused(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        out = tmp_path / "out.csv"
        assert _bench(out) == 0
        assert _bench(out, "--seed", "5") == 2
        assert "its seed is '0', this one's is '5'" in capsys.readouterr().err
        assert _bench(out, "--qps", "5") == 2
        assert "its qps is '100', this one's is '5'" in capsys.readouterr().err
        assert _bench(out, "--layout", "tn") == 2
        assert "its layout is 'nn,tn', this one's is 'tn'" in capsys.readouterr().err

    @pytest.mark.usefixtures("gpu")
    def test_time_is_up(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        out = tmp_path / "out.csv"
        assert _bench(out, "--budget-seconds", "1e-9") == 0
        assert _rows(out) == []
        assert "time is up after 0 of 1 shapes" in capsys.readouterr().err


class TestWrong:
    def test_a_kernel_that_fails_is_not_timed(
        self, gpu: FakeGpu, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        gpu.wrong = {KERNELS["tn"]}
        out = tmp_path / "out.csv"
        assert _bench(out) == 1
        timed = {(row["layout"], row["contender"]) for row in _rows(out)}
        assert ("nn", "own") in timed
        assert ("tn", "own") not in timed
        assert f"WRONG own ({KERNELS['tn']}) on 16,24,32 f16 tn: wrong" in capsys.readouterr().err
        assert "own_pdl" in results_file.read([out]).header["wrong"]

    def test_a_wrong_baseline_is_reported_and_the_next_taken(
        self, gpu: FakeGpu, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        gpu.wrong_suggestions = {3}
        out = tmp_path / "out.csv"
        assert _bench(out, "--contenders", "torch,lt_autotune,lt_heuristic") == 0
        assert {float(row["us"]) for row in _rows(out) if row["contender"] == "lt_autotune"} == {LT_US[1]}
        assert "WRONG lt_autotune (suggestion 3 of 5) on 16,24,32 f16 nn: wrong" in capsys.readouterr().err

    @pytest.mark.usefixtures("gpu")
    def test_dispatch_is_checked_too(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cudal2, "matmul", lambda a, b: torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype))
        out = tmp_path / "out.csv"
        assert _bench(out, "--contenders", "torch,cudal2") == 1
        assert {row["contender"] for row in _rows(out)} == {"torch"}

    def test_a_graph_without_launches_is_found(
        self, gpu: FakeGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        calls = FakeWatch.calls

        def lost(self: FakeWatch, *arguments: Any, **options: Any) -> Any:
            graph = calls(self, *arguments, **options)
            graph.work = []
            return graph

        monkeypatch.setattr(FakeWatch, "calls", lost)
        out = tmp_path / "out.csv"
        assert _bench(out, "--contenders", "own") == 1
        assert _rows(out) == []
        assert "queues nothing on the measured stream" in capsys.readouterr().err

    def test_a_graph_that_computes_something_else_is_found(
        self, gpu: FakeGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(FakeGpu, "replay", lambda self, graph: None)
        assert _bench(tmp_path / "out.csv", "--contenders", "own") == 1
        assert "in a CUDA graph: max error nan" in capsys.readouterr().err

    def test_what_cannot_be_captured_is_skipped(
        self, gpu: FakeGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        init = modes.Captured.__init__

        def fail(self: Any, watch: Any, calls: Any, *rest: Any) -> None:
            if isinstance(calls[0], functools.partial):
                raise RuntimeError("operation not permitted when stream is capturing")
            init(self, watch, calls, *rest)

        monkeypatch.setattr(modes.Captured, "__init__", fail)
        out = tmp_path / "out.csv"
        assert _bench(out, "--contenders", "torch,own") == 0
        assert {row["contender"] for row in _rows(out)} == {"own"}
        assert "cannot be captured" in results_file.read([out]).header["skipped_torch"]

    def test_inputs_that_change_while_timing_spoil_the_figures(
        self, gpu: FakeGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        race = modes.graph

        def spoil(*arguments: Any) -> Any:
            found = race(*arguments)
            assert gpu.operands is not None
            gpu.operands.a.zero_()
            gpu.operands.b.zero_()
            return found

        monkeypatch.setattr(modes, "graph", spoil)
        out = tmp_path / "out.csv"
        assert _bench(out, "--layout", "tn") == 1
        assert _rows(out) == []
        assert "its inputs are zeros" in capsys.readouterr().err


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--contenders", "fastest"], "--contenders: unknown fastest; expected of torch, "),
            (["--mode", "graph,hot"], "--mode: unknown hot; expected of graph, "),
            (["--layout", "tt"], "--layout: unknown tt; expected of nn, tn"),
            (["--mode", ""], "--mode: unknown nothing; expected of graph, "),
            (["--sample", "0"], "--sample 0; expected a positive number"),
            (["--budget-seconds", "nan"], "--budget-seconds nan; expected a positive number"),
            (["--suite", "nowhere.csv"], "shape 'nowhere.csv'; expected three positive integers"),
        ],
    )
    @pytest.mark.usefixtures("gpu")
    def test_errors_name_what_is_wrong(
        self, options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert _bench(tmp_path / "out.csv", *options) == 2
        assert message in capsys.readouterr().err

    @pytest.mark.usefixtures("gpu")
    def test_a_suite_that_is_not_there_leaves_the_file(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        out = tmp_path / "out.csv"
        out.write_text("kept")
        assert cli.main(["bench", "--suite", "layers.csv", "--out", str(out), "--fresh"]) == 2
        assert "shape 'layers.csv'; expected three positive integers" in capsys.readouterr().err
        assert out.read_text() == "kept"

    def test_help_breaks_no_name(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        monkeypatch.setenv("COLUMNS", "80")
        assert cli.main(["bench", "--help"]) == 0
        words = capsys.readouterr().out.replace(",", " ").replace(";", " ").split()
        assert {*contenders.ALL, *modes.ROUNDS} <= set(words)

    def test_without_a_gpu(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        assert _bench(tmp_path / "out.csv") == 3

    def test_models_are_45_layers_at_14_numbers_of_tokens(self) -> None:
        chosen = suites.load("models", None, 0)
        assert len(chosen) == 45 * 14
        layers = {(shape.n, shape.k) for shape in chosen}
        assert len(layers) == 45
        assert layers == suites.model_names().keys()
        assert len({shape.m for shape in chosen}) == 14

    def test_a_sample_is_the_same_for_the_same_seed(self) -> None:
        first, again, other = (suites.load("grid", 20, seed) for seed in (3, 3, 4))
        assert first == again != other
        assert len(set(first)) == 20


class TestFamilies:
    def test_the_fastest_of_a_family_with_default_knobs(self, gpu: FakeGpu, tmp_path: Path) -> None:
        family = [spec.variant("f16", "tn") for spec in SPECS if spec.family == "wmma"]
        gpu.us = {family[0].name: 1.25, family[1].name: 1.5, KERNELS["tn"]: 1.0}
        assert KERNELS["tn"] == SPECS[-1].name == family[-1].name
        out = tmp_path / "out.csv"
        assert _bench(out, "--contenders", "own:wmma,own:sm90", "--layout", "tn") == 0
        ran = {row["contender"]: (row["ran"], float(row["us"])) for row in _rows(out)}
        assert ran["own:wmma"] == (KERNELS["tn"], 1.0)
        assert ran["own:sm90"][0].startswith("sm90_f16_tn_")

    def test_a_wrong_kernel_is_reported_and_the_next_taken(
        self, gpu: FakeGpu, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        family = [spec.name for spec in SPECS if spec.family == "wmma"]
        gpu.us, gpu.wrong = {family[0]: 1.5, family[1]: 1.25}, {family[1]}
        out = tmp_path / "out.csv"
        assert _bench(out, "--contenders", "own:wmma", "--layout", "tn") == 1
        assert [row["ran"] for row in _rows(out)] == [family[0]]
        assert f"WRONG own:wmma ({family[1]}) on 16,24,32 f16 tn" in capsys.readouterr().err

    def test_what_cannot_run_is_left_out(self, gpu: FakeGpu, tmp_path: Path) -> None:
        family = [spec.name for spec in SPECS if spec.family == "wmma"]
        gpu.refusing, gpu.us = {family[0]}, {family[0]: 0.5}
        out = tmp_path / "out.csv"
        assert _bench(out, "--contenders", "own:wmma", "--layout", "tn") == 0
        assert [row["ran"] for row in _rows(out)] == [family[1]]

    def test_a_family_without_kernels_is_skipped(self, gpu: FakeGpu, tmp_path: Path) -> None:
        gpu.kernels = lambda: []  # type: ignore[method-assign]
        out = tmp_path / "out.csv"
        assert _bench(out, "--contenders", "own:wmma") == 0
        header = results_file.read([out]).header
        assert header["skipped_own:wmma"] == "no wmma kernels are compiled for f16 tn"


class FakePeer:
    """Stands in for cutlass2x.Library: three kernels, the second cannot run anything."""

    names = ("slow", "unfit", "fast")
    us = (3.5, 0.5, 2.75)

    def __init__(self, gpu: FakeGpu):
        self._gpu = gpu

    def supports(self, index: int, operands: measure.Operands) -> bool:
        return self.names[index] != "unfit"

    def call(self, index: int, operands: measure.Operands, stream: int) -> Any:
        return self._gpu._call(operands.gemm(), self.us[index])


class TestPeer:
    @pytest.mark.parametrize("mode", ["graph", "offline"])
    def test_its_fastest_kernel(self, mode: str, gpu: FakeGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(contenders, "_cutlass2x", lambda: FakePeer(gpu))
        out = tmp_path / "out.csv"
        assert _bench(out, "--contenders", "torch,cutlass2x", "--mode", mode) == 0
        rows = [row for row in _rows(out) if row["contender"] == "cutlass2x"]
        assert [(row["layout"], row["ran"]) for row in rows] == [("nn", "fast"), ("tn", "fast")]
        assert mode != "graph" or {float(row["us"]) for row in rows} == {2.75}

    @pytest.mark.usefixtures("gpu")
    def test_it_is_skipped_until_it_is_built(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        missing = tmp_path / "libcutlass2x.so"
        monkeypatch.setattr(contenders, "_cutlass2x", lambda: cutlass2x.Library(missing))
        out = tmp_path / "out.csv"
        assert _bench(out, "--contenders", "torch,cutlass2x") == 0
        assert {row["contender"] for row in _rows(out)} == {"torch"}
        header = results_file.read([out]).header
        assert header["skipped_cutlass2x"] == "not built: python -m benchmarks.peers.cutlass2x --build"

    def test_it_takes_part_only_by_name(self) -> None:
        named = {"cutlass2x", *contenders.FAMILIES}
        assert named <= set(contenders.ALL)
        assert all(named.isdisjoint(names) for names in contenders.DEFAULTS.values())


class TestAutotune:
    def _problem(self, gpu: FakeGpu) -> tuple[cublaslt.Problem, FakeWatch]:
        operands = measure.Pool("f16", [SHAPE], 0).operands(SHAPE, "tn")
        return cublaslt.Problem(cublaslt.Handle(), operands), FakeWatch(gpu)

    def test_the_fastest_is_found(self, gpu: FakeGpu) -> None:
        problem, watch = self._problem(gpu)
        ranking = cublaslt.autotune(problem, watch, us=3.0)
        assert list(ranking.order) == sorted(range(5), key=LT_US.__getitem__)[:4]
        assert (ranking.tried, len(problem)) == (5, 5)
        assert ranking.busy_us == watch.busy_us > 0

    def test_a_long_problem_tries_fewer(self, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fake_gpu, "LT_US", [float(100 - index) for index in range(100)])
        problem, watch = self._problem(gpu)
        assert cublaslt.autotune(problem, watch, us=20_000.0).tried == 10
        assert cublaslt.autotune(problem, watch, us=2.0).tried == 100

    def test_what_does_not_run_is_left_out(self, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
        problem, watch = self._problem(gpu)
        prepare = type(problem._native).prepare

        def refuse(self: Any, index: int, gemm: Any, stream: int) -> Any:
            def fail() -> None:
                raise RuntimeError("cublasLtMatmul: cuBLAS status 15 (not supported)")

            return fail if index == 3 else prepare(self, index, gemm, stream)

        monkeypatch.setattr(type(problem._native), "prepare", refuse)
        assert cublaslt.autotune(problem, watch, us=3.0).order[0] == 1

    def test_no_library_is_a_reason(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.version, "cuda", None)
        with pytest.raises(cublaslt.LtError, match="built without CUDA"):
            cublaslt.library("cublasLt")
        monkeypatch.setattr(torch.version, "cuda", "99.1")
        with pytest.raises(cublaslt.LtError, match=r"nor does an nvidia-cublas wheel hold libcublasLt\.so\.99"):
            cublaslt.library("cublasLt")


def test_the_plan_table_in_the_header() -> None:
    run: ModuleType = importlib.import_module("benchmarks.run")
    assert run.describe_table(None) == "none"
    table = plans.Table({"gpu": "NVIDIA H200", "commit": "abc", "sms": "132"}, {})
    assert run.describe_table(table) == "gpu NVIDIA H200, commit abc"
