"""What the native build finds and what it refuses: nvcc, architectures, torch's headers, the host's tools."""

from __future__ import annotations

import importlib.machinery
import os
import re
from pathlib import Path

import pytest
from fake_tools import FAKE_NVCC, executable, fake_toolkit, fake_torch

from build_tools import arch, backend, cuda, host, torch_headers
from build_tools.errors import BuildError

# nvcc ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("present", "expected"),
    [
        ({"home", "path", "cu13", "cuda_nvcc"}, "home"),
        ({"path", "cu13", "cuda_nvcc"}, "path"),
        ({"cu13", "cuda_nvcc"}, "cu13"),
        ({"cuda_nvcc"}, "cuda_nvcc"),
        (set(), None),
    ],
)
def test_nvcc_is_found_in_cuda_home_then_on_path_then_in_the_wheel(
    tmp_path: Path, present: set[str], expected: str | None
) -> None:
    places = {
        "home": tmp_path / "home/bin/nvcc",
        "path": tmp_path / "path/nvcc",
        "cu13": tmp_path / "site/nvidia/cu13/bin/nvcc",
        "cuda_nvcc": tmp_path / "site/nvidia/cuda_nvcc/bin/nvcc",
    }
    for name in present:
        executable(places[name], "#!/bin/sh\n")
    env = {"CUDA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path")}
    found = cuda.find_nvcc(env, [tmp_path / "empty", tmp_path / "site"])
    assert found == (places[expected] if expected else None)


def test_a_file_that_cannot_be_executed_is_not_nvcc(tmp_path: Path) -> None:
    executable(tmp_path / "bin/nvcc", "").chmod(0o644)
    assert cuda.find_nvcc({"CUDA_HOME": str(tmp_path), "PATH": ""}, []) is None


