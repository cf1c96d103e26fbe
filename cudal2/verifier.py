"""The checks of `cudal2 verify`.

Every product is checked on fresh random inputs: error within check.Bound (at most twice torch.matmul's own), 0/1
inputs exactly, outputs poisoned with NaN and guarded on all sides, a second run the same bit for bit, and cudal2.matmul
running the kernel that the plan names. Every kernel is also checked on odd shapes and pitches, with a bias, with other
tile orders and grids, launched back to back, in chains under programmatic dependent launch, on a side stream and in a
CUDA graph. Kernels for any alignment are checked on odd ones; kernels whose CTAs share tiles, in many ways of sharing.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch

import cudal2
from cudal2 import check, problem
from cudal2.plans import Key, Knobs, Plan
from cudal2.problem import TORCH_DTYPES, Inputs, Output
from cudal2.search import cost
from cudal2.search.knobs import most_sharing, streams
from cudal2.shapes import Shape
from cudal2.spec import DIRECT_CHUNK, KernelSpec


@dataclass(frozen=True)
class Subject:
    """What is checked: a compiled kernel with its knobs, or (kernel empty) what cudal2.matmul dispatches to."""

    dtype: str
    layout: str
    kernel: str = ""
    knobs: Knobs = field(default_factory=Knobs)
    use: str = ""

    @classmethod
    def of(cls, key: Key, plan: Plan | None) -> Subject:
        if plan is None:
            return cls(key.dtype, key.layout)
        return cls(key.dtype, key.layout, plan.kernel, plan.knobs, plan.use)

    def run(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """Queue the kernel. Raises RuntimeError with the reason if it cannot run these operands."""
        group, raster, ctas, split, pdl = self.knobs.fields
        torch.ops.cudal2.gemm(a, b, out, bias, self.kernel, group, raster, ctas, split, bool(pdl))

    def dispatched(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """What a user's call for this dtype gives."""
        return cudal2.matmul(a, b, accumulate="fp16" if self.dtype == "f16acc16" else "fp32")

    def command(self, shape: Shape, seed: int) -> str:
        """The command that checks this again."""
        command = f"python -m cudal2 verify --shape {shape} --dtype {self.dtype} --layout {self.layout} --seed {seed}"
        if not self.kernel:
            return command
        return f"{command} --kernel {self.kernel} --knobs {','.join(map(str, self.knobs.fields))}"


@dataclass(frozen=True)
class Exact:
    """0/1 operands and their product in the output type; sums up to 2048 are exact in fp16."""

    inputs: Inputs
    product: torch.Tensor

    @classmethod
    def draw(cls, shape: Shape, dtype: torch.dtype, source: torch.Generator, ragged: bool) -> Exact:
        inputs = problem.zero_one(shape, dtype, source, ragged)
        return cls(inputs, problem.exact_product(inputs).to(dtype))


Verdict = Callable[[tuple[float, float], Iterator[float]], None]
"""Judges a subject by the reference's magnitude and the numbers measured, taken off the iterator."""


