"""Inputs and outputs for checking a kernel: operands from a seed, outputs that show every stray or missing write."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cudal2.shapes import Shape

TORCH_DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16}

_POISON = {torch.float16: 0x7E5A, torch.bfloat16: 0x7FDA}  # NaNs that no computation yields
_GUARD = 4096


class Output:
    """C [M,N] within a larger buffer, all of it a NaN pattern until a kernel writes C. A `pitch` over N leaves gaps."""

    def __init__(self, shape: Shape, dtype: torch.dtype, device: torch.device, pitch: int | None = None):
        m, n, pitch = shape.m, shape.n, pitch or shape.n
        self._poison = _POISON[dtype]
        self._bits = torch.empty(2 * _GUARD + m * pitch, dtype=torch.int16, device=device)
        inner = self._bits[_GUARD : _GUARD + m * pitch].view(m, pitch)
        self._guards = [self._bits[:_GUARD], self._bits[_GUARD + m * pitch :]]
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


def normal(shape: Shape, dtype: torch.dtype, source: torch.Generator, pad: int = 0) -> Inputs:
    """Standard normal operands. `pad` elements are left between rows, to a pitch that is a multiple of 8."""
    a, b = (_matrix(rows, columns, dtype, source, pad) for rows, columns in ((shape.m, shape.k), (shape.k, shape.n)))
    a.normal_(generator=source)
    b.normal_(generator=source)
    return Inputs(a, b, _transposed(b, pad))


def zero_one(shape: Shape, dtype: torch.dtype, source: torch.Generator) -> Inputs:
    """0/1 operands so sparse that sums of products stay well below 2048, up to which fp16 is exact:
    512 on average for a large K."""
    a, b = zero_one_factors(shape, dtype, source)
    return Inputs(a, b, _transposed(b, 0))


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


def _matrix(rows: int, columns: int, dtype: torch.dtype, source: torch.Generator, pad: int) -> torch.Tensor:
    pitch = columns if pad == 0 and columns % 8 == 0 else (columns + pad + 7) // 8 * 8
    return torch.empty(rows, pitch, dtype=dtype, device=source.device)[:, :columns]


def _transposed(b: torch.Tensor, pad: int) -> torch.Tensor:
    """b's values stored as its transpose: the tn layout."""
    k, n = b.shape
    pitch = k if pad == 0 and k % 8 == 0 else (k + pad + 7) // 8 * 8
    return torch.empty(n, pitch, dtype=b.dtype, device=b.device)[:, :k].copy_(b.t()).t()
