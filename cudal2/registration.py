"""Tells torch about the ops, so that autograd, autocast, tracing and functorch do the right thing with them.

The public ops `matmul`, `matmul.out` and `linear` are composite: torch runs their Python implementation for every
device, and records or traces what it does. The C++ ops `matmul_forward`, `linear_forward`, their `_eager` and `_acc16`
twins and `matmul_into` get

- a fallthrough of the autograd keys, so that an eager call runs no Python (ops.py says who may call them);
- a fake kernel: torch's own product of the fake tensors, whose strides are also those of the real result: B is 2-D
  there, and then both are contiguous;
- torch's product on devices other than CUDA, and of sparse and nested tensors.

Both kinds get an autocast rule, which casts as torch does for its own matmul and linear (and accumulates in fp32), and
a rule for functorch: while its transforms (vmap, grad, jvp) are at work, they see a plain torch.matmul, and know what
to do with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cudal2 import autograd, ops

_library = torch.library.Library("cudal2", "FRAGMENT")
_AUTOCAST_CUDA = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)
_NOT_CUDA = ("CompositeExplicitAutograd", "NestedTensorCPU", "NestedTensorCUDA")
_FUNCTORCH = "FuncTorchDynamicLayerFrontMode"


def _matmul_out(a: Tensor, b: Tensor, *, out: Tensor) -> Tensor:
    return ops.matmul(a, b, out=out)


def _torch_matmul(a: Tensor, b: Tensor) -> Tensor:
    return torch.matmul(a, b)


def _torch_matmul_out(a: Tensor, b: Tensor, *, out: Tensor) -> Tensor:
    return torch.matmul(a, b, out=out)


def _torch_linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.linear(input, weight, bias)


def _not_into(a: Tensor, b: Tensor, out: Tensor) -> bool:
    return False


def _gemm_fake(*arguments: Any) -> None:
    return None


def _fake(product: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def fake(*arguments: Tensor | None) -> Tensor:
        with torch.no_grad():
            return product(*arguments)

    return fake


def _autocast(product: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """torch's rule for products: floating-point CUDA tensors other than float64 become of the autocast dtype."""

    def cast(tensor: Tensor | None) -> Tensor | None:
        if tensor is None or not tensor.is_cuda or not tensor.is_floating_point() or tensor.dtype == torch.float64:
            return tensor
        return tensor.to(torch.get_autocast_dtype("cuda"))

    def autocast(*arguments: Tensor | None) -> Tensor:
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST_CUDA):
            return product(*map(cast, arguments))

    return autocast


def _register() -> None:
    _library.impl("matmul.out", _matmul_out, "CompositeImplicitAutograd")
    _library.impl("matmul.out", _torch_matmul_out, _FUNCTORCH)
    products = (("matmul", autograd.matmul, _torch_matmul), ("linear", autograd.linear, _torch_linear))
    for name, composite, torchs in products:
        _library.impl(name, composite, "CompositeImplicitAutograd")
        tuned = [f"{name}_{kind}" for kind in ("forward", "eager", "acc16")]
        for op in tuned:
            _library.impl(op, torch.library.fallthrough_kernel, "Autograd")
            for key in _NOT_CUDA:
                _library.impl(op, torchs, key)
            torch.library.register_fake(f"cudal2::{op}", _fake(torchs), lib=_library)
        for op in (name, *tuned):
            _library.impl(op, _autocast(composite), "AutocastCUDA")
            _library.impl(op, torchs, _FUNCTORCH)

    _library.impl("matmul_into", torch.library.fallthrough_kernel, "Autograd")
    for key in (*_NOT_CUDA, _FUNCTORCH):
        _library.impl("matmul_into", _not_into, key)
    torch.library.register_fake("cudal2::matmul_into", _not_into, lib=_library)
    torch.library.register_fake("cudal2::gemm", _gemm_fake, lib=_library)


_register()
