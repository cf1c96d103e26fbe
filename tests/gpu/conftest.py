"""GPU tests run with a plan table of their own, in which dispatch runs one of ours for every shape of SHAPES.

So they test the tuned path whatever the sweep found: they say which kernel path a product must take, and read it back
with cudal2.last_path(). All other rows are those of the device's real table.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import pytest
import torch

import cudal2
from cudal2 import plans, tools
from cudal2.spec import ALL_DTYPES, LAYOUTS, KernelSpec

SHAPES = [
    *itertools.product((1, 2, 16, 32, 64, 77, 128, 256), (8, 32, 64, 128, 256), (32, 64, 128, 256, 512)),
    (2**25 + 8, 64, 64),
]
CUBLAS = (256, 256, 128)
"""The one shape of SHAPES whose row says use=cublas."""


def _kernels(dtype: str, layout: str, table: plans.Table) -> list[str]:
    """Up to eight compiled kernels for the device, of every family. None that takes operands of any alignment: tests
    say of misaligned ones that they go to torch."""
    used = sorted({plan.kernel for plan in table.plans.values() if plan.key[:2] == (dtype, layout)})
    major, minor = torch.cuda.get_device_capability()
    native = tools.load()
    compiled = [
        kernel["name"]
        for kernel in (native.kernels() if native else [])
        if (kernel["dtype"], kernel["layout"]) == (dtype, layout)
        and kernel["min_arch"] <= 10 * major + minor <= kernel["max_arch"]
        and kernel["vector"] == 8
    ]
    names = compiled or used
    return names[:: -(-len(names) // 8)] if names else []


def _splits(name: str, k: int) -> bool:
    """Whether each CTA of the kernel's split has a block of K."""
    spec = KernelSpec.parse(name)
    return -(-k // spec.bk) >= spec.split


def _knobs(name: str, shape: tuple[int, int, int], number: int) -> plans.Knobs:
    """Other ones for every row; kernels that can share tiles do so on some."""
    spec, (m, _, k) = KernelSpec.parse(name), shape
    split = min(1 + number // 2 % 3, -(-k // spec.bk)) if spec.splits_tiles and m <= 256 else 1
    return plans.Knobs(group=1 + number % 8, raster=number % 2, split=split, pdl=number % 3 == 0)


def _real_table() -> plans.Table:
    properties = torch.cuda.get_device_properties(0)
    path = plans.directory() / f"{plans.slug(properties.name)}.csv"
    if path.is_file():
        return plans.read(path)
    header = {
        "gpu": properties.name,
        "arch": f"{properties.major}.{properties.minor}",
        "sms": str(properties.multi_processor_count),
    }
    return plans.Table(header, {})


@pytest.fixture(scope="session", autouse=True)
def forced_plans(tmp_path_factory: pytest.TempPathFactory) -> Iterator[bool]:
    """Whether there are kernels to force; the environment variable also reaches subprocesses."""
    if not torch.cuda.is_available():
        yield False
        return
    table = _real_table()
    for dtype, layout in itertools.product(ALL_DTYPES, LAYOUTS):
        kernels = _kernels(dtype, layout, table)
        for number, shape in enumerate(SHAPES if kernels else []):
            key = plans.Key(dtype, layout, *shape)
            able = [name for name in kernels if _splits(name, key.k)]
            name = able[number % len(able)]
            forced = plans.Plan(key, name, _knobs(name, shape, number), 1.0, 1.0)
            table.plans[key] = dataclasses.replace(forced, use="cublas") if shape == CUBLAS else forced
    folder = tmp_path_factory.mktemp("plans")
    plans.write(folder / f"{plans.slug(table.gpu)}.csv", table)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("CUDAL2_PLANS", str(folder))
        yield bool(table.plans)


@pytest.fixture
def tuned(forced_plans: bool) -> None:
    """For tests of the tuned path."""
    if not forced_plans:
        pytest.skip("this build has no kernel for the device: fallback-only, or built for other architectures")
    cudal2.last_path()
