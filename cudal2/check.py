"""How wrong a result may be: references, errors, and the bound that verify and the search both apply.

The bound is relative to torch.matmul on the same inputs: at most twice its maximum and rms error against an fp32 or
fp64 reference, with a floor of about one unit in the last place of the output type. For fp16 accumulation (f16acc16),
which torch does not have, it comes from how rounding errors add up.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cudal2.problem import TORCH_DTYPES

FP64_WORK = 1 << 28
"""Up to this M*N*K the reference is fp64; above it fp32 without TF32, whose error is far below half precision's."""

FACTOR = 2.0


def reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b in fp64 (small) or fp32 (large), TF32 off; [M,K] @ [K,N] -> [M,N]."""
    work = a.shape[0] * a.shape[1] * b.shape[1]
    dtype = torch.float64 if work <= FP64_WORK else torch.float32
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        return torch.matmul(a.to(dtype), b.to(dtype))
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed


def errors(result: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """[max, rms] of result - wanted, on the device: no synchronization. NaN where the result holds NaN."""
    difference = (result.to(wanted.dtype) - wanted).flatten()
    rms = torch.linalg.vector_norm(difference) / max(1, difference.numel()) ** 0.5
    return torch.stack([torch.linalg.vector_norm(difference, ord=float("inf")), rms])


def magnitude(wanted: torch.Tensor) -> torch.Tensor:
    """[max, rms] of the reference, on the device."""
    flat = wanted.flatten()
    rms = torch.linalg.vector_norm(flat) / max(1, flat.numel()) ** 0.5
    return torch.stack([torch.linalg.vector_norm(flat, ord=float("inf")), rms])


@dataclass(frozen=True)
class Bound:
    """What a result's errors are held against."""

    max: float
    rms: float
    origin: str = "2x torch's"

    @classmethod
    def of(cls, torch_errors: tuple[float, float], size: tuple[float, float], dtype: str, k: int) -> Bound:
        """From torch's [max, rms] error, the reference's [max, rms] magnitude, the dtype's name, and K."""
        if dtype == "f16acc16":
            return cls._of_half_accumulation(size, k)
        ulp = torch.finfo(TORCH_DTYPES[dtype]).eps
        return cls(max(FACTOR * torch_errors[0], ulp * size[0]), max(FACTOR * torch_errors[1], 0.4 * ulp * size[1]))

    @classmethod
    def _of_half_accumulation(cls, size: tuple[float, float], k: int) -> Bound:
        """For sums that are rounded to fp16 after each step of 16 along K, on data without a mean.

        A rounding errs by up to 2^-11 of the sum so far, uniformly: 0.58 * 2^-11 in the rms at the most. The squares of
        the sums grow in proportion to the steps j = 1..K/16, so the errors add up to
        0.58 * 2^-11 * sqrt(sum of j / (K/16)) = 0.58 * 2^-11 * sqrt(K/32) of the result's rms. Twice that is allowed,
        which covers steps of 8 (1.4x), and a unit in the last place for the output. The largest error of millions is
        below 8 such rms, where sums are as large as the rms, or a quarter of the largest.
        """
        share = FACTOR * 0.58 * 2**-11 * (k / 32) ** 0.5 + torch.finfo(torch.float16).eps
        return cls(8 * share * max(size[1], size[0] / 4), share * size[1], "what fp16 accumulation explains")

    def problem(self, own: tuple[float, float]) -> str | None:
        """Why the errors are out of bounds, or None. NaN is out of bounds."""
        if not own[0] <= self.max:
            return f"max error {own[0]:.4g} over {self.max:.4g} ({self.origin})"
        if not own[1] <= self.rms:
            return f"rms error {own[1]:.4g} over {self.rms:.4g} ({self.origin})"
        return None


class Judge:
    """Says whether products of a and b are right: within Bound on this data, by torch.matmul's own errors there."""

    def __init__(self, a: torch.Tensor, b: torch.Tensor, dtype: str):
        self._wanted = reference(a, b)
        by_torch = errors(torch.matmul(a, b), self._wanted)
        numbers = torch.cat([by_torch, magnitude(self._wanted)]).tolist()
        self._bound = Bound.of((numbers[0], numbers[1]), (numbers[2], numbers[3]), dtype, a.shape[1])

    def problem(self, result: torch.Tensor) -> str | None:
        """What is wrong with it; None: nothing."""
        error_max, error_rms = errors(result, self._wanted).tolist()
        return self._bound.problem((error_max, error_rms))
