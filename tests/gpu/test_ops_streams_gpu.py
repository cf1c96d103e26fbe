"""Streams, threads, devices, CUDA graphs and programmatic dependent launch: the tuned path in its surroundings."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading

import pytest
import torch
from products import half, in_threads, rand
from torch import Tensor

import cudal2

pytestmark = pytest.mark.usefixtures("tuned")
LONG = 20_000_000
"""Cycles that a producer is kept waiting: about 10 ms, far longer than the host takes to launch what follows."""

SIZES = (64, 128, 256)


def assert_product(result: Tensor, a: Tensor, b: Tensor) -> None:
    assert cudal2.last_path() != "torch"
    torch.testing.assert_close(result, torch.matmul(a, b), rtol=1e-2, atol=5e-2)


def test_a_side_stream_right_after_a_producer() -> None:
    """vllm PR 13632, fp6_llm PR 16: the launch is on the current stream, behind what that stream holds."""
    source, b = half(64, 64), half(64, 64)
    a, stream = torch.zeros_like(source), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        cudal2.matmul(a, b).float().sum()  # loads the kernels, gives the stream its memory
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(LONG)
        a.copy_(source)
        result = cudal2.matmul(a, b)
        total = result.float().sum()
    assert not stream.query(), "the queue ran dry before the product was launched: nothing was tested"
    stream.synchronize()
    assert_product(result, source, b)
    torch.testing.assert_close(total, result.float().sum())


def test_the_default_stream_does_not_wait_for_a_side_stream() -> None:
    a, b, stream = half(64, 64), half(64, 64), torch.cuda.Stream()
    cudal2.matmul(a, b)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10 * LONG)
    result = cudal2.matmul(a, b)
    torch.cuda.default_stream().synchronize()
    assert not stream.query(), "the product waited for another stream"
    assert_product(result, a, b)


def test_a_call_does_not_synchronize() -> None:
    a, b = half(64, 64), half(64, 64)
    cudal2.matmul(a, b)
    torch.cuda.synchronize()
    torch.cuda._sleep(10 * LONG)
    for _ in range(100):
        result = cudal2.matmul(a, b)
    assert not torch.cuda.current_stream().query()
    assert_product(result, a, b)


def test_many_streams() -> None:
    """Results of one stream are not those of another, also where operands change between calls."""
    streams = [torch.cuda.Stream() for _ in range(16)]
    inputs = [(half(64, 64), half(64, 128)) for _ in streams]
    torch.cuda.synchronize()
    results: list[list[Tensor]] = [[] for _ in streams]
    for _ in range(3):
        for stream, (a, b), kept in zip(streams, inputs, results, strict=True):
            with torch.cuda.stream(stream):
                kept.append(cudal2.matmul(a, b).clone())
                a.mul_(2)
    torch.cuda.synchronize()
    for (a, b), kept in zip(inputs, results, strict=True):
        for doubled, result in enumerate(kept):
            expected = torch.matmul(a * 2.0 ** (doubled - 3), b)
            torch.testing.assert_close(result, expected, rtol=1e-2, atol=5e-2 * 2**doubled)


def test_threads() -> None:
    """Each with its own stream and shapes; the first calls of several at once."""

    def work(number: int) -> None:
        generator = torch.Generator("cuda").manual_seed(number)
        with torch.cuda.stream(torch.cuda.Stream()):
            for round in range(50):
                m, n, k = (SIZES[i % 3] for i in (round, number, round + number))
                a = torch.randn(m, k, device="cuda", generator=generator).half()
                b = torch.randn(k, n, device="cuda", generator=generator).half()
                result = cudal2.matmul(a, b)
                assert (cudal2.last_path() == "torch") == ((m, n, k) == (256, 256, 128))
                torch.testing.assert_close(result, torch.matmul(a, b), rtol=1e-2, atol=1e-1)

    in_threads(work, 8)


@pytest.mark.usefixtures("two_gpus")
def test_a_device_that_is_not_current() -> None:
    """pytorch#54077: the tensor's device and its current stream, and the current device stays what it was."""
    a, b = half(64, 64).to("cuda:1"), half(64, 64).to("cuda:1")
    stream = torch.cuda.Stream("cuda:1")
    stream.wait_stream(torch.cuda.current_stream("cuda:1"))
    with torch.cuda.device(0):
        result = cudal2.matmul(a, b)
        assert_product(result, a, b)
        out = torch.empty_like(a)
        cudal2.matmul(a, b, out=out)
        assert_product(out, a, b)
        with torch.cuda.stream(stream), torch.cuda.device(0):
            assert_product(cudal2.linear(a, b), a, b.t())
        assert torch.cuda.current_device() == 0
        a.requires_grad_()
        cudal2.matmul(a, b).sum().backward()
        assert a.grad.device == a.device
    assert result.device == a.device


