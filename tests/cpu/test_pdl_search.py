"""Which plans get the flag that their kernel gains from programmatic dependent launch, on a fake GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fake_gpu import SPECS, FakeGpu, install

from cudal2 import plans
from cudal2.plans import Key, Knobs, Plan, Table
from cudal2.search import journal, measure, pdl

KERNELS = [spec.name for spec in SPECS[:4]]
HEADER = {"gpu": "NVIDIA H200", "arch": "9.0", "sms": "132", "mode": "graph, PDL off"}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return install(monkeypatch)


def _plan(kernel: str, us: float = 5.0, use: str = "own", flag: bool = False, m: int = 128) -> Plan:
    return Plan(Key("f16", "tn", m, 64, 64), kernel, Knobs(group=4, pdl=flag), us, 1.1 * us, use=use)


class Files:
    """A table of some plans, and the log."""

    def __init__(self, folder: Path, *made: Plan, **header: str):
        self.table, self.log = folder / "h200.csv", folder / "log.csv"
        plans.write(self.table, Table({**HEADER, **header}, {plan.key: plan for plan in made}))

    def run(self, *options: str) -> int:
        return pdl.main([str(self.table), "--log", str(self.log), *options])

    def flags(self) -> list[bool]:
        return [plan.knobs.pdl for plan in plans.read(self.table).plans.values()]

    def logged(self) -> list[tuple[str, bool, float | None]]:
        return [(e.candidate.kernel, e.candidate.knobs.pdl, e.us) for e in journal.read(self.log)]


@pytest.mark.parametrize(
    ("gain", "flag"),
    [(1.5, True), (1.007, True), (1.003, False), (1.0, False), (0.8, False)],
)
@pytest.mark.parametrize("before", [False, True])
def test_the_flag_is_for_half_a_percent(gpu: FakeGpu, tmp_path: Path, gain: float, flag: bool, before: bool) -> None:
    gpu.us, gpu.pdl_gain = {KERNELS[0]: 10.0}, {KERNELS[0]: gain}
    files = Files(tmp_path, _plan(KERNELS[0], flag=before))
    assert files.run() == 0
    assert files.flags() == [flag]
    (plan,) = plans.read(files.table).plans.values()
    assert plan == replace(_plan(KERNELS[0]), knobs=Knobs(group=4, pdl=flag)), "nothing but the flag changes"


@pytest.mark.parametrize(
    ("gains", "instances", "flag", "raced"),
    [
        ([1.1, 1.1], 2, True, 2),
        ([1.1, 1.003], 2, False, 2),
        ([1.003, 1.1], 2, False, 1),  # settled by the first
        ([1.1], 1, True, 1),
        ([1.1, 1.1, 1.0], 3, False, 3),
    ],
)
def test_all_instances_must_show_it(
    gpu: FakeGpu, tmp_path: Path, gains: list[float], instances: int, flag: bool, raced: int
) -> None:
    gpu.us, gpu.pdl_gain = {KERNELS[0]: 10.0}, {KERNELS[0]: list(gains)}
    files = Files(tmp_path, _plan(KERNELS[0]))
    assert files.run("--instances", str(instances)) == 0
    assert files.flags() == [flag]
    expected = [(KERNELS[0], on, 10.0 / gain if on else 10.0) for gain in gains[:raced] for on in (False, True)]
    assert [(kernel, on) for kernel, on, _ in files.logged()] == [(kernel, on) for kernel, on, _ in expected]
    assert [us for *_, us in files.logged()] == pytest.approx([us for *_, us in expected], abs=1e-3)


def test_what_is_not_raced_is_0(gpu: FakeGpu, tmp_path: Path) -> None:
    gpu.pdl_gain = dict.fromkeys(KERNELS, 2.0)
    files = Files(
        tmp_path,
        _plan(KERNELS[0], m=64, flag=True, use="cublas"),
        _plan(KERNELS[1], m=128, flag=True, us=300.1),
        _plan(KERNELS[2], m=256, us=300.0),
    )
    assert files.run() == 0
    assert files.flags() == [False, False, True]
    assert {kernel for kernel, *_ in files.logged()} == {KERNELS[2]}
    assert plans.read(files.table).header["pdl"] == "1 plans gain, of 1 raced"


@pytest.mark.parametrize(
    ("arch", "raced"), [("7.5", False), ("8.0", False), ("8.9", False), ("9.0", True), ("10.0", True)]
)
def test_devices_before_9_0_have_no_pdl(
    gpu: FakeGpu, tmp_path: Path, arch: str, raced: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu.pdl_gain = {KERNELS[0]: 2.0}
    files = Files(tmp_path, _plan(KERNELS[0], flag=True), arch=arch)
    assert files.run() == 0
    assert files.flags() == [raced]
    assert bool(files.logged()) == raced
    assert ("no plan is worth racing" in capsys.readouterr().out) != raced


def test_both_run_interleaved_with_the_plan_s_knobs(gpu: FakeGpu, tmp_path: Path) -> None:
    files = Files(tmp_path, _plan(KERNELS[0]))
    assert files.run() == 0
    assert [(knobs.group, knobs.pdl) for _, knobs, _ in gpu.captured] == [(4, False), (4, True)]
    assert [sorted(gpu.raced[start : start + 2]) for start in range(0, len(gpu.raced), 2)] == [[0, 1]] * pdl.ROUNDS


@pytest.mark.parametrize("us", [0.5, 1.4, 5.0, 29.0, 60.0, 99.0, 149.0, 151.0, 299.0])
def test_a_plan_takes_10_ms(gpu: FakeGpu, tmp_path: Path, us: float) -> None:
    gpu.us = {KERNELS[0]: us}
    gpu.pdl_gain = {KERNELS[0]: 1.03 if us < 150 else 1.0}
    files = Files(tmp_path, _plan(KERNELS[0], us=us))
    assert files.run() == 0
    assert files.flags() == [us < 150]
    assert all(launches >= 2 for *_, launches in gpu.captured)
    replays = len(gpu.raced) / len(gpu.captured)
    device_us = sum((replays + 0.5) * launches * us for *_, launches in gpu.captured)  # each race replays one twice
    settling = 1.1 * measure.SETTLED_US if us >= measure.LONG_US else 0
    assert device_us <= 10_000 + settling


def test_the_smallest_come_first_and_a_budget_leaves_the_rest(
    gpu: FakeGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu.pdl_gain = dict.fromkeys(KERNELS, 2.0)
    made = [_plan(kernel, us=us, m=m) for kernel, us, m in zip(KERNELS, (40.0, 4.0, 20.0, 10.0), (8, 16, 24, 32))]
    files = Files(tmp_path, *made)
    clock = iter([0.0, 1.0, 2.0, 9.0])
    monkeypatch.setattr(pdl, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    assert files.run("--budget-seconds", "5") == 0
    assert files.flags() == [False, True, False, True]
    captured = capsys.readouterr()
    assert "budget spent after 2 of 4 f16 plans" in captured.err
    assert "f16 tn: 2 of 2 plans gain from PDL, by a geomean of 2.000, at most 2.000" in captured.out
    assert plans.read(files.table).header["pdl"] == "2 plans gain, of 2 raced"


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ({"source": "rules"}, "comes from rules: there are no measurements to confirm"),
        ({"gpu": "NVIDIA H100"}, "was measured on NVIDIA H100, and this is NVIDIA H200"),
    ],
)
@pytest.mark.usefixtures("gpu")
def test_a_table_that_was_not_measured_here(
    header: dict[str, str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = Files(tmp_path, _plan(KERNELS[0], flag=True), **header)
    assert files.run() == 2
    assert reason in capsys.readouterr().err
    assert files.flags() == [True]
    assert not files.log.exists()


@pytest.mark.usefixtures("gpu")
def test_bad_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = Files(tmp_path, _plan(KERNELS[0]))
    with pytest.raises(SystemExit):
        files.run("--instances", "0")
    assert "--instances 0; expected 1 or more" in capsys.readouterr().err
    files.table.write_text(files.table.read_text().replace(",4,0,0,1,0,", ",4,0,0,1,2,"))
    assert files.run() == 2
    assert "pdl='2'; expected 0 or 1" in capsys.readouterr().err


def test_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert Files(tmp_path, _plan(KERNELS[0])).run() == 3
    assert "it measures, so it needs one" in capsys.readouterr().err