class Session:
    """Runs checks on one device, counts them, and prints each failure with its reproduction."""

    def __init__(self, device: torch.device, seed: int):
        self.device, self.seed = device, seed
        self.checked = self.skipped = self.failures = 0

    def fail(self, subject: Subject, shape: Shape, what: str) -> None:
        self.failures += 1
        name = subject.kernel or "dispatch"
        print(f"FAIL {name} on {shape} {subject.dtype} {subject.layout}: {what}", file=sys.stderr)
        print(f"     {subject.command(shape, self.seed)}", file=sys.stderr, flush=True)

    # One shape -------------------------------------------------------------------------------------------------------

    def product(
        self,
        shape: Shape,
        dtype: str,
        subjects: list[Subject],
        pad: int = 0,
        bias: bool = False,
        ragged: bool = False,
    ) -> None:
        """Check subjects of one dtype on one shape; they share inputs and references. One synchronization.

        `pad` and `ragged` as in problem.normal, for the output too.
        """
        torch_dtype = TORCH_DTYPES[dtype]
        source = problem.generator(self.seed, shape, self.device)
        real = problem.normal(shape, torch_dtype, source, pad, ragged)
        wanted = check.reference(real.a, real.nn)
        vector, exact = None, None
        if bias:
            vector = _misaligned_bias(shape.n, torch_dtype, source)
            wanted += vector.to(wanted.dtype)
        else:
            exact = Exact.draw(shape, torch_dtype, source, ragged)
        verdicts: list[Verdict] = []
        numbers: list[torch.Tensor] = [check.magnitude(wanted)]
        bounds: dict[str, torch.Tensor] = {}
        for subject in subjects:
            if subject.layout not in bounds:
                bounds[subject.layout] = check.errors(_by_torch(real, subject.layout, vector), wanted)
            pending = self._measure(subject, real, wanted, exact, vector, pad, ragged)
            if pending is None:
                if subject.use:
                    self.fail(subject, shape, "the plan's kernel cannot run it")
                self.skipped += 1
                continue
            names, values = pending
            numbers += [bounds[subject.layout], *values]
            verdicts.append(self._verdict(subject, shape, names))
        flat = torch.cat([value.double().flatten() for value in numbers]).tolist()
        size, stream = (flat[0], flat[1]), iter(flat[2:])
        for verdict in verdicts:
            verdict(size, stream)
            self.checked += 1

    def _measure(
        self,
        subject: Subject,
        real: Inputs,
        wanted: torch.Tensor,
        exact: Exact | None,
        bias: torch.Tensor | None,
        pad: int,
        ragged: bool,
    ) -> tuple[list[str], list[torch.Tensor]] | None:
        """Queue a subject's runs. Returns what is measured, by name, as device values; None if it cannot run these."""
        b = real.b(subject.layout)
        names: list[str] = []
        values: list[torch.Tensor] = []

        def add(name: str, value: torch.Tensor) -> None:
            names.append(name)
            values.append(value)

        first: torch.Tensor | None = None
        if subject.kernel:
            output = Output(real.shape, real.a.dtype, self.device, real.shape.n + pad, ragged)
            try:
                subject.run(real.a, b, output.c, bias)
            except RuntimeError as error:
                if "cannot run" in str(error):
                    return None
                raise
            add("error", check.errors(output.c, wanted))
            add("elements written outside C", output.strays())
            first = output.c.clone()
            output.poison()
            subject.run(real.a, b, output.c, bias)
            add("elements that differ in a second run", (output.c != first).sum())
            if exact is not None:
                output.poison()
                subject.run(exact.inputs.a, exact.inputs.b(subject.layout), output.c)
                add("elements wrong on 0/1 inputs", (output.c != exact.product).sum())
        if bias is None and pad == 0:
            cudal2.last_path()  # forget what ran before
            result = subject.dispatched(real.a, b)
            path = cudal2.last_path()
            add("error as dispatched", check.errors(result, wanted))
            if subject.use == "own":
                if path != subject.kernel:
                    names.append(f"dispatch ran {path!r}, not the plan's kernel")
                    values.append(torch.ones((), device=self.device))
                elif first is not None:
                    add("elements that differ as dispatched", (result != first).sum())
        return names, values

    def _verdict(self, subject: Subject, shape: Shape, names: list[str]) -> Verdict:
        def judge(size: tuple[float, float], stream: Iterator[float]) -> None:
            bound = check.Bound.of((next(stream), next(stream)), size, subject.dtype, shape.k)
            for name in names:
                if name.startswith("error"):
                    reason = bound.problem((next(stream), next(stream)))
                    if reason:
                        self.fail(subject, shape, f"{name}: {reason}")
                else:
                    count = next(stream)
                    if count != 0:
                        self.fail(subject, shape, f"{name}: {int(count)}")

        return judge

    # One kernel ------------------------------------------------------------------------------------------------------

    def kernel(self, name: str, quick: bool = False) -> None:
        """Check one kernel on odd shapes and pitches, with every kind of knob, and in every way it can be launched."""
        spec = KernelSpec.parse(name)
        knobs = [Knobs(), Knobs(group=1, raster=1), Knobs(group=3, ctas=5 * spec.cluster_size), Knobs(pdl=True)]
        for index, shape in enumerate(odd_shapes(spec)[: 3 if quick else None]):
            subject = Subject(spec.dtype, spec.layout, name, knobs[index % len(knobs)])
            self.product(shape, spec.dtype, [subject], pad=8 * (index % 3))
            self.product(shape, spec.dtype, [subject], bias=True)
        if spec.vector == 1:
            for index, shape in enumerate(ragged_shapes()[: 4 if quick else None]):
                subject = Subject(spec.dtype, spec.layout, name, knobs[index % len(knobs)])
                self.product(shape, spec.dtype, [subject], pad=index % 3, ragged=True)
                self.product(shape, spec.dtype, [subject], pad=index % 3, bias=True, ragged=True)
        behaving = [Knobs()]
        for shape, shared in sharing(spec)[:: 3 if quick else 1]:
            subject = Subject(spec.dtype, spec.layout, name, shared)
            self.product(shape, spec.dtype, [subject])
            self.product(shape, spec.dtype, [subject], bias=True)
        if spec.splits_tiles:
            behaving.append(Knobs(split=3))
        if spec.stream_k:
            behaving.append(Knobs(ctas=min(131, most_sharing(spec))))  # behaviour() has fewer where waves are streamed
        for chosen in behaving:
            self.behaviour(Subject(spec.dtype, spec.layout, name, chosen))

    def behaviour(self, subject: Subject, shape: Shape | None = None) -> None:
        """Check launches that differ in context only: they must give the bits that a plain launch gives."""
        spec = KernelSpec.parse(subject.kernel)
        # A plan's larger split may have too few blocks here, or too many tiles for the workspace.
        subject = replace(subject, knobs=replace(subject.knobs, split=min(subject.knobs.split, 3)))
        # Multiples of 32, with something to do for each CTA of the split, whichever of N and K it is.
        least = (spec.split - 1) * spec.bk + 32
        shape = shape or Shape(520, max(800, least), max(672, least))
        if spec.streams_waves and subject.knobs.ctas and (counts := streaming(spec, shape)):
            subject = replace(subject, knobs=replace(subject.knobs, ctas=counts[-1]))
        for what, runs_alike in (
            ("launches back to back", self._back_to_back),
            ("a chain under programmatic dependent launch", self._pdl_chain),
            ("a side stream", self._side_stream),
            ("a CUDA graph's replay", self._graph),
        ):
            if not runs_alike(subject, shape):
                self.fail(subject, shape, f"another result in {what}")
            self.checked += 1

    def _inputs(self, subject: Subject, shape: Shape) -> Inputs:
        source = problem.generator(self.seed, shape, self.device)
        return problem.normal(shape, TORCH_DTYPES[subject.dtype], source)

    def _plain(self, subject: Subject, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        out = Output(Shape(a.shape[0], b.shape[1], a.shape[1]), a.dtype, self.device).c
        subject.run(a, b, out)
        return out

    def _back_to_back(self, subject: Subject, shape: Shape) -> bool:
        """Nothing runs in between that could put right what a launch leaves behind in a workspace."""
        inputs = self._inputs(subject, shape)
        b = inputs.b(subject.layout)
        outs = [Output(shape, inputs.a.dtype, self.device).c for _ in range(4)]
        for out in outs:
            subject.run(inputs.a, b, out)
        return _same(outs, [self._plain(subject, inputs.a, b)] * len(outs))

    def _pdl_chain(self, subject: Subject, shape: Shape) -> bool:
        """C = A B, E = C D, C = A' B, F = C D: reads what was just written, overwrites what is being read."""
        m, n, k = shape
        first, second = self._inputs(subject, shape), self._inputs(subject, Shape(m, k, n))
        b, d = first.b(subject.layout), second.b(subject.layout) / n**0.5
        if subject.layout == "tn":
            d = d.t().contiguous().t()
        others = [first.a, first.a.flip(0).contiguous()]
        dtype = first.a.dtype

        def chain(pdl: bool) -> list[torch.Tensor]:
            link = Subject(subject.dtype, subject.layout, subject.kernel, _with_pdl(subject.knobs, pdl))
            middle = Output(Shape(m, n, k), dtype, self.device).c
            ends = [Output(Shape(m, k, n), dtype, self.device).c for _ in others]
            for a, end in zip(others, ends, strict=True):
                link.run(a, b, middle)
                link.run(middle, d, end)
            return ends

        plain = chain(pdl=False)
        return all(_same(chain(pdl=True), plain) for _ in range(4))

    def _side_stream(self, subject: Subject, shape: Shape) -> bool:
        """The operand is written on a side stream, late, just before the kernel is launched there."""
        inputs = self._inputs(subject, shape)
        b = inputs.b(subject.layout)
        plain = self._plain(subject, inputs.a, b)
        late = torch.zeros_like(inputs.a)
        out = Output(shape, late.dtype, self.device).c
        torch.cuda.synchronize()
        side = torch.cuda.Stream(self.device)
        with torch.cuda.stream(side):
            torch.cuda._sleep(2_000_000)
            late.copy_(inputs.a)
            subject.run(late, b, out)
        side.synchronize()
        return _same([out], [plain])

    def _graph(self, subject: Subject, shape: Shape) -> bool:
        """Captured once, replayed on operands that change in place."""
        inputs = self._inputs(subject, shape)
        b = inputs.b(subject.layout)
        a = inputs.a.clone()
        out = Output(shape, a.dtype, self.device).c
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            subject.run(a, b, out)
        alike = True
        for step in range(2):
            a.copy_(inputs.a.roll(step, dims=0))
            graph.replay()
            alike = alike and _same([out], [self._plain(subject, a, b)])
        return alike


def odd_shapes(spec: KernelSpec) -> list[Shape]:
    """Shapes that divide nothing: one row, less than a tile, a little over one, several clusters and stages."""
    tile_m, tile_n, step = spec.bm * spec.cluster_m, spec.bn * spec.cluster_n, spec.bk * spec.split
    shapes = [
        Shape(1, 8, 8),
        Shape(65, 72, 40),
        Shape(2 * tile_m + 1, tile_n + 8, step * spec.stages + 8),
        Shape(tile_m, 2 * tile_n, step),
        Shape(7, 1000, 13),
        Shape(1001, 136, 4099),
        Shape(3 * tile_m + 3, 3 * tile_n + 24, 2 * step - 7),
        Shape(333, 2056, 521),
    ]
    multiple = DIRECT_CHUNK if spec.family == "direct" else 1
    return [Shape(m, n, -(-k // multiple) * multiple) for m, n, k in shapes]


def ragged_shapes() -> list[Shape]:
    """Shapes for kernels that need no alignment: primes, ones, and more rows than fit 16 bits."""
    return [
        Shape(7, 33, 1),
        Shape(1009, 67, 131),
        Shape(1, 7, 33),
        Shape(33, 1, 7),
        Shape(1, 1, 1),
        Shape(127, 257, 521),
        Shape(31, 4099, 63),
        Shape(1000003, 33, 7),
    ]


def streaming(spec: KernelSpec, shape: Shape) -> list[int]:
    """The fewest and the most CTAs that share tiles where a kernel streams what does not make whole waves; empty where
    no number of them does."""
    most = min(math.prod(cost.tiles(spec, shape)), most_sharing(spec))
    counts = [ctas for ctas in range(2 * spec.cluster_size, most + 1, spec.cluster_size) if streams(spec, shape, ctas)]
    return sorted({counts[0], counts[-1]}) if counts else []


def sharing(spec: KernelSpec) -> list[tuple[Shape, Knobs]]:
    """Ways in which CTAs share tiles: splits that divide no K, more CTAs than run at once, and for stream-K of all
    tiles fewer and more CTAs than tiles."""
    few = Shape(spec.bm + 1, spec.bn + 8, 40 * spec.bk + 8)
    some = Shape(4 * spec.bm + 3, 4 * spec.bn + 24, 7 * spec.bk - 3)
    ways: list[tuple[Shape, Knobs]] = []
    if spec.splits_tiles:
        ways += [(shape, Knobs(split=split)) for split in (2, 3, 5) for shape in (few, some)]
        ways.append((few, Knobs(split=16)))
        along_n = min(most_sharing(spec), 900) // 12 - 2
        ways.append((Shape(3 * spec.bm + 3, (along_n - 1) * spec.bn + 8, 7 * spec.bk - 3), Knobs(split=3)))
    many = Shape(9 * spec.bm + 3, 17 * spec.bn + 24, 7 * spec.bk - 3)
    if spec.streams_waves:
        ways += [(shape, Knobs(ctas=ctas, group=3)) for shape in (some, many) for ctas in streaming(spec, shape)]
    elif spec.stream_k:
        counts = (7, min(131, most_sharing(spec)))
        ways += [(shape, Knobs(ctas=ctas, group=3, raster=1)) for ctas in counts for shape in (few, some, many)]
    return ways


def _with_pdl(knobs: Knobs, pdl: bool) -> Knobs:
    return replace(knobs, pdl=pdl)


def _same(results: list[torch.Tensor], wanted: list[torch.Tensor]) -> bool:
    return all(torch.equal(result, want) for result, want in zip(results, wanted, strict=True))


def _by_torch(inputs: Inputs, layout: str, bias: torch.Tensor | None) -> torch.Tensor:
    b = inputs.b(layout)
    return torch.matmul(inputs.a, b) if bias is None else torch.addmm(bias, inputs.a, b)


def _misaligned_bias(n: int, dtype: torch.dtype, source: torch.Generator) -> torch.Tensor:
    return torch.empty(n + 1, dtype=dtype, device=source.device).normal_(generator=source)[1:]
