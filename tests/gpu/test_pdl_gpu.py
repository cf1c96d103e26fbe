"""Programmatic dependent launch, switched on: the same bits, and only where plan and switch both say so.

A third of the plans that these tests run with have the flag (conftest.py).
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable

import pytest
import torch
from products import errors_of_planned_products, half, in_threads, rand
from torch import Tensor

import cudal2
from cudal2 import plans, tools

pytestmark = pytest.mark.usefixtures("tuned")
SIZES = [64, 128, 256, 64, 256, 128, 64]

Chain = Callable[[], list[Tensor]]


def _linears() -> Chain:
    """Each product reads what the last one wrote."""
    weights = [half(n, k) / k**0.5 for k, n in itertools.pairwise(SIZES)]
    biases = [half(n) for n in SIZES[1:]]
    x = half(64, 64)

    def chain() -> list[Tensor]:
        results = [x]
        for weight, bias in zip(weights * 4, biases * 4, strict=True):
            results.append(cudal2.linear(results[-1], weight, bias))
        return results

    return chain


def _overwriting() -> Chain:
    """Each product overwrites what the last one read."""
    x, b = half(128, 128), torch.linalg.qr(rand(128, 128))[0].cuda().half()
    first, second = torch.empty_like(x), torch.empty_like(x)

    def chain() -> list[Tensor]:
        first.copy_(x)
        for _ in range(20):
            cudal2.matmul(first, b, out=second)
            cudal2.matmul(second, b, out=first)
        return [first.clone(), second.clone()]

    return chain


def _mixed() -> Chain:
    """Between products, kernels of torch's write an operand and read a result."""
    x, b = half(64, 256), half(256, 256) / 16

    def chain() -> list[Tensor]:
        results = [x]
        for _ in range(10):
            product = cudal2.matmul(results[-1], b)
            results.append(torch.tanh(product) + x)
        return results

    return chain


CHAINS = {"linears": _linears, "overwriting": _overwriting, "mixed": _mixed}


def assert_same(results: list[Tensor], expected: list[Tensor]) -> None:
    assert len(results) == len(expected)
    for result, wanted in zip(results, expected, strict=True):
        assert torch.equal(result, wanted)


@pytest.mark.parametrize("make", CHAINS.values(), ids=CHAINS)
def test_a_chain_has_the_same_bits(make: Callable[[], Chain]) -> None:
    chain = make()
    with cudal2.pdl(False):
        expected = chain()
    assert cudal2.last_path() != "torch"
    assert expected[-1].isfinite().all()
    for _ in range(20):
        with cudal2.pdl(True):
            results = chain()
        assert_same(results, expected)


@pytest.mark.parametrize("make", CHAINS.values(), ids=CHAINS)
def test_a_captured_chain_has_the_same_bits(make: Callable[[], Chain]) -> None:
    chain = make()
    expected = chain()
    graph = torch.cuda.CUDAGraph()
    with cudal2.pdl(True), torch.cuda.graph(graph):
        results = chain()
    for _ in range(20):
        for result in results[1:]:
            result.fill_(torch.nan)
        graph.replay()
        assert_same(results[1:], expected[1:])


def test_threads_have_the_same_bits() -> None:
    """Each on its own stream; every second one is switched on, all at once."""
    chains = [_linears() for _ in range(8)]
    expected = [chain() for chain in chains]
    torch.cuda.synchronize()

    def work(number: int) -> None:
        with cudal2.pdl(number % 2 == 0), torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(20):
                results = chains[number]()
                torch.cuda.current_stream().synchronize()
                assert_same(results, expected[number])

    in_threads(work, 8)


# Autograd ------------------------------------------------------------------------------------------------------------


class _Spy(torch.autograd.Function):
    """The identity; its backward notes whether PDL is on where it runs."""

    seen: list[bool] = []

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:
        _Spy.seen.append(cudal2.pdl_enabled())
        return grad


