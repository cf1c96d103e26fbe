"""How wrong a result may be: references, errors, and the bound that verify and the search both apply.

The bound is relative to torch.matmul on the same inputs: at most twice its maximum and rms error against an fp32 or
fp64 reference, with a floor of about one unit in the last place of the output type.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

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

    @classmethod
    def of(cls, torch_errors: tuple[float, float], size: tuple[float, float], dtype: torch.dtype) -> Bound:
        """From torch's [max, rms] error and the reference's [max, rms] magnitude."""
        ulp = torch.finfo(dtype).eps
        return cls(max(FACTOR * torch_errors[0], ulp * size[0]), max(FACTOR * torch_errors[1], 0.4 * ulp * size[1]))

    def problem(self, own: tuple[float, float]) -> str | None:
        """Why the errors are out of bounds, or None. NaN is out of bounds."""
        if not own[0] <= self.max:
            return f"max error {own[0]:.4g} over {self.max:.4g} (2x torch's)"
        if not own[1] <= self.rms:
            return f"rms error {own[1]:.4g} over {self.rms:.4g} (2x torch's)"
        return None
