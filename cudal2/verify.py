"""`cudal2 verify`: are the kernels right, as dispatched and each by itself?  What is checked stands in verifier.py."""

from __future__ import annotations

import argparse
import time
from collections import defaultdict

import torch

from cudal2 import check, plans, problem, progress, shapes, tools
from cudal2.plans import Key, Knobs, Table
from cudal2.problem import TORCH_DTYPES
from cudal2.search import cost, knobs
from cudal2.shapes import Shape
from cudal2.spec import ALL_DTYPES, LAYOUTS, KernelSpec
from cudal2.verifier import Session, Subject

NO_GPU = 3
KNOBS = "8,0,0,1,0"
SAMPLE = 64
"""Grid shapes that are checked where neither --grid nor --shape says which."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `cudal2 verify`."""
    parser.add_argument("--shape", type=shapes.argument, metavar="M,N,K", help="this shape")
    parser.add_argument("--grid", action="store_true", help="the 1000 shapes of the grid, as planned and dispatched")
    parser.add_argument("--kernel", metavar="NAME", help="this compiled kernel, or all, on odd shapes (or on --shape)")
    parser.add_argument(
        "--family", metavar="NAME", help="the kernels of this family alone, on --grid or --shape, whatever is planned"
    )
    parser.add_argument("--dtype", default=",".join(ALL_DTYPES), help="f16, bf16, f16acc16; default: all")
    parser.add_argument("--layout", default=",".join(LAYOUTS), help="nn, tn or both (default)")
    parser.add_argument(
        "--knobs", default=KNOBS, metavar="G,R,C,S,P", help="group, raster, ctas, split, pdl for --kernel on --shape"
    )
    parser.add_argument("--seed", type=int, help="of the random inputs; default: another each time")
    parser.add_argument("--quick", action="store_true", help="fewer shapes")


def run(options: argparse.Namespace) -> int:
    """Run `cudal2 verify`. Returns 0, 1 on any failed check, or 3 where it takes a GPU and there is none."""
    seed = int(time.time()) if options.seed is None else options.seed
    dtypes, layouts = (_subset(options, "dtype", ALL_DTYPES), _subset(options, "layout", LAYOUTS))
    if options.family and (options.kernel or not (options.shape or options.grid)):
        raise ValueError(f"--family {options.family} goes with --grid or --shape, and not with --kernel")
    if options.knobs != KNOBS and not (options.kernel and options.shape):
        raise ValueError(f"--knobs {options.knobs} goes with --kernel and --shape")
    if not torch.cuda.is_available():
        if options.shape and not (options.kernel or options.family or options.grid):
            return _on_cpu(options.shape, dtypes, layouts, seed)
        print(
            "verify: no GPU that this torch can use, so no kernel can run here; --shape M,N,K checks the CPU fallback"
        )
        return NO_GPU
    session = Session(torch.device("cuda", torch.cuda.current_device()), seed)
    started = time.monotonic()
    everything = not (options.shape or options.grid or options.kernel)
    if options.family:
        chosen = [options.shape] if options.shape else shapes.grid()
        _family(
            session, options.family, shapes.sample(chosen, SAMPLE, seed) if options.quick else chosen, dtypes, layouts
        )
    elif options.shape and options.kernel:
        _named_kernel(session, options)
    elif options.shape:
        _dispatched(session, [options.shape], dtypes, layouts)
    elif options.kernel:
        _kernels(session, [options.kernel], dtypes, layouts, options.quick)
    if everything:
        _kernels(session, ["all"], dtypes, layouts, options.quick)
    if (options.grid and not options.family) or everything:
        chosen = shapes.grid()
        if everything or options.quick:
            chosen = shapes.sample(chosen, SAMPLE, seed)
        _dispatched(session, chosen, dtypes, layouts, behaviours=not everything)
    torch.cuda.synchronize()
    verdict = "FAILED" if session.failures else "passed"
    skipped = f", {session.skipped} that a kernel cannot run" if session.skipped else ""
    seconds = time.monotonic() - started
    counts = f"{session.checked} checks{skipped}, {session.failures} failures"
    print(f"verify {verdict}: {counts}, seed {seed}, {seconds:.0f} s")
    return 1 if session.failures else 0


def _subset(options: argparse.Namespace, name: str, known: tuple[str, ...]) -> list[str]:
    chosen = getattr(options, name).split(",")
    if not set(chosen) <= set(known):
        raise ValueError(f"--{name} {getattr(options, name)}; expected one or more of {','.join(known)}")
    return chosen


