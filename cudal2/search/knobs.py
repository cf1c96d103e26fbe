"""Which run-time knobs are worth trying for a kernel on a shape. `slots`: its CTAs that the device runs at once."""

from __future__ import annotations

import math
from dataclasses import replace

from cudal2.plans import Knobs
from cudal2.search import cost
from cudal2.shapes import Shape
from cudal2.spec import KernelSpec

SPLITS = (2, 3, 4, 6, 8, 16)
SM90_SPLITS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 16)
MOST_WAVES = 4
"""How many waves of CTAs a split may make."""
WORKSPACE_BYTES, WORKSPACE_COUNTERS = 32 << 20, 65536
"""Partial tiles and counters of a launch's workspace, as in csrc/runtime/workspace.h."""


def first(spec: KernelSpec, shape: Shape, slots: int) -> Knobs:
    """The knobs to try first."""
    tiles = math.prod(cost.tiles(spec, shape))
    if spec.schedule == "ping":  # pays only where a CTA has several tiles
        return Knobs(ctas=slots if tiles > slots else max(1, tiles // 2))
    if _can_persist(spec) and tiles > (1.0 if spec.streams_waves else 2.3) * slots:
        return Knobs(ctas=slots)
    if spec.workspace:
        return Knobs(split=cost.widest_split(spec, shape, slots))
    # One wave, if tiles alone make less than one and each CTA still has a few blocks to work on.
    blocks = math.ceil(shape.k / spec.bk)
    return Knobs(split=max((1, *(s for s in _splits(spec, shape, slots) if tiles * s <= slots and 2 * s <= blocks))))


def variants(spec: KernelSpec, shape: Shape, slots: int, knobs: Knobs) -> list[Knobs]:
    """`knobs` with one thing changed at a time, except the order, which is two knobs."""
    along_m, along_n = cost.tiles(spec, shape)
    changed: list[Knobs] = []
    if _can_persist(spec) and (along_m * along_n > slots or spec.schedule == "ping"):
        changed.append(replace(knobs, ctas=0 if knobs.ctas else slots))
    if spec.splits_tiles:
        shared = [replace(knobs, ctas=0, split=split) for split in (1, *_splits(spec, shape, slots))]
        if spec.stream_k and _fits(spec, shape, slots) and along_m * along_n * math.ceil(shape.k / spec.bk) > slots:
            shared.append(replace(knobs, ctas=slots, split=1))
        changed += [other for other in shared if other != knobs]
    if along_m > 1 and along_n > 1 and spec.family != "direct":
        groups = [group for group in (1, 4, 16) if group != knobs.group]
        changed.append(replace(knobs, raster=1 - knobs.raster))
        changed += [replace(knobs, group=group, raster=raster) for group in groups for raster in (0, 1)]
    return changed


def _splits(spec: KernelSpec, shape: Shape, slots: int) -> list[int]:
    """How many CTAs may share the K of each tile, above 1."""
    if not spec.splits_tiles:
        return []
    tiles, blocks = math.prod(cost.tiles(spec, shape)), math.ceil(shape.k / spec.bk)
    choices, waves = (SM90_SPLITS, 1) if spec.family == "sm90" else (SPLITS, MOST_WAVES)  # sm90's wait for each other
    return [
        split
        for split in choices
        if tiles * split <= waves * slots and split <= blocks and _fits(spec, shape, tiles * split)
    ]


def grid(spec: KernelSpec, shape: Shape, ctas: int) -> int:
    """The CTAs that a persistent grid of at most `ctas` has: whole clusters, at least one, no more than tiles."""
    return min(math.prod(cost.tiles(spec, shape)), max(1, ctas // spec.cluster_size) * spec.cluster_size)


def streams(spec: KernelSpec, shape: Shape, ctas: int) -> bool:
    """Whether such a grid has tiles to stream: an sm90 kernel with stream-K, and tiles that do not make whole waves."""
    return spec.streams_waves and ctas > 0 and math.prod(cost.tiles(spec, shape)) % grid(spec, shape, ctas) > 0


def most_sharing(spec: KernelSpec) -> int:
    """How many CTAs that share tiles find room in the workspace, for their fp32 partial tiles."""
    return WORKSPACE_BYTES // (spec.partials * spec.bm * spec.bn * 4)


def _fits(spec: KernelSpec, shape: Shape, ctas: int) -> bool:
    return ctas <= most_sharing(spec) and math.prod(cost.tiles(spec, shape)) <= WORKSPACE_COUNTERS


def _can_persist(spec: KernelSpec) -> bool:
    return spec.family == "sm90" and spec.split == 1
