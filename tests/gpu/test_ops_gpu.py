"""cudal2.matmul and cudal2.linear on CUDA: which path a product takes, and torch's semantics and accuracy on both."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from products import (
    BAD_LINEAR,
    BAD_MATMUL,
    LINEAR,
    MATMUL,
    NEGATIVE,
    assert_as_accurate,
    assert_same_kind,
    at_offset,
    errors_of_planned_products,
    half,
    outcome,
    rand,
)
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

import cudal2
from cudal2 import ops, tools

HALF = [torch.float16, torch.bfloat16]
MATMULS = {
    "cudal2.matmul": cudal2.matmul,
    "op": torch.ops.cudal2.matmul.default,
    "forward op": torch.ops.cudal2.matmul_forward.default,
}
LINEARS = {
    "cudal2.linear": cudal2.linear,
    "op": torch.ops.cudal2.linear.default,
    "forward op": torch.ops.cudal2.linear_forward.default,
}
TUNED_MATMUL = {
    *("1d_2d", "2d_2d", "3d_2d", "4d_2d", "m_is_1", "odd_m", "b_transposed", "a_columns", "a_every_second_row"),
    *("b_columns", "b_columns_transposed", "a_columns_batched", "a_with_one_row_of_odd_pitch"),
}
TUNED_LINEAR = {
    *("2d", "2d_bias", "1d", "1d_bias", "3d", "3d_bias", "4d_bias", "bias_at_odd_offset", "bias_is_a_slice"),
    *("m_is_1", "x_columns", "weight_transposed"),
}


def ran_ours() -> bool:
    """Whether the last product ran one of our kernels."""
    return cudal2.last_path() != "torch"


@pytest.mark.usefixtures("tuned")
@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("function", MATMULS)
@pytest.mark.parametrize("case", MATMUL)
def test_matmul(case: str, function: str, dtype: torch.dtype) -> None:
    a, b = MATMUL[case](dtype, "cuda")
    result = MATMULS[function](a, b)
    assert ran_ours() == (case in TUNED_MATMUL)
    assert_as_accurate(result, torch.matmul(a, b), torch.matmul(a.double(), b.double()))


@pytest.mark.usefixtures("tuned")
@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("function", LINEARS)
@pytest.mark.parametrize("case", LINEAR)
def test_linear(case: str, function: str, dtype: torch.dtype) -> None:
    arguments = LINEAR[case](dtype, "cuda")
    result = LINEARS[function](*arguments)
    assert ran_ours() == (case in TUNED_LINEAR)
    exact = F.linear(*(None if tensor is None else tensor.double() for tensor in arguments))
    assert_as_accurate(result, F.linear(*arguments), exact)


@pytest.mark.usefixtures("tuned")
@pytest.mark.parametrize("case", NEGATIVE)
def test_negative_bit_is_resolved(case: str) -> None:
    a, b = NEGATIVE[case](torch.float16, "cuda")
    expected = torch.matmul(a.resolve_neg(), b.resolve_neg())
    for function in MATMULS.values():
        result = function(a, b)
        assert ran_ours()
        torch.testing.assert_close(result, expected)


@pytest.mark.usefixtures("tuned")
def test_bias_is_added_before_rounding() -> None:
    """pytorch PR 180875: a product of 2049, which rounds to 2048, and a bias of -2048."""
    x, weight = torch.ones(64, 64, device="cuda").half(), torch.full((64, 64), 32.0, device="cuda").half()
    weight[:, 0] = 33
    result = cudal2.linear(x, weight, torch.full((64,), -2048.0, device="cuda").half())
    assert ran_ours()
    assert torch.equal(result, torch.ones_like(result))


@pytest.mark.usefixtures("tuned")
def test_a_shape_where_the_table_says_cublas() -> None:
    a, b = half(256, 128), half(128, 256)
    result = cudal2.matmul(a, b)
    assert not ran_ours()
    assert torch.equal(result, torch.matmul(a, b))


@pytest.mark.usefixtures("tuned")
def test_the_same_inputs_give_the_same_bits() -> None:
    a, b = half(128, 512), half(512, 256)
    results = [cudal2.matmul(a, b) for _ in range(10)]
    assert ran_ours()
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128], ids=str)
@pytest.mark.parametrize("case", MATMUL)
def test_other_dtypes_are_torchs_to_the_bit(case: str, dtype: torch.dtype) -> None:
    a, b = MATMUL[case](dtype, "cuda")
    expected = torch.matmul(a, b)
    for function in MATMULS.values():
        result = function(a, b)
        assert_same_kind(result, expected)
        assert torch.equal(result, expected)


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_the_fallback_is_torchs_to_the_bit(dtype: torch.dtype) -> None:
    for shape in ((60, 61, 62), (128, 100, 1000), (1, 7, 9)):
        m, n, k = shape
        a, b, bias = rand(m, k, dtype=dtype, device="cuda"), rand(k, n, dtype=dtype, device="cuda"), None
        for other in (b, b.t().contiguous().t()):
            assert torch.equal(cudal2.matmul(a, other), torch.matmul(a, other))
        for bias in (None, rand(n, dtype=dtype, device="cuda")):
            assert torch.equal(cudal2.linear(a, b.t().contiguous(), bias), F.linear(a, b.t().contiguous(), bias))


# Errors --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", BAD_MATMUL)
def test_matmul_error_is_torchs(case: str) -> None:
    arguments = BAD_MATMUL[case](torch.float16, "cuda")
    expected = outcome(torch.matmul, *arguments)
    assert issubclass(expected[0], Exception)
    assert outcome(cudal2.matmul, *arguments) == expected
    wanting_grad = [a.requires_grad_() if isinstance(a, Tensor) else a for a in arguments]
    assert outcome(cudal2.matmul, *wanting_grad) == expected


@pytest.mark.parametrize("case", BAD_LINEAR)
def test_linear_error_is_torchs(case: str) -> None:
    arguments = BAD_LINEAR[case](torch.float16, "cuda")
    expected = outcome(F.linear, *arguments)
    assert issubclass(expected[0], Exception)
    assert outcome(cudal2.linear, *arguments) == expected


def test_errors_on_mixed_devices_and_unsupported_dtypes() -> None:
    a = half(8, 8)
    for b in (a.cpu(), rand(8, 8)):
        assert outcome(cudal2.matmul, a, b) == outcome(torch.matmul, a, b)
        assert outcome(cudal2.matmul, b, a) == outcome(torch.matmul, b, a)
        assert outcome(cudal2.linear, a, a, b[0]) == outcome(F.linear, a, a, b[0])
    integers = torch.ones(8, 8, dtype=torch.int64, device="cuda")
    assert outcome(cudal2.matmul, integers, integers) == outcome(torch.matmul, integers, integers)


def test_running_out_of_memory_is_torchs_error() -> None:
    a = torch.empty(1, 1, dtype=torch.float16, device="cuda").expand(2**23, 8)
    b = torch.empty(1, 1, dtype=torch.float16, device="cuda").expand(8, 2**23)
    with pytest.raises(torch.OutOfMemoryError):
        cudal2.matmul(a, b)


def test_a_malformed_plan_table_is_an_error_that_names_file_and_row(tmp_path: Path) -> None:
    properties = torch.cuda.get_device_properties(0)
    table = tmp_path / "broken.csv"
    table.write_text(
        f"# gpu: {properties.name}\n# arch: {properties.major}.{properties.minor}\n# sms: 132\n"
        "dtype,layout,m,n,k,kernel,group,raster,ctas,split,pdl,us,torch_us,lt_us,use\n"
        "f16,nn,64,64,64,no_such_kernel,8,0,0,1,0,1,1,,own\n"
    )
    lines, errors = errors_of_planned_products(CUDAL2_PLANS=str(tmp_path))
    if lines == ["no error"] * 4:
        pytest.skip("this build has no kernels, and so reads no table")
    assert len(lines) == 4, errors
    for line in lines:
        assert "broken.csv" in line
        assert "line 5" in line
        assert "no_such_kernel" in line


# fp16 accumulation ---------------------------------------------------------------------------------------------------


@pytest.fixture
def half_accumulation() -> None:
    native = tools.load()
    if native is None or not any(kernel["dtype"] == "f16acc16" for kernel in native.kernels()):
        pytest.skip("no kernel that accumulates in fp16 in this build")


@pytest.mark.usefixtures("half_accumulation")
@pytest.mark.parametrize("transposed", [False, True])
def test_fp16_accumulation_where_asked_for(transposed: bool) -> None:
    a, b, bias = half(128, 512), half(512, 256), half(256)
    weight = b.t().contiguous()
    b = weight.t() if transposed else b
    wanted = a.double() @ b.double()
    for result, expected in (
        (cudal2.matmul(a, b, accumulate="fp16"), wanted),
        (cudal2.linear(a, weight, accumulate="fp16"), wanted),
        (cudal2.linear(a, weight, bias, accumulate="fp16"), wanted + bias),
    ):
        torch.testing.assert_close(result.double(), expected, rtol=1e-2, atol=1.0)
        assert result.dtype == torch.float16
    assert "f16acc16" in cudal2.last_path()
    cudal2.matmul(a, b)
    assert "f16acc16" not in cudal2.last_path()


@pytest.mark.usefixtures("half_accumulation")
def test_what_accumulates_in_fp32_all_the_same() -> None:
    a, b = half(64, 64), half(64, 64)

    def path(call: Callable[[], object]) -> str:
        call()
        return cudal2.last_path()

    with torch.autocast("cuda", dtype=torch.float16):
        assert "f16acc16" not in path(lambda: cudal2.matmul(a, b, accumulate="fp16"))
    wants = a.clone().requires_grad_()
    for call in (
        lambda: cudal2.matmul(a.bfloat16(), b.bfloat16(), accumulate="fp16"),
        lambda: cudal2.matmul(a, b, out=torch.empty_like(a), accumulate="fp16"),
        lambda: cudal2.matmul(wants, b, accumulate="fp16"),
    ):
        kernel = path(call)
        assert kernel != "torch"
        assert "f16acc16" not in kernel
    assert path(lambda: cudal2.matmul(a[:63, :63], b[:63, :63], accumulate="fp16")) == "torch"
    grad = torch.autograd.grad(cudal2.matmul(wants, b, accumulate="fp16").sum(), wants)[0]
    torch.testing.assert_close(grad, torch.ones_like(a) @ b.t(), rtol=1e-2, atol=5e-2)


# out= ----------------------------------------------------------------------------------------------------------------

OUTS: dict[str, tuple[Callable[[], Tensor], bool]] = {
    "right": (lambda: half(64, 64), True),
    "columns_of_a_wider_buffer": (lambda: half(64, 192)[:, 64:128], True),
    "every_second_row": (lambda: half(128, 64)[::2], True),
    "transposed": (lambda: half(64, 64).t(), False),
    "every_second_column": (lambda: half(64, 128)[:, ::2], False),
    "at_odd_offset": (lambda: at_offset(half(64, 64)), False),
    "odd_pitch": (lambda: half(64, 65)[:, :64], False),
    "empty_is_resized": (lambda: torch.empty(0, dtype=torch.float16, device="cuda"), False),
    "another_dtype": (lambda: half(64, 64).float(), False),
    "on_the_cpu": (lambda: half(64, 64).cpu(), False),
    "wants_grad": (lambda: half(64, 64).requires_grad_(), False),
}


@pytest.mark.usefixtures("tuned")
@pytest.mark.parametrize("case", OUTS)
def test_out(case: str) -> None:
    make, ours = OUTS[case]
    a, b, out, torchs = half(64, 64), half(64, 64), make(), make()
    version = out._version
    result = outcome(cudal2.matmul, a, b, out=out)
    assert ran_ours() == ours
    expected = outcome(torch.matmul, a, b, out=torchs)
    if not isinstance(expected, Tensor):
        assert result == expected
        return
    assert result is out
    assert out._version > version
    assert_as_accurate(out, torchs, torch.matmul(a.double(), b.double()))


@pytest.mark.usefixtures("tuned")
def test_out_leaves_its_neighbours_alone() -> None:
    buffer = torch.full((66, 80), 7.0, device="cuda").half()
    cudal2.matmul(half(64, 64), half(64, 64), out=buffer[1:65, 8:72])
    assert ran_ours()
    outside = torch.ones_like(buffer, dtype=torch.bool)
    outside[1:65, 8:72] = False
    assert (buffer[outside] == 7).all()
    assert not (buffer[1:65, 8:72] == 7).all()


@pytest.mark.usefixtures("tuned")
@pytest.mark.parametrize("case", ["is_a", "is_b", "b_times_its_transpose", "partly_a", "partly_b"])
def test_out_that_shares_memory_with_an_input(case: str) -> None:
    """pytorch#13892, #48900: torch's own result may be garbage here."""

    def arguments() -> tuple[Tensor, Tensor, Tensor]:
        buffer = torch.arange(3 * 64 * 64, device="cuda").sin().half().view(192, 64)
        x, y, across = buffer[:64], buffer[64:128], buffer[32:96]
        choices = {"is_a": (x, y, x), "is_b": (x, y, y), "b_times_its_transpose": (x, x.t(), x)}
        return {**choices, "partly_a": (x, buffer[128:], across), "partly_b": (buffer[128:], x, across)}[case]

    a, b, out = arguments()
    expected, exact = torch.matmul(a, b), torch.matmul(a.double(), b.double())
    assert cudal2.matmul(a, b, out=out) is out
    assert_as_accurate(out, expected, exact)


