"""cudal2.matmul and cudal2.linear are torch's: results, strides, errors, out=, on tensors that have no tuned kernel."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from products import (
    BAD_LINEAR,
    BAD_MATMUL,
    LINEAR,
    MATMUL,
    NEGATIVE,
    assert_same_kind,
    at_offset,
    outcome,
    rand,
)
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import cudal2

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.complex64]
FORWARD_OPS = {"matmul": torch.ops.cudal2.matmul_forward.default, "linear": torch.ops.cudal2.linear_forward.default}
PUBLIC_OPS = {"matmul": torch.ops.cudal2.matmul.default, "linear": torch.ops.cudal2.linear.default}


def assert_same(ours: Tensor, torchs: Tensor) -> None:
    assert_same_kind(ours, torchs)
    assert torch.equal(ours, torchs)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", MATMUL)
def test_matmul(case: str, dtype: torch.dtype) -> None:
    a, b = MATMUL[case](dtype, "cpu")
    expected = torch.matmul(a, b)
    assert_same(cudal2.matmul(a, b), expected)
    assert_same(PUBLIC_OPS["matmul"](a, b), expected)
    assert_same(FORWARD_OPS["matmul"](a, b), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("case", NEGATIVE)
def test_negative_bit_is_resolved(case: str, dtype: torch.dtype) -> None:
    a, b = NEGATIVE[case](dtype, "cpu")
    expected = torch.matmul(a.resolve_neg(), b.resolve_neg())
    for function in (cudal2.matmul, PUBLIC_OPS["matmul"], FORWARD_OPS["matmul"]):
        assert_same(function(a, b), expected)
    weight, x = b.t().contiguous().neg().neg(), a
    assert_same(cudal2.linear(x, weight), F.linear(x.resolve_neg(), weight.resolve_neg()))


def test_conjugate_bit_is_resolved() -> None:
    a, b = rand(4, 8, dtype=torch.complex64), rand(8, 4, dtype=torch.complex64)
    expected = torch.matmul(a.conj().resolve_conj(), b)
    for function in (cudal2.matmul, PUBLIC_OPS["matmul"], FORWARD_OPS["matmul"]):
        assert_same(function(a.conj(), b), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", LINEAR)
def test_linear(case: str, dtype: torch.dtype) -> None:
    x, weight, bias = LINEAR[case](dtype, "cpu")
    expected = F.linear(x, weight, bias)
    assert_same(cudal2.linear(x, weight, bias), expected)
    assert_same(cudal2.linear(input=x, weight=weight, bias=bias), expected)
    assert_same(PUBLIC_OPS["linear"](x, weight, bias), expected)
    assert_same(FORWARD_OPS["linear"](x, weight, bias), expected)


def test_linear_with_a_weight_of_one_dimension() -> None:
    x, weight = rand(4, 8), rand(8)
    assert_same(cudal2.linear(x, weight), F.linear(x, weight))


def test_sparse_goes_to_torch() -> None:
    a, b = rand(4, 8).to_sparse(), rand(8, 4)
    for function in (cudal2.matmul, PUBLIC_OPS["matmul"], FORWARD_OPS["matmul"]):
        assert_same(function(a, b), torch.matmul(a, b))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_nested_goes_to_torch(layout: torch.layout) -> None:
    rows = [rand(2, 8), rand(3, 8)]
    nested, weight = torch.nested.nested_tensor(rows, layout=layout), rand(4, 8)
    for function in (
        cudal2.linear,
        PUBLIC_OPS["linear"],
        *([FORWARD_OPS["linear"]] if layout == torch.strided else []),
    ):
        for result, row in zip(function(nested, weight).unbind(), rows, strict=True):
            torch.testing.assert_close(result, F.linear(row, weight))


@pytest.mark.parametrize("case", BAD_MATMUL)
def test_matmul_error_is_torchs(case: str) -> None:
    arguments = BAD_MATMUL[case](torch.float32, "cpu")
    expected = outcome(torch.matmul, *arguments)
    assert issubclass(expected[0], Exception)
    assert outcome(cudal2.matmul, *arguments) == expected


@pytest.mark.parametrize("case", BAD_LINEAR)
def test_linear_error_is_torchs(case: str) -> None:
    arguments = BAD_LINEAR[case](torch.float32, "cpu")
    expected = outcome(F.linear, *arguments)
    assert issubclass(expected[0], Exception)
    assert outcome(cudal2.linear, *arguments) == expected


# out= ----------------------------------------------------------------------------------------------------------------

OUTS = {
    "right": lambda: torch.full((4, 6), 7.0),
    "strided": lambda: torch.full((4, 12), 7.0)[:, ::2],
    "transposed": lambda: torch.full((6, 4), 7.0).t(),
    "at_odd_offset": lambda: at_offset(torch.full((4, 6), 7.0)),
    "empty_is_resized": lambda: torch.empty(0),
    "another_shape_is_resized": lambda: torch.full((5, 5), 7.0),
    "another_dtype": lambda: torch.full((4, 6), 7.0, dtype=torch.float64),
    "wants_grad": lambda: torch.full((4, 6), 7.0, requires_grad=True),
}


@pytest.mark.parametrize("function", [cudal2.matmul, torch.ops.cudal2.matmul], ids=["cudal2.matmul", "op"])
@pytest.mark.parametrize("case", OUTS)
def test_out(case: str, function: object) -> None:
    a, b = rand(4, 8), rand(8, 6)
    ours, torchs = OUTS[case](), OUTS[case]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = outcome(torch.matmul, a, b, out=torchs)
        result = outcome(function, a, b, out=ours)
    if isinstance(expected, Tensor):
        assert result is ours
        assert_same(ours, torchs)
    else:
        assert result == expected


def test_resizing_out_warns_as_torch_does() -> None:
    with pytest.warns(UserWarning, match="output with one or more elements was resized"):
        cudal2.matmul(rand(4, 8), rand(8, 6), out=rand(5, 5))


def test_out_with_gradients_raises_as_torch_does() -> None:
    a, b, out = rand(4, 8).requires_grad_(), rand(8, 6), rand(4, 6)
    expected = outcome(torch.matmul, a, b, out=out)
    assert expected[0] is RuntimeError
    assert outcome(cudal2.matmul, a, b, out=out) == expected
    with torch.no_grad():
        assert cudal2.matmul(a, b, out=out) is out


def test_out_that_overlaps_an_input() -> None:
    """pytorch#13892, #48900: torch's own result is garbage here."""
    b = rand(8, 8)
    expected = torch.matmul(b, b.t())
    assert cudal2.matmul(b, b.t(), out=b) is b
    assert torch.equal(b, expected)
    buffer = rand(24, 8)
    expected = torch.matmul(buffer[:8], buffer[16:])
    cudal2.matmul(buffer[:8], buffer[16:], out=buffer[4:12])
    assert torch.equal(buffer[4:12], expected)


