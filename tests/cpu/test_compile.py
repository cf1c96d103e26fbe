"""torch.compile(fullgraph=True) and torch.export of matmul, linear and patched models."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from products import LINEAR, MATMUL, assert_same_kind, rand
from torch import Tensor, nn

import cudal2

pytestmark = pytest.mark.usefixtures("fresh_compile")
BACKENDS = ["eager", "aot_eager"]
PRODUCTS = {
    "cudal2.matmul": cudal2.matmul,
    "op": torch.ops.cudal2.matmul.default,
    "forward op": torch.ops.cudal2.matmul_forward.default,
    "accumulate": partial(cudal2.matmul, accumulate="fp16"),
    "fp16 accumulation op": torch.ops.cudal2.matmul_acc16.default,
}


def compiled(function: Callable[..., Tensor], backend: str = "aot_eager", **options: object) -> Callable[..., Tensor]:
    return torch.compile(function, fullgraph=True, backend=backend, **options)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("case", ["1d_2d", "2d_2d", "3d_2d", "3d_3d", "b_transposed", "a_columns", "k_is_0", "m_is_0"])
def test_matmul(case: str, product: str, backend: str) -> None:
    a, b = MATMUL[case](torch.float32, "cpu")
    result = compiled(lambda a, b: PRODUCTS[product](a, b) + 1, backend)(a, b)
    expected = torch.matmul(a, b) + 1
    assert_same_kind(result, expected)
    torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("case", ["1d_bias", "2d", "2d_bias", "3d_bias", "bias_at_odd_offset"])
def test_linear(case: str) -> None:
    arguments = LINEAR[case](torch.float32, "cpu")
    expected = F.linear(*arguments)
    for function in (cudal2.linear, torch.ops.cudal2.linear.default):
        torch.testing.assert_close(compiled(function)(*arguments), expected)


def test_linear_with_fp16_accumulation() -> None:
    arguments = LINEAR["2d_bias"](torch.float32, "cpu")
    function = compiled(partial(cudal2.linear, accumulate="fp16"))
    torch.testing.assert_close(function(*arguments), F.linear(*arguments))


def test_inductor() -> None:
    a, b, bias = rand(8, 16), rand(16, 8), rand(8)
    function = compiled(lambda a, b, bias: cudal2.linear(cudal2.matmul(a, b).relu(), b.t()[:, :8], bias), "inductor")
    torch.testing.assert_close(function(a, b, bias), F.linear((a @ b).relu(), b.t()[:, :8], bias))


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients(backend: str) -> None:
    def loss(a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
        return cudal2.linear(cudal2.matmul(a, b), b, bias).square().sum()

    def grads(function: Callable[..., Tensor]) -> list[Tensor]:
        leaves = [tensor.clone().requires_grad_() for tensor in tensors]
        return list(torch.autograd.grad(function(*leaves), leaves))

    tensors = rand(4, 8), rand(8, 8), rand(8)
    for ours, torchs in zip(grads(compiled(loss, backend)), grads(loss), strict=True):
        torch.testing.assert_close(ours, torchs)


def test_out() -> None:
    a, b = rand(4, 8), rand(8, 6)

    def function(a: Tensor, b: Tensor) -> Tensor:
        out = torch.empty(4, 6)
        cudal2.matmul(a, b, out=out)
        return out

    torch.testing.assert_close(compiled(function)(a, b), a @ b)


def test_autocast() -> None:
    a, b = rand(4, 8), rand(8, 6)

    def function(a: Tensor, b: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return cudal2.matmul(a, b)

    result = compiled(function)(a, b)
    assert result.dtype == torch.bfloat16
    torch.testing.assert_close(result, function(a, b))


def test_dynamic_shapes() -> None:
    function = compiled(cudal2.matmul, dynamic=True)
    for m, k, n in ((3, 4, 5), (7, 8, 9), (2, 16, 6)):
        a, b = rand(2, m, k), rand(k, n)
        torch.testing.assert_close(function(a, b), a @ b)


def test_functorch_inside() -> None:
    batch, b = rand(6, 3, 4), rand(4, 5)
    function = compiled(torch.vmap(lambda a: cudal2.matmul(a, b)))
    torch.testing.assert_close(function(batch), batch @ b)


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4, bias=False))


def graphs(of: nn.Module, log: list[str]) -> Callable[..., Tensor]:
    """The model, compiled, noting the code of each graph that is made."""

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> torch.fx.GraphModule:
        log.append(graph.code)
        return graph

    return torch.compile(of, fullgraph=True, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_patched_model_before_while_and_after(backend: str) -> None:
    network, x = model(), rand(3, 8)
    expected = network(x)
    once = compiled(network, backend)
    torch.testing.assert_close(once(x), expected)
    handle = cudal2.patch(network)
    torch.testing.assert_close(once(x), expected)
    torch.testing.assert_close(compiled(network, backend)(x), expected)
    with cudal2.patch(network):
        torch.testing.assert_close(once(x), expected)
    torch.testing.assert_close(once(x), expected)
    handle.undo()
    torch.testing.assert_close(once(x), expected)
    torch.testing.assert_close(compiled(network, backend)(x), expected)


def test_patching_and_undoing_recompile_and_nothing_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cudal2.patching.linear", lambda x, weight, bias: cudal2.linear(x, weight, bias).mul(1))
    network, x, log = model(), rand(3, 8), []
    once = graphs(network, log)
    once(x)
    once(x)
    assert len(log) == 1
    with cudal2.patch(network):
        for _ in range(3):
            once(x)
        assert len(log) == 2
        assert "mul" in log[1]
        with cudal2.patch(network):
            once(x)
        assert len(log) == 2
    once(x)
    assert "mul" not in log[0] + "".join(log[2:])


def test_training_a_patched_model() -> None:
    network, x = model(), rand(3, 8)
    network(x).square().sum().backward()
    expected = [parameter.grad.clone() for parameter in network.parameters()]
    network.zero_grad()
    with cudal2.patch(network):
        compiled(network)(x).square().sum().backward()
    for parameter, grad in zip(network.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, grad)


@pytest.mark.parametrize("strict", [False, True], ids=["non-strict", "strict"])
@pytest.mark.parametrize("bare", [False, True], ids=["model", "bare layer"])
def test_export(strict: bool, bare: bool) -> None:
    network, x = nn.Linear(8, 8) if bare else model(), rand(3, 8)
    with cudal2.patch(network):
        program = torch.export.export(network, (x,), strict=strict)
    torch.testing.assert_close(program.module()(x), network(x))
