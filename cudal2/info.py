"""`cudal2 info`: the version, what was compiled, which plan table each GPU uses, and whether PDL is on."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

import torch

import cudal2
from cudal2 import plans, tools


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`cudal2 info` has no options."""


def run(options: argparse.Namespace) -> int:
    """Print it. Returns 0; raises ValueError where CUDAL2_PDL is neither 0 nor 1."""
    for line in lines():
        print(line)
    return 0


def lines() -> list[str]:
    """What `cudal2 info` prints."""
    head = [f"cudal2   {cudal2.__version__}", f"torch    {torch.__version__}"]
    return [*head, *_build(), *_tables(), _pdl(), *_devices()]


def _build() -> list[str]:
    module = tools.load()
    if module is None:
        return ["build    unknown: the tooling module is not built for this Python; matmul and linear work without it"]
    kernels = module.kernels()
    if not kernels:
        return [f"build    {module.build_info()}: no kernels of our own, every product goes to torch"]
    families = Counter((kernel["family"], kernel["dtype"], kernel["layout"]) for kernel in kernels)
    counts = [f"         {' '.join(family):14} {count}" for family, count in sorted(families.items())]
    return [f"build    {module.build_info()}", f"kernels  {len(kernels)}", *counts]


def _tables() -> list[str]:
    files = sorted(plans.directory().glob("*.csv"))
    if not files:
        return [f"plans    none in {plans.directory()}"]
    return [f"plans    {file.name}: {_table(plans.read(file))}" for file in files]


def _table(table: plans.Table) -> str:
    module = tools.load()
    planned = f"{table.gpu}, {len(table.plans)} shapes"
    if module is not None and not _has_code(module, table):
        return f"{planned}, none of the table's kernels are in this build"
    own = sum(plan.use == "own" for plan in table.plans.values())
    gaining = sum(plan.use == "own" and plan.knobs.pdl for plan in table.plans.values())
    pdl = f", {gaining} of them gain from PDL" if gaining else ""
    source = f", {plans.RULES}" if table.rules else ""
    return f"{planned}, own kernel used on {own}{pdl}{source}"


def _has_code(module: Any, table: plans.Table) -> bool:
    """Whether this build has a kernel of the table, and code that runs on the table's architecture."""
    planned = {plan.kernel for plan in table.plans.values()}
    arch = round(10 * float(table.header.get("arch", "0")))
    return module.compiled_for(arch) and any(kernel["name"] in planned for kernel in module.kernels())


def _pdl() -> str:
    if cudal2.pdl_enabled():
        return "pdl      on: plans that gain from programmatic dependent launch use it"
    return "pdl      off: no product launches with programmatic dependent launch (CUDAL2_PDL=1 or cudal2.pdl(True) do)"


def _devices() -> list[str]:
    if not torch.cuda.is_available():
        return ["devices  no GPU that this torch can use: every product goes to torch on the CPU"]
    return [_device(index) for index in range(torch.cuda.device_count())]


def _device(index: int) -> str:
    module = tools.load()
    name = torch.cuda.get_device_name(index)
    if module is None:
        return f"cuda:{index}   {name}"
    status = module.device_status(index)
    if not status["table"]:
        return f"cuda:{index}   {name}: no plan table for its architecture, every product goes to cuBLAS"
    if not status["plans"]:
        return f"cuda:{index}   {name}: none of the kernels of {status['table']} run here, every product goes to cuBLAS"
    mark = "tuned" if status["tuned"] else f"UNTUNED: measured on {status['table_gpu']}"
    if status["rules"]:
        mark = f"UNTUNED: {plans.RULES}"
    return f"cuda:{index}   {name}: {status['plans']} plans of {status['table']}, {mark}"
