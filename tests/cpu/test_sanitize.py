"""What tests/gpu/sanitize.py runs under compute-sanitizer: each of its modes is there."""

from __future__ import annotations

import importlib.util
import re

import pytest
from fake_tools import ROOT

from cudal2.search import space


def _modes() -> dict[str, str]:
    spec = importlib.util.spec_from_file_location("sanitize", ROOT / "tests" / "gpu" / "sanitize.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: dict[str, str] = module.MODES
    return found


@pytest.mark.parametrize("layout", ["nn", "tn"])
@pytest.mark.parametrize(("mode", "pattern"), _modes().items())
def test_every_mode_has_a_kernel(mode: str, pattern: str, layout: str) -> None:
    names = [spec.name for spec in space.compiled() if (spec.dtype, spec.layout) == ("f16", layout)]
    assert any(re.fullmatch(pattern, name) for name in names), mode