def test_out_counts_as_a_change_in_place() -> None:
    out = rand(4, 6)
    version = out._version
    cudal2.matmul(rand(4, 8), rand(8, 6), out=out)
    assert out._version == version + 1


# Other worlds --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["2d_2d", "3d_2d", "2d_3d", "k_is_0"])
def test_meta_tensors(case: str) -> None:
    a, b = MATMUL[case](torch.float16, "meta")
    assert_same_kind(cudal2.matmul(a, b), torch.matmul(a, b))
    assert_same_kind(cudal2.linear(a, b.mT) if b.ndim == 2 else cudal2.matmul(a, b), torch.matmul(a, b))


@pytest.mark.parametrize("case", [case for case in MATMUL if MATMUL[case](torch.float16, "meta")[1].ndim == 2])
def test_fake_result_has_the_real_strides(case: str) -> None:
    a, b = MATMUL[case](torch.float16, "cpu")
    real = FORWARD_OPS["matmul"](a, b)
    with FakeTensorMode() as mode:
        fake = FORWARD_OPS["matmul"](mode.from_tensor(a), mode.from_tensor(b))
        assert_same_kind(fake, real)
        assert real.is_contiguous()


@pytest.mark.parametrize("case", LINEAR)
def test_fake_linear_has_the_real_strides(case: str) -> None:
    arguments = LINEAR[case](torch.float16, "cpu")
    real = FORWARD_OPS["linear"](*arguments)
    with FakeTensorMode() as mode:
        fakes = [None if tensor is None else mode.from_tensor(tensor) for tensor in arguments]
        assert_same_kind(FORWARD_OPS["linear"](*fakes), real)


def test_inference_mode() -> None:
    a, b = rand(4, 8), rand(8, 6).requires_grad_()
    with torch.inference_mode():
        result = cudal2.matmul(a, b)
        assert result.is_inference()
        out = rand(4, 6)
        assert_same(cudal2.matmul(a, b, out=out), result)
    assert_same(cudal2.matmul(a, b.detach()), result.clone())


class _Logging(Tensor):
    """A subclass that notes which functions are called with it."""

    called: list[object] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        cls.called.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_subclass_sees_torchs_own_functions() -> None:
    a, b = rand(4, 8).as_subclass(_Logging), rand(8, 6)
    _Logging.called.clear()
    assert type(cudal2.matmul(a, b)) is _Logging
    assert torch.matmul in _Logging.called
    assert type(cudal2.linear(b.t(), a)) is _Logging
    assert F.linear in _Logging.called


