"""matmul and linear: torch's functions, running tuned kernels where there is a plan.

How a call travels, and why so. An eager call of a small product costs more on the host than on the GPU, so the plain
call (ordinary CUDA tensors, no gradient wanted, torch in no special state) is one C function, `plain_matmul`
(csrc/eager.cpp), past the dispatcher. Where it is not available, or leaves the call alone (under autocast, say, or the
profiler), an op in C++, `matmul_eager`, comes next, which falls through autograd's dispatch keys: a Python autograd
kernel would cost 7-10 µs. It differentiates nothing, so whether it may be called is decided here. With gradients the
call goes to the public op `torch.ops.cudal2.matmul`, whose Python implementation (autograd.py) is made of
differentiable pieces; so torch.compile, torch.export and whoever calls the op directly get gradients too, and compiled
graphs, of inference and training alike, hold the C++ op. Whatever has no tuned kernel anyway (CPU, batched B, a size
without a plan, tensor subclasses, forward-mode AD) is torch's own call, with its result or its error. A size without a
plan is remembered here: the op refuses it once, and from then on the call does not go through the dispatcher twice.

    matmul: plain eager call   --> plain_matmul (C: plan and launch), or torch.matmul where there is no plan
            no gradient wanted --> matmul_eager (C++: plan and launch), or torch.matmul where there is no plan
            compiled or traced --> matmul_forward (the same, but falls back to aten::matmul in C++)
            gradient wanted    --> torch.ops.cudal2.matmul --> MatMul, whose forward is matmul_forward
            neither applies    --> torch.matmul

With `accumulate="fp16"`, the first two ways go to matmul_acc16 instead, and the others are as ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad
from torch.compiler import is_compiling, is_dynamo_compiling
from torch.nn import Parameter

from cudal2.native import (
    deferred,
    linear_acc16,
    linear_eager,
    linear_forward,
    matmul_acc16,
    matmul_eager,
    matmul_forward,
    matmul_into,
    plain_linear,
    plain_matmul,
    unplanned,
)

_PLAIN = (Tensor, Parameter)
"""Types whose instances are just data. Subclasses have their own idea of torch.matmul: they go to torch."""

_unplanned: set[tuple[Any, ...]] = set()
"""Sizes without a plan that were met so far: the shapes that make a product, dtype and device. Only saves time."""
_MOST_SIZES = 8192

_differentiable_matmul = torch.ops.cudal2.matmul.default
_differentiable_linear = torch.ops.cudal2.linear.default


def matmul(input: Tensor, other: Tensor, *, out: Tensor | None = None, accumulate: str = "fp32") -> Tensor:
    """The matrix product of two tensors: :func:`torch.matmul`, with its semantics and errors, on any input.

    Tuned kernels run where `other` is 2-D [K, N] with a unit stride in either dimension, `input` is [..., K] with
    rows at one pitch, both are float16 or both bfloat16, on one CUDA device, and the plan table has M = prod(...), N,
    K. They accumulate in fp32, unless asked not to:

    Args:
        input: first factor, any rank of at least 1.
        other: second factor, any rank of at least 1.
        out: tensor to write into, as for torch.matmul.
        accumulate: "fp32", or "fp16": float16 products may then run a kernel that adds up in fp16, where the plan table
            has one. The result is 6 to 22 times less accurate, and overflows where a partial sum passes 65504; it is
            faster on GeForce cards, whose tensor cores take fp16 sums at twice the rate. A permission, no promise:
            without such a plan, for bfloat16, with out=, under autocast, where a gradient is wanted, and for whatever
            else is torch's call, sums are fp32.

    Raises:
        RuntimeError: what torch.matmul raises; or that the plan table is malformed, naming file and row.
        ValueError: `accumulate` is neither.
    """
    if out is None and accumulate == "fp32" and not is_dynamo_compiling():
        product = plain_matmul(input, other)
        if product is not None:
            return product
    if accumulate != "fp32":
        return _accumulating(matmul_acc16, matmul, accumulate, input, other, out=out)
    if out is not None:
        return _matmul_out(input, other, out)
    recorded = _recorded()
    if not recorded and _unplanned and _known_unplanned(input, other):
        return torch.matmul(input, other)
    if (
        type(input) in _PLAIN
        and type(other) in _PLAIN
        and input.is_cuda
        and other.ndim == 2
        and forward_ad._current_level < 0
    ):
        if torch.is_grad_enabled() and (input.requires_grad or other.requires_grad):
            return _differentiable_matmul(input, other)
        if recorded:
            return matmul_forward(input, other)
        try:
            return matmul_eager(input, other)
        except RuntimeError as error:
            if not deferred(error):
                raise
            if unplanned(error):
                _remember(input, other)
    return torch.matmul(input, other)


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None, *, accumulate: str = "fp32") -> Tensor:
    """``input @ weight.T + bias``: :func:`torch.nn.functional.linear`, with its semantics and errors, on any input.

    Tuned kernels run under the conditions of :func:`matmul`, with `weight` [N, K] as other's transpose (row-major
    weights need no copy). `bias` [N], contiguous, is added in fp32 before the result is rounded.

    Args:
        input: [..., K], any rank of at least 1.
        weight: [N, K].
        bias: [N], or None.
        accumulate: as for :func:`matmul`. With "fp16" the sum that the bias is added to, in fp32, is an fp16 one.

    Raises:
        RuntimeError: what F.linear raises; or that the plan table is malformed, naming file and row.
        ValueError: `accumulate` is neither "fp32" nor "fp16".
    """
    if accumulate == "fp32" and not is_dynamo_compiling():
        product = plain_linear(input, weight, bias)
        if product is not None:
            return product
    if accumulate != "fp32":
        return _accumulating(linear_acc16, linear, accumulate, input, weight, bias)
    recorded = _recorded()
    if not recorded and _unplanned and _known_unplanned(input, weight):
        return F.linear(input, weight, bias)
    if (
        type(input) in _PLAIN
        and type(weight) in _PLAIN
        and (bias is None or type(bias) in _PLAIN)
        and input.is_cuda
        and weight.ndim == 2
        and forward_ad._current_level < 0
    ):
        if torch.is_grad_enabled() and (
            input.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
        ):
            return _differentiable_linear(input, weight, bias)
        if recorded:
            return linear_forward(input, weight, bias)
        try:
            return linear_eager(input, weight, bias)
        except RuntimeError as error:
            if not deferred(error):
                raise
            if unplanned(error):
                _remember(input, weight)
    return F.linear(input, weight, bias)


def _accumulating(
    op: Callable[..., Tensor],
    usual: Callable[..., Tensor],
    accumulate: str,
    input: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """The product by `op`, which may accumulate in fp16; by the `usual` function where it would not take the op."""
    if accumulate != "fp16":
        raise ValueError(f"accumulate={accumulate!r}; expected 'fp32' or 'fp16'")
    operands = (input, b) if bias is None else (input, b, bias)
    if (
        out is None
        and all(type(operand) in _PLAIN for operand in operands)
        and input.is_cuda
        and b.ndim == 2
        and forward_ad._current_level < 0
        and not (torch.is_grad_enabled() and any(operand.requires_grad for operand in operands))
    ):
        if _recorded():
            return op(*operands)
        try:
            return op(*operands)
        except RuntimeError as error:
            if not deferred(error):
                raise
    return usual(*operands) if out is None else usual(*operands, out=out)


def _recorded() -> bool:
    """Whether what runs now is compiled or traced. A recorded graph needs the op that falls back by itself."""
    return is_compiling() or torch._C._is_tracing() or torch._C._len_torch_dispatch_stack() > 0


def _known_unplanned(input: Tensor, b: Tensor) -> bool:
    """Whether this is an eager call with a size in `_unplanned`. Autocast may make another dtype of it: then not."""
    return (
        type(input) in _PLAIN
        and type(b) in _PLAIN
        and (input.shape, b.shape, input.dtype, input.get_device()) in _unplanned
        and not torch.is_autocast_enabled("cuda")
    )


def _remember(input: Tensor, b: Tensor) -> None:
    if len(_unplanned) >= _MOST_SIZES:  # sizes that keep changing: start anew rather than grow
        _unplanned.clear()
    _unplanned.add((input.shape, b.shape, input.dtype, input.get_device()))


def _matmul_out(input: Tensor, other: Tensor, out: Tensor) -> Tensor:
    """torch.matmul(out=): tuned into an `out` of the right shape that overlaps neither factor, else torch's call.

    torch itself gives garbage where `out` overlaps a factor, on any device: there the product is copied into it.
    """
    if (
        all(type(tensor) in _PLAIN for tensor in (input, other, out))
        and forward_ad._current_level < 0
        and not _recorded()
        and not (torch.is_grad_enabled() and (input.requires_grad or other.requires_grad or out.requires_grad))
    ):
        if input.is_cuda and out.is_cuda and matmul_into(input, other, out):
            torch.autograd.graph.increment_version(out)
            return out
        if _shares_storage(out, input) or _shares_storage(out, other):
            product = matmul(input, other)
            if product.shape == out.shape and product.dtype == out.dtype:
                return out.copy_(product)
    return torch.matmul(input, other, out=out)


def _shares_storage(a: Tensor, b: Tensor) -> bool:
    if a.layout != torch.strided or b.layout != torch.strided:
        return False
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
