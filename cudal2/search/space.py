"""The search space: which kernels are compiled. KernelSpec's validity rules prune it; a measured sweep chooses from it."""

from __future__ import annotations

from functools import cache

from cudal2.spec import DTYPES, LAYOUTS, KernelSpec


def _sm90(
    tile: str, stages: int, clusters: str, schedule: str = "coop", consumers: int = 2, splits: tuple[int, ...] = (1,)
) -> list[KernelSpec]:
    bm, bn, bk = (int(x) for x in tile.split("x"))
    specs = []
    for cluster in clusters.split():
        cluster_m, cluster_n = (int(x) for x in cluster.split("x"))
        for split in splits:
            specs.append(
                KernelSpec("sm90", "f16", "tn", bm, bn, bk, stages, cluster_m, cluster_n, split, schedule, consumers)
            )
    return specs


def _base() -> list[KernelSpec]:
    return [
        *_sm90("128x256x64", 4, "1x1 2x1"),
        *_sm90("128x128x64", 6, "1x1 2x1", "ping"),
        *_sm90("128x160x64", 5, "2x1", "ping"),
        *_sm90("64x64x64", 8, "1x1", consumers=1, splits=(1, 4)),
        *_sm90("128x128x64", 5, "1x1 2x1", splits=(1, 2)),
        *_sm90("128x176x64", 4, "1x1", "ping"),
        *_sm90("128x192x64", 4, "1x1", "ping"),
        *_sm90("192x192x64", 4, "1x1", consumers=3),
        *_sm90("256x192x64", 3, "1x1", consumers=2),
        *_sm90("64x256x64", 4, "1x1", consumers=1),
        *_sm90("64x16x128", 6, "1x1", consumers=1, splits=(1,)),
        KernelSpec("wmma", "f16", "tn", 32, 32, 64, 4, warps_m=2, warps_n=2),
        KernelSpec("wmma", "f16", "tn", 64, 64, 64, 3, warps_m=2, warps_n=2, warps_k=2),
    ]


@cache
def compiled() -> tuple[KernelSpec, ...]:
    """Every kernel of the library: the base set for each dtype and layout."""
    specs = (spec.variant(dtype, layout) for spec in _base() for dtype in DTYPES for layout in LAYOUTS)
    return tuple(spec for spec in specs if _valid(spec))


def _valid(spec: KernelSpec) -> bool:
    spec.validate()
    return True
