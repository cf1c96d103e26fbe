"""The smallest set of kernels: greedy cover over a sweep's log."""

from __future__ import annotations

from pathlib import Path

import pytest

from cudal2.plans import Key
from cudal2.search import smallest
from cudal2.search.journal import Candidate, Entry, Journal

A, B, C = (f"sm90_{{}}_128x{n}x64_s4_c1x1_coop2" for n in (64, 128, 256))
KEYS = [Key("f16", "tn", 128, 128, k) for k in (64, 128, 256)]


def _name(template: str, key: Key) -> str:
    return template.format(f"{key.dtype}_{key.layout}")


def _entries(times: dict[str, list[float]], stage: str = "quick", dtype: str = "f16") -> list[Entry]:
    keys = [key._replace(dtype=dtype) for key in KEYS]
    return [
        Entry(key, Candidate(_name(template, key)), us, stage)
        for template, row in times.items()
        for key, us in zip(keys, row, strict=True)
    ]


TN = "f16_tn"
ENTRIES = _entries({A: [1.0, 1.0, 2.0], B: [1.005, 1.2, 1.0], C: [1.3, 1.005, 1.5]})


def test_each_problem_is_kept_within_the_tolerance() -> None:
    found = smallest.ratios(ENTRIES)
    chosen = smallest.cover(found, 1.01)
    assert [problems for _, problems in chosen] == [2, 1]
    names = [name for name, _ in chosen]
    assert names == [B.format(TN), C.format(TN)] or names == [A.format(TN), B.format(TN)]
    assert smallest.loss(found, names)[1] <= 1.01


def test_a_wide_tolerance_needs_one_kernel() -> None:
    assert smallest.cover(smallest.ratios(ENTRIES), 1.2) == [(B.format(TN), 3)]


def test_what_is_kept_comes_first() -> None:
    chosen = smallest.cover(smallest.ratios(ENTRIES), 1.01, keep=[C.format(TN)])
    assert chosen[0] == (C.format(TN), 1)
    assert {name for name, _ in chosen} == {C.format(TN), B.format(TN)}


def test_a_later_stage_counts_and_baselines_do_not() -> None:
    final = [
        Entry(KEYS[0], Candidate("torch"), 0.5, "final"),
        Entry(KEYS[0], Candidate(A.format(TN)), 1.10, "final"),
        Entry(KEYS[0], Candidate(B.format(TN)), 1.00, "final"),
        Entry(KEYS[0], Candidate(C.format(TN)), None, "final", "refused"),
    ]
    found = smallest.ratios([*ENTRIES, *final])[KEYS[0]]
    assert found == {A.format(TN): pytest.approx(1.10), B.format(TN): 1.0, C.format(TN): pytest.approx(1.3)}


def test_dtypes_and_layouts_are_one_kernel() -> None:
    found = smallest.ratios([*ENTRIES, *_entries({A: [1.0, 1.0, 1.0]}, dtype="bf16")])
    assert len(found) == 6
    assert smallest.cover(found, 2.0) == [(A.format(TN), 6)]


@pytest.mark.parametrize("within", [0.99, float("nan")])
def test_nothing_is_within_less_than_the_best(within: float) -> None:
    with pytest.raises(ValueError, match="expected 1 or more"):
        smallest.cover(smallest.ratios(ENTRIES), within)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = Journal(tmp_path / "log.csv", resume=False)
    log.add(ENTRIES)
    log.close()
    assert smallest.main([str(tmp_path / "log.csv")]) == 0
    assert "2 of 3 kernels keep 3 problems within 1.01" in capsys.readouterr().out
    assert smallest.main([str(tmp_path / "none.csv")]) == 2
    assert capsys.readouterr().err.startswith("smallest: ")


@pytest.mark.parametrize("keep", [[], ["bogus"]])
def test_what_was_not_measured_is_an_error(keep: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = Journal(tmp_path / "log.csv", resume=False)
    log.add(ENTRIES if keep else [])
    log.close()
    assert smallest.main([str(tmp_path / "log.csv"), "--keep", *keep]) == 2
    assert ("--keep bogus" if keep else "no measurements in") in capsys.readouterr().err
