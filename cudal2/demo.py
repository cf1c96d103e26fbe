"""`cudal2 demo`: the linear layers of a Llama-3-8B block, in prefill and decode, through cudal2.matmul.

On a GPU: every product is checked and its device time stands beside torch.matmul's. Without one: the layers run at a
small size on the CPU fallback, and the table says which kernel an H200 would run.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table as RichTable

import cudal2
from cudal2 import check, plans, problem
from cudal2.plans import Key, Plan
from cudal2.problem import TORCH_DTYPES
from cudal2.shapes import LLAMA_3_8B, LLAMA_TOKENS, Shape
from cudal2.spec import DTYPES

CPU_SCALE = 16
"""The demo on the CPU divides M of prefill, N and K by this."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `cudal2 demo`."""
    parser.add_argument("--dtype", default="f16", choices=DTYPES)
    parser.add_argument("--seed", type=int, default=0, help="of the random activations and weights")


def run(options: argparse.Namespace) -> int:
    """Run the demo. Returns 0, or 1 if a product is wrong."""
    on_gpu = torch.cuda.is_available()
    rows = [
        _row(phase, layer, m, options, on_gpu)
        for phase, tokens in LLAMA_TOKENS.items()
        for m in tokens
        for layer in LLAMA_3_8B
    ]
    Console(width=None if Console().is_terminal else 140).print(_on_gpu(rows) if on_gpu else _on_cpu(rows))
    wrong = [row for row in rows if row.problem]
    for row in wrong:
        print(f"cudal2 demo: {row.phase} {row.layer} {row.ran}: {row.problem}")
    if not wrong and on_gpu:
        print(
            f"All {len(rows)} products are right: errors are at most twice torch.matmul's, against a finer reference."
        )
    elif not wrong:
        print(f"All {len(rows)} products went to torch and are right.")
    return 1 if wrong else 0


@dataclass
class Row:
    """One layer in one phase: the shape that ran, what ran, and how it went."""

    phase: str
    layer: str
    shape: Shape
    ran: Shape
    path: str
    problem: str | None
    us: float = 0.0
    torch_us: float = 0.0
    plan: Plan | None = None


def _row(phase: str, layer: str, m: int, options: argparse.Namespace, on_gpu: bool) -> Row:
    n, k = LLAMA_3_8B[layer]
    ran = shape = Shape(m, n, k)
    if not on_gpu:
        ran = Shape(m // CPU_SCALE if phase == "prefill" else m, n // CPU_SCALE, k // CPU_SCALE)
    device = torch.device("cuda" if on_gpu else "cpu")
    inputs = problem.normal(ran, TORCH_DTYPES[options.dtype], problem.generator(options.seed, ran, device))
    activations, weight = inputs.a, inputs.tn.t()  # [M, K] and, as nn.Linear holds it, [N, K]
    result = cudal2.matmul(activations, weight.t())
    row = Row(phase, layer, shape, ran, cudal2.last_path(), _problem(activations, weight, result, options.dtype))
    if on_gpu:
        times = device_us(
            {
                "cudal2": lambda: cudal2.matmul(activations, weight.t()),
                "torch": lambda: torch.matmul(activations, weight.t()),
            }
        )
        row.us, row.torch_us = times["cudal2"], times["torch"]
    else:
        row.plan = _planned(Key(options.dtype, "tn", *shape))
    return row


def _problem(activations: torch.Tensor, weight: torch.Tensor, result: torch.Tensor, dtype: str) -> str | None:
    return check.Judge(activations, weight.t(), dtype).problem(result)


def _planned(key: Key) -> Plan | None:
    """The plan an H200 has for a key, or its nearest shape's."""
    try:
        _, table = plans.for_gpu("h200")
    except plans.PlanError:
        return None
    return table.plans.get(key) or table.nearest(key)


def device_us(calls: dict[str, Callable[[], object]], launches: int = 20, rounds: int = 15) -> dict[str, float]:
    """Device time of each call in µs: launches captured in a CUDA graph, replayed interleaved, the median."""
    graphs: dict[str, torch.cuda.CUDAGraph] = {}
    for name, call in calls.items():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            call()
        torch.cuda.synchronize()
        graphs[name] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[name], stream=side):
            for _ in range(launches):
                call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for step in range(rounds):
        for name in list(calls) if step % 2 else list(reversed(calls)):
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            graphs[name].replay()
            start.record()
            graphs[name].replay()
            stop.record()
            stop.synchronize()
            times[name].append(1000 * start.elapsed_time(stop) / launches)
    return {name: statistics.median(values) for name, values in times.items()}


def _on_gpu(rows: list[Row]) -> RichTable:
    title = f"Llama-3-8B linear layers on {torch.cuda.get_device_name()}: device time, CUDA graph, operands warm"
    table = _table(title, "cudal2 µs", "torch µs", "speedup", "TFLOP/s", "ran")
    for row in rows:
        speed, rate = row.torch_us / row.us, row.shape.flops / row.us / 1e6
        ran = row.path if row.path != "torch" else "cuBLAS, through torch"
        table.add_row(
            *_head(row, row.shape), f"{row.us:.2f}", f"{row.torch_us:.2f}", f"{speed:.3f}", f"{rate:.0f}", ran
        )
    return table


def _on_cpu(rows: list[Row]) -> RichTable:
    title = (
        f"Llama-3-8B linear layers at 1/{CPU_SCALE} size on the CPU (no GPU here), and what an H200 runs at full size"
    )
    what = "kernel that an H200 would run (of its nearest tuned shape)"
    table = _table(title, "check", "full size", what, "own µs", "torch µs")
    for row in rows:
        kernel, own, by_torch = "no plan table", "", ""
        if row.plan is not None:
            exact = row.plan.key.shape == row.shape
            kernel = row.plan.kernel if row.plan.use == "own" else "cuBLAS"
            kernel += "" if exact else f" ({'x'.join(map(str, row.plan.key.shape))})"
            own, by_torch = (f"{us:.2f}" for us in row.plan.measured) if exact else ("", "")
        size = "x".join(map(str, row.shape))
        table.add_row(*_head(row, row.ran), "wrong" if row.problem else "right", size, kernel, own, by_torch)
    return table


def _table(title: str, *columns: str) -> RichTable:
    table = RichTable(title=title)
    for name in ("phase", "layer", "M", "N", "K", *columns):
        text = name in ("phase", "layer", "ran", "check", "full size") or name.startswith("kernel")
        table.add_column(name, justify="left" if text else "right", overflow="fold")
    return table


def _head(row: Row, shape: Shape) -> list[str]:
    return [row.phase, row.layer, *map(str, shape)]
