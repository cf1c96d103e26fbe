"""torch.ops.cudal2.gemm, which runs one named kernel for tooling: right results, and a clear error for all else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from products import assert_as_accurate, at_offset, half

import cudal2

pytestmark = pytest.mark.usefixtures("tuned")


def kernel(layout: str = "nn") -> str:
    """A kernel that can run [64, 64] @ [64, 64] here: the one that dispatch takes."""
    b = half(64, 64)
    cudal2.matmul(half(64, 64), b if layout == "nn" else b.t())
    return cudal2.last_path()


def gemm(a: Any, b: Any, out: Any, bias: Any = None, name: str | None = None, **knobs: Any) -> None:
    chosen = {"group": 8, "raster": 0, "ctas": 0, "split": 1, "pdl": False, **knobs}
    torch.ops.cudal2.gemm(a, b, out, bias, kernel() if name is None else name, **chosen)


@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("knobs", [{}, {"group": 3, "raster": 1}, {"ctas": 16}, {"pdl": True}], ids=str)
@pytest.mark.parametrize("layout", ["nn", "tn"])
def test_result(layout: str, knobs: dict[str, Any], bias: bool) -> None:
    a, b = half(300, 512), half(512, 264) if layout == "nn" else half(264, 512).t()
    added = at_offset(half(264)) if bias else None
    out = torch.full((300, 264), torch.nan, device="cuda").half()
    gemm(a, b, out, added, kernel(layout), **knobs)
    zero = torch.zeros(1, device="cuda").half() if added is None else added
    assert_as_accurate(out, torch.addmm(zero, a, b), torch.addmm(zero.double(), a.double(), b.double()))
    assert layout in cudal2.last_path()


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "kernel": (
        {"name": "sm90_f16_nn_1x1x1_s1_c1x1_coop1"},
        r"kernel='sm90_f16_nn_1x1x1_s1_c1x1_coop1' is not compiled",
    ),
    "a_dtype": ({"a": lambda: half(64, 64).float()}, "a has another dtype"),
    "b_dtype": ({"b": lambda: half(64, 64).bfloat16()}, "b differs from a in dtype or device"),
    "out_dtype": ({"out": lambda: half(64, 64).float()}, "out differs from a"),
    "a_rank": ({"a": lambda: half(64)}, r"a has shape \(64\), strides \(1\); expected 2 dimensions"),
    "b_rank": ({"b": lambda: half(2, 64, 64)}, "b has shape .* expected 2 dimensions"),
    "a_strides": ({"a": lambda: half(64, 64).t()}, "a has shape .* expected row-major"),
    "b_strides": ({"b": lambda: half(64, 64).t()}, r"b has shape .* expects strides \(pitch, 1\)"),
    "out_strides": ({"out": lambda: half(64, 64).t()}, "out has shape .* expected row-major"),
    "a_overlapping_rows": ({"a": lambda: half(1, 64).expand(64, 64)}, "rows that do not overlap"),
    "b_shape": ({"b": lambda: half(32, 64)}, "expected 64 rows"),
    "out_shape": ({"out": lambda: half(64, 72)}, "out has shape .* expected 64 x 64"),
    "bias_shape": ({"bias": lambda: half(63)}, "expected 64 contiguous elements"),
    "bias_strides": ({"bias": lambda: half(128)[::2]}, "expected 64 contiguous elements"),
    "bias_dtype": ({"bias": lambda: half(64).float()}, "bias differs from a"),
    "a_alignment": ({"a": lambda: at_offset(half(64, 64))}, "cannot run M=64 N=64 K=64: alignment"),
    "a_pitch": ({"a": lambda: half(64, 65)[:, :64]}, "cannot run M=64 N=64 K=64: pitch"),
    "empty": ({"a": lambda: half(0, 64), "out": lambda: half(0, 64)}, "M, N and K must be at least 1"),
    "group": ({"group": 0}, "group=0; expected 1 or more"),
    "raster": ({"raster": 2}, "raster=2; expected 0 or 1"),
    "ctas": ({"ctas": -1}, "ctas=-1; expected 0 or more"),
    "split": ({"split": 0}, "split=0; expected 1 or more"),
    "device": ({"out": lambda: torch.zeros(64, 64).half()}, "out is not on a CUDA device"),
}


@pytest.mark.parametrize("case", WRONG)
def test_error(case: str) -> None:
    changes, message = WRONG[case]
    arguments = {name: half(64, 64) for name in ("a", "b", "out")}
    arguments |= {name: value() if callable(value) else value for name, value in changes.items()}
    with pytest.raises(RuntimeError, match=message):
        gemm(**arguments)
    torch.cuda.synchronize()


def test_error_where_out_shares_memory_with_an_input() -> None:
    a = half(64, 64)
    with pytest.raises(RuntimeError, match="out shares memory with a or b"):
        gemm(a, half(64, 64), a)


def test_opcheck() -> None:
    arguments = (half(64, 64), half(64, 64), half(64, 64), None, kernel(), 8, 0, 0, 1, False)
    torch.library.opcheck(torch.ops.cudal2.gemm.default, arguments)
