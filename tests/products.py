"""Inputs of matmul and linear of every kind, shared by the CPU and the GPU tests, and how results are compared.

A case is a function (dtype, device) -> arguments. Most shapes have N and K divisible by 8, so that only what a case
is about keeps a tuned kernel away.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Case = Callable[[torch.dtype, str], tuple[Any, ...]]


def rand(*shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Tensor:
    """Normal values, or small integers for integer types."""
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, dtype=torch.complex64 if dtype.is_complex else torch.float32).to(device, dtype)
    return torch.randint(-4, 5, shape).to(device, dtype)


def half(*shape: int) -> Tensor:
    """Normal random fp16 on the GPU."""
    return rand(*shape, dtype=torch.float16, device="cuda")


def _shapes(a: tuple[int, ...], b: tuple[int, ...]) -> Case:
    return lambda dtype, device: (rand(*a, dtype=dtype, device=device), rand(*b, dtype=dtype, device=device))


def _views(a: Callable[[Tensor], Tensor], b: Callable[[Tensor], Tensor]) -> Case:
    """Views of two [64, 64] matrices."""

    def case(dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
        return a(rand(64, 64, dtype=dtype, device=device)), b(rand(64, 64, dtype=dtype, device=device))

    return case


def _same(tensor: Tensor) -> Tensor:
    return tensor


def at_offset(tensor: Tensor, elements: int = 1) -> Tensor:
    """An equal tensor that starts `elements` after an aligned address."""
    buffer = torch.empty(tensor.numel() + elements, dtype=tensor.dtype, device=tensor.device)
    view = buffer[elements:].view(tensor.shape)
    view.copy_(tensor)
    return view


def negative_bit(tensor: Tensor) -> Tensor:
    """The negated tensor, whose negation torch has put off: the imaginary part of a conjugate."""
    pairs = torch.stack([tensor, tensor], dim=-1)
    imaginary = torch.view_as_complex(pairs).conj().imag
    assert imaginary.is_neg()
    return imaginary


MATMUL: dict[str, Case] = {
    # ranks
    "1d_1d": _shapes((64,), (64,)),
    "1d_2d": _shapes((64,), (64, 64)),
    "2d_1d": _shapes((64, 64), (64,)),
    "2d_2d": _shapes((64, 64), (64, 64)),
    "3d_1d": _shapes((2, 32, 64), (64,)),
    "3d_2d": _shapes((2, 32, 64), (64, 64)),
    "4d_2d": _shapes((2, 2, 16, 64), (64, 64)),
    "3d_3d": _shapes((3, 16, 64), (3, 64, 8)),
    "1d_3d": _shapes((64,), (3, 64, 8)),
    "2d_3d": _shapes((16, 64), (3, 64, 8)),
    "4d_3d_broadcast": _shapes((2, 1, 16, 64), (3, 64, 8)),
    "ones_everywhere": _shapes((1, 1, 1), (1, 1)),
    # empty
    "k_is_0": _shapes((4, 0), (0, 8)),
    "k_is_0_batched": _shapes((3, 2, 0), (3, 0, 3)),
    "k_is_0_3d_2d": _shapes((3, 2, 0), (0, 8)),
    "k_is_0_1d": _shapes((0,), (0, 8)),
    "m_is_0": _shapes((0, 64), (64, 64)),
    "n_is_0": _shapes((64, 64), (64, 0)),
    "batch_is_0": _shapes((0, 8, 64), (64, 64)),
    # odd
    "2x4x3": _shapes((2, 4), (4, 3)),
    "5x7x9": _shapes((5, 7), (7, 9)),
    "m_is_1": _shapes((1, 64), (64, 64)),
    "n_is_1": _shapes((64, 64), (64, 1)),
    "k_is_1": _shapes((64, 1), (1, 64)),
    "odd_m": _shapes((77, 64), (64, 64)),
    # strides
    "b_transposed": _views(_same, Tensor.t),
    "a_transposed": _views(Tensor.t, _same),
    "both_transposed": _views(Tensor.t, Tensor.t),
    "a_columns": _views(lambda a: a[:, 8:40], lambda b: b[8:40]),
    "a_every_second_row": _views(lambda a: a[::2], _same),
    "a_every_second_column": _views(lambda a: a[:, ::2], lambda b: b[:32]),
    "b_columns": _views(_same, lambda b: b[:, 8:40]),
    "b_columns_transposed": _views(lambda a: a[:, 8:40], lambda b: b[:, 8:40].t()),
    "b_every_second_column": _views(_same, lambda b: b[:, ::2]),
    "a_rows_of_a_transposed": _views(lambda a: a.t()[16:48], _same),
    "a_expanded_rows": _views(lambda a: a[:1].expand(64, 64), _same),
    "a_expanded_batch": _views(lambda a: a.expand(3, 64, 64), _same),
    "b_expanded": _views(_same, lambda b: b[:1].expand(64, 64)),
    "a_batch_with_gaps": _views(lambda a: a.view(4, 16, 64)[:, :8], _same),
    "a_columns_batched": _views(lambda a: a.view(4, 16, 64)[..., :32], lambda b: b[:32]),
    "a_batch_transposed": _views(lambda a: a.view(4, 16, 64).transpose(0, 1), _same),
    "a_overlapping_rows": _views(lambda a: a.flatten().as_strided((32, 64), (8, 1)), _same),
    "a_with_one_row_of_odd_pitch": _views(lambda a: a.flatten().as_strided((1, 64), (3, 1)), _same),
    # alignment
    "a_at_odd_offset": _views(at_offset, _same),
    "b_at_odd_offset": _views(_same, at_offset),
    "a_odd_pitch": _views(lambda a: a.flatten()[: 63 * 65].view(63, 65)[:, :64], _same),
    "b_odd_pitch": _views(lambda a: a[:, :63], lambda b: b.flatten()[: 63 * 65].view(63, 65)[:, :64]),
}

NEGATIVE: dict[str, Case] = {
    "a_negative_bit": _views(negative_bit, _same),
    "b_negative_bit": _views(_same, negative_bit),
}
"""Half precision only has these on complex32, which is scarcely supported: float16 and float32 cases."""


def _linear(x: tuple[int, ...], weight: tuple[int, ...], bias: Callable[[Tensor], Tensor] | None = None) -> Case:
    def case(dtype: torch.dtype, device: str) -> tuple[Tensor | None, ...]:
        added = bias(rand(weight[0], dtype=dtype, device=device)) if bias else None
        return rand(*x, dtype=dtype, device=device), rand(*weight, dtype=dtype, device=device), added

    return case


def _strided(bias: Tensor) -> Tensor:
    return torch.stack([bias, bias], dim=-1)[:, 0]


LINEAR: dict[str, Case] = {
    "2d": _linear((64, 64), (64, 64)),
    "2d_bias": _linear((64, 64), (64, 64), _same),
    "1d": _linear((64,), (64, 64)),
    "1d_bias": _linear((64,), (64, 64), _same),
    "3d": _linear((2, 32, 64), (64, 64)),
    "3d_bias": _linear((2, 32, 64), (64, 64), _same),
    "4d_bias": _linear((2, 2, 16, 64), (64, 64), _same),
    "bias_at_odd_offset": _linear((64, 64), (64, 64), at_offset),
    "bias_is_a_slice": _linear((64, 64), (64, 64), lambda bias: torch.cat([bias, bias, bias])[3:67]),
    "bias_strided": _linear((64, 64), (64, 64), _strided),
    "bias_expanded": _linear((64, 64), (64, 64), lambda bias: bias[:1].expand(64)),
    "n_is_1": _linear((64, 64), (1, 64), _same),
    "m_is_1": _linear((1, 64), (64, 64), _same),
    "odd": _linear((5, 7), (9, 7), _same),
    "odd_n": _linear((64, 64), (9, 64), _same),
    "k_is_0": _linear((4, 0), (8, 0), _same),
    "k_is_0_no_bias": _linear((4, 0), (8, 0)),
    "m_is_0": _linear((0, 64), (64, 64), _same),
    "n_is_0": _linear((64, 64), (0, 64), _same),
    "x_strided": lambda dtype, device: (rand(64, 128, dtype=dtype, device=device)[:, ::2], *_square(dtype, device)),
    "x_columns": lambda dtype, device: (rand(64, 128, dtype=dtype, device=device)[:, 64:], *_square(dtype, device)),
    "weight_transposed": lambda dtype, device: (
        rand(64, 64, dtype=dtype, device=device),
        rand(64, 64, dtype=dtype, device=device).t(),
        rand(64, dtype=dtype, device=device),
    ),
    "weight_at_odd_offset": lambda dtype, device: (
        rand(64, 64, dtype=dtype, device=device),
        at_offset(rand(64, 64, dtype=dtype, device=device)),
        None,
    ),
}


def _square(dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    return rand(64, 64, dtype=dtype, device=device), rand(64, dtype=dtype, device=device)


# What torch refuses: the error must be torch's, type and text.
BAD_MATMUL: dict[str, Case] = {
    "0d": _shapes((), (4, 4)),
    "0d_second": _shapes((4, 4), ()),
    "k_differs": _shapes((4, 8), (16, 4)),
    "k_differs_1d": _shapes((4, 8), (16,)),
    "k_differs_3d_2d": _shapes((2, 4, 8), (16, 4)),
    "batches_differ": _shapes((2, 4, 8), (3, 8, 4)),
    "dtypes_differ": lambda dtype, device: (rand(4, 8, dtype=dtype, device=device), rand(8, 4, device=device).double()),
    "not_a_tensor": lambda dtype, device: (rand(4, 8, dtype=dtype, device=device), [[1.0]]),
    "not_a_tensor_first": lambda dtype, device: (None, rand(4, 8, dtype=dtype, device=device)),
}
BAD_LINEAR: dict[str, Case] = {
    "k_differs": _linear((4, 8), (16, 4)),
    "k_differs_3d": _linear((2, 4, 8), (16, 4), _same),
    "bias_too_long": _linear((4, 8), (16, 8), lambda bias: torch.cat([bias, bias])),
    "weight_3d": _linear((4, 8), (2, 4, 8)),
    "dtypes_differ": lambda dtype, device: (
        rand(4, 8, dtype=dtype, device=device),
        rand(4, 8, device=device).double(),
        None,
    ),
    "bias_of_another_dtype": _linear((4, 8), (16, 8), lambda bias: bias.double()),
    "not_a_tensor": lambda dtype, device: (rand(4, 8, dtype=dtype, device=device), "weight", None),
}


def outcome(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """What a call comes to: its result, or the type and text of its error."""
    try:
        return function(*arguments, **keywords)
    except Exception as error:
        return type(error), str(error)


def assert_same_kind(ours: Tensor, torchs: Tensor) -> None:
    """The same shape, strides, dtype, device and need of gradients."""
    assert (ours.shape, ours.stride(), ours.dtype, ours.device) == (
        torchs.shape,
        torchs.stride(),
        torchs.dtype,
        torchs.device,
    )
    assert ours.requires_grad == torchs.requires_grad


def assert_as_accurate(ours: Tensor, torchs: Tensor, exact: Tensor) -> None:
    """Of the same kind, and of an error against `exact` (float64) at most twice torch's own, up to one rounding."""
    assert_same_kind(ours, torchs)
    if exact.numel() == 0:
        return
    size = exact.abs().max().item()
    error, allowed = ((result.double() - exact).abs().max().item() for result in (ours, torchs))
    assert error <= 2 * allowed + size * torch.finfo(torchs.dtype).eps, f"error {error}; torch's {allowed}"


def in_threads(work: Callable[[int], None], count: int) -> None:
    """work(0), work(1), ... work(count - 1) at once, a thread each; fails with the first that failed."""
    failures: list[BaseException] = []

    def kept(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=kept, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def errors_of_planned_products(then: str = "", **environment: str) -> tuple[list[str], str]:
    """What a process with these variables prints: the error of every way to a 64 x 64 x 64 product on the GPU, a line
    each, and what the code `then` prints; and its stderr."""
    code = (
        "import torch, cudal2\n"
        "a = torch.ones(64, 64, device='cuda').half()\n"
        "calls = (cudal2.matmul, cudal2.linear, lambda a, b: cudal2.matmul(a, b, out=a.clone()),\n"
        "         lambda a, b: cudal2.matmul(a.clone().requires_grad_(), b))\n"
        "for call in calls:\n"
        "    try: call(a, a); print('no error')\n"
        "    except RuntimeError as error: print(error)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code + then], capture_output=True, text=True, env={**os.environ, **environment}
    )
    return run.stdout.splitlines(), run.stderr
