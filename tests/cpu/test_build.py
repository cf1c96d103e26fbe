"""What the native build hands to which compiler, what it makes of the answers, and where the results go.

Fast: compiles two small files at most.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fake_tools import ROOT, executable, fake_toolkit, fake_torch

from build_tools import arch, cuda, host, native, ninja_file, nvcc_checked, torch_headers
from build_tools.errors import BuildError

# ptxas ---------------------------------------------------------------------------------------------------------------

CLEAN = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z4finePf' for 'sm_90a'
ptxas info    : Function properties for _Z4finePf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 0 barriers
ptxas info    : Compile time = 0.892 ms
"""
SPILL = """\
ptxas info    : Compiling entry function '_Z7spillerILi96EEvPf' for 'sm_90a'
ptxas info    : Function properties for _Z7spillerILi96EEvPf
    1640 bytes stack frame, 2072 bytes spill stores, 2276 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers, 1640 bytes cumulative stack size
"""
SPILL_WARNING = (
    "ptxas warning : Registers are spilled to local memory in function '_Z7spillerILi96EEvPf', "
    "2072 bytes spill stores, 2276 bytes spill loads\n"
)
INJECTED = (
    "ptxas info    : (C7517) warpgroup.wait is injected in around line 932 by compiler to allow use of registers "
    "defined by GMMA in function '_Z6serialPf'\n"
)
SERIALIZED = (
    "ptxas warning : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to "
    "insufficient register resources for the wgmma pipeline in the function '_Z6serialPf'\n"
)
SETMAXNREG = (
    "ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored to maintain minimum requirements.\n"
)
OTHER_WARNING = "ptxas warning : (C7099) some other thing in function '_Z4finePf'\n"


@pytest.mark.parametrize(
    ("output", "kernels"),
    [
        ("", []),
        (CLEAN, []),
        (CLEAN + OTHER_WARNING, []),
        (CLEAN + SPILL, ["_Z7spillerILi96EEvPf"]),
        (SPILL + CLEAN, ["_Z7spillerILi96EEvPf"]),
        (SPILL_WARNING, ["_Z7spillerILi96EEvPf"]),
        (SPILL_WARNING + SPILL, ["_Z7spillerILi96EEvPf"]),
        (SPILL.replace("2072 bytes spill stores", "0 bytes spill stores"), ["_Z7spillerILi96EEvPf"]),
        (CLEAN + INJECTED, ["_Z6serialPf"]),
        (SERIALIZED + CLEAN, ["_Z6serialPf"]),
        (SERIALIZED + INJECTED, ["_Z6serialPf", "_Z6serialPf"]),
        (SETMAXNREG + CLEAN, [""]),
    ],
)
def test_problems_in_ptxas_output(output: str, kernels: list[str]) -> None:
    assert [kernel for kernel, _ in nvcc_checked.problems(output)] == kernels


def test_the_report_names_file_kernel_and_problem() -> None:
    text = nvcc_checked.report("generated_kernels/sm90/f16_tn_0.cu", nvcc_checked.problems(SPILL + SERIALIZED))
    spilled, serialized = text.splitlines()[1:]
    assert spilled.startswith("generated_kernels/sm90/f16_tn_0.cu: ")
    assert "spiller" in spilled
    assert "2072 bytes stored" in spilled
    assert "serial" in serialized
    assert "C7510" in serialized


@pytest.mark.parametrize(
    ("output", "status", "expected"),
    [(CLEAN, 0, 0), (CLEAN + SPILL, 0, 1), (SERIALIZED, 0, 1), ("x.cu(1): error: no\n", 2, 2)],
)
def test_checked_nvcc_fails_on_a_problem_and_leaves_no_object(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], output: str, status: int, expected: int
) -> None:
    (tmp_path / "output").write_text(output, encoding="utf-8")
    fails = f"exit {status}" if status else f"touch {tmp_path / 'x.o'}"
    nvcc = executable(tmp_path / "nvcc", f"#!/bin/sh\ncat {tmp_path / 'output'} >&2\n{fails}\n")
    assert nvcc_checked.main(["x.cu", str(tmp_path / "x.o"), "--", str(nvcc), "-c"]) == expected
    assert (tmp_path / "x.o").exists() == (expected == 0)
    assert (tmp_path / "x.o.ptxas").exists() == (expected == 0)
    said = capfd.readouterr().err
    assert ("x.cu" in said) == (expected != 0)
    assert "Used 10 registers" not in said


