"""What is compiled how, as a ninja file. The only place that knows compiler flags.

    generated_kernels/<family>/*.cu --nvcc--+
    csrc/runtime/*.cpp --------------g++----+--> lib/libcudal2.so        (without nvcc: csrc/runtime/absent.cpp alone)
    csrc/ops*.cpp --g++, torch's stable headers--> lib/libcudal2_ops.so
    csrc/eager.cpp --g++, Python's limited API---> _eager.abi3.so
    csrc/tools.cpp --g++, pybind11---------------> _tools.<python>.so

CUDAL2_EXTRA_KERNELS names a folder with further <family>/*.cu for the library, such as benchmarks.ablation's: they are
compiled as the generated ones are, but may spill registers.

nvcc never sees a torch header. Every path inside the repository is relative to its root, where ninja runs.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from build_tools import torch_headers
from build_tools.arch import Arch
from build_tools.cuda import Toolkit
from build_tools.errors import BuildError
from build_tools.host import Interpreter
from build_tools.torch_headers import Torch

BUILD = Path("build/native")
HOPPER_FAMILY = "sm90"
"""The folder of generated_kernels/ that only 9.0a can compile."""

_COMMON = ["-std=c++17", "-DNDEBUG", "-Icsrc", "-Igenerated_kernels"]
_CXX = ["-O2", *_COMMON, "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra"]
_NVCC = [
    "-O3",
    *_COMMON,
    "--expt-relaxed-constexpr",
    *("-cudart", "static"),
    *("-Xcompiler", "-fPIC,-fvisibility=hidden"),
]
_CHECKED, _EXTRA = ["-Xptxas", "-v,-warn-spills"], ["-Xptxas", "-warn-spills"]
# The static cudart's symbols stay inside: torch brings a cudart of its own into the same process.
_LINK = ["-shared", "-s", "-Wl,--no-undefined", "-Wl,--exclude-libs,ALL"]

# The Python that runs nvcc_checked.py, and CUTLASS's headers where there are any, come through the environment: both
# may lie in a temporary folder (an isolated build), and a command that named it would compile every kernel again.
_RULES = """\
rule nvcc
  command = $$CUDAL2_PYTHON build_tools/nvcc_checked.py $in $out -- $nvcc $flags -MMD -MF $out.d -c $in -o $out
  depfile = $out.d
  deps = gcc
  description = nvcc $in

rule nvcc_extra
  command = $nvcc $flags -MMD -MF $out.d -c $in -o $out
  depfile = $out.d
  deps = gcc
  description = nvcc $in

rule cxx
  command = $cxx $flags -MD -MF $out.d -c $in -o $out
  depfile = $out.d
  deps = gcc
  description = g++ $in

rule link
  command = $cxx $flags -o $out $in $libraries
  description = link $out
"""


@dataclass(frozen=True)
class Setup:
    """Everything that was found on this machine. No toolkit: a fallback-only build."""

    root: Path
    cxx: str
    torch: Torch
    pybind11: Path
    interpreters: tuple[Interpreter, ...]
    archs: tuple[Arch, ...] = ()
    toolkit: Toolkit | None = None
    cutlass: Path | None = None
    custom_cxx: bool = False
    """Whether the user named the C++ compiler (CXX): nvcc then uses it too."""
    why_fallback: str = ""
    extra_kernels: Path | None = None
    """CUDAL2_EXTRA_KERNELS, absolute."""

    @property
    def environment(self) -> dict[str, str]:
        """What ninja's commands need beyond the ninja file."""
        variables = {"CUDAL2_PYTHON": sys.executable}
        if self.cutlass:
            variables["CPLUS_INCLUDE_PATH"] = str(self.cutlass)
        return variables

    @property
    def info(self) -> str:
        """What `cudal2 info` says about the build: nvcc and the architectures, or that there was no nvcc."""
        if self.toolkit is None:
            return "fallback-only: no nvcc was found when it was built"
        names = [arch.sm for arch in self.archs] + [f"compute_{a.major}{a.minor}" for a in self.archs if a.ptx]
        return f"nvcc {self.toolkit.version}, {' '.join(names)}"


