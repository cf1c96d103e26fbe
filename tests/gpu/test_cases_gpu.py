"""Inputs that broke libraries like this one, by the public report they come from, on CUDA.

Ranks, strides, alignment, K = 0, odd sizes, out= and autocast are in test_ops_gpu.py; streams and graphs beside it.
"""

from __future__ import annotations

import gc

import pytest
import torch
import torch.nn.functional as F
from products import assert_as_accurate, half, rand

import cudal2

HALF = [torch.float16, torch.bfloat16]


@pytest.fixture
def memory() -> None:
    """16 GB of free device memory."""
    gc.collect()
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0]
    if free < 16e9:
        pytest.skip(f"needs 16 GB of device memory; {free / 1e9:.0f} GB are free")


@pytest.mark.usefixtures("memory")
def test_more_than_2_to_the_31_elements() -> None:
    """pytorch#17897."""
    a = torch.ones(1, dtype=torch.float16, device="cuda").expand(35783, 65133).contiguous()
    a[-1] = 2
    b = torch.full((65133, 1), 0.25, dtype=torch.float16, device="cuda")
    result = cudal2.matmul(a, b)
    assert result.shape == (35783, 1)
    expected = torch.full_like(result, 65133 / 4)
    expected[-1] *= 2
    torch.testing.assert_close(result, expected, rtol=5e-3, atol=0)


@pytest.mark.usefixtures("memory", "tuned")
@pytest.mark.parametrize("layout", ["nn", "tn"])
def test_a_tuned_product_of_more_than_2_to_the_31_elements(layout: str) -> None:
    m = 2**25 + 8
    b = half(64, 64)
    a = torch.empty(m, 64, dtype=torch.float16, device="cuda").normal_()
    result = cudal2.matmul(a, b) if layout == "nn" else cudal2.linear(a, b)
    assert cudal2.last_path() != "torch"
    assert result.numel() > 2**31
    for rows in (slice(0, 4096), slice(m // 2, m // 2 + 4096), slice(m - 4096, m)):
        other = b if layout == "nn" else b.t()
        expected = torch.matmul(a[rows], other)
        assert_as_accurate(result[rows], expected, torch.matmul(a[rows].double(), other.double()))


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_very_long_m(dtype: torch.dtype) -> None:
    """pytorch#24018."""
    a, b = rand(8388353, 1, dtype=dtype, device="cuda"), rand(1, 2, dtype=dtype, device="cuda")
    assert_as_accurate(cudal2.matmul(a, b), torch.matmul(a, b), torch.matmul(a.double(), b.double()))


def test_rows_of_a_transposed_view() -> None:
    """pytorch PR 76021."""
    a = torch.rand(2048, 25272, device="cuda").half().t()[21940:24340]
    b = half(2048, 128)
    assert_as_accurate(cudal2.matmul(a, b), torch.matmul(a, b), torch.matmul(a.double(), b.double()))
    flipped = half(128, 2048)
    result = cudal2.matmul(flipped, a.t())
    assert_as_accurate(result, torch.matmul(flipped, a.t()), torch.matmul(flipped.double(), a.t().double()))


@pytest.mark.usefixtures("tuned")
def test_weights_updated_in_place() -> None:
    """vllm#48312, sglang#26032: nothing derived from a weight goes stale, also where its storage is replaced."""
    x, weight = half(64, 64), half(64, 64)
    for change in (lambda: weight.mul_(2), lambda: weight.copy_(half(64, 64)), lambda: weight.set_(half(64, 64)), None):
        result = cudal2.linear(x, weight)
        assert cudal2.last_path() != "torch"
        torch.testing.assert_close(result, F.linear(x, weight), rtol=1e-2, atol=5e-2)
        if change:
            change()


@pytest.mark.usefixtures("tuned")
def test_memory_that_another_shape_used_before() -> None:
    """flashinfer#3363: an address seen before with another shape, layout, pitch or dtype is another matrix."""
    buffer = half(4 * 256 * 256)
    b = half(64, 64)
    for m, pitch in ((64, 64), (128, 64), (64, 128), (256, 64), (128, 256), (64, 64)):
        a = buffer.as_strided((m, 64), (pitch, 1))
        torch.testing.assert_close(cudal2.matmul(a, b), torch.matmul(a, b), rtol=1e-2, atol=5e-2)
        torch.testing.assert_close(cudal2.matmul(a, b.t()), torch.matmul(a, b.t()), rtol=1e-2, atol=5e-2)
        same_bits = a.view(torch.bfloat16)
        other = b.bfloat16()
        ours, torchs = cudal2.matmul(same_bits, other), torch.matmul(same_bits, other)
        assert torch.equal(ours.isnan(), torchs.isnan())
        torch.testing.assert_close(ours / torchs.abs().max(), torchs / torchs.abs().max(), rtol=2e-2, atol=1e-2)


@pytest.mark.usefixtures("tuned")
def test_memory_that_was_freed_and_used_again() -> None:
    for _ in range(30):
        a, b = half(64, 64), half(64, 64)
        torch.testing.assert_close(cudal2.matmul(a, b), torch.matmul(a, b), rtol=1e-2, atol=5e-2)
        del a, b
        torch.cuda.empty_cache()
