"""Which shapes are measured: the grid of 1000, the layers of public models, or a file's."""

from __future__ import annotations

import csv
import random
from pathlib import Path

from cudal2 import shapes
from cudal2.shapes import Shape

MODELS = Path(__file__).parent / "models.csv"
"""Layers of ten public models at 14 numbers of tokens: columns model, m, n, k. Weights are N x K: layout tn."""


def load(suite: str, sample: int | None, seed: int) -> list[Shape]:
    """The shapes of "grid", "models", M,N,K or a CSV file with columns m, n, k; `sample` of them, if given.

    In random order, so that the time that is left can be told from the time that it took so far.
    """
    found = shapes.load(str(MODELS) if suite == "models" else suite)
    return random.Random(seed).sample(found, min(sample or len(found), len(found)))


def model_names() -> dict[tuple[int, int], str]:
    """By N and K: the models that have such a layer."""
    names: dict[tuple[int, int], dict[str, None]] = {}
    with open(MODELS, newline="") as file:
        for row in csv.DictReader(file):
            names.setdefault((int(row["n"]), int(row["k"])), {})[row["model"]] = None
    return {layer: ", ".join(models) for layer, models in names.items()}