@dataclass
class NinjaFile:
    """The text of a ninja file, and what it makes, as paths relative to the repository's root."""

    edges: list[str] = field(default_factory=list)
    libraries: list[Path] = field(default_factory=list)
    modules: list[Path] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "\n".join(["ninja_required_version = 1.8", f"builddir = {BUILD}", "", _RULES, *self.edges])

    def edge(self, rule: str, output: Path, inputs: Iterable[Path], **variables: str) -> Path:
        """Add one build step; `variables` are complete shell text. Returns `output`."""
        lines = [f"build {_path(output)}: {rule} {' '.join(map(_path, inputs))}"]
        lines += [f"  {name} = {value}" for name, value in variables.items()]
        self.edges.append("\n".join(lines) + "\n")
        return output


def generate(setup: Setup) -> NinjaFile:
    """The ninja file for `setup`. Raises BuildError if the source tree is not complete."""
    ninja = NinjaFile()
    core = _core_library(ninja, setup)
    ops = _ops_library(ninja, setup, core)
    ninja.libraries = [core, ops]
    ninja.modules = [_tools_module(ninja, setup, core, interpreter) for interpreter in setup.interpreters]
    if setup.interpreters:
        ninja.modules.append(_eager_module(ninja, setup, [ops, core], setup.interpreters[0]))
    return ninja


def _core_library(ninja: NinjaFile, setup: Setup) -> Path:
    """libcudal2.so: kernels and runtime."""
    runtime = _sources(setup.root, "csrc/runtime", "*.cpp")
    absent = Path("csrc/runtime/absent.cpp")
    libraries: list[str] = []
    if setup.toolkit is None:
        objects = [_compile(ninja, setup, absent, [])]
    else:
        includes = _system(setup.toolkit.includes)
        objects = [_compile(ninja, setup, source, includes) for source in runtime if source != absent]
        objects += [_compile_kernels(ninja, setup, setup.toolkit, source) for source in _kernel_sources(setup)]
        objects += [_compile_kernels(ninja, setup, setup.toolkit, source, True) for source in _extra_sources(setup)]
        libraries = [f"-L{setup.toolkit.cudart}", "-lcudart_static", "-lrt", "-lpthread", "-ldl"]
    flags = [*_LINK, "-Wl,-soname,libcudal2.so"]
    return _link(ninja, setup, BUILD / "lib/libcudal2.so", objects, flags, libraries)


def _ops_library(ninja: NinjaFile, setup: Setup, core: Path) -> Path:
    """libcudal2_ops.so: the torch ops. No path to torch's libraries goes in: the process has loaded them before."""
    flags = [f"-DTORCH_TARGET_VERSION={torch_headers.TARGET_VERSION}", *_system(setup.torch.includes)]
    compiled = [_compile(ninja, setup, source, flags) for source in _sources(setup.root, "csrc", "ops*.cpp")]
    libraries = [f"-L{setup.torch.libraries}", "-ltorch_cpu", "-ltorch", "-ldl"]
    link = [*_LINK, "-Wl,-soname,libcudal2_ops.so", "-Wl,-rpath,$ORIGIN"]
    return _link(ninja, setup, core.with_name("libcudal2_ops.so"), [*compiled, core], link, libraries)


def _tools_module(ninja: NinjaFile, setup: Setup, core: Path, interpreter: Interpreter) -> Path:
    """_tools.<python>.so: pybind11 module."""
    includes = [setup.pybind11, interpreter.include]
    return _module(ninja, setup, f"_tools{interpreter.suffix}", Path("csrc/tools.cpp"), includes, [core])


def _eager_module(ninja: NinjaFile, setup: Setup, libraries: list[Path], interpreter: Interpreter) -> Path:
    """_eager.abi3.so: the short way of an eager call, one module for every Python."""
    return _module(ninja, setup, "_eager.abi3.so", Path("csrc/eager.cpp"), [interpreter.include], libraries)