def test_real_nvcc_reports_a_spill(tmp_path: Path) -> None:
    nvcc = cuda.find_nvcc()
    if nvcc is None:
        pytest.skip("no nvcc on this machine")
    source = tmp_path / "spill.cu"
    source.write_text(
        "__global__ void spiller(float* p) {\n"
        "  float a[32];\n"
        "#pragma unroll\n"
        "  for (int i = 0; i < 32; i++) a[i] = p[i * threadIdx.x];\n"
        "  __syncthreads();\n"
        "#pragma unroll\n"
        "  for (int i = 0; i < 32; i++) p[i * threadIdx.x + 1] = a[i] * a[(i * 7 + 1) % 32];\n"
        "}\n",
        encoding="utf-8",
    )
    target = tmp_path / "spill.o"
    command = [str(nvcc), "-arch=sm_80", "-Xptxas", "-v", "-c", str(source), "-o", str(target)]
    assert nvcc_checked.main([str(source), str(target), "--", *command]) == 0
    assert nvcc_checked.main([str(source), str(target), "--", *command, "-maxrregcount=24"]) == 1


# What goes to which compiler -----------------------------------------------------------------------------------------


def make_setup(tmp_path: Path, archs: str | None = None, *, nvcc: bool = True) -> ninja_file.Setup:
    """A setup of this source tree with made-up tools."""
    return ninja_file.Setup(
        root=ROOT,
        cxx="g++",
        torch=torch_headers.Torch(tmp_path / "site/torch", "2.13.0"),
        pybind11=tmp_path / "pybind11",
        interpreters=(host.Interpreter(tmp_path / "python", ".cpython-311-x86_64-linux-gnu.so"),),
        archs=tuple(arch.parse(archs)),
        toolkit=cuda.inspect(fake_toolkit(tmp_path / "cuda")) if nvcc else None,
        why_fallback="" if nvcc else "no nvcc",
    )


def edges(ninja: ninja_file.NinjaFile, rule: str) -> list[str]:
    return [edge for edge in ninja.edges if f": {rule} " in edge]


def test_no_torch_header_reaches_nvcc(tmp_path: Path) -> None:
    setup = make_setup(tmp_path)
    ninja = ninja_file.generate(setup)
    kernels = edges(ninja, "nvcc")
    assert kernels
    assert not [edge for edge in kernels if str(setup.torch.root) in edge]
    with_torch = [edge for edge in ninja.edges if str(setup.torch.root) in edge]
    assert [edge.split(":")[0] for edge in with_torch] == [
        "build build/native/obj/csrc/ops.cpp.o",
        "build build/native/obj/csrc/ops_gemm.cpp.o",
        "build build/native/obj/csrc/ops_pdl.cpp.o",
        "build build/native/lib/libcudal2_ops.so",
    ]
    assert "CPLUS_INCLUDE_PATH" not in setup.environment


@pytest.mark.parametrize(
    ("headers", "allowed"), [("torch|ATen|c10", {"ops_torch.h"}), ("pybind11", {"tools.cpp", "timer.h"})]
)
def test_who_includes_torch_and_python(headers: str, allowed: set[str]) -> None:
    folders = [ROOT / "csrc", ROOT / "generated_kernels"]
    sources = [path for folder in folders for path in folder.rglob("*.*") if path.suffix != ".csv"]
    pattern = re.compile(rf"^\s*#\s*include\s*[<\"](?:{headers})/", re.MULTILINE)
    assert {path.name for path in sources if pattern.search(path.read_text(encoding="utf-8"))} == allowed


def test_python_modules(tmp_path: Path) -> None:
    """Tools for each Python, one short way for all of them, and neither where there is no Python.h."""
    setup = make_setup(tmp_path)
    pythons = tuple(host.Interpreter(tmp_path / name, f".{name}.so") for name in ("one", "two"))
    for interpreters, expected in (
        ((), set()),
        (pythons, {"_tools.one.so", "_tools.two.so", "_eager.abi3.so"}),
    ):
        ninja = ninja_file.generate(ninja_file.Setup(**{**vars(setup), "interpreters": interpreters}))
        assert {module.name for module in ninja.modules} == expected
        assert len(edges(ninja, "link")) == 2 + len(expected)


def test_the_stable_abi_target_is_torch_2_10(tmp_path: Path) -> None:
    (ops,) = [edge for edge in ninja_file.generate(make_setup(tmp_path)).edges if "ops.cpp.o: cxx" in edge]
    assert "-DTORCH_TARGET_VERSION=0x020a000000000000" in ops