def test_a_function_mode_sees_the_call() -> None:
    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            called.append(func)
            return func(*args, **(kwargs or {}))

    called: list[object] = []
    a, b = rand(4, 8), rand(8, 6)
    with Mode():
        result = cudal2.matmul(a, b)
    assert torch.matmul in called
    assert_same(result, torch.matmul(a, b))


def test_a_default_device_is_no_hindrance() -> None:
    with torch.device("cpu"):
        a, b = rand(4, 8), rand(8, 6)
        assert_same(cudal2.matmul(a, b), torch.matmul(a, b))


# Autocast ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("given", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_autocast(given: torch.dtype, dtype: torch.dtype) -> None:
    a, b, bias = rand(4, 8, dtype=given), rand(8, 6, dtype=given), rand(6, dtype=given)
    with torch.autocast("cpu", dtype=dtype):
        assert_same(cudal2.matmul(a, b), torch.matmul(a, b))
        assert_same(PUBLIC_OPS["matmul"](a, b), torch.matmul(a, b))
        assert_same(cudal2.linear(a, b.t(), bias), F.linear(a, b.t(), bias))
        assert_same(PUBLIC_OPS["linear"](a, b.t(), bias), F.linear(a, b.t(), bias))


# fp16 accumulation ---------------------------------------------------------------------------------------------------


def test_accumulate_is_torchs_product_where_no_kernel_is() -> None:
    for dtype in DTYPES[:3]:
        a, b, bias = rand(4, 8, dtype=dtype), rand(8, 6, dtype=dtype), rand(6, dtype=dtype)
        expected = torch.matmul(a, b)
        for accumulate in ("fp32", "fp16"):
            assert_same(cudal2.matmul(a, b, accumulate=accumulate), expected)
            out = torch.empty_like(expected)
            assert cudal2.matmul(a, b, out=out, accumulate=accumulate) is out
            assert_same(out, expected)
            assert_same(cudal2.linear(a, b.t(), accumulate=accumulate), F.linear(a, b.t()))
            assert_same(cudal2.linear(a, b.t(), bias, accumulate=accumulate), F.linear(a, b.t(), bias))
        assert_same(torch.ops.cudal2.matmul_acc16(a, b), expected)
        assert_same(torch.ops.cudal2.linear_acc16(a, b.t(), bias), F.linear(a, b.t(), bias))


@pytest.mark.parametrize("accumulate", ["fp64", "half", "", None, torch.float16])
def test_accumulate_is_one_of_two(accumulate: object) -> None:
    a = rand(4, 4)
    for function in (cudal2.matmul, cudal2.linear):
        with pytest.raises(ValueError, match=f"accumulate={accumulate!r}; expected 'fp32' or 'fp16'"):
            function(a, a, accumulate=accumulate)


@pytest.mark.parametrize("case", BAD_MATMUL)
def test_an_error_with_fp16_accumulation_is_torchs(case: str) -> None:
    arguments = BAD_MATMUL[case](torch.float16, "cpu")
    assert outcome(cudal2.matmul, *arguments, accumulate="fp16") == outcome(torch.matmul, *arguments)


def test_gradients_with_fp16_accumulation_are_the_usual_ones() -> None:
    a, b = rand(4, 8).requires_grad_(), rand(8, 6).requires_grad_()
    ours = torch.autograd.grad(cudal2.matmul(a, b, accumulate="fp16").sum(), [a, b])
    for mine, torchs in zip(ours, torch.autograd.grad(torch.matmul(a, b).sum(), [a, b]), strict=True):
        torch.testing.assert_close(mine, torchs)


def test_autocast_with_fp16_accumulation() -> None:
    a, b = rand(4, 8), rand(8, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_same(cudal2.matmul(a, b, accumulate="fp16"), torch.matmul(a, b))


@pytest.mark.parametrize("case", LINEAR)
def test_fake_linear_acc16_has_the_real_strides(case: str) -> None:
    arguments = LINEAR[case](torch.float16, "cpu")
    real = torch.ops.cudal2.linear_acc16(*arguments)
    with FakeTensorMode() as mode:
        fakes = [None if tensor is None else mode.from_tensor(tensor) for tensor in arguments]
        assert_same_kind(torch.ops.cudal2.linear_acc16(*fakes), real)


# Tooling -------------------------------------------------------------------------------------------------------------


def test_gemm_refuses_cpu_tensors() -> None:
    a = rand(8, 8, dtype=torch.float16)
    with pytest.raises(RuntimeError, match="a is not on a CUDA device"):
        torch.ops.cudal2.gemm(a, a, a.clone(), None, "sm90_f16_nn_128x128x64_s4_c1x1_coop2", 8, 0, 0, 1, False)


def test_last_path_after_a_call_that_torch_ran() -> None:
    cudal2.matmul(rand(4, 8), rand(8, 6))
    assert cudal2.last_path() == "torch"
    assert torch.ops.cudal2.last_path() == "torch"
