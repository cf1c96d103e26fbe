"""Code generation: the committed files are what the space emits, and a change of the space changes them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from cudal2.search import emit, space
from cudal2.spec import KernelSpec, SpecError

SPEC = KernelSpec("sm90", "f16", "tn", 128, 192, 64, 4, consumers=2)


@pytest.mark.skipif(not emit.ROOT.is_dir(), reason="an installed package without the source tree")
def test_committed_files_are_up_to_date() -> None:
    assert emit.stale() == []


def test_every_spec_is_instantiated_once() -> None:
    text = "".join(emit.files(space.compiled()).values())
    names = re.findall(r'_entry<[^"]*>\("([^"]+)"\)', text)
    assert sorted(names) == sorted(spec.name for spec in space.compiled())


def test_instantiation_repeats_the_spec() -> None:
    spec = replace(SPEC, cluster_n=2, stages=5)
    config = "f16, Layout::tn, 128, 192, 64, 5, 1, 2, 1, false, 2, false, false, false, false"
    assert f'Sm90Config<{config}>>("{spec.name}")' in emit.kernel_source([spec])
    assert "false, 2, true, true, false, false>>" in emit.kernel_source([replace(spec, tma_store=True, workspace=True)])
    assert "false, 3, false, false, false, true>>" in emit.kernel_source([replace(spec, consumers=3, swap=True)])


def test_wgmma_is_as_wide_as_accumulators_have_columns() -> None:
    source = emit.files([replace(SPEC, bm=88, bn=128, swap=True)])["sm90/wgmma.inc"]
    assert set(re.findall(r"m64n\d+k16", source)) == {"m64n88k16"}


@pytest.mark.parametrize("n", [8, 24, 256])
def test_wgmma_wrapper_has_its_operands(n: int) -> None:
    source = emit.wgmma_source([n])
    for dtype in ("f16", "bf16"):
        assert source.count(f"m64n{n}k16.f32.{dtype}.{dtype}") == 2
    assert source.count(f'"+f"(d[{n // 2 - 1}])') == source.count(f'"=f"(d[{n // 2 - 1}])') == 2
    assert f'"+f"(d[{n // 2}])' not in source


def test_invalid_spec_is_refused() -> None:
    with pytest.raises(SpecError):
        emit.files([replace(SPEC, bk=32)])


def test_write_adds_changes_and_removes(tmp_path: Path) -> None:
    everything = emit.write(tmp_path)
    assert everything
    assert emit.write(tmp_path) == []
    (tmp_path / "sm90" / "old.cu").write_text("")
    (tmp_path / everything[0]).write_text("changed")
    assert emit.stale(tmp_path) == sorted([everything[0], "sm90/old.cu"])
    assert emit.write(tmp_path) == sorted([everything[0], "sm90/old.cu"])
    assert emit.stale(tmp_path) == []
