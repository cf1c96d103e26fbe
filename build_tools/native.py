"""The whole native build: look around, write the ninja file, run it, and put the results into the package."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from build_tools import arch, cuda, host, ninja_file, torch_headers
from build_tools.errors import BuildError

Log = Callable[[str], None]

FALLBACK_NOTICE = """\
************************************************************************************************************************
cudal2 is being built FALLBACK-ONLY: {why}
It will install and give right results everywhere, but every GEMM runs torch's own kernels. `cudal2 info` says so too.
************************************************************************************************************************"""


@dataclass(frozen=True)
class Result:
    """What a build made: absolute paths, and the line that describes it."""

    info: str
    libraries: list[Path]
    modules: list[Path]
    plans: Path


def look_around(root: Path, env: Mapping[str, str] = os.environ) -> ninja_file.Setup:
    """Find everything that the build needs. Raises BuildError, with what to do, where something is missing or unfit."""
    cxx = host.find_cxx(env)
    archs = arch.parse(env.get("TORCH_CUDA_ARCH_LIST"))
    nvcc = cuda.find_nvcc(env)
    toolkit = cuda.inspect(nvcc) if nvcc else None
    extra = env.get("CUDAL2_EXTRA_KERNELS")
    if toolkit:
        arch.check_supported(archs, toolkit.architectures, str(toolkit))
    return ninja_file.Setup(
        root=root,
        cxx=cxx,
        custom_cxx="CXX" in env,
        torch=torch_headers.require(),
        pybind11=host.pybind11_include(),
        interpreters=tuple(host.interpreters(env)),
        archs=tuple(archs),
        toolkit=toolkit,
        cutlass=host.cutlass_include() if toolkit else None,
        why_fallback="" if toolkit else cuda.not_found_message(env),
        extra_kernels=Path(extra).resolve() if extra else None,
    )


def build(root: Path, env: Mapping[str, str] = os.environ, log: Log = print, *, keep_going: bool = False) -> Result:
    """Build what has changed since the last time, in root/build/native. Raises BuildError if anything fails.

    keep_going: compile the rest after a failure too, so that all messages come at once.
    """
    setup = look_around(root, env)
    log(f"cudal2: {setup.info}; torch {setup.torch.version} headers; {setup.cxx}")
    if setup.toolkit is None:
        log(FALLBACK_NOTICE.format(why=setup.why_fallback))
    if not setup.interpreters:
        log("cudal2: no Python.h for this Python: building without the modules _tools and _eager (shorter calls)")
    ninja = ninja_file.generate(setup)
    folder = root / ninja_file.BUILD
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / "lock"):
        script = folder / "build.ninja"
        script.write_text(ninja.text, encoding="utf-8")
        command = [host.find_ninja(env), "-f", str(script.relative_to(root)), "-j", str(host.jobs(env))]
        command += ["-k", "0"] if keep_going else []
        sys.stdout.flush()
        run = subprocess.run(command, cwd=root, env={**env, **setup.environment})
    if run.returncode:
        raise BuildError("the native build failed: the compiler's messages are above.")
    return Result(
        info=setup.info,
        libraries=[root / path for path in ninja.libraries],
        modules=[root / path for path in ninja.modules],
        plans=root / "generated_kernels" / "plans",
    )


def place(result: Result, package: Path, *, link_plans: bool = False) -> list[Path]:
    """Copy the results into the package folder, and remove what an earlier build left there. Returns the files.

    link_plans: the plan tables become a link to the source tree's, so that a working tree always has the latest.
    """
    placed = [_copy(library, package / "lib" / library.name) for library in result.libraries]
    placed += [_copy(module, package / module.name) for module in result.modules]
    plans = package / "plans"
    if plans.is_symlink():
        plans.unlink()
    elif plans.is_dir():
        shutil.rmtree(plans)
    tables = sorted(result.plans.glob("*.csv"))
    if link_plans:
        plans.symlink_to(os.path.relpath(result.plans, package))
        placed += [plans / table.name for table in tables]
    else:
        placed += [_copy(table, plans / table.name) for table in tables]
    for stale in {*package.glob("lib/*.so"), *package.glob("_*.so")} - set(placed):
        stale.unlink()
    return placed


def _copy(source: Path, target: Path) -> Path:
    """Replace `target` in one step, unless it is the same already: a process that has it mapped keeps its own."""
    if target.is_file() and not target.is_symlink():
        old, new = target.stat(), source.stat()
        if (old.st_size, old.st_mtime_ns) == (new.st_size, new.st_mtime_ns):
            return target
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.copy2(source, partial)
    partial.replace(target)
    return target


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One build at a time in a source tree."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