# Autograd, autocast, transforms --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("tuned")
@pytest.mark.parametrize("function", ["cudal2.matmul", "op"])
def test_gradients(function: str) -> None:
    for shape in ((64, 64), (2, 32, 64), (64,)):
        a, b = half(*shape).requires_grad_(), half(64, 64).requires_grad_()
        result = MATMULS[function](a, b)
        assert ran_ours()
        cotangent = torch.randn_like(result)
        ours = torch.autograd.grad(result, (a, b), cotangent)
        torchs = torch.autograd.grad(torch.matmul(a, b), (a, b), cotangent)
        exact_leaves = [tensor.detach().double().requires_grad_() for tensor in (a, b)]
        exact = torch.autograd.grad(torch.matmul(*exact_leaves), exact_leaves, cotangent.double())
        for mine, theirs, right in zip(ours, torchs, exact, strict=True):
            assert_as_accurate(mine, theirs, right)


@pytest.mark.usefixtures("tuned")
@pytest.mark.parametrize("function", ["cudal2.linear", "op"])
def test_linear_gradients(function: str) -> None:
    leaves = half(2, 32, 64), half(64, 64), half(64)
    for wanted in ((True, True, True), (False, True, False), (True, False, False), (False, False, True)):
        for leaf, want in zip(leaves, wanted, strict=True):
            leaf.requires_grad_(want)
        result = LINEARS[function](*leaves)
        assert ran_ours()
        assert result.requires_grad
        active = [leaf for leaf in leaves if leaf.requires_grad]
        cotangent = torch.randn_like(result)
        ours = torch.autograd.grad(result, active, cotangent)
        torchs = torch.autograd.grad(F.linear(*leaves), active, cotangent)
        for mine, theirs in zip(ours, torchs, strict=True):
            assert_same_kind(mine, theirs)
            torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=2e-2)


