"""`cudal2 explain M N K`: the plan of a shape, its kernel, why that one, and the time to expect. Needs no GPU."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import Any

import torch

import cudal2
from cudal2 import plans, tools
from cudal2.plans import Key, Plan, Table
from cudal2.search import cost, rules
from cudal2.search.knobs import grid, streams
from cudal2.shapes import Shape
from cudal2.spec import ALL_DTYPES, LAYOUTS, KernelSpec

DEFAULT_GPU = "h200"
PEAK_TFLOPS, PEAK_TBYTES = 800.0, 4.3
"""An H200's half-precision rate on random data and its copy bandwidth, as measured: the roofline of the reports."""


MOST = 2**31 - 1
"""The largest M, N or K: kernels count in 32 bits."""
EVERYTHING = "every product goes to cuBLAS"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `cudal2 explain`."""
    for name in "mnk":
        parser.add_argument(name, type=int, metavar=name.upper())
    parser.add_argument("--dtype", default="f16", choices=ALL_DTYPES)
    parser.add_argument(
        "--layout", default="tn", choices=LAYOUTS, help="nn: B row-major; tn (default): as in nn.Linear"
    )
    parser.add_argument("--gpu", help=f"whose plan table; default: the GPU here, or {DEFAULT_GPU} where there is none")


def run(options: argparse.Namespace) -> int:
    """Print the explanation. Returns 0; raises PlanError where --gpu has no table, or there is none without a GPU."""
    if not all(1 <= size <= MOST for size in (options.m, options.n, options.k)):
        raise ValueError(f"M,N,K = {options.m},{options.n},{options.k}; expected positive integers below 2^31")
    key = Key(options.dtype, options.layout, options.m, options.n, options.k)
    module = tools.load()
    if options.gpu is None and torch.cuda.is_available() and module is not None:
        found = _here(key, module.device_status(torch.cuda.current_device()))
    else:
        gpu = options.gpu or (torch.cuda.get_device_name() if torch.cuda.is_available() else DEFAULT_GPU)
        path, table = plans.for_gpu(gpu)
        found = lines(table, key, str(path))
    print("\n".join(found))
    return 0


def _here(key: Key, status: dict[str, Any]) -> list[str]:
    """For the GPU here, by the table that the runtime has chosen for it (csrc/runtime/plan_table.cpp)."""
    if not status["table"]:
        why = (
            f"none for the architecture of {status['gpu']}" if status["gpu"] else "none used: no kernels in this build"
        )
        return [_problem(key), f"table     {why}: {EVERYTHING}"]
    if not status["plans"]:
        why = f"none of the kernels of {status['table']} run on {status['gpu']} with this build"
        return [_problem(key), f"table     {why}: {EVERYTHING}"]
    table = plans.read(status["table"])
    notes = []
    if not status["tuned"] and not status["rules"]:
        notes.append(f"          UNTUNED for {status['gpu']}: times are those of {table.gpu}, the nearest GPU measured")
    return lines(table, key, status["table"], notes)


def lines(table: Table, key: Key, source: str, notes: Sequence[str] = ()) -> list[str]:
    """What `cudal2 explain` prints for a key; `notes` follow the line on the table."""
    origin = ", ".join(part for part in (table.gpu, table.header.get("date"), source) if part)
    if table.rules:
        notes = [f"          {plans.RULES}", *notes]
    head = [_problem(key, roofline=not table.rules), f"table     {origin}", *notes]
    plan = table.plans.get(key)
    if plan is None:
        return head + _without_plan(table, key)
    found = head + _plan(plan) + _why(plan, rules.machine(table))
    return found if table.rules else found + _measured(plan) + _expected(plan)


def _problem(key: Key, roofline: bool = True) -> str:
    """`roofline`: with the H200's, in µs."""
    shape = key.shape
    size = f"{shape.flops / 1e9:.3g} GFLOP, {shape.bytes / 1e6:.3g} MB"
    limit = f", roofline {roofline_us(shape):.2f} µs" if roofline else ""
    return f"problem   {shape.m} x {shape.n} x {shape.k} {key.dtype} {key.layout}: {size}{limit}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def roofline_us(shape: Shape) -> float:
    """The least time an H200 could take: arithmetic or memory traffic, whichever is longer."""
    return max(shape.flops / PEAK_TFLOPS / 1e6, shape.bytes / PEAK_TBYTES / 1e6)


def _without_plan(table: Table, key: Key) -> list[str]:
    runs = "cudal2.matmul runs torch.matmul (cuBLAS)"
    if key.dtype == "f16acc16":
        runs = 'accumulate="fp16" runs what f16 has, with fp32 accumulation'
    found = [f"plan      none for this shape: {runs}"]
    near = table.nearest(key)
    if near is not None:
        found.append(f"nearest   {near.key.shape.m} x {near.key.shape.n} x {near.key.shape.k}: {near.kernel}")
    return found