@pytest.mark.usefixtures("two_gpus")
def test_a_thread_that_made_another_device_current() -> None:
    results: list[Tensor] = []

    def work() -> None:
        torch.cuda.set_device(1)
        eye = torch.eye(64, device="cuda", dtype=torch.float16)
        results.append(cudal2.matmul(eye, 3 * eye))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert results[0].device.index == 1
    assert torch.equal(results[0].cpu(), 3 * torch.eye(64, dtype=torch.float16))


# CUDA graphs ---------------------------------------------------------------------------------------------------------


def test_capture_as_the_first_call_of_the_process() -> None:
    """DeepGEMM#443: no warm-up. Kernels are loaded, plans read and tensor maps encoded while capturing."""
    code = (
        "import torch, cudal2\n"
        "a, b = (torch.randn(64, 64, device='cuda').half() for _ in range(2))\n"
        "bias = torch.randn(64, device='cuda').half()\n"
        "out = torch.empty(64, 64, device='cuda').half()\n"
        "torch.cuda.synchronize()\n"
        "graph = torch.cuda.CUDAGraph()\n"
        "with torch.cuda.graph(graph):\n"
        "    c = cudal2.matmul(a, b); assert cudal2.last_path() != 'torch'\n"
        "    d = cudal2.linear(c, b, bias); assert cudal2.last_path() != 'torch'\n"
        "    cudal2.matmul(d, b, out=out); assert cudal2.last_path() != 'torch'\n"
        "for _ in range(3):\n"
        "    a.normal_()\n"
        "    graph.replay()\n"
        "    expected = torch.nn.functional.linear(a @ b, b, bias)\n"
        "    torch.testing.assert_close(c, a @ b, rtol=1e-2, atol=5e-2)\n"
        "    torch.testing.assert_close(d, expected, rtol=1e-2, atol=5e-1)\n"
        "    torch.testing.assert_close(out, d @ b, rtol=1e-2, atol=5)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr


def test_a_graph_and_its_pool_may_go() -> None:
    """pytorch#169921: nothing that later calls need lives in a graph's memory pool."""
    a, b = half(128, 512), half(512, 256)
    expected = torch.matmul(a, b)
    for _ in range(3):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = cudal2.matmul(a, b)
        graph.replay()
        torch.testing.assert_close(captured, expected, rtol=1e-2, atol=1e-1)
        del graph, captured
        torch.cuda.empty_cache()
        poison = [torch.full((1 << 22,), torch.nan, device="cuda") for _ in range(8)]
        torch.testing.assert_close(cudal2.matmul(a, b), expected, rtol=1e-2, atol=1e-1)
        del poison


@pytest.mark.parametrize("pdl", [False, True])
def test_graphs_of_a_long_chain(pdl: bool) -> None:
    """Each product depends on the last: wrong if one starts before its inputs are there (some rows say pdl)."""
    sizes = [64, 128, 256, 64, 256, 128, 64]
    weights = [half(n, k) / k**0.5 for k, n in itertools.pairwise(sizes)]
    a = half(64, 64)

    def chain(x: Tensor) -> Tensor:
        for weight in weights * 4:
            x = cudal2.linear(x, weight)
        return x

    expected = a
    for weight in weights * 4:
        expected = torch.nn.functional.linear(expected, weight)
    graph = torch.cuda.CUDAGraph()
    with cudal2.pdl(pdl), torch.cuda.graph(graph):
        result = chain(a)
    for _ in range(20):
        result.fill_(torch.nan)
        graph.replay()
        torch.testing.assert_close(result, expected, rtol=5e-2, atol=5e-2)
    torch.testing.assert_close(chain(a), result, rtol=0, atol=0)


@pytest.mark.parametrize("pdl", [False, True])
def test_an_output_that_an_earlier_product_still_reads(pdl: bool) -> None:
    """The next product overwrites the input of the last: it must wait, also under programmatic dependent launch."""
    a, b = half(128, 128), torch.linalg.qr(rand(128, 128))[0].cuda().half()  # orthogonal: magnitudes stay
    first, second = torch.empty_like(a), torch.empty_like(a)
    expected = a
    for _ in range(20):
        expected = torch.matmul(torch.matmul(expected, b), b)
    first.copy_(a)
    with cudal2.pdl(pdl):
        for _ in range(20):
            cudal2.matmul(first, b, out=second)
            cudal2.matmul(second, b, out=first)
    assert cudal2.last_path() != "torch"
    torch.testing.assert_close(first, expected, rtol=5e-2, atol=5e-2)