@pytest.mark.usefixtures("tuned")
def test_second_derivatives() -> None:
    a, b = (half(64, 64) / 8).requires_grad_(), (half(64, 64) / 8).requires_grad_()

    def penalty(product: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor, ...]:
        first = torch.autograd.grad(product(a, b).square().sum(), (a, b), create_graph=True)
        return torch.autograd.grad(sum(grad.float().square().sum() for grad in first), (a, b))

    for ours, torchs in zip(penalty(cudal2.matmul), penalty(torch.matmul), strict=True):
        scale = torchs.abs().max().item()
        torch.testing.assert_close(ours / scale, torchs / scale, rtol=2e-2, atol=5e-3)


@pytest.mark.usefixtures("tuned")
@pytest.mark.parametrize("wants_grad", [False, True], ids=["plain", "grad"])
@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_autocast(dtype: torch.dtype, wants_grad: bool) -> None:
    """pytorch#47906: float32 under autocast takes the tuned path, with torch's output dtype."""
    a, b = (rand(64, 64, device="cuda").requires_grad_(wants_grad) for _ in range(2))
    bias = rand(64, device="cuda")
    for ours, torchs in ((cudal2.matmul, torch.matmul), (cudal2.linear, F.linear)):
        arguments = (a, b) if ours is cudal2.matmul else (a, b, bias)
        with torch.autocast("cuda", dtype=dtype):
            result = ours(*arguments)
            assert ran_ours()
            expected = torchs(*arguments)
        assert_same_kind(result, expected)
        torch.testing.assert_close(result, expected, rtol=2e-2, atol=6e-2)
        if wants_grad:
            result.float().sum().backward()
            assert a.grad.dtype == torch.float32
            a.grad = b.grad = None


