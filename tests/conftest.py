"""Common to all tests: a fixed seed for each, and no GPU test without a GPU."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

GPU_TESTS = Path(__file__).parent / "gpu"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if GPU_TESTS in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(autouse=True)
def _seed() -> None:
    random.seed(0)
    torch.manual_seed(0)


@pytest.fixture
def two_gpus() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip(f"needs 2 CUDA devices; there are {torch.cuda.device_count()}")


@pytest.fixture
def fresh_compile() -> None:
    """torch.compile with nothing compiled before: no caches, and no count of recompilations."""
    torch._dynamo.reset()
