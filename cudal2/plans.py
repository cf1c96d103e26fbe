"""Plan tables: one CSV file per GPU, a row per (dtype, layout, M, N, K). The C++ runtime reads the same files.

Comment lines `# key: value` come first (gpu, arch, sms, mode, date, torch, cublas, commit), then COLUMNS. A table whose
header says `# source: rules` was not measured: its plans need no times.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from cudal2.shapes import Shape
from cudal2.spec import ALL_DTYPES, LAYOUTS, KernelSpec, SpecError

_KNOBS, _TIMES = ["group", "raster", "ctas", "split", "pdl"], ["us", "torch_us", "lt_us"]
COLUMNS = ["dtype", "layout", "m", "n", "k", "kernel", *_KNOBS, *_TIMES, "use"]
USES = ("own", "cublas")


MOST_KNOB = 1 << 20
"""The largest group, grid or split, here and in csrc/runtime/plan_table.cpp."""


RULES = "rules, calibrated on an H200; nobody measured this GPU"
"""What is said of a table of rules."""


class PlanError(ValueError):
    """A plan table that is malformed; the message names file and row."""


class Key(NamedTuple):
    """What a plan is looked up by, within one GPU's table."""

    dtype: str
    layout: str
    m: int
    n: int
    k: int

    @property
    def shape(self) -> Shape:
        return Shape(self.m, self.n, self.k)


@dataclass(frozen=True)
class Knobs:
    """Run-time knobs of a launch, as LaunchKnobs in csrc/runtime/gemm.h."""

    group: int = 8
    raster: int = 0
    ctas: int = 0
    split: int = 1
    pdl: bool = False

    def __str__(self) -> str:
        return f"group={self.group} raster={self.raster} ctas={self.ctas} split={self.split} pdl={int(self.pdl)}"

    @property
    def fields(self) -> tuple[int, int, int, int, int]:
        """All of them as integers, in the order of a table's columns and of `cudal2 verify --knobs`."""
        return self.group, self.raster, self.ctas, self.split, int(self.pdl)


@dataclass(frozen=True)
class Plan:
    """The kernel and knobs for a key, and the times (µs) that say so; None where rules chose and nobody measured."""

    key: Key
    kernel: str
    knobs: Knobs
    us: float | None
    torch_us: float | None
    lt_us: float | None = None
    use: str = "own"

    @property
    def spec(self) -> KernelSpec:
        return KernelSpec.parse(self.kernel)

    @property
    def expected_us(self) -> float | None:
        """What dispatch takes: the own kernel's time, or cuBLAS's where dispatch runs that. None: not measured."""
        return self.us if self.use == "own" else self.torch_us

    @property
    def measured(self) -> tuple[float, float]:
        """(us, torch_us). Raises ValueError if nobody measured the plan."""
        if self.us is None or self.torch_us is None:
            raise ValueError(f"the plan for {','.join(map(str, self.key))} comes from rules: it was not measured")
        return self.us, self.torch_us

    @property
    def speedup(self) -> float:
        """Of the own kernel over torch.matmul. Raises ValueError if nobody measured the plan."""
        us, torch_us = self.measured
        return torch_us / us

    def row(self) -> list[str]:
        times = ("" if us is None else f"{us:.3f}" for us in (self.us, self.torch_us, self.lt_us))
        return [str(field) for field in (*self.key, self.kernel, *self.knobs.fields, *times, self.use)]

    @classmethod
    def from_row(cls, row: dict[str, str], rules: bool = False) -> Plan:
        """The plan of a CSV row; `rules`: it may lack times. Raises ValueError with what is wrong in it."""
        key = Key(row["dtype"], row["layout"], *(_integer(row, name) for name in ("m", "n", "k")))
        group, raster, ctas, split = (_integer(row, name) for name in _KNOBS[:-1])
        knobs = Knobs(group, raster, ctas, split, row["pdl"] == "1")
        us, torch_us, lt_us = (
            None if not row[name] and (rules or name == "lt_us") else _time(row, name) for name in _TIMES
        )
        plan = cls(key, row["kernel"], knobs, us, torch_us, lt_us, row["use"])
        plan._check(row["pdl"])
        return plan

    def _check(self, pdl: str) -> None:
        key, knobs = self.key, self.knobs
        if key.dtype not in ALL_DTYPES:
            raise ValueError(f"dtype={key.dtype!r}; expected one of {ALL_DTYPES}")
        if key.layout not in LAYOUTS:
            raise ValueError(f"layout={key.layout!r}; expected one of {LAYOUTS}")
        if min(key.shape) < 1:
            raise ValueError(f"m,n,k={key.shape}; expected positive integers")
        spec = self.spec
        spec.validate()
        if (spec.dtype, spec.layout) != (key.dtype, key.layout):
            raise ValueError(f"kernel={self.kernel!r} is not for dtype={key.dtype}, layout={key.layout}")
        bounded = 1 <= knobs.group <= MOST_KNOB and 0 <= knobs.ctas <= MOST_KNOB and 1 <= knobs.split <= MOST_KNOB
        if not bounded or knobs.raster not in (0, 1):
            raise ValueError(f"{knobs}; expected group >= 1, raster 0 or 1, ctas >= 0, split >= 1, at most {MOST_KNOB}")
        if knobs.split > 1 and (knobs.ctas > 0 or not spec.splits_tiles):
            raise ValueError(f"{knobs}; split > 1 needs a kernel that can (multistage_…_sk, sm90_…_ws), and ctas=0")
        if pdl not in ("0", "1"):
            raise ValueError(f"pdl={pdl!r}; expected 0 or 1")
        for name, us in (("us", self.us), ("torch_us", self.torch_us), ("lt_us", self.lt_us)):
            if us is not None and not (math.isfinite(us) and us > 0):
                raise ValueError(f"{name}={us}; expected a time in µs, above 0")
        if self.use not in USES:
            raise ValueError(f"use={self.use!r}; expected one of {USES}")


