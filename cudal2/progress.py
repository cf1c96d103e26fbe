"""The progress bar of the long-running commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def bar(items: Sequence[Any], unit: str) -> Any:
    """The items, with a bar on stderr as they are gone through; none for a single one. It is tqdm's."""
    from tqdm import tqdm  # type: ignore[import-untyped]

    return tqdm(items, unit=unit, mininterval=2.0, smoothing=0.05, disable=len(items) < 2)
