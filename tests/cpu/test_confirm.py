"""Which measurements make dispatch run an own kernel."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_gpu import TORCH_US, FakeWatch, install

from cudal2 import plans
from cudal2.plans import Key, Knobs, Plan
from cudal2.search import confirm, provenance
from cudal2.search.confirm import decide, summary
from cudal2.search.journal import Candidate, Entry, Journal
from cudal2.search.measure import Pool
from cudal2.spec import KernelSpec

KERNEL = "sm90_f16_tn_128x128x64_s6_c1x1_ping2"


def plan(us: float, torch_us: float, use: str = "own") -> Plan:
    return Plan(Key("f16", "tn", 512, 512, 512), KERNEL, Knobs(), us, torch_us, None, use)


@pytest.mark.parametrize(
    ("sweep", "fresh", "use"),
    [
        ((10.0, 11.0), [(10.0, 11.0), (10.0, 11.0)], "own"),
        ((10.0, 11.0), [(10.0, 9.9), (10.0, 9.9)], "cublas"),  # the sweep flattered it
        ((10.0, 9.0), [(10.0, 11.0), (10.0, 11.0)], "own"),  # the sweep was unlucky
        ((10.0, 11.0), [(10.0, 11.0), (10.0, 9.6)], "cublas"),  # sometimes clearly slower
        ((10.0, 11.0), [(10.0, 9.8), (10.0, 11.0)], "own"),  # within noise once
        ((10.0, 10.01), [(10.0, 10.01), (10.0, 10.01)], "cublas"),  # no gain beyond the margin
    ],
)
def test_decide(sweep: tuple[float, float], fresh: list[tuple[float, float]], use: str) -> None:
    assert decide(plan(*sweep), fresh, [sweep[1] / sweep[0]]).use == use


def test_times_become_the_new_medians() -> None:
    confirmed = decide(plan(1.0, 1.0), [(10.0, 20.0), (12.0, 22.0)])
    assert (confirmed.us, confirmed.torch_us) == (11.0, 21.0)
    assert confirmed.key == plan(1.0, 1.0).key


def test_the_pdl_flag_falls_with_the_own_kernel() -> None:
    flagged = replace(plan(10.0, 11.0), knobs=Knobs(group=4, pdl=True))
    assert decide(flagged, [(10.0, 11.0)]).knobs == Knobs(group=4, pdl=True)
    assert decide(flagged, [(10.0, 9.0)]).knobs == Knobs(group=4)


def test_a_flagged_plan_is_confirmed_without_pdl(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = install(monkeypatch)
    gpu.us, gpu.pdl_gain = {KERNEL: 3.0}, {KERNEL: 1.5}
    flagged = replace(plan(3.0, 4.0), knobs=Knobs(pdl=True))
    pool = Pool("f16", [flagged.key.shape], seed=0, device="cpu")
    (candidate,) = confirm.contenders(flagged, (), {KERNEL})
    found = confirm.instance(FakeWatch(gpu), pool, flagged, [candidate], rounds=3)
    assert found == confirm.Instance({candidate: 3.0}, TORCH_US)


def _table(kernel: str, dtype: str, **knobs: int) -> plans.Table:
    name = KernelSpec.parse(kernel).variant(dtype, "tn").name
    key = Key(dtype, "tn", 512, 512, 512)
    return plans.Table({"gpu": "fake"}, {key: Plan(key, name, Knobs(**knobs, pdl=True), 4.0, 5.0)})


def test_rivals_of_either_dtype_compete_and_the_fastest_becomes_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = install(monkeypatch)
    other, refused, absent = (
        "sm90_f16_tn_128x256x64_s4_c1x1_coop2",
        "sm90_f16_tn_64x64x64_s8_c1x1_coop1",
        "sm90_f16_tn_64x8x64_s4_c1x1_coop1",
    )
    gpu.us = {KERNEL: 4.0, other: 3.0, refused: 1.0, absent: 1.0}
    gpu.refusing = {refused}
    for name, table in {
        "table": _table(KERNEL, "f16"),
        "other": _table(other, "bf16", group=4),
        "refused": _table(refused, "f16"),
        "absent": _table(absent, "f16"),
    }.items():
        plans.write(tmp_path / f"{name}.csv", table)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(provenance, "provenance", lambda: {"gpu": "fake"})
    path, log = str(tmp_path / "table.csv"), tmp_path / "log.csv"
    rivals = [f"--rivals={tmp_path / name}.csv" for name in ("other", "refused", "absent")]
    assert confirm.main([path, "--log", str(log), *rivals]) == 0
    (plan,) = plans.read(Path(path)).plans.values()
    assert (plan.kernel, plan.knobs, plan.measured, plan.use) == (other, Knobs(group=4), (3.0, TORCH_US), "own")
    rows = list(csv.DictReader(line for line in log.read_text().splitlines() if not line.startswith("#")))
    assert [(row["kernel"], row["group"], row["instance"], float(row["us"])) for row in rows] == [
        (KERNEL, "8", "0", 4.0),
        (other, "4", "0", 3.0),
        (KERNEL, "8", "1", 4.0),
        (other, "4", "1", 3.0),
    ]


@pytest.mark.parametrize(
    ("us", "clocks", "rounds"),
    [
        (5.0, ["", ""], [7, 7]),
        (100.0, ["settled", "rested"], [7, 7]),
        (2900.0, ["settled", "rested"], [3, 2]),
        (6000.0, ["settled", "settled"], [3, 3]),  # a round of it is too long for a rested device
    ],
)
def test_long_products_are_confirmed_at_both_clocks(
    monkeypatch: pytest.MonkeyPatch, us: float, clocks: list[str], rounds: list[int]
) -> None:
    gpu = install(monkeypatch)
    gpu.us = {KERNEL: us}
    watch = FakeWatch(gpu)
    events: list[object] = []
    race = watch.race
    monkeypatch.setattr(watch, "rest", lambda: events.append("rest"))

    def seen(graphs: Any, count: int, *rest: Any, **options: Any) -> Any:
        if "settled" in options:
            events.append((count, options["settled"]))
        return race(graphs, count, *rest, **options)

    monkeypatch.setattr(watch, "race", seen)
    product = plan(us, us)
    pool = Pool("f16", [product.key.shape], seed=0, device="cpu")
    candidates = confirm.contenders(product, (), {KERNEL})
    found = [confirm.instance(watch, pool, product, candidates, 7, rested) for rested in (False, True)]
    assert [instance.clock for instance in found] == clocks
    wanted: list[object] = []
    for clock, count in zip(clocks, rounds, strict=True):
        wanted += ["rest"] * (clock == "rested") + [(count, clock == "settled")]
    assert events == wanted


def test_a_wrong_rival_does_not_become_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = install(monkeypatch)
    wrong, right = "sm90_f16_tn_128x256x64_s4_c1x1_coop2", "sm90_f16_tn_64x64x64_s8_c1x1_coop1"
    gpu.us = {KERNEL: 4.0, wrong: 1.0, right: 2.0}
    gpu.wrong = {wrong}
    watch, old = FakeWatch(gpu), plan(4.0, 5.0)
    pool = Pool("f16", [old.key.shape], seed=0, device="cpu")
    rivals = [Candidate(wrong), Candidate(right)]
    runs = [confirm.instance(watch, pool, old, confirm.contenders(old, rivals, {KERNEL, wrong, right}), rounds=3)]
    winner = confirm.fastest(old, runs, lambda candidate: confirm.computes_rightly(watch, pool, old, candidate))
    assert winner is not None
    assert winner.kernel == right


def test_what_was_confirmed_before_a_failure_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = install(monkeypatch)
    gpu.us = {KERNEL: 3.0}
    first, second = (Plan(Key("f16", "tn", m, 512, 512), KERNEL, Knobs(), 4.0, 5.0) for m in (256, 512))
    path = tmp_path / "table.csv"
    plans.write(path, plans.Table({"gpu": "fake"}, {first.key: first, second.key: second}))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(provenance, "provenance", lambda: {"gpu": "fake"})
    instance, calls = confirm.instance, []

    def fail(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if len(calls) > 2:
            raise RuntimeError("an illegal memory access was encountered")
        return instance(*arguments, **options)

    monkeypatch.setattr(confirm, "instance", fail)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        confirm.main([str(path), "--log", str(tmp_path / "log.csv")])
    kept = plans.read(path)
    assert [plan.us for plan in kept.plans.values()] == [3.0, 4.0]
    assert kept.header["confirmed"] == "1 of 2 plans, 2 instances"


@pytest.mark.parametrize("arguments", [["--log", "no/such/folder/log.csv"], ["--budget-seconds", "0"]])
def test_a_table_of_which_nothing_was_confirmed_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    install(monkeypatch)
    path = tmp_path / "table.csv"
    plans.write(path, _table(KERNEL, "f16"))
    before = path.read_text()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(provenance, "provenance", lambda: {"gpu": "fake"})
    monkeypatch.chdir(tmp_path)
    assert confirm.main([str(path), "--log", "log.csv", *arguments]) == (2 if "--log" in arguments else 0)
    assert path.read_text() == before


@pytest.mark.parametrize("arguments", [["--instances", "0"], ["--top", "-1"], ["--rounds", "0"], ["--dtype", "fp16"]])
def test_options_are_checked_first(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        confirm.main(["table.csv", "--log", "log.csv", *arguments])


def test_names_of_earlier_versions_are_no_rivals() -> None:
    assert confirm.contenders(plan(1.0, 1.0), [Candidate("sm90_f16_tn_old")], {KERNEL}) == [Candidate(KERNEL)]


def test_the_best_of_a_log_are_rivals(tmp_path: Path) -> None:
    key = Key("f16", "tn", 512, 512, 512)
    log = Journal(tmp_path / "log.csv.gz", resume=False)
    log.add(Entry(key, Candidate(f"sm90_f16_tn_64x{n}x64_s4_c1x1_coop1"), 10.0 + n, "final") for n in (8, 16, 24))
    wrong = Candidate("sm90_f16_tn_64x32x64_s4_c1x1_coop1")
    log.add([Entry(key, wrong, 1.0, "top"), Entry(key, wrong, None, "check", "its result is wrong")])
    log.close()
    found = confirm.rivals_of([], str(tmp_path / "log.csv.gz"), 2)
    assert {problem: [c.kernel for c in candidates] for problem, candidates in found.items()} == {
        key[1:]: ["sm90_f16_tn_64x8x64_s4_c1x1_coop1", "sm90_f16_tn_64x16x64_s4_c1x1_coop1"]
    }


def test_rules_are_not_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plans.write(tmp_path / "a100.csv", plans.Table({"gpu": "NVIDIA A100", "source": "rules"}, {}))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(provenance, "provenance", lambda: {"gpu": "NVIDIA A100"})
    assert confirm.main([str(tmp_path / "a100.csv"), "--log", str(tmp_path / "log.csv")]) == 2
    assert "comes from rules: there are no measurements to confirm" in capsys.readouterr().err
    assert not (tmp_path / "log.csv").exists()


def test_summary_counts_cublas_as_one() -> None:
    text = summary([plan(10.0, 20.0), plan(20.0, 10.0, "cublas")])
    assert "own 1.000 (worst 0.500)" in text
    assert "as dispatched 1.414 (worst 1.000)" in text
    assert "50.0 %" in text
