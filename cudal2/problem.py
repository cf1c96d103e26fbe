"""Inputs and outputs for checking a kernel: operands from a seed, outputs that show every stray or missing write."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cudal2.shapes import Shape

TORCH_DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f16acc16": torch.float16}

_POISON = {torch.float16: 0x7E5A, torch.bfloat16: 0x7FDA}  # NaNs that no computation yields
_GUARD = 4096


class Output:
    """C [M,N] within a larger buffer, all of it a NaN pattern until a kernel writes C.

    A `pitch` over N leaves gaps between rows. C starts at an aligned address, or if `ragged` one element past it.
    """

    def __init__(
        self, shape: Shape, dtype: torch.dtype, device: torch.device, pitch: int | None = None, ragged: bool = False
    ):
        m, n, pitch = shape.m, shape.n, pitch or shape.n
        start = _GUARD + ragged
        self._poison = _POISON[dtype]
        self._bits = torch.empty(2 * _GUARD + ragged + m * pitch, dtype=torch.int16, device=device)
        inner = self._bits[start : start + m * pitch].view(m, pitch)
        self._guards = [self._bits[:start], self._bits[start + m * pitch :]]
        if pitch > n:
            self._guards.append(inner[:, n:])
        self.c = inner[:, :n].view(dtype)
        self.poison()

    def poison(self) -> None:
        self._bits.fill_(self._poison)

    def strays(self) -> torch.Tensor:
        """How many elements outside C were written, on the device."""
        return torch.stack([(guard != self._poison).sum() for guard in self._guards]).sum()


@dataclass(frozen=True)
class Inputs:
    """a [M,K] row-major and b [K,N] in either layout, with the same values."""

    a: torch.Tensor
    nn: torch.Tensor
    tn: torch.Tensor

    def b(self, layout: str) -> torch.Tensor:
        return self.nn if layout == "nn" else self.tn

    @property
    def shape(self) -> Shape:
        return Shape(self.a.shape[0], self.nn.shape[1], self.a.shape[1])


def generator(seed: int, shape: Shape, device: torch.device) -> torch.Generator:
    """The random source of one problem: the same for the same seed and shape, whatever ran before."""
    mixed = seed
    for value in shape:
        mixed = (mixed * 1_000_003 + value) % (1 << 62)
    return torch.Generator(device=device).manual_seed(mixed)


def normal(shape: Shape, dtype: torch.dtype, source: torch.Generator, pad: int = 0, ragged: bool = False) -> Inputs:
    """Standard normal operands.

    `pad` elements are left between rows, and more, to a pitch that is a multiple of 8; but if `ragged`, no more, and
    the operands start one element past an aligned address.
    """
    a, b = (
        _matrix(rows, columns, dtype, source.device, pad, ragged)
        for rows, columns in ((shape.m, shape.k), (shape.k, shape.n))
    )
    a.normal_(generator=source)
    b.normal_(generator=source)
    return Inputs(a, b, _transposed(b, pad, ragged))


def zero_one(shape: Shape, dtype: torch.dtype, source: torch.Generator, ragged: bool = False) -> Inputs:
    """0/1 operands so sparse that sums of products stay well below 2048, up to which fp16 is exact:
    512 on average for a large K. `ragged` as in `normal`."""
    a, b = (
        _matrix(factor.shape[0], factor.shape[1], dtype, source.device, 0, ragged).copy_(factor)
        for factor in zero_one_factors(shape, dtype, source)
    )
    return Inputs(a, b, _transposed(b, 0, ragged))


def zero_one_factors(shape: Shape, dtype: torch.dtype, source: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """a [M,K] and b [K,N] of `zero_one`, both row-major."""
    share = min(0.5, (512 / shape.k) ** 0.5)
    a = torch.empty(shape.m, shape.k, dtype=dtype, device=source.device).bernoulli_(share, generator=source)
    b = torch.empty(shape.k, shape.n, dtype=dtype, device=source.device).bernoulli_(share, generator=source)
    return a, b


def exact_product(inputs: Inputs) -> torch.Tensor:
    """a @ b in fp32, exact for 0/1 inputs, also in TF32, which is used for speed."""
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        return torch.matmul(inputs.a.float(), inputs.nn.float())
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed


def _matrix(rows: int, columns: int, dtype: torch.dtype, device: torch.device, pad: int, ragged: bool) -> torch.Tensor:
    pitch = columns + pad if ragged else (columns + pad + 7) // 8 * 8
    return torch.empty(ragged + rows * pitch, dtype=dtype, device=device)[ragged:].view(rows, pitch)[:, :columns]


def _transposed(b: torch.Tensor, pad: int, ragged: bool) -> torch.Tensor:
    """b's values stored as its transpose: the tn layout."""
    k, n = b.shape
    return _matrix(n, k, b.dtype, b.device, pad, ragged).copy_(b.t()).t()
