"""The short way of an eager call (csrc/eager.cpp) on CUDA: it is taken, and gives what the op gives."""

from __future__ import annotations

import threading

import pytest
import torch
from products import half
from torch import Tensor

import cudal2
from cudal2 import native

pytestmark = [
    pytest.mark.usefixtures("tuned"),
    pytest.mark.skipif(native.plain_matmul is native._refuse, reason="cudal2._eager is not in this build"),
]


def test_it_is_taken_and_gives_the_ops_bits() -> None:
    a, b, bias = half(64, 64), half(64, 64), half(64)
    for first, second in ((a, b), (a, b.t()), (a.view(4, 16, 64), b)):
        result = native.plain_matmul(first, second)
        assert result is not None
        assert cudal2.last_path() != "torch"
        assert torch.equal(result, native.matmul_forward(first, second))
    for added in (bias, None):
        result = native.plain_linear(a, b, added)
        assert result is not None
        assert cudal2.last_path() != "torch"
        assert torch.equal(result, native.linear_forward(a, b, added))


def test_its_output_is_the_caching_allocators() -> None:
    a, b = half(256, 128), half(128, 64)
    cudal2.matmul(a, b)
    before = torch.cuda.memory_allocated()
    result = native.plain_matmul(a, b)
    assert result is not None
    assert torch.cuda.memory_allocated() - before >= 2 * result.numel()
    result.record_stream(torch.cuda.Stream())
    del result
    torch.cuda.synchronize()
    torch.empty(1, device="cuda")  # lets the allocator look at its events
    assert torch.cuda.memory_allocated() <= before + 512


def test_a_thread_without_a_context() -> None:
    """There the driver refuses the launch, and the runtime makes the context."""
    a, b = half(64, 64), half(64, 64)
    results: list[Tensor] = []
    thread = threading.Thread(target=lambda: results.append(cudal2.matmul(a, b)))
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert torch.equal(results[0], native.matmul_forward(a, b))


def test_on_another_stream_and_in_a_graph() -> None:
    a, b = half(64, 64), half(64, 64)
    expected = native.matmul_forward(a, b)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        result = cudal2.matmul(a, b)
    stream.synchronize()
    assert torch.equal(result, expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = native.plain_matmul(a, b)
    assert captured is not None
    a.mul_(2)
    graph.replay()
    assert torch.equal(captured, expected * 2)


def test_the_profiler_still_sees_an_op() -> None:
    a, b = half(64, 64), half(64, 64)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        cudal2.matmul(a, b)
    assert cudal2.last_path() != "torch"
    assert "cudal2::matmul_eager" in {event.name for event in profile.events()}


def test_another_current_device(two_gpus: None) -> None:
    a, b = half(64, 64), half(64, 64)
    with torch.cuda.device(1):
        assert native.plain_matmul(a, b) is None
        assert cudal2.matmul(a, b).device == a.device
    assert cudal2.last_path() != "torch"
