"""The switch of programmatic dependent launch: who sets it, for whom, and when a launch uses it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from products import rand
from torch import Tensor

import cudal2

ROOT = Path(__file__).resolve().parents[2]
DEFAULT = os.environ.get("CUDAL2_PDL") == "1"
BAD = ["", "2", "yes", "true", "01", " 1", "1 ", "-1", "a\n\x7f"]


@pytest.fixture(autouse=True)
def _unchanged() -> Iterator[None]:
    assert cudal2.pdl_enabled() == DEFAULT
    yield
    assert cudal2.pdl_enabled() == DEFAULT, "the test has left the switch changed"


def in_thread(function: Callable[[], object]) -> object:
    """What `function` returns, or the error that it raises, in a thread of its own."""
    results: list[object] = []

    def work() -> None:
        try:
            results.append(function())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return results[0]


class TestContext:
    @pytest.mark.parametrize("enabled", [True, False])
    def test_within_and_after(self, enabled: bool) -> None:
        with cudal2.pdl(enabled):
            assert cudal2.pdl_enabled() is enabled
        assert cudal2.pdl_enabled() is DEFAULT

    def test_nested(self) -> None:
        with cudal2.pdl(True):
            with cudal2.pdl(False):
                with cudal2.pdl(True):
                    assert cudal2.pdl_enabled()
                assert not cudal2.pdl_enabled()
            assert cudal2.pdl_enabled()

    def test_an_exception_passes_and_restores(self) -> None:
        with pytest.raises(KeyError, match="from within"), cudal2.pdl(True), cudal2.pdl(False):
            raise KeyError("from within")
        with cudal2.pdl(True):
            with pytest.raises(KeyError), cudal2.pdl(False):
                raise KeyError
            assert cudal2.pdl_enabled()

    def test_as_a_call_until_undone(self) -> None:
        switch = cudal2.pdl(True)
        assert cudal2.pdl_enabled()
        assert repr(switch) == "<cudal2.pdl(True)>"
        switch.undo()
        assert cudal2.pdl_enabled() is DEFAULT
        assert repr(switch) == "<cudal2.pdl(True), undone>"
        with cudal2.pdl(True):
            switch.undo()
            assert cudal2.pdl_enabled(), "undone a second time"

    @pytest.mark.parametrize("enabled", [1, 0, None, "1", "on", torch.tensor(True)], ids=repr)
    def test_enabled_is_a_bool(self, enabled: object) -> None:
        with pytest.raises(TypeError, match=r"enabled=.*; expected True or False"):
            cudal2.pdl(enabled)  # type: ignore[arg-type]


class TestThreads:
    def test_others_see_nothing_of_it(self) -> None:
        with cudal2.pdl(not DEFAULT):
            assert in_thread(cudal2.pdl_enabled) is DEFAULT

    def test_a_thread_s_own_ends_with_it(self) -> None:
        assert in_thread(lambda: cudal2.pdl(not DEFAULT) and cudal2.pdl_enabled()) is (not DEFAULT)
        assert cudal2.pdl_enabled() is DEFAULT

    def test_each_keeps_its_own(self) -> None:
        barrier = threading.Barrier(8, timeout=60)

        def work(enabled: bool) -> bool:
            for _ in range(50):
                with cudal2.pdl(enabled):
                    barrier.wait()
                    if cudal2.pdl_enabled() is not enabled:
                        return False
                barrier.wait()
            return cudal2.pdl_enabled() is DEFAULT

        results: list[bool] = []
        threads = [threading.Thread(target=lambda i=i: results.append(work(i % 2 == 0))) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [True] * 8

    def test_another_thread_cannot_undo(self) -> None:
        with cudal2.pdl(True) as switch:
            error = in_thread(switch.undo)
            assert isinstance(error, RuntimeError)
            assert "in the thread that called it" in str(error)
            assert cudal2.pdl_enabled()


class TestTorch:
    """The switch is no tensor op: nothing records it, and what is compiled reads it when it launches."""

    @pytest.mark.usefixtures("fresh_compile")
    def test_switching_recompiles_nothing(self) -> None:
        graphs: list[torch.fx.GraphModule] = []

        def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
            graphs.append(graph)
            return graph.forward

        a, b = rand(4, 8), rand(8, 6)
        function = torch.compile(cudal2.matmul, fullgraph=True, backend=backend)
        results = [function(a, b)]
        for enabled in (True, False):
            with cudal2.pdl(enabled):
                results.append(function(a, b))
        assert len(graphs) == 1
        assert all(torch.equal(result, torch.matmul(a, b)) for result in results)

    @pytest.mark.usefixtures("fresh_compile")
    def test_within_a_compiled_function_it_breaks_the_graph(self) -> None:
        def function(a: Tensor) -> Tensor:
            product = cudal2.matmul(a, a)
            with cudal2.pdl(not DEFAULT):
                seen.append(cudal2.pdl_enabled())
                return cudal2.matmul(product, a)

        seen: list[bool] = []
        a = rand(4, 4)
        compiled = torch.compile(function, backend="aot_eager")
        for _ in range(3):
            torch.testing.assert_close(compiled(a), a @ a @ a)
        assert seen == [not DEFAULT] * 3
        torch._dynamo.reset()
        with pytest.raises(torch._dynamo.exc.Unsupported):
            torch.compile(function, backend="aot_eager", fullgraph=True)(a)

    def test_a_mode_does_not_see_it(self) -> None:
        class Mode(torch.utils._python_dispatch.TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
                raise AssertionError(func)

        with Mode(), cudal2.pdl(True):
            assert cudal2.pdl_enabled()


# The environment -----------------------------------------------------------------------------------------------------


def _python(value: str | None, code: str) -> subprocess.CompletedProcess[str]:
    environment = {name: text for name, text in os.environ.items() if name != "CUDAL2_PDL"}
    if value is not None:
        environment["CUDAL2_PDL"] = value
    path = str(Path(cudal2.__file__).parents[1])
    code = f"import sys; sys.path.insert(0, {path!r})\n{code}"
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize(("value", "default"), [(None, False), ("0", False), ("1", True)])
def test_the_default_is_the_environment_s(value: str | None, default: bool) -> None:
    run = _python(
        value,
        "import threading, cudal2\n"
        "say = lambda: print(cudal2.pdl_enabled())\n"
        "def in_thread(): thread = threading.Thread(target=say); thread.start(); thread.join()\n"
        "say(); in_thread()\n"
        "for enabled in (True, False):\n"
        "    with cudal2.pdl(enabled): say(); in_thread()\n"
        "say()\n",
    )
    assert run.stdout.split() == [str(seen) for seen in (default, default, True, default, False, default, default)]
    assert run.stderr == ""


def test_another_value_is_an_error_on_first_use_that_names_it() -> None:
    code = (
        "import torch, cudal2, cudal2.cli\n"
        "torch.testing.assert_close(cudal2.matmul(torch.eye(4), torch.eye(4)), torch.eye(4))\n"
        "for call in (cudal2.pdl_enabled, lambda: cudal2.pdl(True), lambda: cudal2.pdl(False), cudal2.pdl_enabled):\n"
        "    try: call()\n"
        "    except ValueError as error: print(error)\n"
        "print(cudal2.cli.main(['info']))\n"
    )
    run = _python("yes", code)
    assert run.stdout.splitlines() == ["CUDAL2_PDL='yes'; expected 0 or 1"] * 4 + ["2"], run.stderr
    assert run.stderr == "cudal2 info: CUDAL2_PDL='yes'; expected 0 or 1\n"


# What a plan is launched with: csrc/pdl.h ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("g++") is None or not (ROOT / "csrc").is_dir():
        pytest.skip("needs the source tree and g++")
    target = tmp_path_factory.mktemp("pdl") / "main"
    flags = ["-std=c++17", "-O1", "-pthread", "-fsanitize=address,undefined", "-fno-sanitize-recover"]
    source = Path(__file__).with_name("pdl_main.cpp")
    subprocess.run(["g++", *flags, f"-I{ROOT / 'csrc'}", str(source), "-o", str(target)], check=True)
    return target


def _launch(program: Path, value: str | bytes | None) -> subprocess.CompletedProcess[str]:
    environment = {} if value is None else {"CUDAL2_PDL": value}
    return subprocess.run([str(program)], env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(("value", "default"), [(None, 0), ("0", 0), ("1", 1)])
def test_a_launch_uses_pdl_where_flag_and_switch_say_so(program: Path, value: str | None, default: int) -> None:
    run = _launch(program, value)
    assert run.stdout.splitlines() == [
        "unset plan=0 launched=0",
        "off plan=0 launched=0",
        "on plan=0 launched=0",
        f"unset plan=1 launched={default}",
        "off plan=1 launched=0",
        "on plan=1 launched=1",
        f"another plan=1 launched={default}",
    ]
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("value", [*BAD, b"\xff\xfe1"], ids=repr)
def test_no_launch_with_another_value(program: Path, value: str | bytes) -> None:
    run = _launch(program, value)
    text = value.decode("ascii", "replace") if isinstance(value, bytes) else value
    said = "".join(letter if " " <= letter <= "~" else "?" for letter in text)
    assert (run.returncode, run.stdout) == (1, f"CUDAL2_PDL='{said}'; expected 0 or 1\n"), run.stderr
