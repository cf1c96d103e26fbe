"""A rough time for a kernel on a shape, only to choose which kernels are worth timing.

The model: CTAs run in waves over the SMs; a wave takes as long as its slowest resource (tensor cores, L2 to shared
memory, loads in flight); HBM bounds the whole. Constants are an H200's, seen in measurements. It is wrong by tens of
percent, so `shortlist` keeps the best of every kind of kernel beside the best in all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from cudal2.shapes import Shape
from cudal2.spec import KernelSpec


@dataclass(frozen=True)
class Machine:
    """What the model knows of a GPU. Rates in work per ns: of an SM's tensor cores by wgmma (`flops`) and by mma.sync
    (`mma_flops`), of its loads from L2, and of the whole memory."""

    sms: int = 132
    sm_smem: int = 228 * 1024
    sm_threads: int = 2048
    flops: float = 6100.0
    mma_flops: float = 4880.0
    l2_bytes: float = 100.0
    hbm_bytes: float = 4300.0
    l2_size: int = 50 << 20
    latency_ns: float = 900.0
    launch_us: float = 1.9


H200 = Machine()

MOST_PARTS = 16
"""CTAs that can share a tile of an sm90 kernel through the workspace, as in csrc/kernels/params.h."""

SPREAD = 3.0
"""How many times the best prediction a kernel worth timing may take: the model is wrong by less than this."""


def ctas_per_sm(spec: KernelSpec, machine: Machine = H200) -> int:
    """CTAs that fit one SM, by shared memory, threads and accumulators."""
    by_smem = machine.sm_smem // (spec.smem_bytes + 1024)
    by_threads = machine.sm_threads // spec.threads
    by_registers = 65536 // (spec.threads * min(255, spec.accumulator_registers + 48))
    return max(1, min(by_smem, by_threads, by_registers))


def tiles(spec: KernelSpec, shape: Shape) -> tuple[int, int]:
    """Tiles of C along M and along N, rounded up to whole clusters."""
    along_m = math.ceil(math.ceil(shape.m / spec.bm) / spec.cluster_m) * spec.cluster_m
    along_n = math.ceil(math.ceil(shape.n / spec.bn) / spec.cluster_n) * spec.cluster_n
    return along_m, along_n


def usable_sms(spec: KernelSpec, machine: Machine = H200) -> int:
    """SMs that clusters of this size can fill: GPCs hold 16 or 18 of them, so clusters of 8 leave some idle."""
    size = spec.cluster_size
    if size <= 2:
        return machine.sms
    return machine.sms * 120 // 132 if size >= 8 else machine.sms * 128 // 132


def waves(spec: KernelSpec, shape: Shape, machine: Machine = H200) -> float:
    """CTAs over the CTAs that run at once; the last wave is full where this is whole."""
    along_m, along_n = tiles(spec, shape)
    return along_m * along_n * spec.split / (usable_sms(spec, machine) * ctas_per_sm(spec, machine))


def predict_us(spec: KernelSpec, shape: Shape, machine: Machine = H200) -> float:
    """Predicted device time in µs of one launch, with the better of no split and the widest that fills the device."""
    if spec.family == "direct":
        return _predict_direct_us(spec, shape, machine)
    widest = widest_split(spec, shape, machine.sms * ctas_per_sm(spec, machine)) if spec.workspace else 1
    return min(_predict_split_us(spec, shape, split, machine) for split in {1, widest})


def widest_split(spec: KernelSpec, shape: Shape, slots: int) -> int:
    """Into how many parts a tile's K can be shared through the workspace so that all CTAs run at once, each with at
    least two blocks. `slots`: CTAs that the device runs at once."""
    return max(1, min(slots // math.prod(tiles(spec, shape)), math.ceil(shape.k / spec.bk) // 2, MOST_PARTS))


def _predict_split_us(spec: KernelSpec, shape: Shape, shared: int, machine: Machine) -> float:
    """With `shared` clusters to a tile."""
    along_m, along_n = tiles(spec, shape)
    ctas = along_m * along_n * spec.split * shared
    sms = usable_sms(spec, machine)
    together = min(ctas_per_sm(spec, machine), max(1, math.ceil(ctas / sms)))  # CTAs sharing an SM
    rounds = ctas / (sms * together)
    if rounds <= 1 or not spec.streams_waves:  # whose CTAs have equal shares
        rounds = math.ceil(rounds)
    steps = math.ceil(math.ceil(shape.k / spec.bk) / (spec.split * shared))

    rate = (machine.flops if spec.family == "sm90" else machine.mma_flops) * _tensor_efficiency(spec)
    flops_ns = together * steps * 2 * spec.bm * spec.bn * spec.bk / rate
    stage_bytes = 2 * spec.bk * (spec.bm + spec.bn)
    shared_bytes = 2 * spec.bk * (spec.bm / spec.cluster_n + spec.bn / spec.cluster_m)  # multicast reads L2 once
    rate = min(machine.l2_bytes, together * spec.stages * stage_bytes / machine.latency_ns)
    loads_ns = together * steps * max(shared_bytes, 0.6 * stage_bytes) / rate
    step_ns = steps * (25.0 if spec.family == "sm90" else 60.0)  # barriers
    reduce_ns = 0.0
    if spec.split > 1:
        reduce_ns = 500 + together * 4 * spec.bm * spec.bn * (spec.split - 1) / spec.split / 30.0
    if shared > 1:
        reduce_ns = 2500 + together * 8 * spec.bm * spec.bn / 60.0
    epilogue_ns = together * 2 * spec.bm * spec.bn / 25.0
    wave_ns = max(flops_ns, loads_ns, step_ns) + reduce_ns
    if spec.schedule == "ping" and rounds > 1:  # one tile's epilogue under the next one's products
        all_ns = machine.latency_ns + rounds * max(wave_ns, epilogue_ns) + epilogue_ns
    elif rounds > 2 and spec.family == "sm90" and spec.split * shared == 1:  # persistent: loads run ahead
        all_ns = machine.latency_ns + rounds * (wave_ns + epilogue_ns * (0.6 if spec.tma_store else 1.0))
    else:
        all_ns = rounds * (machine.latency_ns + wave_ns + epilogue_ns)

    return machine.launch_us + max(all_ns / 1000, hbm_us(shape, machine))


def hbm_us(shape: Shape, machine: Machine = H200) -> float:
    """µs that the product's traffic with memory takes; operands that L2 holds stay there."""
    traffic = shape.bytes if shape.bytes > machine.l2_size else 2 * shape.m * shape.n
    return traffic / machine.hbm_bytes / 1000


