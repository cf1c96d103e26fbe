"""What tests/gpu/sanitize.py runs under compute-sanitizer: each of its modes is there."""

from __future__ import annotations

import importlib.util
import re
from types import ModuleType

import pytest
from fake_tools import ROOT

from cudal2.search import space


def _sanitize() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sanitize", ROOT / "tests" / "gpu" / "sanitize.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SANITIZE = _sanitize()


@pytest.mark.parametrize("layout", ["nn", "tn"])
@pytest.mark.parametrize(("mode", "pattern"), SANITIZE.MODES.items())
def test_every_mode_has_a_kernel_and_runs_what_it_names(mode: str, pattern: str, layout: str) -> None:
    fitting = [
        spec
        for spec in space.compiled()
        if (spec.dtype, spec.layout) == ("f16", layout) and re.fullmatch(pattern, spec.name)
    ]
    assert fitting, mode
    for spec in fitting:
        knobs = SANITIZE.knobs_for(spec.name)
        assert (knobs.get("split", 1) > 1) == spec.workspace
        assert "ctas" in knobs or not spec.stream_k
        assert spec.swap == ("swapped" in mode)