@dataclass
class Table:
    """One GPU's plans, with the header that says how they came about."""

    header: dict[str, str]
    plans: dict[Key, Plan]

    @property
    def gpu(self) -> str:
        return self.header.get("gpu", "")

    @property
    def sms(self) -> int:
        return int(self.header.get("sms", "132"))

    @property
    def rules(self) -> bool:
        """Whether the plans come from rules, and nobody measured them."""
        return self.header.get("source") == "rules"

    def nearest(self, key: Key) -> Plan | None:
        """The plan of the same dtype and layout whose shape is nearest, by ratios of M, N and K."""
        alike = [plan for plan in self.plans.values() if (plan.key.dtype, plan.key.layout) == (key.dtype, key.layout)]
        return min(alike, key=lambda plan: (distance(plan.key.shape, key.shape), plan.key), default=None)


def _integer(row: dict[str, str], name: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,18}", row[name]):
        raise ValueError(f"{name}={row[name]!r}; expected an integer")
    return int(row[name])


def _time(row: dict[str, str], name: str) -> float:
    try:
        return float(row[name])
    except ValueError:
        raise ValueError(f"{name}={row[name]!r}; expected a time in µs") from None


def distance(first: Shape, second: Shape) -> float:
    """How far two shapes are apart: the sum of the ratios of M, N and K, in powers of two."""
    return sum(abs(math.log2(a / b)) for a, b in zip(first, second, strict=True))


def read(path: str | Path) -> Table:
    """Read a table. Raises PlanError, naming file and row, if it is malformed."""
    header: dict[str, str] = {}
    plans: dict[Key, Plan] = {}
    columns: list[str] | None = None
    with open(path, newline="", encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            line = line.rstrip("\r\n")
            if line.startswith("#"):
                name, value = _entry(line)
                if name == "arch" and not re.fullmatch(r"[0-9]{1,3}(\.[0-9])?", value):
                    raise PlanError(f"{path}:{number}: arch={value!r}; expected a compute capability such as 9.0")
                if name == "sms" and not (value.isascii() and value.isdigit() and int(value) > 0):
                    raise PlanError(f"{path}:{number}: sms={value!r}; expected a positive integer")
                header[name] = value
                continue
            if not line:
                continue
            fields = next(csv.reader([line]))
            if columns is None:
                columns = fields
                if columns != COLUMNS:
                    raise PlanError(f"{path}:{number}: columns are {','.join(columns)}; expected {','.join(COLUMNS)}")
                continue
            if len(fields) != len(columns):
                raise PlanError(f"{path}:{number}: {len(fields)} fields; expected {len(columns)}")
            try:
                plan = Plan.from_row(dict(zip(columns, fields, strict=True)), header.get("source") == "rules")
            except (ValueError, SpecError) as error:
                raise PlanError(f"{path}:{number}: {error}") from None
            if plan.key in plans:
                raise PlanError(f"{path}:{number}: a second row for {','.join(map(str, plan.key))}")
            plans[plan.key] = plan
    if columns is None:
        raise PlanError(f"{path}: no column line; expected {','.join(COLUMNS)}")
    return Table(header, plans)


def write(path: str | Path, table: Table) -> None:
    """Write a table, replacing the file in one step: a reader sees the old or the new, never half.

    Raises ValueError as `render` does.
    """
    replace_file(Path(path), render(table))


def render(table: Table) -> str:
    """A table's text, sorted by key. Raises ValueError if a plan lacks its times and the table is not one of rules."""
    if not table.rules:
        for plan in table.plans.values():
            plan.measured  # noqa: B018  (raises)
    text = io.StringIO()
    for name, value in table.header.items():
        text.write(f"# {name}: {value}\n")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(plan.row() for _, plan in sorted(table.plans.items()))
    return text.getvalue()


def replace_file(path: Path, text: str) -> None:
    """Write `text` beside `path`, or what that links to, then move it there. Raises OSError, also if it is no file."""
    path = path.resolve()
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is there and no regular file")
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def directory() -> Path:
    """Where the tables are: CUDAL2_PLANS, else the installed package's plans/, else a source tree's."""
    override = os.environ.get("CUDAL2_PLANS")
    if override:
        return Path(override)
    package = Path(__file__).parent
    installed = package / "plans"
    return installed if installed.is_dir() else package.parent / "generated_kernels" / "plans"


def slug(gpu: str) -> str:
    """A GPU's file name: "NVIDIA H200" -> "h200"."""
    words = gpu.lower().replace("nvidia", "").replace("tesla", "").split()
    return "-".join(words) or "unknown"


def for_gpu(name: str) -> tuple[Path, Table]:
    """The table file of a GPU, by short name ("h200") or driver name. Raises PlanError that lists what there is."""
    files = sorted(directory().glob("*.csv"))
    for path in files:
        if path.stem == slug(name) or _header(path).get("gpu") == name:
            return path, read(path)
    there = ", ".join(path.stem for path in files) or "none"
    raise PlanError(f"gpu={name!r} has no plan table in {directory()}; there: {there}")


def _header(path: Path) -> dict[str, str]:
    """The header of a table, whose plans may be malformed."""
    with open(path, encoding="utf-8", errors="replace") as file:
        lines = itertools.takewhile(lambda line: line.startswith("#"), file)
        return dict(_entry(line) for line in lines)


def _entry(line: str) -> tuple[str, str]:
    name, _, value = line[1:].partition(":")
    return name.strip(), value.strip()