@pytest.mark.parametrize(
    ("archs", "hopper", "others"),
    [
        (None, {"sm_90a"}, {"sm_80", "sm_90a"}),
        ("8.0", set(), {"sm_80"}),
        ("9.0", {"sm_90a"}, {"sm_90a"}),
        ("8.6;9.0+PTX", {"sm_90a"}, {"sm_86", "sm_90a", "compute_90"}),
    ],
)
def test_architectures_of_each_family(tmp_path: Path, archs: str | None, hopper: set[str], others: set[str]) -> None:
    compiled: dict[bool, set[str]] = {True: set(), False: set()}
    for edge in edges(ninja_file.generate(make_setup(tmp_path, archs)), "nvcc"):
        compiled["generated_kernels/sm90/" in edge].update(re.findall(r",code=(\w+)", edge))
    assert compiled == {True: hopper, False: others}


def test_every_kernel_source_and_runtime_file_is_in_the_library(tmp_path: Path) -> None:
    ninja = ninja_file.generate(make_setup(tmp_path))
    (core,) = [edge for edge in edges(ninja, "link") if "libcudal2.so:" in edge]
    expected = {path.name for path in (ROOT / "generated_kernels").glob("*/*.cu")}
    expected |= {path.name for path in (ROOT / "csrc/runtime").glob("*.cpp")} - {"absent.cpp"}
    assert {Path(name).name.removesuffix(".o") for name in re.findall(r"\S+\.o\b", core.splitlines()[0])} == expected
    assert "-lcuda " not in core + " "
    assert "-lcudart_static" in core


def test_the_build_says_what_it_is(tmp_path: Path) -> None:
    assert make_setup(tmp_path, "8.0;9.0+PTX").info == "nvcc 13.0.88, sm_80 sm_90a compute_90"
    (registry,) = [e for e in ninja_file.generate(make_setup(tmp_path)).edges if "/registry.cpp.o: cxx" in e]
    assert """'-DCUDAL2_BUILD_INFO="nvcc 13.0.88, sm_80 sm_90a"'""" in registry


def test_the_ninja_file_does_not_depend_on_where_the_tree_or_python_is(tmp_path: Path) -> None:
    """Or an isolated build, whose Python and CUTLASS lie in a temporary folder, would compile every kernel again."""
    for edge in edges(ninja_file.generate(make_setup(tmp_path)), "nvcc"):
        assert str(ROOT) not in edge.replace(str(tmp_path), "")
        assert sys.executable not in edge


def test_a_missing_source_is_named(tmp_path: Path) -> None:
    setup = make_setup(tmp_path, nvcc=False)
    with pytest.raises(BuildError, match=r"csrc/runtime/absent\.cpp is missing"):
        ninja_file.generate(ninja_file.Setup(**{**vars(setup), "root": tmp_path}))


# Fallback-only -------------------------------------------------------------------------------------------------------


def ninja_or_skip() -> str:
    try:
        host.find_cxx()
        return host.find_ninja()
    except BuildError as error:
        pytest.skip(str(error))


def test_fallback_only_library(tmp_path: Path) -> None:
    """absent.cpp alone makes a libcudal2.so that says what it is; a second build does nothing."""
    program = ninja_or_skip()
    shutil.copytree(ROOT / "csrc", tmp_path / "csrc")
    setup = ninja_file.Setup(**{**vars(make_setup(tmp_path, nvcc=False)), "root": tmp_path, "cxx": host.find_cxx()})
    ninja = ninja_file.generate(setup)
    assert not edges(ninja, "nvcc")
    (tmp_path / "build.ninja").write_text(ninja.text, encoding="utf-8")
    library = ninja.libraries[0]
    for expected in ("link build/native/lib/libcudal2.so", "no work to do"):
        run = subprocess.run([program, str(library)], cwd=tmp_path, capture_output=True, text=True)
        assert expected in run.stdout, run.stdout + run.stderr
    build_info = ctypes.CDLL(str(tmp_path / library))["_ZN6cudal210build_infoEv"]
    build_info.restype = ctypes.c_char_p
    assert build_info().startswith(b"fallback-only")


def test_a_build_without_nvcc_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "csrc", tmp_path / "csrc")
    compilers = tmp_path / "compilers"
    executable(compilers / "g++", "#!/bin/sh\n")
    monkeypatch.setattr(cuda, "site_folders", list)
    monkeypatch.setattr(torch_headers, "candidates", lambda: [fake_torch(tmp_path / "site")])
    monkeypatch.setattr(host, "pybind11_include", lambda: tmp_path)
    monkeypatch.setattr(host, "find_ninja", lambda env: str(executable(tmp_path / "ninja", "#!/bin/sh\n")))
    said: list[str] = []
    result = native.build(tmp_path, {"PATH": f"{compilers}:/nonexistent"}, said.append)
    assert result.info.startswith("fallback-only: no nvcc was found")
    assert any("FALLBACK-ONLY: no nvcc in CUDA_HOME" in line for line in said)


