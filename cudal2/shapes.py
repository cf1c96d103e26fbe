"""Problem shapes (M, N, K): the grid of 1000 that cudal2 is measured on, and lists of them from CSV files."""

from __future__ import annotations

import argparse
import csv
import itertools
import random
from pathlib import Path
from typing import NamedTuple

GRID_SIZES = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 12288, 16384)

LLAMA_3_8B = {"qkv": (6144, 4096), "o": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}
"""Linear layers of a Llama-3-8B block: out and in features, N and K."""

LLAMA_TOKENS = {"prefill": (2048,), "decode": (1, 4, 16)}
"""Tokens at once, M, in the phases that the demo shows."""


class Shape(NamedTuple):
    """C[M,N] = A[M,K] @ B[K,N]."""

    m: int
    n: int
    k: int

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k

    @property
    def bytes(self) -> int:
        """Least traffic in half precision: each operand read once, C written once."""
        return 2 * (self.m * self.k + self.k * self.n + self.m * self.n)

    def __str__(self) -> str:
        return f"{self.m},{self.n},{self.k}"


def grid() -> list[Shape]:
    """The 1000 shapes: every M, N, K of GRID_SIZES."""
    return [Shape(*mnk) for mnk in itertools.product(GRID_SIZES, repeat=3)]


def llama() -> list[Shape]:
    """The shapes of the demo, all in layout tn."""
    tokens = itertools.chain(*LLAMA_TOKENS.values())
    return [Shape(m, n, k) for m in tokens for n, k in LLAMA_3_8B.values()]


def parse(text: str) -> Shape:
    """A shape from "M,N,K" or "MxNxK". Raises ValueError."""
    parts = text.replace("x", ",").split(",")
    try:
        sizes = [int(part) for part in parts]
    except ValueError:
        sizes = []
    if len(sizes) != 3 or min(sizes) < 1:
        raise ValueError(f"shape {text!r}; expected three positive integers M,N,K")
    return Shape(*sizes)


def argument(text: str) -> Shape:
    """`parse` as argparse's type: its message reaches the user."""
    try:
        return parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def load(source: str) -> list[Shape]:
    """Shapes from "grid", "llama", "M,N,K", or a CSV file with columns m, n, k (others ignored, duplicates dropped)."""
    named = {"grid": grid, "llama": llama}
    if source in named:
        return named[source]()
    if not Path(source).is_file():
        return [parse(source)]
    with open(source, newline="") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    if not rows or not {"m", "n", "k"} <= rows[0].keys():
        raise ValueError(f"{source}: expected a CSV file with columns m, n, k")
    return list(dict.fromkeys(Shape(int(row["m"]), int(row["n"]), int(row["k"])) for row in rows))


def sample(shapes: list[Shape], count: int, seed: int = 0) -> list[Shape]:
    """`count` of the shapes (all if fewer), chosen and ordered by the seed."""
    return random.Random(seed).sample(shapes, min(count, len(shapes)))
