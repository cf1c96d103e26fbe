"""Inputs that broke libraries like this one, by the public report they come from. tests/gpu/test_cases_gpu.py has the
rest.

Ranks, strides, alignment, K = 0 and odd sizes are in test_ops.py, for every dtype.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from products import rand

import cudal2

HALF = [torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_very_long_m(dtype: torch.dtype) -> None:
    """pytorch#24018."""
    a, b = rand(8388353, 1, dtype=dtype), rand(1, 2, dtype=dtype)
    assert torch.equal(cudal2.matmul(a, b), torch.matmul(a, b))


def test_rows_of_a_transposed_view() -> None:
    """pytorch PR 76021, at a tenth of its size."""
    a, b = rand(205, 2527).t()[2194:2434], rand(205, 16)
    assert torch.equal(cudal2.matmul(a, b), torch.matmul(a, b))


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_k_of_0_gives_zeros(dtype: torch.dtype) -> None:
    """pytorch#31421."""
    result = cudal2.matmul(rand(3, 2, 0, dtype=dtype), rand(3, 0, 3, dtype=dtype))
    assert result.shape == (3, 2, 3)
    assert not result.any()
    bias = rand(3, dtype=dtype)
    assert torch.equal(cudal2.linear(rand(2, 0, dtype=dtype), rand(3, 0, dtype=dtype), bias), bias.expand(2, 3))


def test_weights_updated_in_place() -> None:
    """vllm#48312, sglang#26032: nothing derived from a weight goes stale."""
    x, weight = rand(4, 8), rand(6, 8)
    for _ in range(3):
        assert torch.equal(cudal2.linear(x, weight), F.linear(x, weight))
        weight.add_(1)
    weight.data = rand(6, 8)
    assert torch.equal(cudal2.linear(x, weight), F.linear(x, weight))


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_float32_under_autocast(dtype: torch.dtype) -> None:
    """pytorch#47906."""
    layer, x = torch.nn.Linear(8, 6), rand(4, 8)
    with torch.autocast("cpu", dtype=dtype), cudal2.patch(layer):
        result = layer(x)
        assert result.dtype == dtype
        result.float().sum().backward()
    assert layer.weight.grad.dtype == torch.float32