def test_a_failing_compiler_fails_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "look_around", lambda root, env: make_setup(tmp_path))
    monkeypatch.setattr(ninja_file, "generate", lambda setup: ninja_file.NinjaFile())
    monkeypatch.setattr(host, "find_ninja", lambda env: str(executable(tmp_path / "ninja", "#!/bin/sh\nexit 1\n")))
    with pytest.raises(BuildError, match="the native build failed"):
        native.build(tmp_path, {}, lambda line: None)


# Results -------------------------------------------------------------------------------------------------------------


def make_result(folder: Path) -> native.Result:
    library = executable(folder / "lib/libcudal2.so", "library")
    module = executable(folder / "_tools.cpython-311-x86_64-linux-gnu.so", "module")
    plans = executable(folder / "plans/nvidia_h200.csv", "plans").parent
    return native.Result("", [library], [module], plans)


@pytest.mark.parametrize("link_plans", [False, True])
def test_results_replace_those_of_an_earlier_build(tmp_path: Path, link_plans: bool) -> None:
    result, package = make_result(tmp_path / "build"), tmp_path / "cudal2"
    for stale in ("lib/libold.so", "_tools.cpython-310-x86_64-linux-gnu.so", "_eager.abi3.so", "plans/gone.csv"):
        executable(package / stale, "stale")
    for _ in range(2):
        placed = native.place(result, package, link_plans=link_plans)
    there = {path.relative_to(package) for path in package.rglob("*") if path.is_file()} | {
        Path("plans/nvidia_h200.csv")
    }
    assert there == {path.relative_to(package) for path in placed}
    assert (package / "plans/nvidia_h200.csv").read_text(encoding="utf-8") == "plans"
    assert (package / "plans").is_symlink() == link_plans


def test_an_unchanged_library_is_not_written_again(tmp_path: Path) -> None:
    result, package = make_result(tmp_path / "build"), tmp_path / "cudal2"
    library = native.place(result, package)[0]
    before = library.stat().st_ino
    native.place(result, package)
    assert library.stat().st_ino == before
    result.libraries[0].write_text("another", encoding="utf-8")
    native.place(result, package)
    assert library.read_text(encoding="utf-8") == "another"
    assert library.stat().st_ino != before


def test_wheel_tag() -> None:
    """One wheel for every Python, but for Linux x86-64 alone."""
    script = (
        "from distutils.core import run_setup\n"
        "wheel = run_setup('setup.py', stop_after='init').get_command_obj('bdist_wheel')\n"
        "wheel.ensure_finalized()\n"
        "print(*wheel.get_tag(), wheel.root_is_pure)\n"
    )
    command = [sys.executable, "-c", "import setuptools\n" + script]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.stdout.split()[-4:] == ["py3", "none", "linux_x86_64", "False"], run.stdout + run.stderr


def test_development_tools_are_pinned() -> None:
    command = [sys.executable, "-m", "build_tools.requirements"]
    run = subprocess.run([*command, "dev"], cwd=ROOT, capture_output=True, text=True, check=True)
    tools = run.stdout.split()
    assert {"pytest", "ruff", "mypy", "clang-format"} <= {tool.partition("==")[0] for tool in tools}
    assert [tool for tool in tools if "==" not in tool] == ["setuptools>=77.0.3"]
    assert subprocess.run([*command, "nothing"], cwd=ROOT, capture_output=True).returncode != 0


def test_the_built_library_keeps_its_cuda_runtime_to_itself() -> None:
    """torch has a CUDA runtime of its own in the same process, and a CPU-only machine has no libcuda to link to."""
    spec = importlib.util.find_spec("cudal2")
    library = Path(spec.origin).parent / "lib/libcudal2.so" if spec and spec.origin else None
    if library is None or not library.is_file() or not shutil.which("nm") or not shutil.which("readelf"):
        pytest.skip("needs a built cudal2, nm and readelf")
    exported = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True)
    names = exported.stdout.split()[2::3]
    assert any("build_info" in name for name in names)
    assert not [name for name in names if name.startswith(("cuda", "__cuda", "cu"))]
    needed = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True)
    assert "libstdc++" in needed.stdout
    assert not re.findall(r"\[libcuda(?:rt)?\.so", needed.stdout)