@pytest.mark.parametrize("multithreaded", [True, False])
def test_backward_follows_the_thread_that_it_runs_in(multithreaded: bool) -> None:
    leaves = [half(64, 64).requires_grad_(), half(64, 64).requires_grad_()]
    default = cudal2.pdl_enabled()

    def gradients() -> list[Tensor]:
        return list(torch.autograd.grad(_Spy.apply(cudal2.matmul(*leaves)).float().square().sum(), leaves))

    expected = gradients()
    _Spy.seen.clear()
    with cudal2.pdl(not default), torch.autograd.set_multithreading_enabled(multithreaded):
        results = gradients()
    assert _Spy.seen == [default if multithreaded else not default]
    assert_same(results, expected)


# What was launched ---------------------------------------------------------------------------------------------------


class _Edge(ctypes.Structure):
    """CUgraphEdgeData."""

    _fields_ = [
        ("from_port", ctypes.c_ubyte),
        ("to_port", ctypes.c_ubyte),
        ("type", ctypes.c_ubyte),
        ("reserved", ctypes.c_ubyte * 5),
    ]


PROGRAMMATIC = 1
"""CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC: what a launch with PDL becomes under capture."""


def _edges(graph: torch.cuda.CUDAGraph) -> list[int]:
    """The types of a captured graph's edges, of at most 16."""
    try:
        read = ctypes.CDLL("libcuda.so.1").cuGraphGetEdges_v2
    except AttributeError:
        pytest.skip("this driver's graphs have no typed edges")
    most = 16
    count, nodes, edges = ctypes.c_size_t(most), (ctypes.c_void_p * most), (_Edge * most)()
    assert read(ctypes.c_void_p(graph.raw_cuda_graph()), nodes(), nodes(), edges, ctypes.byref(count)) == 0
    return [edge.type for edge in edges[: count.value]]


def _plan(flag: bool) -> plans.Plan:
    """A plan of fp16 nn whose CTAs share no workspace: all that it launches is its kernel."""
    path = plans.directory() / f"{plans.slug(torch.cuda.get_device_name())}.csv"
    for plan in plans.read(path).plans.values():
        key, knobs = plan.key, plan.knobs
        alone = (knobs.ctas, knobs.split, plan.use) == (0, 1, "own")
        if (key.dtype, key.layout) == ("f16", "nn") and alone and max(key.shape) <= 512 and knobs.pdl is flag:
            return plan
    raise AssertionError(f"no plan with pdl={int(flag)}")


@pytest.mark.parametrize("flag", [False, True])
@pytest.mark.parametrize("switch", [False, True])
@pytest.mark.parametrize("how", ["matmul", "out"])
def test_a_launch_uses_pdl_where_flag_and_switch_say_so(flag: bool, switch: bool, how: str) -> None:
    native = tools.load()
    if torch.cuda.get_device_capability() != (9, 0) or native is None or "sm_90" not in native.build_info():
        pytest.skip("needs a device of compute capability 9.0, and kernels that were compiled for it")
    plan = _plan(flag)
    m, n, k = plan.key.shape
    a, b, out = half(m, k), half(k, n), half(m, n)
    cudal2.matmul(a, b)
    assert cudal2.last_path() == plan.kernel
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with cudal2.pdl(switch), torch.cuda.graph(graph):
        for _ in range(3):
            if how == "out":
                cudal2.matmul(a, b, out=out)
            else:
                cudal2.matmul(a, b)
    assert _edges(graph) == [PROGRAMMATIC if flag and switch else 0] * 2


def test_a_bad_default_is_an_error_of_every_planned_product() -> None:
    goes_on = "print((a[:63, :63].contiguous() @ a[:63, :63]).sum().item())"
    (*lines, last), errors = errors_of_planned_products(goes_on, CUDAL2_PDL="yes")
    assert len(lines) == 4, errors
    assert all("CUDAL2_PDL='yes'; expected 0 or 1" in line for line in lines)
    assert float(last) > 0, "the device goes on"
