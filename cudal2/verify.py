"""`cudal2 verify`: are the kernels right, as dispatched and each by itself?  What is checked stands in verifier.py."""

from __future__ import annotations

import argparse
import time

import torch

import cudal2
from cudal2 import check, plans, problem, progress, shapes, tools
from cudal2.plans import Key, Knobs, Table
from cudal2.problem import TORCH_DTYPES
from cudal2.shapes import Shape
from cudal2.spec import DTYPES, LAYOUTS, KernelSpec
from cudal2.verifier import Session, Subject

NO_GPU = 3
SAMPLE = 64
"""Grid shapes that are checked where neither --grid nor --shape says which."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `cudal2 verify`."""
    parser.add_argument("--shape", type=shapes.argument, metavar="M,N,K", help="this shape")
    parser.add_argument("--grid", action="store_true", help="the 1000 shapes of the grid, as planned and dispatched")
    parser.add_argument("--kernel", metavar="NAME", help="this compiled kernel, or all, on odd shapes (or on --shape)")
    parser.add_argument("--dtype", default=",".join(DTYPES), help="f16, bf16 or both (default)")
    parser.add_argument("--layout", default=",".join(LAYOUTS), help="nn, tn or both (default)")
    parser.add_argument("--knobs", default="8,0,0,0", metavar="G,R,C,P", help="group, raster, ctas, pdl for --kernel")
    parser.add_argument("--seed", type=int, help="of the random inputs; default: another each time")
    parser.add_argument("--quick", action="store_true", help="fewer shapes")


def run(options: argparse.Namespace) -> int:
    """Run `cudal2 verify`. Returns 0, 1 on any failed check, or 3 where it takes a GPU and there is none."""
    seed = int(time.time()) if options.seed is None else options.seed
    dtypes, layouts = (_subset(options, "dtype", DTYPES), _subset(options, "layout", LAYOUTS))
    if not torch.cuda.is_available():
        if options.shape and not options.kernel:
            return _on_cpu(options.shape, dtypes, layouts, seed)
        print(
            "verify: no GPU that this torch can use, so no kernel can run here; --shape M,N,K checks the CPU fallback"
        )
        return NO_GPU
    session = Session(torch.device("cuda", torch.cuda.current_device()), seed)
    started = time.monotonic()
    everything = not (options.shape or options.grid or options.kernel)
    if options.shape and options.kernel:
        _named_kernel(session, options)
    elif options.shape:
        _dispatched(session, [options.shape], dtypes, layouts)
    elif options.kernel:
        _kernels(session, [options.kernel], dtypes, layouts, options.quick)
    if everything:
        _kernels(session, ["all"], dtypes, layouts, options.quick)
    if options.grid or everything:
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
    group, raster, ctas, pdl = (int(part) for part in options.knobs.split(","))
    subject = Subject(spec.dtype, spec.layout, spec.name, Knobs(group, raster, ctas, bool(pdl)))
    session.product(options.shape, spec.dtype, [subject])
    session.product(options.shape, spec.dtype, [subject], pad=8)
    session.product(options.shape, spec.dtype, [subject], bias=True)
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
        wanted = check.reference(inputs.a, inputs.nn)
        for layout in layouts:
            by_torch = check.errors(torch.matmul(inputs.a, inputs.b(layout)), wanted).tolist()
            own = check.errors(cudal2.matmul(inputs.a, inputs.b(layout)), wanted).tolist()
            bound = check.Bound.of(tuple(by_torch), tuple(check.magnitude(wanted).tolist()), inputs.a.dtype)
            reason = bound.problem(tuple(own))
            failures += reason is not None
            print(f"{dtype} {layout} {shape}: {reason or 'passed'}")
    return 1 if failures else 0
