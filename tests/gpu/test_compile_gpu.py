"""torch.compile(fullgraph=True) on CUDA: the graph holds the tuned op, with gradients, autocast and CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from products import LINEAR, MATMUL, assert_same_kind, half, rand
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch.utils._triton import has_triton

import cudal2

pytestmark = pytest.mark.usefixtures("tuned", "fresh_compile")
needs_triton = pytest.mark.skipif(not has_triton(), reason="inductor needs triton for CUDA")
CLOSE = {"rtol": 2e-2, "atol": 1e-1}


def logged(function: Callable[..., Tensor], log: list[str]) -> Callable[..., Tensor]:
    """Compiled; the code of each aten graph goes to the log."""

    def note(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
        log.append(graph.code)
        return graph.forward

    return torch.compile(function, fullgraph=True, backend=aot_autograd(fw_compiler=note, bw_compiler=note))


@pytest.mark.parametrize(
    "case", ["1d_2d", "2d_2d", "3d_2d", "b_transposed", "a_columns", "a_transposed", "k_is_0", "m_is_0"]
)
def test_matmul(case: str) -> None:
    a, b = MATMUL[case](torch.float16, "cuda")
    log: list[str] = []
    result, expected = logged(cudal2.matmul, log)(a, b), torch.matmul(a, b)
    assert "cudal2.matmul_forward" in log[0]
    assert_same_kind(result, expected)
    torch.testing.assert_close(result, expected, **CLOSE)


@pytest.mark.parametrize("case", ["1d_bias", "2d", "2d_bias", "3d_bias", "bias_at_odd_offset"])
def test_linear(case: str) -> None:
    arguments = LINEAR[case](torch.float16, "cuda")
    log: list[str] = []
    result = logged(cudal2.linear, log)(*arguments)
    assert "cudal2.linear_forward" in log[0]
    assert cudal2.last_path() != "torch"
    torch.testing.assert_close(result, F.linear(*arguments), **CLOSE)


def test_fp16_accumulation() -> None:
    def function(a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
        return cudal2.linear(cudal2.matmul(a, b, accumulate="fp16"), b, bias, accumulate="fp16")

    operands = half(64, 64), half(64, 64) / 8, half(64)
    log: list[str] = []
    result = logged(function, log)(*operands)
    assert "cudal2.matmul_acc16" in log[0]
    assert "cudal2.linear_acc16" in log[0]
    torch.testing.assert_close(result, F.linear(operands[0] @ operands[1], *operands[1:]), **CLOSE)


def test_gradients() -> None:
    def loss(a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
        return cudal2.linear(cudal2.matmul(a, b), b, bias).float().square().mean()

    leaves = [tensor.requires_grad_() for tensor in (half(64, 64), half(64, 64) / 8, half(64))]
    log: list[str] = []
    ours = torch.autograd.grad(logged(loss, log)(*leaves), leaves)
    assert "cudal2.linear_forward" in log[0]
    assert "cudal2.matmul_forward" in log[0]
    assert "cudal2.matmul_forward" in log[1], "gradients take the tuned op as well"
    for mine, theirs in zip(ours, torch.autograd.grad(loss(*leaves), leaves), strict=True):
        torch.testing.assert_close(mine, theirs, **CLOSE)


def test_autocast() -> None:
    a, b = rand(64, 64, device="cuda"), rand(64, 64, device="cuda").requires_grad_()

    def function(a: Tensor, b: Tensor) -> Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return cudal2.matmul(a, b)

    log: list[str] = []
    result = logged(function, log)(a, b)
    assert "cudal2.matmul_forward" in log[0]
    assert result.dtype == torch.bfloat16
    torch.testing.assert_close(result, torch.matmul(a.bfloat16(), b.bfloat16()), rtol=2e-2, atol=2e-1)


def test_out() -> None:
    a, b = half(64, 64), half(64, 64)

    def function(a: Tensor, b: Tensor) -> Tensor:
        out = torch.empty_like(a)
        cudal2.matmul(a, b, out=out)
        return out

    torch.testing.assert_close(logged(function, [])(a, b), torch.matmul(a, b), **CLOSE)


def model() -> nn.Module:
    layers = nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64, bias=False)
    return nn.Sequential(*layers).cuda().half()


@needs_triton
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_patched_model_under_inductor(mode: str) -> None:
    """pytorch#167400, #131505: fullgraph before, while and after."""
    network, x = model(), half(64, 64)
    once = torch.compile(network, fullgraph=True, mode=mode)
    with torch.no_grad():
        expected = network(x)
        torch.testing.assert_close(once(x), expected, **CLOSE)
        with cudal2.patch(network):
            for _ in range(4):
                torch.compiler.cudagraph_mark_step_begin()
                torch.testing.assert_close(once(x), expected, **CLOSE)
            assert mode != "default" or cudal2.last_path() != "torch"
        torch.testing.assert_close(once(x), expected, **CLOSE)


@needs_triton
def test_training_a_patched_model_under_inductor() -> None:
    network, x = model(), half(64, 64)
    network(x).float().square().mean().backward()
    expected = [parameter.grad.clone() for parameter in network.parameters()]
    network.zero_grad()
    with cudal2.patch(network):
        torch.compile(network, fullgraph=True)(x).float().square().mean().backward()
    for parameter, grad in zip(network.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, grad, **CLOSE)


@needs_triton
def test_dynamic_shapes() -> None:
    function = torch.compile(lambda a, b: cudal2.matmul(a, b).relu(), fullgraph=True, dynamic=True)
    b = half(64, 64)
    for m in (64, 77, 128, 3):
        a = half(m, 64)
        torch.testing.assert_close(function(a, b), torch.matmul(a, b).relu(), **CLOSE)


@needs_triton
def test_a_view_that_inductor_made() -> None:
    """The op gets the strides that its fake kernel was traced with."""

    def function(a: Tensor, b: Tensor) -> Tensor:
        return cudal2.matmul((a + 1).t(), (b * 2).t()) + cudal2.matmul(a[:, :32], b[:32])

    a, b = half(64, 64), half(64, 64)
    torch.testing.assert_close(torch.compile(function, fullgraph=True)(a, b), function(a, b), **CLOSE)


@pytest.mark.parametrize("strict", [False, True], ids=["non-strict", "strict"])
def test_export(strict: bool) -> None:
    network, x = model(), half(64, 64)
    with cudal2.patch(network):
        program = torch.export.export(network, (x,), strict=strict)
    torch.testing.assert_close(program.module()(x), network(x), **CLOSE)
