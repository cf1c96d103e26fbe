"""Derivatives of every kind, and torch's own check of the ops (opcheck).

MatMul and Linear, the differentiable pieces of the tuned path, run here on the C++ ops' CPU kernels, in float64.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from products import LINEAR, MATMUL, rand
from torch import Tensor
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.fx.experimental.proxy_tensor import make_fx

import cudal2
from cudal2 import autograd, ops
from cudal2.autograd import Linear, MatMul

MATMULS = {
    "cudal2.matmul": cudal2.matmul,
    "op": torch.ops.cudal2.matmul.default,
    "MatMul": MatMul.apply,
}
LINEARS = {
    "cudal2.linear": cudal2.linear,
    "op": torch.ops.cudal2.linear.default,
    "Linear": lambda x, weight, bias=None: Linear.apply(x, weight, bias),
}
FORWARD_OPS = [torch.ops.cudal2.matmul_forward.default, torch.ops.cudal2.linear_forward.default]


def grads(function: Callable[..., Tensor], *tensors: Tensor | None, wanted: tuple[bool, ...]) -> list[Tensor | None]:
    """Gradients of a sum of squares with respect to the tensors that are wanted."""
    leaves = [
        tensor if tensor is None else tensor.detach().requires_grad_(want)
        for tensor, want in zip(tensors, wanted, strict=True)
    ]
    function(*leaves).square().sum().backward()
    return [leaf if leaf is None else leaf.grad for leaf in leaves]


def assert_equal(ours: list[Tensor | None], torchs: list[Tensor | None]) -> None:
    for mine, other in zip(ours, torchs, strict=True):
        assert (mine is None) == (other is None)
        if mine is not None and other is not None:
            torch.testing.assert_close(mine, other)
            assert mine.stride() == other.stride()


@pytest.mark.parametrize("wanted", [(True, False), (False, True), (True, True)], ids=str)
@pytest.mark.parametrize(
    "case", ["1d_2d", "2d_2d", "3d_2d", "3d_3d", "b_transposed", "a_transposed", "k_is_0", "m_is_0"]
)
@pytest.mark.parametrize("function", MATMULS)
def test_matmul_gradients(function: str, case: str, wanted: tuple[bool, bool]) -> None:
    a, b = MATMUL[case](torch.float64, "cpu")
    if function == "MatMul" and b.ndim != 2:
        pytest.skip("MatMul is for a 2-D second factor")
    assert_equal(grads(MATMULS[function], a, b, wanted=wanted), grads(torch.matmul, a, b, wanted=wanted))


@pytest.mark.parametrize("wanted", [(True, True, True), (False, True, False), (False, False, True)], ids=str)
@pytest.mark.parametrize("case", ["1d_bias", "2d", "2d_bias", "3d_bias", "m_is_0", "weight_transposed"])
@pytest.mark.parametrize("function", LINEARS)
def test_linear_gradients(function: str, case: str, wanted: tuple[bool, bool, bool]) -> None:
    arguments = LINEAR[case](torch.float64, "cpu")
    if not any(want for want, argument in zip(wanted, arguments, strict=True) if argument is not None):
        pytest.skip("nothing to differentiate")
    assert_equal(grads(LINEARS[function], *arguments, wanted=wanted), grads(F.linear, *arguments, wanted=wanted))


@pytest.mark.parametrize("function", MATMULS)
def test_matmul_derivatives_of_first_and_second_order(function: str) -> None:
    for a, b in ((rand(3, 4), rand(4, 5)), (rand(2, 3, 4), rand(5, 4).t()), (rand(4), rand(4, 5))):
        inputs = (a.double().requires_grad_(), b.double().requires_grad_())
        assert gradcheck(MATMULS[function], inputs)
        assert gradgradcheck(MATMULS[function], inputs)


@pytest.mark.parametrize("function", LINEARS)
def test_linear_derivatives_of_first_and_second_order(function: str) -> None:
    inputs = tuple(tensor.double().requires_grad_() for tensor in (rand(2, 3, 4), rand(5, 4), rand(5)))
    assert gradcheck(LINEARS[function], inputs)
    assert gradgradcheck(LINEARS[function], inputs)


def test_no_graph_without_grad() -> None:
    a, b = rand(3, 4).requires_grad_(), rand(4, 5)
    with torch.no_grad():
        assert not cudal2.matmul(a, b).requires_grad
    assert not cudal2.matmul(a.detach(), b).requires_grad
    assert cudal2.matmul(a, b).requires_grad


@pytest.mark.parametrize("function", ["cudal2.matmul", "op"])
def test_forward_mode(function: str) -> None:
    a, b, tangent = rand(3, 4), rand(4, 5), rand(3, 4)
    with forward_ad.dual_level():
        result = MATMULS[function](forward_ad.make_dual(a, tangent), b)
        torch.testing.assert_close(forward_ad.unpack_dual(result).tangent, tangent @ b)


TRANSFORMED = {**{name: MATMULS[name] for name in ("cudal2.matmul", "op")}, "forward op": FORWARD_OPS[0]}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_functorch(name: str) -> None:
    function = TRANSFORMED[name]
    a, b = rand(3, 4), rand(4, 5)

    def loss(a: Tensor, b: Tensor, product: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        return product(a, b).square().sum()

    for transform in (torch.func.grad, torch.func.jacfwd, torch.func.hessian):
        ours, torchs = (transform(lambda a, p=p: loss(a, b, p))(a) for p in (function, torch.matmul))
        torch.testing.assert_close(ours, torchs)
    ours = torch.func.jvp(lambda a: function(a, b), (a,), (a,))[1]
    torch.testing.assert_close(ours, torch.matmul(a, b))
    batch = rand(6, 3, 4)
    for in_dims, arguments in (((0, None), (batch, b)), ((None, 0), (a, rand(6, 4, 5))), ((1, None), (rand(4, 6), b))):
        ours, torchs = (torch.vmap(p, in_dims=in_dims)(*arguments) for p in (function, torch.matmul))
        torch.testing.assert_close(ours, torchs)
    per_sample = torch.vmap(torch.func.grad(lambda a: loss(a, b, function)))(batch)
    torch.testing.assert_close(per_sample, 2 * batch @ b @ b.t())


@pytest.mark.parametrize("wants_grad", [False, True], ids=["plain", "grad"])
@pytest.mark.parametrize(
    "case", ["2d_2d", "1d_2d", "3d_2d", "3d_3d", "a_transposed", "b_transposed", "k_is_0", "m_is_0"]
)
def test_opcheck_matmul(case: str, wants_grad: bool) -> None:
    a, b = (tensor.requires_grad_(wants_grad) for tensor in MATMUL[case](torch.float32, "cpu"))
    torch.library.opcheck(torch.ops.cudal2.matmul.default, (a, b))
    if not wants_grad:
        torch.library.opcheck(torch.ops.cudal2.matmul_forward.default, (a, b))
        into = torch.ops.cudal2.matmul_into.default  # never traced: it tells whether it did anything
        torch.library.opcheck(into, (a, b, torch.matmul(a, b)), test_utils="test_schema")


@pytest.mark.parametrize("wants_grad", [False, True], ids=["plain", "grad"])
@pytest.mark.parametrize(
    "case", ["2d", "2d_bias", "1d_bias", "3d_bias", "bias_strided", "k_is_0", "m_is_0", "x_strided"]
)
def test_opcheck_linear(case: str, wants_grad: bool) -> None:
    arguments = tuple(
        tensor if tensor is None else tensor.requires_grad_(wants_grad) for tensor in LINEAR[case](torch.float32, "cpu")
    )
    torch.library.opcheck(torch.ops.cudal2.linear.default, arguments)
    if not wants_grad:
        torch.library.opcheck(torch.ops.cudal2.linear_forward.default, arguments)


def test_rows_of_a_batched_tensor() -> None:
    """Batched gradients (vectorised jacobians, is_grads_batched) run backward under vmap."""
    batch = torch.randn(3, 2, 4, 5)
    assert torch.equal(torch.vmap(autograd._rows)(batch), batch.reshape(3, 8, 5))
    assert autograd._rows(torch.randn(7)).shape == (1, 7)
    assert autograd._rows(torch.randn(2, 0, 5)).shape == (0, 5)


def test_recorded_calls_are_known() -> None:
    """What is traced must not hold the op that refuses sizes without a plan: a replay has other sizes."""
    seen: list[bool] = []

    def probe(x: torch.Tensor) -> torch.Tensor:
        seen.append(ops._recorded())
        return x + 1

    probe(torch.ones(2))
    torch.jit.trace(probe, torch.ones(2), check_trace=False)
    make_fx(probe)(torch.ones(2))
    assert seen == [False, True, True]