def _named_kernel(session: Session, options: argparse.Namespace) -> None:
    spec = KernelSpec.parse(options.kernel)
    try:
        group, raster, ctas, split, pdl = (int(part) for part in options.knobs.split(","))
    except ValueError:
        raise ValueError(f"--knobs {options.knobs}; expected five integers: group,raster,ctas,split,pdl") from None
    subject = Subject(spec.dtype, spec.layout, spec.name, Knobs(group, raster, ctas, split, bool(pdl)))
    session.product(options.shape, spec.dtype, [subject])
    session.product(options.shape, spec.dtype, [subject], pad=8)
    session.product(options.shape, spec.dtype, [subject], bias=True)
    if spec.vector == 1:
        for pad in range(3):
            session.product(options.shape, spec.dtype, [subject], pad=pad, ragged=True)
            session.product(options.shape, spec.dtype, [subject], pad=pad, ragged=True, bias=True)
    session.behaviour(subject)


def _kernels(session: Session, names: list[str], dtypes: list[str], layouts: list[str], quick: bool) -> None:
    chosen = compiled_kernels(dtypes, layouts) if names == ["all"] else names
    for name in progress.bar(chosen, "kernel"):
        session.kernel(name, quick)


def _dispatched(
    session: Session, chosen: list[Shape], dtypes: list[str], layouts: list[str], behaviours: bool = True
) -> None:
    """Each shape as the plan table has it, then every kernel met in its other ways of being launched."""
    table = table_in_use()
    met: dict[str, Subject] = {}
    for shape in progress.bar(chosen, "shape"):
        for dtype in dtypes:
            keys = [Key(dtype, layout, *shape) for layout in layouts]
            subjects = [Subject.of(key, table.plans.get(key) if table else None) for key in keys]
            session.product(shape, dtype, subjects)
            met.update((subject.kernel, subject) for subject in subjects if subject.kernel)
    if behaviours:
        for subject in progress.bar(list(met.values()), "kernel"):
            session.behaviour(subject)


def _family(session: Session, family: str, chosen: list[Shape], dtypes: list[str], layouts: list[str]) -> None:
    """Each shape with the kernel of the family, and the knobs, that the cost model would try first."""
    specs: dict[tuple[str, str], list[KernelSpec]] = defaultdict(list)
    known = set()
    for spec in map(KernelSpec.parse, compiled_kernels(list(ALL_DTYPES), list(LAYOUTS))):
        known.add(spec.family)
        if spec.family == family:
            specs[spec.dtype, spec.layout].append(spec)
    if family not in known:
        raise ValueError(
            f"--family {family}: no such kernels for this GPU; there are {', '.join(sorted(known)) or 'none'}"
        )
    sms = torch.cuda.get_device_properties(session.device).multi_processor_count
    for shape in progress.bar(chosen, "shape"):
        for dtype in dtypes:
            best = [spec for layout in layouts for spec in cost.shortlist(specs[dtype, layout], shape, keep=1)]
            subjects = [
                Subject(s.dtype, s.layout, s.name, knobs.first(s, shape, sms * cost.ctas_per_sm(s))) for s in best
            ]
            if subjects:
                session.product(shape, dtype, subjects)


def compiled_kernels(dtypes: list[str], layouts: list[str]) -> list[str]:
    """Names of the kernels in this build that the current device can run."""
    module = tools.load()
    if module is not None:
        major, minor = torch.cuda.get_device_capability()
        arch = 10 * major + minor
        kernels = [k for k in module.kernels() if k["min_arch"] <= arch <= k["max_arch"]]
        return [k["name"] for k in kernels if k["dtype"] in dtypes and k["layout"] in layouts]
    from cudal2.search import space

    return sorted(spec.name for spec in space.compiled() if spec.dtype in dtypes and spec.layout in layouts)


def table_in_use() -> Table | None:
    """The plan table that dispatch uses on the current device, or None."""
    module = tools.load()
    if module is not None:
        path = module.device_status(torch.cuda.current_device())["table"]
        return plans.read(path) if path else None
    try:
        return plans.for_gpu(torch.cuda.get_device_name())[1]
    except plans.PlanError:
        return None


def _on_cpu(shape: Shape, dtypes: list[str], layouts: list[str], seed: int) -> int:
    """cudal2.matmul on the CPU, where it is torch's: its error and shape on this input."""
    print("verify: no GPU here; checking cudal2.matmul's fallback on the CPU")
    failures = 0
    device = torch.device("cpu")
    for dtype in dtypes:
        inputs = problem.normal(shape, TORCH_DTYPES[dtype], problem.generator(seed, shape, device))
        for layout in layouts:
            b = inputs.b(layout)
            reason = check.Judge(inputs.a, b, dtype).problem(Subject(dtype, layout).dispatched(inputs.a, b))
            failures += reason is not None
            print(f"{dtype} {layout} {shape}: {reason or 'passed'}")
    return 1 if failures else 0