def test_the_target_environment_is_searched_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under pip's build isolation the target's site-packages is not on sys.path, but sysconfig names it."""
    nvcc = executable(tmp_path / "nvidia/cu13/bin/nvcc", "#!/bin/sh\n")
    monkeypatch.setattr(cuda.sys, "path", [])
    monkeypatch.setattr(cuda.sysconfig, "get_paths", lambda: {"platlib": str(tmp_path), "purelib": str(tmp_path)})
    assert cuda.find_nvcc({"PATH": ""}) == nvcc


@pytest.mark.parametrize(("env", "said"), [({}, "CUDA_HOME (not set)"), ({"CUDA_HOME": "/x"}, "CUDA_HOME=/x")])
def test_the_message_without_nvcc_says_where_it_looked(tmp_path: Path, env: dict[str, str], said: str) -> None:
    nowhere = tmp_path / "cuda/bin/nvcc"
    assert said in cuda.not_found_message(env, nowhere)
    assert "set CUDA_HOME=" not in cuda.not_found_message(env, nowhere)
    executable(nowhere, "#!/bin/sh\n")
    assert f"set CUDA_HOME={tmp_path / 'cuda'}" in cuda.not_found_message(env, nowhere)


@pytest.mark.parametrize("library_folder", ["lib64", "lib"])
def test_inspect_asks_nvcc(tmp_path: Path, library_folder: str) -> None:
    toolkit = cuda.inspect(fake_toolkit(tmp_path / "cuda", library_folder))
    assert toolkit.version == "13.0.88"
    assert toolkit.architectures == {"sm_75", "sm_80", "sm_90", "sm_100"}
    assert toolkit.includes == (tmp_path / "cuda/include",)
    assert toolkit.foreign_includes == ()
    assert toolkit.cudart == tmp_path / "cuda" / library_folder


def test_inspect_follows_a_script_on_path_to_the_toolkit(tmp_path: Path) -> None:
    nvcc = fake_toolkit(tmp_path / "cuda")
    script = executable(tmp_path / "bin/nvcc", f'#!/bin/sh\nexec "{nvcc}" "$@"\n')
    assert cuda.inspect(script).includes == (tmp_path / "cuda/include",)


def test_inspect_finds_the_sibling_folders_of_split_wheels(tmp_path: Path) -> None:
    nvidia = tmp_path / "nvidia"
    nvcc = executable(nvidia / "cuda_nvcc/bin/nvcc", FAKE_NVCC.format(top=nvidia / "cuda_nvcc"))
    fake_toolkit(nvidia / "cuda_runtime", "lib")
    toolkit = cuda.inspect(nvcc)
    assert toolkit.foreign_includes == (nvidia / "cuda_runtime/include",)
    assert toolkit.cudart == nvidia / "cuda_runtime/lib"


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("include/cuda_runtime.h", "no cuda_runtime.h"),
        ("lib64/libcudart_static.a", "no libcudart_static.a"),
    ],
)
def test_an_incomplete_toolkit_is_named(tmp_path: Path, missing: str, said: str) -> None:
    nvcc = fake_toolkit(tmp_path)
    (tmp_path / missing).unlink()
    with pytest.raises(BuildError, match=said):
        cuda.inspect(nvcc)


@pytest.mark.parametrize("text", ["#!/bin/sh\necho hello\n", "#!/bin/sh\nexit 1\n", "not a program"])
def test_something_else_called_nvcc_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(BuildError, match=r"nvcc"):
        cuda.inspect(executable(tmp_path / "bin/nvcc", text))


# Architectures -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "8.0;9.0a"),
        ("", "8.0;9.0a"),
        ("  ;", "8.0;9.0a"),
        ("8.0;9.0a", "8.0;9.0a"),
        ("9.0", "9.0a"),
        ("9.0 8.0", "8.0;9.0a"),
        ("8.0, 8.6", "8.0;8.6"),
        ("9.0;9.0a", "9.0a"),
        ("8.6+PTX", "8.6+PTX"),
        ("8.6;8.6+PTX", "8.6+PTX"),
        ("Hopper", "9.0a"),
        ("hopper;Ampere", "8.0;8.6;9.0a"),
        ("Ampere+PTX", "8.0;8.6+PTX"),
        ("10.0a 12.0", "10.0a;12.0"),
        ("7.5 8.0 8.6 9.0 10.0 12.0+PTX", "7.5;8.0;8.6;9.0a;10.0;12.0+PTX"),
    ],
)
def test_architecture_list(text: str | None, expected: str) -> None:
    assert ";".join(map(str, arch.parse(text))) == expected


@pytest.mark.parametrize("text", ["sm_80", "80", "8", "8.0b", "8.0+SASS", "Maxwell", "8.0;x", "-8.0"])
def test_a_wrong_architecture_is_named(text: str) -> None:
    with pytest.raises(BuildError, match=r"TORCH_CUDA_ARCH_LIST=.* is not an architecture") as caught:
        arch.parse(text)
    assert repr(text.split(";")[-1]) in str(caught.value)


@pytest.mark.parametrize("text", ["6.1", "8.0;5.0+PTX"])
def test_an_architecture_without_tensor_cores_is_refused(text: str) -> None:
    with pytest.raises(BuildError, match="no tensor cores"):
        arch.parse(text)


def test_an_architecture_that_nvcc_does_not_know_is_refused() -> None:
    known = {"sm_75", "sm_80", "sm_90", "sm_100"}
    arch.check_supported(arch.parse("7.5;8.0;9.0a;10.0a"), known, "nvcc 13.0.88")
    with pytest.raises(BuildError, match=r"nvcc 13.0.88 cannot compile for 7.0; it knows 7.5, 8.0, 9.0, 10.0"):
        arch.check_supported(arch.parse("7.0"), known, "nvcc 13.0.88")


def test_gencode() -> None:
    assert arch.Arch(9, 0, "a").gencode() == ["-gencode=arch=compute_90a,code=sm_90a"]
    assert arch.Arch(8, 6, ptx=True).gencode() == [
        "-gencode=arch=compute_86,code=sm_86",
        "-gencode=arch=compute_86,code=compute_86",
    ]


# torch ---------------------------------------------------------------------------------------------------------------


def test_the_first_torch_wins(tmp_path: Path) -> None:
    first, second = fake_torch(tmp_path / "a", "2.10.0"), fake_torch(tmp_path / "b", "2.15.1")
    torch = torch_headers.find([tmp_path / "empty", first, second])
    assert torch == torch_headers.Torch(first / "torch", "2.10.0")
    assert torch.includes == (first / "torch/include",)


def test_the_build_environment_comes_before_the_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build, target = fake_torch(tmp_path / "build"), fake_torch(tmp_path / "target")
    monkeypatch.setattr(torch_headers.sysconfig, "get_paths", lambda: {"platlib": str(target), "purelib": str(target)})
    spec = importlib.machinery.ModuleSpec("torch", None, is_package=True)
    spec.submodule_search_locations = [str(build / "torch")]
    monkeypatch.setattr(torch_headers.importlib.util, "find_spec", lambda name: spec)
    assert torch_headers.candidates() == [build, target]
    monkeypatch.setattr(torch_headers.importlib.util, "find_spec", lambda name: None)
    assert torch_headers.candidates() == [target]


@pytest.mark.parametrize("version", ["2.9.1+cu128", "1.13.0", "0.4", "unknown"])
def test_an_old_torch_is_refused(tmp_path: Path, version: str) -> None:
    with pytest.raises(BuildError, match=r"too old: cudal2 needs torch>=2\.10") as caught:
        torch_headers.find([fake_torch(tmp_path, version)])
    assert version in str(caught.value)


@pytest.mark.parametrize("version", ["2.10.0", "2.15.0.dev20270101+cu130", "3.0.0a0+git1234567"])
def test_a_new_torch_is_taken(tmp_path: Path, version: str) -> None:
    assert torch_headers.find([fake_torch(tmp_path, version)]) is not None


def test_a_torch_without_its_headers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="reinstall it with its headers"):
        torch_headers.find([fake_torch(tmp_path, headers=False)])


def test_no_torch_says_to_install_it_first(tmp_path: Path) -> None:
    assert torch_headers.find([tmp_path]) is None
    with pytest.raises(BuildError, match=r"pip install 'torch>=2\.10'"):
        torch_headers.require([tmp_path])


def test_the_build_asks_for_torch_only_where_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_headers, "candidates", lambda: [tmp_path])
    assert backend.torch_requirement() == ["torch>=2.10"]
    fake_torch(tmp_path)
    assert backend.torch_requirement() == []
    fake_torch(tmp_path, "2.8.0")
    with pytest.raises(SystemExit, match="too old"):
        backend.torch_requirement()


# The host's tools ----------------------------------------------------------------------------------------------------


def test_no_compiler_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"tried g\+\+ and c\+\+ on PATH. Install"):
        host.find_cxx({"PATH": str(tmp_path)})


def test_a_named_compiler_that_is_not_there_is_not_passed_over(tmp_path: Path) -> None:
    executable(tmp_path / "g++", "#!/bin/sh\n")
    with pytest.raises(BuildError, match=r"CXX=clang\+\+-99 is not a program on PATH"):
        host.find_cxx({"PATH": str(tmp_path), "CXX": "clang++-99"})


def test_cxx_is_honoured(tmp_path: Path) -> None:
    named = executable(tmp_path / "my-g++", "#!/bin/sh\n")
    executable(tmp_path / "g++", "#!/bin/sh\n")
    assert host.find_cxx({"PATH": str(tmp_path), "CXX": "my-g++"}) == str(named)
    assert host.find_cxx({"PATH": str(tmp_path)}) == str(tmp_path / "g++")


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5"])
def test_a_wrong_max_jobs_is_named(text: str) -> None:
    with pytest.raises(BuildError, match=re.escape(f"MAX_JOBS={text!r}")):
        host.jobs({"MAX_JOBS": text})


def test_max_jobs() -> None:
    assert host.jobs({"MAX_JOBS": "3"}) == 3
    assert 1 <= host.jobs({}) <= (os.cpu_count() or 1)


def test_further_pythons_for_the_tooling_module(tmp_path: Path) -> None:
    (tmp_path / "Python.h").touch()
    answer = f'["{tmp_path}", ".cpython-399-x86_64-linux-gnu.so"]'
    other = executable(tmp_path / "python3.99", f"#!/bin/sh\necho '{answer}'\n")
    found = host.interpreters({"CUDAL2_TOOLS_PYTHONS": f"{other}:{other}"})
    assert host.Interpreter(tmp_path, ".cpython-399-x86_64-linux-gnu.so") in found
    assert len(found) == len({interpreter.suffix for interpreter in found})


@pytest.mark.parametrize("answer", ['["/nonexistent", ".so"]', "hello"])
def test_a_further_python_that_cannot_serve_is_named(tmp_path: Path, answer: str) -> None:
    other = executable(tmp_path / "python3.99", f"#!/bin/sh\necho '{answer}'\n")
    with pytest.raises(BuildError, match=r"CUDAL2_TOOLS_PYTHONS: .*python3\.99"):
        host.interpreters({"CUDAL2_TOOLS_PYTHONS": str(other)})
