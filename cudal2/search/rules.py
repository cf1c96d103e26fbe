"""Plan tables for GPUs that nobody measured, from the cost model: `# source: rules`, and no times.

``python -m cudal2.search.rules`` rewrites the tables of all CARDS; ``--check`` only says whether they are up to date.
Each problem of the grid gets the kernel with the least predicted time among those that fit the card, and the knobs that
a search would try first. The model says which of our kernels is best, not whether it beats cuBLAS: dispatch runs ours
only where launch and latency decide, as they do on the H200 (OWN_PRODUCTS), and cuBLAS otherwise.
"""

from __future__ import annotations

import argparse
import itertools
import math
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from cudal2 import plans
from cudal2.plans import Key, Knobs, Plan, Table
from cudal2.search import cost, knobs, space
from cudal2.search.cost import Machine
from cudal2.shapes import Shape, grid
from cudal2.spec import DTYPES, LAYOUTS, KernelSpec

ROOT = Path(__file__).resolve().parents[2] / "generated_kernels" / "plans"

OWN_PRODUCTS = 1 << 24
"""The largest M*N*K that dispatch would give to these cards' kernels on the H200: there they are 1.32 times as fast as
cuBLASLt-AutoTuning at 2^22, 1.18 at 2^24, 1.04 at 2^25 and 0.90 at 2^26 (benchmarks/results/h200/README.md): launch and
latency, which all cards have in common. On a slower card arithmetic counts sooner: see `own_products`."""

ACC16_GAIN = 1.2
"""How many times faster than fp32 accumulation a f16acc16 plan must be predicted, for what it costs in accuracy."""


@dataclass(frozen=True)
class Card:
    """A GPU that gets a table of rules: `gpu` is its name as the driver gives it, `cta_smem` the bytes of shared memory
    that a CTA may use, `acc16` how many times faster its tensor cores are with fp16 accumulation."""

    file: str
    gpu: str
    arch: str
    machine: Machine
    cta_smem: int
    acc16: float = 1.0

    @property
    def header(self) -> dict[str, str]:
        return {"gpu": self.gpu, "arch": self.arch, "sms": str(self.machine.sms), "source": "rules"}


def _machine(sms: int, smem_kb: int, threads: int, tflops: float, gbytes: float, l2_mb: int, l2_rate: float) -> Machine:
    """From data sheets: `tflops` dense fp16 with fp32 accumulation, `gbytes` GB/s of memory, of which copies reach 0.9.

    `l2_rate`, bytes per ns and SM, is an estimate: the H200's by the ratio of clocks, less where many SMs share a
    narrower L2. Latency and launch are taken to be the H200's.
    """
    return replace(
        cost.H200,
        sms=sms,
        sm_smem=smem_kb << 10,
        sm_threads=threads,
        mma_flops=1e3 * tflops / sms,
        l2_bytes=l2_rate,
        hbm_bytes=0.9 * gbytes,
        l2_size=l2_mb << 20,
    )


A100 = _machine(sms=108, smem_kb=164, threads=2048, tflops=312, gbytes=2039, l2_mb=40, l2_rate=48)
RTX3090 = _machine(sms=82, smem_kb=100, threads=1536, tflops=71, gbytes=936, l2_mb=6, l2_rate=30)
RTX4090 = _machine(sms=128, smem_kb=100, threads=1536, tflops=165, gbytes=1008, l2_mb=72, l2_rate=40)

# Other GPUs of a compute capability take the table with the nearest number of SMs (csrc/runtime/plan_table.cpp): every
# A100 the first, A10, A40 and RTX A6000 the second, L4 and L40S the third.
CARDS = (
    Card("a100.csv", "NVIDIA A100-SXM4-80GB", "8.0", A100, cta_smem=163 << 10),
    Card("rtx3090.csv", "NVIDIA GeForce RTX 3090", "8.6", RTX3090, cta_smem=99 << 10, acc16=2.0),
    Card("rtx4090.csv", "NVIDIA GeForce RTX 4090", "8.9", RTX4090, cta_smem=99 << 10, acc16=2.0),
)


def machine(table: Table) -> Machine:
    """What the cost model knows of a table's GPU; of one that is not in CARDS, its number of SMs."""
    return next((card.machine for card in CARDS if card.gpu == table.gpu), Machine(sms=table.sms))