def test_autocast_leaves_float64_alone() -> None:
    a = rand(64, 64, dtype=torch.float64, device="cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        assert outcome(cudal2.matmul, a, a).dtype == torch.matmul(a, a).dtype


def test_forward_mode_and_functorch() -> None:
    a, b, tangent = half(64, 64), half(64, 64), half(64, 64)
    with forward_ad.dual_level():
        result = cudal2.matmul(forward_ad.make_dual(a, tangent), b)
        torch.testing.assert_close(forward_ad.unpack_dual(result).tangent, tangent @ b)
    for function in MATMULS.values():
        for arguments in ((half(3, 64, 64), b), (a, half(3, 64, 64))):
            in_dims = tuple(0 if tensor.ndim == 3 else None for tensor in arguments)
            batched = torch.vmap(function, in_dims=in_dims)(*arguments)
            torch.testing.assert_close(batched, torch.matmul(*arguments), rtol=1e-2, atol=3e-2)
        ours, torchs = (torch.func.grad(lambda a, p=p: p(a, b).float().sum())(a) for p in (function, torch.matmul))
        torch.testing.assert_close(ours, torchs)


@pytest.mark.usefixtures("tuned")
def test_inference_mode() -> None:
    a, b = half(64, 64), half(64, 64).requires_grad_()
    with torch.inference_mode():
        result = cudal2.matmul(a, b)
        assert ran_ours()
        assert result.is_inference()
        out = half(64, 64)
        cudal2.matmul(a, b, out=out)
        assert ran_ours()
        assert torch.equal(out, result)


@pytest.mark.usefixtures("tuned")
@pytest.mark.parametrize("wants_grad", [False, True], ids=["plain", "grad"])
@pytest.mark.parametrize(
    "case", ["1d_2d", "2d_2d", "3d_2d", "a_transposed", "b_transposed", "a_columns", "k_is_0", "m_is_0"]
)
def test_opcheck_matmul(case: str, wants_grad: bool) -> None:
    a, b = (tensor.requires_grad_(wants_grad) for tensor in MATMUL[case](torch.float16, "cuda"))
    torch.library.opcheck(torch.ops.cudal2.matmul.default, (a, b), rtol=1e-2, atol=1e-1)
    if not wants_grad:
        torch.library.opcheck(torch.ops.cudal2.matmul_forward.default, (a, b), rtol=1e-2, atol=1e-1)


@pytest.mark.usefixtures("tuned")
@pytest.mark.parametrize("case", ["2d", "2d_bias", "1d_bias", "3d_bias", "bias_at_odd_offset", "k_is_0", "m_is_0"])
def test_opcheck_linear(case: str) -> None:
    arguments = LINEAR[case](torch.float16, "cuda")
    for op in (torch.ops.cudal2.linear.default, torch.ops.cudal2.linear_forward.default):
        torch.library.opcheck(op, arguments, rtol=1e-2, atol=1e-1)


@pytest.mark.usefixtures("tuned")
def test_last_path_names_the_kernel_once() -> None:
    cudal2.matmul(half(64, 64), half(64, 64))
    assert "_f16_nn_" in cudal2.last_path()
    assert cudal2.last_path() == "torch"
    cudal2.linear(half(64, 64), half(64, 64))
    assert "_f16_tn_" in cudal2.last_path()


@pytest.mark.usefixtures("tuned")
@pytest.mark.parametrize("product", [cudal2.matmul, lambda a, b: cudal2.linear(a, b.mT)], ids=["matmul", "linear"])
def test_sizes_without_a_plan_are_remembered_and_only_they(product: Callable[[Tensor, Tensor], Tensor]) -> None:
    """A size that is known to have no plan goes to torch; a failed call teaches nothing. (The short way of eager calls
    remembers by itself; `ops._unplanned` is for where there is none.)"""
    ops._unplanned.clear()
    a, b = half(64, 72), half(72, 40)
    for _ in range(2):
        torch.testing.assert_close(product(a, b), a @ b)
        assert cudal2.last_path() == "torch"
    remembered = len(ops._unplanned)
    assert remembered <= 1

    good_a, good_b = half(64, 64), half(64, 64)
    with pytest.raises(RuntimeError):
        product(good_a, good_b.bfloat16())
    with pytest.raises(RuntimeError):
        product(half(64, 128), good_b)  # K does not match: no size at all
    product(good_a[:, ::2].contiguous().repeat(1, 2), good_b)
    assert cudal2.last_path() != "torch"
    misaligned = half(64 * 64 + 1)[1:].view(64, 64)
    torch.testing.assert_close(product(misaligned, good_b), misaligned @ good_b)
    assert cudal2.last_path() == "torch"
    product(good_a, good_b)
    assert cudal2.last_path() != "torch", "a size with a plan stays tuned after a view that no kernel could run"
    assert len(ops._unplanned) == remembered


@pytest.mark.usefixtures("tuned")
@pytest.mark.parametrize("dtype", HALF)
def test_first_call_of_a_thread(dtype: torch.dtype) -> None:
    """A new thread has no CUDA context; with `out` allocated before, our launch is its first call."""
    rand_of = lambda *shape: rand(*shape, dtype=dtype, device="cuda")  # noqa: E731
    problems = [
        (rand_of(m, k), rand_of(k, n)) for m, n, k in ((64, 64, 64), (128, 256, 512), (256, 128, 256), (77, 64, 128))
    ]
    problems += [(a, b.mT.contiguous().mT) for a, b in problems]
    outs = [torch.empty(a.shape[0], b.shape[1], dtype=dtype, device="cuda") for a, b in problems]
    paths = []

    def call(index: int) -> None:
        cudal2.matmul(*problems[index], out=outs[index])
        paths.append(cudal2.last_path())

    for index in range(len(problems)):
        thread = threading.Thread(target=call, args=(index,))
        thread.start()
        thread.join()
    assert len(paths) == len(problems)
    assert "torch" not in paths
    for (a, b), out in zip(problems, outs, strict=True):
        torch.testing.assert_close(out, a @ b, rtol=2e-2, atol=2e-1)


@pytest.mark.usefixtures("tuned")
def test_traced_without_gradients_and_replayed_at_another_size() -> None:
    w = rand(128, 64, dtype=torch.float16, device="cuda")
    with torch.no_grad():
        traced = torch.jit.trace(lambda x: cudal2.linear(x, w), rand(64, 64, dtype=torch.float16, device="cuda"))
    for rows in (64, 100):
        x = rand(rows, 64, dtype=torch.float16, device="cuda")
        torch.testing.assert_close(traced(x), F.linear(x, w), rtol=2e-3, atol=2e-2)


@pytest.mark.usefixtures("tuned")
@pytest.mark.parametrize(
    ("ours", "torchs"),
    [(cudal2.linear, F.linear), (lambda a, b: cudal2.matmul(a, b.mT), lambda a, b: a @ b.mT)],
    ids=["linear", "matmul"],
)
def test_batched_gradients(
    ours: Callable[[Tensor, Tensor], Tensor], torchs: Callable[[Tensor, Tensor], Tensor]
) -> None:
    x = rand(16, 64, dtype=torch.float16, device="cuda")
    w = rand(128, 64, dtype=torch.float16, device="cuda")
    found, wanted = (
        torch.autograd.functional.jacobian(lambda a, product=product: product(a, w).sum(0), x, vectorize=True)
        for product in (ours, torchs)
    )
    torch.testing.assert_close(found, wanted, rtol=2e-3, atol=2e-2)


@pytest.mark.usefixtures("tuned")
def test_out_is_recorded_as_an_op_that_always_writes() -> None:
    """matmul_into may decline; in a recorded graph nothing would look at its answer."""
    seen: list[str] = []

    class Record(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    a, b, out = half(64, 64), half(64, 64), half(64, 64)
    with torch.no_grad(), Record():
        cudal2.matmul(a, b, out=out)
    assert not [name for name in seen if "matmul_into" in name]
    torch.testing.assert_close(out, a @ b)