def _module(
    ninja: NinjaFile, setup: Setup, name: str, source: Path, includes: list[Path], libraries: list[Path]
) -> Path:
    """A Python module. Python's own symbols come from the interpreter that loads it."""
    compiled = _compile(ninja, setup, source, _system(includes), BUILD / "obj" / f"{name}.o")
    link = [flag for flag in _LINK if flag != "-Wl,--no-undefined"]
    return _link(ninja, setup, BUILD / name, [compiled, *libraries], [*link, "-Wl,-rpath,$ORIGIN/lib"], ["-ldl"])


def _kernel_sources(setup: Setup) -> list[Path]:
    """The generated sources that some listed architecture can compile."""
    return _fit(setup, _sources(setup.root, "generated_kernels", "*/*.cu"))


def _extra_sources(setup: Setup) -> list[Path]:
    """The same of CUDAL2_EXTRA_KERNELS. Raises BuildError if it holds none."""
    if setup.extra_kernels is None:
        return []
    sources = sorted(setup.extra_kernels.glob("*/*.cu"))
    if not sources:
        raise BuildError(f"CUDAL2_EXTRA_KERNELS={setup.extra_kernels}: expected a folder with <family>/*.cu in it.")
    return _fit(setup, sources)


def _fit(setup: Setup, sources: list[Path]) -> list[Path]:
    hopper = any(arch.is_hopper for arch in setup.archs)
    return [source for source in sources if hopper or source.parent.name != HOPPER_FAMILY]


def _compile_kernels(ninja: NinjaFile, setup: Setup, toolkit: Toolkit, source: Path, extra: bool = False) -> Path:
    archs = [arch for arch in setup.archs if arch.is_hopper or source.parent.name != HOPPER_FAMILY]
    # The Hopper kernels' PTX would run nowhere else: 9.0a is not carried over to later architectures.
    gencode = [
        flag for arch in archs for flag in arch.gencode() if source.parent.name != HOPPER_FAMILY or "sm_" in flag
    ]
    host = ["-ccbin", setup.cxx] if setup.custom_cxx else []
    flags = [*_NVCC, *(_EXTRA if extra else _CHECKED), *gencode, *_system(toolkit.foreign_includes), *host]
    rule = "nvcc_extra" if extra else "nvcc"
    target = _object(Path("extra", source.parent.name, source.name) if extra else source)
    return ninja.edge(rule, target, [source], nvcc=_shell([str(toolkit.nvcc)]), flags=_shell(flags))


def _compile(ninja: NinjaFile, setup: Setup, source: Path, flags: list[str], target: Path | None = None) -> Path:
    path = setup.root / source
    if not path.is_file():
        raise BuildError(f"{source} is missing: the source tree is not complete.")
    if "CUDAL2_BUILD_INFO" in path.read_text(encoding="utf-8"):
        flags = [*flags, f"-DCUDAL2_BUILD_INFO={json.dumps(setup.info)}"]
    target = target or _object(source)
    return ninja.edge("cxx", target, [source], cxx=_shell([setup.cxx]), flags=_shell([*_CXX, *flags]))


def _link(
    ninja: NinjaFile, setup: Setup, target: Path, inputs: list[Path], flags: list[str], libraries: list[str]
) -> Path:
    shell = {"cxx": _shell([setup.cxx]), "flags": _shell(flags), "libraries": _shell(libraries)}
    return ninja.edge("link", target, inputs, **shell)


def _sources(root: Path, folder: str, pattern: str) -> list[Path]:
    return sorted(path.relative_to(root) for path in (root / folder).glob(pattern))


def _object(source: Path) -> Path:
    return BUILD / "obj" / source.with_suffix(source.suffix + ".o")


def _system(folders: Iterable[Path]) -> list[str]:
    return [word for folder in folders for word in ("-isystem", str(folder))]


def _shell(words: list[str]) -> str:
    """`words` as text that ninja passes on and the shell reads as these words."""
    return shlex.join(words).replace("$", "$$")


def _path(path: Path) -> str:
    return str(path).replace("$", "$$").replace(" ", "$ ").replace(":", "$:")