def fits(spec: KernelSpec, card: Card) -> bool:
    """Whether the card can run the kernel: all families but sm90 run from compute capability 8.0 on."""
    return spec.family != "sm90" and spec.smem_bytes <= card.cta_smem


def own_products(card: Card) -> int:
    """The largest M*N*K that dispatch gives to our kernels: OWN_PRODUCTS by tensor rate, to the nearest power of 2."""
    share = card.machine.sms * card.machine.mma_flops / (cost.H200.sms * cost.H200.mma_flops)
    return min(OWN_PRODUCTS, 1 << round(math.log2(OWN_PRODUCTS * share)))


def build(card: Card) -> Table:
    """The card's table: the grid in f16 and bf16, and f16acc16 where the card gains by it."""
    table = Table(card.header, {})
    limit = own_products(card)
    faster = replace(card.machine, mma_flops=card.acc16 * card.machine.mma_flops)
    for layout, shape in itertools.product(LAYOUTS, grid()):
        us, spec, first = _best(_able(card, "f16", layout), shape, card.machine)
        use = "own" if shape.m * shape.n * shape.k <= limit else "cublas"
        for dtype in DTYPES:  # one rate, and the same kernels for both
            _add(table, spec.variant(dtype, layout), shape, first, use)
        if card.acc16 > 1:
            acc16_us, spec, first = _best(_able(card, "f16acc16", layout), shape, faster)
            if us > ACC16_GAIN * acc16_us:  # own, whatever cuBLAS does: torch has no such product
                _add(table, spec, shape, first, "own")
    return table


@cache
def _able(card: Card, dtype: str, layout: str) -> list[KernelSpec]:
    return [spec for spec in space.compiled() if (spec.dtype, spec.layout) == (dtype, layout) and fits(spec, card)]


def _best(specs: list[KernelSpec], shape: Shape, machine: Machine) -> tuple[float, KernelSpec, Knobs]:
    """The kernel with the least predicted µs, and its first knobs."""
    candidates = []
    for spec in specs:
        slots = cost.usable_sms(spec, machine) * cost.ctas_per_sm(spec, machine)
        if spec.family == "direct" and math.prod(cost.tiles(spec, shape)) > slots:
            continue  # on a small L2 the model is too kind to small tiles: trusted for one wave only
        first = knobs.first(spec, shape, slots)
        # To the model a split through the workspace is like one of a cluster.
        us = cost.predict_us(replace(spec, split=first.split) if first.split > 1 else spec, shape, machine)
        candidates.append((us, spec, first))
    # Where the model sees no difference, the smaller one: no threads or registers for a K that is not there.
    return min(candidates, key=lambda one: (one[0], one[1].threads, one[1].bk, one[1].name))


def _add(table: Table, spec: KernelSpec, shape: Shape, first: Knobs, use: str) -> None:
    key = Key(spec.dtype, spec.layout, *shape)
    table.plans[key] = Plan(key, spec.name, first, us=None, torch_us=None, use=use)


def stale(root: Path = ROOT) -> list[str]:
    """Names of the tables under `root` that differ from what `build` makes, missing ones included."""
    return list(_changed(root))


def write(root: Path = ROOT) -> list[str]:
    """Bring the tables under `root` up to date and return the names of those that changed."""
    changed = _changed(root)
    for name, text in changed.items():
        plans.replace_file(root / name, text)
    return list(changed)


def _changed(root: Path) -> dict[str, str]:
    """File name -> text of the tables that are not yet so under `root`."""
    texts = _texts().items()
    return {name: text for name, text in texts if not (root / name).is_file() or (root / name).read_text() != text}


def _texts() -> dict[str, str]:
    return {card.file: plans.render(build(card)) for card in CARDS}


def main(argv: list[str] | None = None) -> int:
    """Write or check. Returns 1 if --check finds a table out of date."""
    parser = argparse.ArgumentParser(prog="python -m cudal2.search.rules", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if any table is out of date")
    options = parser.parse_args(argv)
    changed = stale() if options.check else write()
    for name in changed:
        print(f"{'out of date' if options.check else 'written'}: generated_kernels/plans/{name}")
    return 1 if options.check and changed else 0


if __name__ == "__main__":
    raise SystemExit(main())