def _plan(plan: Plan) -> list[str]:
    faster = "cuBLAS, which measured faster here" if plan.us is not None else "cuBLAS, by the rules"
    runs = "this kernel" if plan.use == "own" else faster
    found = [f"plan      {plan.kernel}, {plan.knobs}", f"dispatch  runs {runs}"]
    if plan.use == "own":
        found.append(f"pdl       {_pdl(plan)}")
    return [*found, f"kernel    {describe(plan.spec)}"]


def _pdl(plan: Plan) -> str:
    """Whether dispatch launches the plan with programmatic dependent launch, and why."""
    switch = "on" if cudal2.pdl_enabled() else "off"
    if not plan.knobs.pdl:
        return f"not used (the switch is {switch}): no measurement says that this kernel gains from it"
    used = "used" if switch == "on" else "not used"
    return f"{used}, since the switch is {switch}: back to back, this kernel gains from it"


def describe(spec: KernelSpec) -> str:
    """A kernel's compile-time knobs in words."""
    parts = [f"tile {spec.bm} x {spec.bn} x {spec.bk}", f"{spec.stages} stages"]
    if spec.family == "sm90":
        schedule = "pingpong" if spec.schedule == "ping" else "cooperative"
        parts = ["TMA + WGMMA", *parts, f"{schedule}, {_count(spec.consumers, 'consumer warpgroup')}"]
        if spec.cluster_m * spec.cluster_n > 1:
            parts.append(f"{spec.cluster_m} x {spec.cluster_n} CTAs share loads")
        if spec.split > 1:
            parts.append(f"K split over {spec.split} CTAs of the cluster")
        if spec.workspace:
            parts.append("K can be split through a workspace")
        if spec.stream_k:
            parts.append("stream-K for what does not make whole waves")
        if spec.swap:
            parts.append("operands swapped")
        if spec.tma_store:
            parts.append("TMA stores")
    else:
        ways = {
            "wmma": "cp.async + wmma",
            "multistage": "cp.async + ldmatrix + mma.sync",
            "direct": "global memory to mma.sync",
        }
        if spec.family == "direct":  # has no pipeline
            parts.pop()
        parts = [ways[spec.family], *parts, f"{spec.warps_m} x {spec.warps_n} warps"]
        if spec.warps_k > 1:
            parts.append(f"{spec.warps_k} of them along K")
    return ", ".join([*parts, f"{spec.threads} threads", f"{spec.smem_bytes / 1024:.0f} KB shared memory"])


def _why(plan: Plan, machine: cost.Machine) -> list[str]:
    spec, sms = plan.spec, machine.sms
    along_m, along_n = cost.tiles(spec, plan.key.shape)
    knobs = plan.knobs
    shared = spec.split * knobs.split
    shared_by_all = spec.stream_k and knobs.ctas > 0 and not spec.streams_waves
    persistent = grid(spec, plan.key.shape, knobs.ctas)
    streamed = streams(spec, plan.key.shape, knobs.ctas)
    ctas = knobs.ctas if shared_by_all else along_m * along_n * shared
    together = cost.ctas_per_sm(spec, machine)
    slots = cost.usable_sms(spec, machine) * together
    waves = ctas / slots
    fill = waves / math.ceil(waves)
    split = f" x {shared} (split)" if shared > 1 else ""
    launched = f"{along_m} x {along_n} tiles{split} = {_count(ctas, 'CTA')}"
    if shared_by_all:
        launched = f"{along_m} x {along_n} tiles shared by {_count(ctas, 'CTA')} (stream-K)"
    if streamed:
        each = f"{ctas / persistent:.2f} for each of {_count(persistent, 'CTA')} (stream-K)"
        found = [f"why       {along_m} x {along_n} tiles: {each}"]
    elif ctas < sms:
        found = [f"why       {launched}: one wave, on {ctas} of {sms} SMs"]
    else:
        found = [
            f"why       {launched}, {together} to an SM: {waves:.2f} waves over {sms} SMs, {100 * fill:.0f} % filled"
        ]
    if knobs.ctas and spec.family == "sm90" and spec.split == 1 and not streamed:
        found.append(f"          persistent: {_count(persistent, 'CTA')} over the tiles")
    if along_m * along_n > 1 and knobs.group > 1 and spec.family != "direct":
        found.append(f"          tiles run in groups of {knobs.group} along {'MN'[knobs.raster]}, to share L2")
    return found


def _measured(plan: Plan) -> list[str]:
    us, torch_us = plan.measured
    found = [f"measured  {us:.2f} µs, torch.matmul {torch_us:.2f} µs ({plan.speedup:.3f}x)"]
    if plan.lt_us is not None:
        found.append(f"          cuBLASLt-AutoTuning {plan.lt_us:.2f} µs ({plan.lt_us / us:.3f}x)")
    return found


def _expected(plan: Plan) -> list[str]:
    us, shape = plan.measured[plan.use != "own"], plan.key.shape
    rates = f"{shape.flops / us / 1e6:.1f} TFLOP/s, {shape.bytes / us / 1e3:.0f} GB/s"
    part = 100 * roofline_us(shape) / us
    note = " (of memory; the operands stayed in L2)" if part > 100 else ""
    return [f"expected  {us:.2f} µs, {rates}, {part:.0f} % of the roofline{note}"]
