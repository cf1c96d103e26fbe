"""The search space: which kernels are compiled. KernelSpec's rules bound it; a measured sweep chooses from it."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

from cudal2.spec import DTYPES, LAYOUTS, MAX_SMEM, KernelSpec

# One line per tile: tile, stages, schedule and consumer warpgroups, then clusters MxN or MxNkSPLIT that share or split.
_SM90 = """
64x16x128  s8  coop1  1x1 1x1k2 1x1k4 1x1k8
64x32x64   s6  coop1  1x1 1x1k4
64x32x128  s6  coop1  1x1k2 1x1k4 1x1k8
64x48x64   s10 coop1  1x1
64x64x64   s6  coop1  1x1 1x1k2 1x1k4
64x64x64   s12 coop1  1x1 1x2
64x64x128  s6  coop1  1x1k2 1x1k4 1x1k8
64x96x64   s5  coop1  1x1
64x128x64  s4  coop1  1x1 2x1 1x1k4 1x1k8 2x1k4
64x128x64  s8  coop1  1x1 1x2 2x1 1x1k2 1x1k3 1x1k8 2x1k2
64x128x128 s4  coop1  1x1 1x1k2
64x256x64  s5  coop1  1x1 2x1
64x128x64  s8  ping2  1x1 2x1
64x192x64  s6  ping2  1x1 2x1
64x256x64  s5  ping2  1x1 2x1
128x64x64  s4  coop2  1x1 1x2 1x1k4
128x64x64  s8  coop2  1x1 1x2 1x1k2 1x1k3 1x1k8
128x64x128 s4  coop2  1x1 1x1k2
128x128x64 s6  coop2  1x1 2x1 1x2 1x1k2 1x1k3 2x1k3 1x2k3
128x192x64 s5  coop2  1x1 2x1 1x2
128x256x64 s4  coop2  1x1 2x1 1x2
128x64x64  s8  ping2  1x1 1x2
128x112x64 s6  ping2  1x1
128x128x64 s6  ping2  1x1 2x1 1x2
128x144x64 s6  ping2  1x1 2x1
128x160x64 s5  ping2  1x1 2x1
128x176x64 s5  ping2  1x1 2x1 1x2
128x192x64 s5  ping2  1x1 2x1 1x2
256x64x64  s5  coop2  1x1
256x128x64 s4  coop2  1x1 2x1 1x2
256x192x64 s3  coop2  1x1 1x2
192x64x64  s7  coop3  1x1 1x2
192x128x64 s5  coop3  1x1 1x2
192x192x64 s4  coop3  1x1
"""

# Tile, stages, then warps along M x N, and those that split each BK.
_WMMA = """
16x16x64   s4 1x1k2
16x16x128  s2 1x1k4
16x32x64   s4 1x2k2
16x64x64   s4 1x4k1
32x32x64   s2 2x2k1
32x32x64   s4 2x2k2
"""


def _tile(text: str) -> tuple[int, int, int]:
    bm, bn, bk = (int(part) for part in text.split("x"))
    return bm, bn, bk


def _cluster(text: str) -> tuple[int, int, int]:
    shared, _, split = text.partition("k")
    cluster_m, cluster_n = (int(part) for part in shared.split("x"))
    return cluster_m, cluster_n, int(split or 1)


def _sm90() -> list[KernelSpec]:
    specs = []
    for line in _SM90.split("\n")[1:-1]:
        tile, stages, workers, *clusters = line.split()
        schedule, consumers = workers[:-1], int(workers[-1])
        for cluster in clusters:
            shape = (*_tile(tile), int(stages[1:]), *_cluster(cluster))
            specs.append(KernelSpec("sm90", "f16", "tn", *shape, schedule=schedule, consumers=consumers))
    return specs


def _wmma() -> list[KernelSpec]:
    specs = []
    for line in _WMMA.split("\n")[1:-1]:
        tile, stages, warps = line.split()
        warps_m, warps_n, warps_k = (int(part) for part in re.split("[xk]", warps))
        specs.append(
            KernelSpec(
                "wmma", "f16", "tn", *_tile(tile), int(stages[1:]), warps_m=warps_m, warps_n=warps_n, warps_k=warps_k
            )
        )
    return specs


def _fitted(spec: KernelSpec) -> KernelSpec:
    """`spec`, with fewer stages if they do not all fit: a narrow B takes more shared memory as nn than as tn."""
    while spec.smem_bytes > MAX_SMEM[spec.family] and spec.stages > 2:
        spec = replace(spec, stages=spec.stages - 1)
    return spec


@cache
def compiled() -> tuple[KernelSpec, ...]:
    """Every kernel of the library: the base set for each dtype and layout. Raises SpecError if one cannot compile."""
    base = [*_sm90(), *_wmma()]
    specs = {_fitted(spec.variant(dtype, layout)): None for spec in base for dtype in DTYPES for layout in LAYOUTS}
    for spec in specs:
        spec.validate()
    return tuple(specs)