def _predict_direct_us(spec: KernelSpec, shape: Shape, machine: Machine) -> float:
    """A direct kernel has a shorter way to its first product, and takes K in passes of BK at an L2 latency each."""
    along_m, along_n = tiles(spec, shape)
    ctas = along_m * along_n
    together = min(ctas_per_sm(spec, machine), max(1, math.ceil(ctas / machine.sms)))
    rounds = math.ceil(ctas / (machine.sms * together))
    columns = spec.bn // spec.warps_n // 8
    narrow = 1.0 if spec.layout == "tn" else {1: 0.4, 2: 0.55, 4: 0.7, 8: 0.8}[columns]  # nn's loads of B
    bytes_ns = together * 2 * shape.k * (spec.bm * spec.warps_n + spec.bn * spec.warps_m / narrow) / machine.l2_bytes
    latency_ns = 0.4 * machine.latency_ns * math.ceil(shape.k / spec.bk)
    wave_ns = max(bytes_ns, latency_ns) + (150 if spec.warps_k > 1 else 0) + together * spec.bm * spec.bn / 25.0
    flops_ns = together * 2 * spec.bm * spec.bn * shape.k / (machine.mma_flops * _tensor_efficiency(spec))
    wave_ns = max(wave_ns, flops_ns)
    hbm_ns = (shape.bytes if shape.bytes > machine.l2_size else 0) / machine.hbm_bytes
    return machine.launch_us - 0.9 + max(rounds * wave_ns, hbm_ns) / 1000


def _tensor_efficiency(spec: KernelSpec) -> float:
    """Share of the tensor cores' rate that a tile can reach: a narrow one is bound by shared-memory reads, and what
    operands a tile loads for each product costs power, and so clock."""
    if spec.family != "sm90":
        warp_m, warp_n = spec.bm / spec.warps_m, spec.bn / spec.warps_n
        reads = warp_m * warp_n / (warp_m + warp_n) / 32.0  # products per element that a warp reads; 1 for 64 x 64
        return 0.68 * min(1.0, 0.35 + 0.65 * reads) * (0.7 if spec.family == "wmma" else 1.0)
    narrow = min(1.0, (spec.accumulator_columns / 2) / (16 + spec.accumulator_columns / 4))
    single = 0.8 if spec.consumers == 1 else 1.0
    loads = 128 * (1 / spec.bm + 1 / spec.bn)  # 1.5 for 128 x 256
    return narrow * single * (1.0 - 0.125 * max(0.0, loads - 1.5))


def shortlist(specs: Iterable[KernelSpec], shape: Shape, keep: int = 28, machine: Machine = H200) -> list[KernelSpec]:
    """At most `keep` specs worth timing, best prediction first.

    Two thirds by prediction alone; the rest the best of each kind (family, split, cluster, tile area, narrow or wide)
    that is not yet among them, so that an error of the model does not lose a whole kind. None that the model takes for
    more than SPREAD times as slow as its best.
    """
    times = {spec: predict_us(spec, shape, machine) for spec in specs}
    limit = SPREAD * min(times.values(), default=0.0)
    ranked = sorted((spec for spec, us in times.items() if us <= limit), key=lambda spec: (times[spec], spec.name))
    chosen = dict.fromkeys(ranked[: (keep * 2 + 2) // 3])
    kinds = {_kind(spec) for spec in chosen}
    for spec in ranked:
        if len(chosen) >= keep:
            break
        if _kind(spec) not in kinds:
            kinds.add(_kind(spec))
            chosen[spec] = None
    for spec in ranked:
        if len(chosen) >= keep:
            break
        chosen[spec] = None
    return sorted(chosen, key=ranked.index)


def _kind(spec: KernelSpec) -> tuple[object, ...]:
    area = (spec.bm * spec.bn).bit_length()
    return spec.family, spec.split, spec.cluster_m * spec.cluster_n > 1, area, spec.bm > spec.bn, spec.schedule
