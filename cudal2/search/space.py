"""The search space: which kernels are compiled. KernelSpec's rules bound it; a measured sweep chooses from it."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import Any

from cudal2.spec import DTYPES, LAYOUTS, MAX_SMEM, KernelSpec

# One line per tile: tile, stages, schedule and consumer warpgroups, then clusters MxN that share or MxNkSPLIT that
# split, then options (KernelSpec's, as in a name): tma stores by TMA, ws splits through the workspace, sk stream-K,
# swap swaps the operands.
_SM90 = """
64x16x128  s8  coop1  1x1 1x1k4 1x1k8 1x1k16
64x32x64   s6  coop1  1x1
64x32x128  s6  coop1  1x1k2 1x1k4 1x1k8
64x32x128  s8  coop1  1x2
64x64x64   s6  coop1  1x1
64x64x64   s6  coop1  1x1 tma
64x64x64   s13 coop1  2x1 ws
64x64x128  s6  coop1  1x1 1x2 1x1k2 1x1k4 1x1k8
64x64x128  s6  coop1  1x1 ws
64x96x64   s5  coop1  1x1
64x96x64   s10 coop1  1x1 ws
64x96x128  s5  coop1  1x2
64x128x64  s4  coop1  1x1
64x128x64  s8  coop1  1x1 1x2 1x1k3
64x128x64  s8  coop1  1x1 2x1 ws
64x128x128 s4  coop1  1x2
128x64x64  s4  coop2  1x1 1x1k4
128x64x64  s8  coop2  1x2
128x64x64  s8  coop2  1x1 ws
64x192x64  s6  coop1  1x1 2x1
192x64x64  s7  coop3  1x1
64x256x64  s5  coop1  2x1
128x128x64 s6  coop2  1x1 2x1 tma
128x128x64 s6  coop2  1x1 1x2 ws
128x192x64 s5  coop2  1x1 tma
192x128x64 s5  coop3  1x1 1x2 tma
128x256x64 s4  coop2  1x1 tma ws
256x128x64 s4  coop2  1x2 tma
64x128x64  s8  ping2  1x1 tma
128x64x64  s8  ping2  1x1 tma
64x192x64  s6  ping2  1x1 tma
128x128x64 s6  ping2  1x1 1x2 2x1 tma
128x144x64 s6  ping2  1x1 tma
128x160x64 s5  ping2  1x1 tma
128x192x64 s4  ping2  1x2 2x1 tma
128x192x64 s5  ping2  1x1 2x1 tma
128x256x64 s4  coop2  2x1 tma sk
128x128x64 s6  ping2  2x1 tma sk
128x192x64 s5  ping2  1x1 2x1 tma sk
32x64x128  s8  coop1  2x1 swap
32x64x128  s8  coop1  1x1 ws swap
64x64x64   s13 coop1  1x2 ws swap
96x64x64   s5  coop1  1x1 swap
96x64x128  s5  coop1  2x1 swap
64x128x64  s8  coop2  1x1 ws swap
96x128x64  s7  coop2  2x1 tma swap
192x64x64  s6  coop1  1x2 swap
176x128x64 s5  ping2  1x2 tma swap
192x128x64 s5  ping2  1x2 tma sk swap
"""

# Tile, stages, then warps along M x N, and those that split each BK. For Turing: elsewhere direct is faster.
_WMMA = """
16x32x64   s4 1x2k2
"""

# Tile (BK: what is in flight at once), then warps along M x N, and those that take turns along K.
_DIRECT = """
16x8x256   1x1k4
16x8x512   1x1k8
16x8x1024  1x1k16
16x16x128  1x1k2 1x1k4
16x16x256  1x1k4 1x1k8
16x16x512  1x1k8
16x16x1024 1x1k16
16x32x64   1x2k2
16x32x256  1x1k4
16x32x512  1x1k8
16x64x64   1x2k1 1x4k1
32x16x512  1x1k8
32x32x128  1x1k4
32x32x256  1x1k4 1x1k8
32x64x64   2x2k1
"""

# Tile, stages, warps, then options (KernelSpec's, as in a name): p0 no prefetch, stagger or
# spread copies, sk stream-K, any alignment.
_MULTISTAGE = """
16x64x64   s4 1x4k1
32x32x64   s4 1x2k2
64x64x32   s4 2x2k1 sk any
64x64x64   s3 2x2k1 stagger
64x64x64   s4 2x2k1 stagger sk
64x128x64  s3 2x2k1 sk
128x64x64  s3 2x2k1 sk
128x128x32 s5 2x2k1
128x128x32 s4 2x4k1 sk
160x128x32 s4 2x4k1
128x256x32 s4 2x4k1
256x128x32 s4 4x2k1
128x256x64 s3 2x4k1
256x128x64 s3 4x2k1
"""

# The same for f16acc16.
_HALF_ACCUMULATION = """
64x64x64   s4 2x2k1 stagger sk
128x128x32 s5 2x2k1
128x256x32 s4 2x4k1
"""


def _tile(text: str) -> tuple[int, int, int]:
    bm, bn, bk = (int(part) for part in text.split("x"))
    return bm, bn, bk


def _sm90() -> list[KernelSpec]:
    specs = []
    for line in _SM90.split("\n")[1:-1]:
        tile, stages, workers, *rest = line.split()
        options = [word for word in rest if word.isalpha()]
        for cluster in rest[: len(rest) - len(options)]:
            name = "_".join(["sm90_f16_tn", tile, stages, f"c{cluster}", workers, *options])
            specs.append(KernelSpec.parse(name))
    return specs


def _warps(text: str) -> dict[str, Any]:
    return dict(zip(("warps_m", "warps_n", "warps_k"), map(int, re.split("[xk]", text)), strict=True))


def _wmma() -> list[KernelSpec]:
    specs = []
    for line in _WMMA.split("\n")[1:-1]:
        tile, stages, warps = line.split()
        specs.append(KernelSpec("wmma", "f16", "tn", *_tile(tile), int(stages[1:]), **_warps(warps)))
    return specs


def _direct() -> list[KernelSpec]:
    lines = [line.split() for line in _DIRECT.split("\n")[1:-1]]
    return [KernelSpec("direct", "f16", "tn", *_tile(tile), **_warps(warps)) for tile, *all_ in lines for warps in all_]


def multistage(text: str, dtype: str = "f16", layout: str = "tn") -> KernelSpec:
    """The multistage kernel that a line describes: tile, stages, warps and options."""
    tile, stages, warps, *options = text.split()
    name = "_".join([f"multistage_{dtype}_{layout}_{tile}_{stages}_w{warps}", *options])
    return KernelSpec.parse(name)


def _multistage() -> list[KernelSpec]:
    return [multistage(line) for line in _MULTISTAGE.split("\n")[1:-1]]


def _fitted(spec: KernelSpec) -> KernelSpec:
    """`spec`, with fewer stages if they do not all fit: a narrow B takes more shared memory as nn than as tn."""
    while spec.smem_bytes > MAX_SMEM[spec.family] and spec.stages > 2:
        spec = replace(spec, stages=spec.stages - 1)
    return spec


@cache
def compiled() -> tuple[KernelSpec, ...]:
    """Every kernel of the library: the base set for each dtype and layout. Raises SpecError if one cannot compile."""
    base = [*_sm90(), *_multistage(), *_direct(), *_wmma()]
    specs = {_fitted(spec.variant(dtype, layout)): None for spec in base for dtype in DTYPES for layout in LAYOUTS}
    half = [multistage(line, "f16acc16") for line in _HALF_ACCUMULATION.split("\n")[1:-1]]
    specs.update((spec.variant(spec.dtype, layout), None) for spec in half for layout in LAYOUTS)
    for spec in specs:
        spec.validate()
    return tuple(specs)
