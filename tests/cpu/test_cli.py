"""The command line: what each command prints without a GPU, exit codes, and errors in one line."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import cudal2
from cudal2 import bench, check, cli, explain, info, plans, problem, tools
from cudal2.plans import Key, Knobs, Plan, Table
from cudal2.shapes import Shape
from cudal2.spec import KernelSpec

KERNEL = "sm90_f16_tn_128x256x64_s4_c2x1_coop2_tma_ws"
WITHOUT_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="what is printed where there is no GPU")


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    """A plan table of two shapes, as the only one there is."""
    big, small = Key("f16", "tn", 4096, 4096, 4096), Key("f16", "tn", 16, 4096, 4096)
    entries = [
        Plan(big, KERNEL, Knobs(8, 0, 132), us=180.0, torch_us=198.0, lt_us=181.8),
        Plan(small, "sm90_f16_tn_64x64x128_s6_c1x1k4_coop1", Knobs(), us=12.0, torch_us=9.0, use="cublas"),
    ]
    made = Table(
        {"gpu": "NVIDIA H200", "arch": "9.0", "sms": "132", "date": "2026-01-02"}, {plan.key: plan for plan in entries}
    )
    plans.write(tmp_path / "h200.csv", made)
    monkeypatch.setenv("CUDAL2_PLANS", str(tmp_path))
    return made


def _explain(*arguments: str) -> int:
    return cli.main(["explain", *arguments, "--gpu", "h200"])


def test_explain_an_own_kernel(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    assert _explain("4096", "4096", "4096") == 0
    out = capsys.readouterr().out
    assert f"{KERNEL}, group=8 raster=0 ctas=132 split=1 pdl=0" in out
    assert "tile 128 x 256 x 64, 4 stages, cooperative, 2 consumer warpgroups, 2 x 1 CTAs share loads" in out
    assert "32 x 16 tiles = 512 CTAs, 1 to an SM: 3.88 waves over 132 SMs, 97 % filled" in out
    assert "persistent: 132 CTAs over the tiles" in out
    assert "180.00 µs, torch.matmul 198.00 µs (1.100x)" in out
    assert "cuBLASLt-AutoTuning 181.80 µs (1.010x)" in out
    assert "expected  180.00 µs, 763.5 TFLOP/s" in out


def test_explain_where_cublas_is_faster(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    assert _explain("16", "4096", "4096", "--layout", "tn") == 0
    out = capsys.readouterr().out
    assert "dispatch  runs cuBLAS, which measured faster here" in out
    assert "1 x 64 tiles x 4 (split) = 256 CTAs" in out
    assert "tiles run in groups of 8 along M" in out
    assert "cooperative, 1 consumer warpgroup, K split over 4 CTAs" in out
    assert "expected  9.00 µs" in out


@pytest.mark.parametrize(
    ("flag", "switch", "said"),
    [
        (True, True, "used, since the switch is on: back to back, this kernel gains from it"),
        (True, False, "not used, since the switch is off: back to back, this kernel gains from it"),
        (False, True, "not used (the switch is on): no measurement says that this kernel gains from it"),
        (False, False, "not used (the switch is off): no measurement says that this kernel gains from it"),
    ],
)
def test_explain_says_whether_pdl_is_used(flag: bool, switch: bool, said: str) -> None:
    key = Key("f16", "tn", 64, 8192, 64)
    plan = Plan(key, "sm90_f16_tn_64x64x64_s6_c1x1_coop1", Knobs(pdl=flag), us=2.0, torch_us=3.0)
    with cudal2.pdl(switch):
        out = explain.lines(Table({}, {key: plan}), key, "h200.csv")
        cublas = explain.lines(Table({}, {key: replace(plan, use="cublas")}), key, "h200.csv")
    assert f"pdl       {said}" in out
    assert any(line.endswith(f"pdl={int(flag)}") for line in out)
    assert not any(line.startswith("pdl") for line in cublas)


def test_explain_says_why_a_time_is_below_the_roofline() -> None:
    key = Key("f16", "tn", 1, 4096, 4096)
    plan = Plan(key, "sm90_f16_tn_64x16x128_s8_c1x1_coop1", Knobs(), us=7.0, torch_us=8.0)
    (line,) = (out for out in explain.lines(Table({}, {key: plan}), key, "h200.csv") if out.startswith("expected"))
    assert line.endswith("112 % of the roofline (of memory; the operands stayed in L2)")


def test_explain_without_a_plan_names_the_nearest(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    assert _explain("4000", "4096", "4096") == 0
    out = capsys.readouterr().out
    assert "none for this shape" in out
    assert f"nearest   4096 x 4096 x 4096: {KERNEL}" in out


def test_explain_names_the_table_s_date(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    assert _explain("4096", "4096", "4096") == 0
    assert f"table     NVIDIA H200, 2026-01-02, {plans.directory() / 'h200.csv'}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("m", "said"),
    [
        (4096, "32 x 32 tiles: 7.76 for each of 132 CTAs (stream-K)"),
        (1024, "8 x 32 tiles: 1.97 for each of 130 CTAs (stream-K)"),
        (128 * 33, "34 x 32 tiles = 1088 CTAs, 1 to an SM: 8.24 waves"),
        (512, "4 x 32 tiles = 128 CTAs: one wave, on 128 of 132 SMs"),
    ],
)
def test_explain_stream_k(m: int, said: str) -> None:
    """Grids are of whole pairs. Of 1088 tiles one of 136 has whole waves; of 128 there is less than one."""
    key = Key("f16", "tn", m, 4096, 8192)
    kernel = "sm90_f16_tn_128x128x64_s6_c2x1_ping2_tma_sk"
    plan = Plan(key, kernel, Knobs(ctas={128 * 33: 136, 1024: 131}.get(m, 132)), 1.0, 2.0, None, "own")
    assert said in "\n".join(explain.lines(Table({}, {key: plan}), key, "h200.csv"))


def test_explain_says_nothing_of_groups_of_one() -> None:
    key = Key("f16", "tn", 64, 8192, 64)
    plan = Plan(key, "sm90_f16_tn_64x64x64_s6_c1x1_coop1", Knobs(group=1), us=2.0, torch_us=3.0)
    out = "\n".join(explain.lines(Table({}, {key: plan}), key, "h200.csv"))
    assert "1 x 128 tiles = 128 CTAs" in out
    assert "groups" not in out


@pytest.fixture
def rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    """A table of rules for an A100, as the only one there is."""
    first, second = Key("f16", "tn", 64, 4096, 4096), Key("f16", "tn", 64, 64, 64)
    kernel = "multistage_f16_tn_64x64x64_s4_w2x2k1_sk"
    entries = [
        Plan(first, kernel, Knobs(split=3), us=None, torch_us=None),
        Plan(second, kernel, Knobs(), us=None, torch_us=None, use="cublas"),
        Plan(Key("f16", "tn", 64, 512, 4096), kernel, Knobs(ctas=108), us=None, torch_us=None),
    ]
    header = {"gpu": "NVIDIA A100", "arch": "8.0", "sms": "108", "source": "rules"}
    made = Table(header, {plan.key: plan for plan in entries})
    plans.write(tmp_path / "a100.csv", made)
    monkeypatch.setenv("CUDAL2_PLANS", str(tmp_path))
    return made


class TestRules:
    """Nobody measured: no word of time, and it is said."""

    @pytest.mark.parametrize(
        ("shape", "said"),
        [
            ("64 4096 4096", "1 x 64 tiles x 3 (split) = 192 CTAs"),
            ("64 512 4096", "1 x 8 tiles shared by 108 CTAs (stream-K)"),
            ("64 64 64", "dispatch  runs cuBLAS, by the rules"),
            ("65 4096 4096", "none for this shape"),
        ],
    )
    def test_explain(self, shape: str, said: str, rules: Table, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["explain", *shape.split(), "--gpu", "a100"]) == 0
        out = capsys.readouterr().out
        assert said in out
        assert "rules, calibrated on an H200; nobody measured this GPU" in out
        assert "µs" not in out
        assert "measured  " not in out

    @pytest.mark.parametrize("tuned", [True, False])
    def test_on_the_gpu(
        self, tuned: bool, rules: Table, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = str(plans.directory() / "a100.csv")
        status = {"gpu": "NVIDIA A100-SXM4-40GB", "table": path, "table_gpu": "NVIDIA A100", "plans": 3}
        status |= {"tuned": tuned, "rules": True}
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda index=0: "NVIDIA A100-SXM4-40GB")
        monkeypatch.setattr(tools, "load", lambda: SimpleNamespace(device_status=lambda index: status))
        assert cli.main(["explain", "64", "4096", "4096"]) == 0
        out = capsys.readouterr().out
        assert "nobody measured this GPU" in out
        assert "times are those" not in out
        assert "µs" not in out
        said = "UNTUNED: rules, calibrated on an H200; nobody measured this GPU"
        assert info._device(0) == f"cuda:0   NVIDIA A100-SXM4-40GB: 3 plans of {path}, {said}"

    def test_info_lists_the_table(self, rules: Table, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tools, "load", lambda: None)
        said = "own kernel used on 2, rules, calibrated on an H200; nobody measured this GPU"
        assert info._tables() == [f"plans    a100.csv: NVIDIA A100, 3 shapes, {said}"]


class TestExplainHere:
    """On a GPU, explain follows the runtime's choice of a table."""

    @pytest.fixture
    def status(self, table: Table, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
        """What the runtime says of the GPU, to be changed: an H100 that takes the H200's table."""
        found = {
            "gpu": "NVIDIA H100 PCIe",
            "table": str(plans.directory() / "h200.csv"),
            "tuned": False,
            "rules": False,
            "plans": 2,
        }
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: found["gpu"])
        monkeypatch.setattr(tools, "load", lambda: SimpleNamespace(device_status=lambda index: found))
        return found

    def test_a_table_of_its_own(self, status: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
        status.update(gpu="NVIDIA H200", tuned=True)
        assert cli.main(["explain", "4096", "4096", "4096"]) == 0
        out = capsys.readouterr().out
        assert f"plan      {KERNEL}" in out
        assert "UNTUNED" not in out

    def test_the_nearest_table_is_untuned(self, status: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["explain", "4096", "4096", "4096"]) == 0
        out = capsys.readouterr().out
        assert f"plan      {KERNEL}" in out
        assert "UNTUNED for NVIDIA H100 PCIe: times are those of NVIDIA H200, the nearest GPU measured" in out

    @pytest.mark.parametrize(
        ("changes", "why"),
        [
            ({"gpu": "NVIDIA A100", "table": ""}, "none for the architecture of NVIDIA A100"),
            ({"gpu": "", "table": ""}, "none used: no kernels in this build"),
            ({"plans": 0}, "h200.csv run on NVIDIA H100 PCIe with this build"),
        ],
    )
    def test_no_table(
        self, status: dict[str, Any], changes: dict[str, Any], why: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        status.update(changes)
        assert cli.main(["explain", "4096", "4096", "4096"]) == 0
        out = capsys.readouterr().out
        assert f"{why}: every product goes to cuBLAS\n" in out
        assert KERNEL not in out

    def test_a_gpu_that_is_named_needs_a_table(
        self, status: dict[str, Any], capsys: pytest.CaptureFixture[str]
    ) -> None:
        status["table"] = ""
        assert cli.main(["explain", "64", "64", "64", "--gpu", "a100"]) == 2
        assert "gpu='a100' has no plan table" in capsys.readouterr().err

    def test_without_the_tooling_module(
        self, status: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(tools, "load", lambda: None)
        status["gpu"] = "NVIDIA H200"
        assert cli.main(["explain", "4096", "4096", "4096"]) == 0
        assert f"plan      {KERNEL}" in capsys.readouterr().out


def test_explain_describes_every_family() -> None:
    text = explain.describe(KernelSpec.parse("wmma_f16_tn_64x64x64_s3_w2x2k2"))
    assert text.startswith("cp.async + wmma, tile 64 x 64 x 64, 3 stages, 2 x 2 warps, 2 of them along K, 256 threads")
    text = explain.describe(KernelSpec.parse("multistage_f16_tn_64x64x64_s4_w2x2k1_sk"))
    assert text.startswith("cp.async + ldmatrix + mma.sync, tile 64 x 64 x 64, 4 stages, 2 x 2 warps, 128 threads")
    text = explain.describe(KernelSpec.parse("direct_f16_tn_16x16x64_w1x1k2"))
    assert text.startswith("global memory to mma.sync, tile 16 x 16 x 64, 1 x 1 warps, 2 of them along K, 64 threads")


def test_explain_describes_the_options_of_a_hopper_kernel() -> None:
    text = explain.describe(KernelSpec.parse("sm90_f16_tn_128x256x64_s4_c2x1_coop2_tma_ws"))
    assert "2 x 1 CTAs share loads, K can be split through a workspace, TMA stores, 384 threads" in text


def test_roofline_is_the_longer_of_arithmetic_and_traffic() -> None:
    assert explain.roofline_us(Shape(8192, 8192, 8192)) == pytest.approx(2 * 8192**3 / 800e12 * 1e6)
    assert explain.roofline_us(Shape(1, 8192, 8192)) == pytest.approx(2 * (8192 + 8192**2 + 8192) / 4.3e12 * 1e6)


def test_errors_are_one_line_with_exit_code_2(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, reason in (
        (["explain", "64", "0", "64"], "M,N,K = 64,0,64; expected positive integers"),
        (["explain", "64", str(2**31), "64"], "M,N,K = 64,2147483648,64; expected positive integers below 2^31"),
        (["explain", "64", "64", "64", "--gpu", "b300"], "gpu='b300' has no plan table"),
        (["verify", "--shape", "8,8", "--dtype", "f16"], "expected three positive integers M,N,K"),
        (
            ["verify", "--shape", "8,8,8", "--knobs", "8,0,132,1,0"],
            "--knobs 8,0,132,1,0 goes with --kernel and --shape",
        ),
    ):
        assert cli.main(arguments) == 2
        error = capsys.readouterr().err.strip().splitlines()
        assert reason in error[-1]
        assert "Traceback" not in "".join(error)


def test_a_malformed_table_is_reported(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    path = plans.directory() / "h200.csv"
    path.write_text(path.read_text().replace("4096,4096,4096", "4096,4096,none"))
    assert _explain("64", "64", "64") == 2
    assert f"cudal2 explain: {path}:" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [[], ["tune"], ["explain", "64"], ["info", "--all"], ["explain", "8", "8", "8", "9"]]
)
def test_usage_errors(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 2
    assert "usage: cudal2" in capsys.readouterr().err


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(command in out for command in ("info", "verify", "explain", "demo"))


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"cudal2 {cudal2.__version__}\n"


def test_a_pipe_that_is_closed_ends_quietly() -> None:
    command = [sys.executable, "-c", "import sys, cudal2.cli; input(); sys.exit(cudal2.cli.main(['info']))"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert run.stdin is not None
        assert run.stdout is not None
        assert run.stderr is not None
        run.stdout.close()
        run.stdin.write(b"\n")
        run.stdin.close()
        assert run.stderr.read() == b""
    assert run.returncode == 141


@pytest.mark.parametrize("arguments", [["bench", "--suite", "grid"], ["bench"], ["report", "a.csv", "--out", "x"]])
def test_benchmarks_outside_a_clone(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench.Harness, "_load", lambda self: None)
    assert cli.main(arguments) == 2
    reason = "the benchmarks are not part of the wheel: run this in a clone of cudal2's repository"
    assert capsys.readouterr().err == f"cudal2 {arguments[0]}: {reason}\n"


def test_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(info, "run", interrupted)
    assert cli.main(["info"]) == 130


def test_info_lists_build_and_tables(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["info"]) == 0
    out = capsys.readouterr().out
    assert f"cudal2   {cudal2.__version__}" in out
    assert f"torch    {torch.__version__}" in out
    assert "plans    h200.csv: NVIDIA H200, 2 shapes, own kernel used on 1" in out


def test_info_says_whether_pdl_is_on_and_who_gains(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "load", lambda: None)
    table.plans = {key: replace(plan, knobs=replace(plan.knobs, pdl=True)) for key, plan in table.plans.items()}
    plans.write(plans.directory() / "h200.csv", table)
    said = "own kernel used on 1, 1 of them gain from PDL"
    assert info._tables() == [f"plans    h200.csv: NVIDIA H200, 2 shapes, {said}"]
    with cudal2.pdl(True):
        assert "pdl      on: plans that gain from programmatic dependent launch use it" in info.lines()
    with cudal2.pdl(False):
        assert any(line.startswith("pdl      off: no product launches with") for line in info.lines())


@pytest.mark.parametrize(
    ("runs", "kernels", "there"),
    [
        (True, [KERNEL], True),
        (False, [KERNEL], False),
        (True, ["wmma_f16_tn_64x64x64_s3_w2x2k2"], False),
        (False, [], False),
    ],
)
def test_info_says_when_a_table_s_kernels_are_not_in_the_build(
    table: Table, monkeypatch: pytest.MonkeyPatch, runs: bool, kernels: list[str], there: bool
) -> None:
    made = [{"name": name, "family": name[:4], "dtype": "f16", "layout": "tn"} for name in kernels]
    archs: list[int] = []

    def compiled_for(arch: int) -> bool:
        archs.append(arch)
        return runs

    fake = SimpleNamespace(build_info=lambda: "nvcc", kernels=lambda: made, compiled_for=compiled_for)
    monkeypatch.setattr(tools, "load", lambda: fake)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    said = "own kernel used on 1" if there else "none of the table's kernels are in this build"
    assert f"plans    h200.csv: NVIDIA H200, 2 shapes, {said}" in info.lines()
    assert archs == [90]


def test_info_says_that_no_plan_runs_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    status = {"table": "h200.csv", "table_gpu": "NVIDIA H200", "tuned": True, "rules": False, "plans": 0}
    monkeypatch.setattr(tools, "load", lambda: SimpleNamespace(device_status=lambda index: status))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "NVIDIA H200")
    said = "none of the kernels of h200.csv run here, every product goes to cuBLAS"
    assert info._device(0) == f"cuda:0   NVIDIA H200: {said}"


def test_info_without_the_tooling_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "load", lambda: None)
    assert any("tooling module is not built for this Python" in line for line in info.lines())


@WITHOUT_GPU
def test_info_says_that_there_is_no_gpu() -> None:
    assert "no GPU that this torch can use" in info.lines()[-1]


def test_missing_tools_say_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "load", lambda: None)
    with pytest.raises(tools.ToolsMissing, match=r"build cudal2 from source with this Python .*CUDAL2_TOOLS_PYTHONS"):
        tools.require()


@WITHOUT_GPU
class TestDemo:
    def test_on_the_cpu(self, table: Table, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["demo"]) == 0
        out = capsys.readouterr().out
        assert "All 16 products went to torch and are right." in out
        assert out.count("right ") >= 16
        assert "cuBLAS" in out  # 16 x 4096 x 4096 is planned, and cuBLAS is faster there
        assert re.search(r"cuBLAS +│ +12\.00 │ +9\.00 │", out)  # which the times explain
        assert "(4096x4096x4096)" in out  # the nearest shape of the prefill layers

    def test_a_wrong_product_is_found(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def wrong(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            result = torch.matmul(a, b)
            result[-1, -1] += 1
            return result

        monkeypatch.setattr(cudal2, "matmul", wrong)
        assert cli.main(["demo"]) == 1
        assert "over" in capsys.readouterr().out


class TestCheck:
    def test_bound_holds_torch_itself_and_refuses_nan(self) -> None:
        shape = Shape(64, 64, 512)
        inputs = problem.normal(shape, torch.float16, problem.generator(0, shape, torch.device("cpu")))
        wanted = check.reference(inputs.a, inputs.nn)
        by_torch = check.errors(torch.matmul(inputs.a, inputs.nn), wanted).tolist()
        bound = check.Bound.of(tuple(by_torch), tuple(check.magnitude(wanted).tolist()), "f16", 512)
        assert bound.problem(tuple(by_torch)) is None
        assert bound.problem((2.5 * bound.max, 0.0)) is not None
        assert bound.problem((0.0, 2.5 * bound.rms)) is not None
        assert bound.problem((float("nan"), float("nan"))) is not None

    def test_errors(self) -> None:
        errors = check.errors(torch.tensor([[1.0, 2.0], [3.0, 8.0]]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        assert errors.tolist() == [4.0, 2.0]

    def test_reference_leaves_the_tf32_setting(self) -> None:
        before = torch.backends.cuda.matmul.allow_tf32
        check.reference(torch.ones(2, 2), torch.ones(2, 2))
        assert torch.backends.cuda.matmul.allow_tf32 == before

    def test_small_references_are_fp64(self) -> None:
        assert check.reference(torch.ones(2, 2), torch.ones(2, 2)).dtype == torch.float64


def test_python_dash_m_runs_the_command() -> None:
    run = subprocess.run([sys.executable, "-m", "cudal2", "info"], capture_output=True, text=True, check=True)
    assert run.stdout.startswith("cudal2   ")
