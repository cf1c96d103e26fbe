"""Differentiable matmul and linear: what the public ops `torch.ops.cudal2.matmul` and `.linear` are made of.

They look at no Python type, so they also run on the wrapped tensors of a torch.compile or torch.export trace.
Gradients are products again and take the same way, so they are tuned too where a plan fits, and can be differentiated
again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import Function, FunctionCtx

from cudal2.native import deferred, linear_forward, matmul_forward

_HALF = (torch.float16, torch.bfloat16)


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """torch.matmul(a, b), tuned where it can be."""
    if b.dim() != 2 or not _may_be_tuned(a, b, k=b.shape[0]):
        return torch.matmul(a, b)
    if _wants_grad(a, b):
        return MatMul.apply(a, b)
    return _run(matmul_forward, torch.matmul, a, b)


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """F.linear(input, weight, bias), tuned where it can be."""
    if weight.dim() != 2 or not _may_be_tuned(input, weight, k=weight.shape[1]):
        return F.linear(input, weight, bias)
    if bias is not None and (bias.dtype != input.dtype or bias.shape != weight.shape[:1]):
        return F.linear(input, weight, bias)
    if _wants_grad(input, weight, bias):
        return Linear.apply(input, weight, bias)
    return _run(linear_forward, F.linear, input, weight, bias)


class MatMul(Function):
    """a [..., K] @ b [K, N]."""

    @staticmethod
    def forward(ctx: FunctionCtx, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return _run(matmul_forward, torch.matmul, a, b)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        a, b = ctx.saved_tensors
        grad_a = matmul(grad, b.mT) if ctx.needs_input_grad[0] else None
        grad_b = None
        if ctx.needs_input_grad[1]:
            rows, grad_rows = _rows(a), _rows(grad)
            # In b's own storage order, so that accumulating it into b.grad moves no data around.
            transposed = b.stride(0) < b.stride(1)
            grad_b = matmul(grad_rows.mT, rows).mT if transposed else matmul(rows.mT, grad_rows)
        return grad_a, grad_b


class Linear(Function):
    """input [..., K] @ weight [N, K].T + bias [N]."""

    @staticmethod
    def forward(ctx: FunctionCtx, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(input, weight)
        return _run(linear_forward, F.linear, input, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        input, weight = ctx.saved_tensors
        grad_rows = _rows(grad)
        grad_input = matmul(grad, weight) if ctx.needs_input_grad[0] else None
        grad_weight = matmul(grad_rows.mT, _rows(input)) if ctx.needs_input_grad[1] else None
        grad_bias = grad_rows.sum(0) if ctx.needs_input_grad[2] else None
        return grad_input, grad_weight, grad_bias


def _may_be_tuned(a: Tensor, b: Tensor, k: int) -> bool:
    """Whether `a` times a matrix stored in `b`, of `k` rows, is a product that there can be a plan for."""
    return (
        a.is_cuda
        and a.dtype in _HALF
        and a.dtype == b.dtype
        and a.device == b.device
        and a.dim() > 0
        and a.shape[-1] == k
        and forward_ad._current_level < 0
    )


def _rows(tensor: Tensor) -> Tensor:
    """All rows of the last dimension, as a matrix. By reshape: flatten has no batching rule."""
    return tensor.reshape(tensor.shape[:-1].numel(), tensor.shape[-1])


def _wants_grad(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def _run(op: Callable[..., Tensor], fallback: Callable[..., Tensor], *arguments: Tensor | None) -> Tensor:
    """An op in C++, or torch's own call where the op met an error of torch's."""
    try:
        return op(*arguments)
    except RuntimeError as error:
        if not deferred(error):
            raise
    return fallback(*arguments)
