"""The short way of an eager call (csrc/eager.cpp): what it runs, and that it leaves everything else to the dispatcher.

fake_eager.cpp passes off CPU tensors as CUDA's, and has a plan for products of 64 x 64 float16 matrices.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib.util
import shutil
import subprocess
import sys
import sysconfig
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fake_gpu import multiply
from fake_tools import ROOT
from products import BAD_LINEAR, BAD_MATMUL, negative_bit, outcome, rand
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

import cudal2
from cudal2 import native, ops

SOURCES = [Path(__file__).with_name("fake_eager.cpp"), ROOT / "csrc" / "eager.cpp"]
INCLUDE = sysconfig.get_paths()["include"]


def half(*shape: int) -> Tensor:
    return rand(*shape, dtype=torch.float16)


class Eager:
    """The module, and the launches that it made."""

    def __init__(self, module: ModuleType, library: ctypes.PyDLL) -> None:
        self.module = module
        self.library = library
        self.launches: list[dict[str, Any]] = []
        self.answer: Callable[[], bool] = lambda: True

    def set(self, device: int = 0, table_error: str = "") -> None:
        self.library.fake_gpu(self._launch, device, table_error.encode())

    def _launch(self, problem: dict[str, Any]) -> bool:
        self.launches.append(problem)
        if not self.answer():
            return False
        multiply(SimpleNamespace(dtype="f16", **problem))
        return True


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Eager:
    compiler = shutil.which("g++")
    if compiler is None or not (Path(INCLUDE) / "Python.h").is_file():
        pytest.skip("needs g++ and Python.h")
    path = tmp_path_factory.mktemp("eager") / "_eager.so"
    command = [compiler, "-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([*command, f"-I{ROOT / 'csrc'}", f"-I{INCLUDE}", *map(str, SOURCES), "-o", str(path)], check=True)
    spec = importlib.util.spec_from_file_location("_eager", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    library = ctypes.PyDLL(str(path))
    library.fake_exchange.argtypes, library.fake_exchange.restype = [ctypes.py_object], ctypes.py_object
    library.fake_gpu.argtypes = [ctypes.py_object, ctypes.c_int, ctypes.c_char_p]
    exchange = library.fake_exchange(Tensor.__dlpack_c_exchange_api__)
    assert native.prepare(module, exchange, torch._C._dynamo.guards._empty_strided_cpu)
    return Eager(module, library)


@pytest.fixture
def eager(built: Eager) -> Eager:
    built.launches.clear()
    built.answer = lambda: True
    built.set()
    return built


def test_the_module_fits_this_torch() -> None:
    if importlib.util.find_spec("cudal2._eager") is None:
        pytest.skip("no Python.h when cudal2 was built")
    assert native.plain_matmul is not native._refuse
    assert native.plain_linear is not native._refuse


# What it runs --------------------------------------------------------------------------------------------------------

MATMUL: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {
    "2d": lambda: (half(64, 64), half(64, 64)),
    "3d": lambda: (half(4, 16, 64), half(64, 64)),
    "4d": lambda: (half(2, 2, 16, 64), half(64, 64)),
    "b_transposed": lambda: (half(64, 64), half(64, 64).t()),
    "a_columns": lambda: (half(64, 128)[:, 64:], half(64, 64)),
    "b_columns": lambda: (half(64, 64), half(64, 128)[:, :64]),
    "a_every_second_row": lambda: (half(128, 64)[::2], half(64, 64)),
    "a_parameter": lambda: (nn.Parameter(half(64, 64), requires_grad=False), half(64, 64)),
}


@pytest.mark.parametrize("case", MATMUL)
def test_matmul(eager: Eager, case: str) -> None:
    a, b = MATMUL[case]()
    for _ in range(2):  # the second from what is known of the first
        result = eager.module.matmul(a, b)
        expected = torch.matmul(a, b)
        assert (result.shape, result.stride(), result.dtype) == (expected.shape, expected.stride(), expected.dtype)
        assert not result.requires_grad
        torch.testing.assert_close(result, expected)
    assert len(eager.launches) == 2


def test_linear(eager: Eager) -> None:
    x, weight, bias = half(4, 16, 64), half(64, 64), half(64)
    torch.testing.assert_close(eager.module.linear(x, weight, None), F.linear(x, weight))
    eager.module.linear(x, weight, bias)
    assert [launch["bias"] for launch in eager.launches] == [0, bias.data_ptr()]
    assert eager.launches[1]["layout"] == "tn"


def test_what_is_known_of_one_product_is_not_taken_for_another(eager: Eager) -> None:
    a, b = half(64, 64), half(64, 64)
    for first, second in ((a, b), (a, b.t()), (a.view(4, 16, 64), b), (a.view(16, 4, 64), b), (a, b)):
        result = eager.module.matmul(first, second)
        torch.testing.assert_close(result, torch.matmul(first, second))
    torch.testing.assert_close(eager.module.linear(a, b, None), F.linear(a, b))
    assert len(eager.launches) == 6
    assert eager.module.matmul(a.bfloat16(), b.bfloat16()).dtype == torch.bfloat16
    assert len(eager.launches) == 6


def test_more_products_than_it_keeps(eager: Eager) -> None:
    pitches = [64 + 8 * extra for extra in range(400)] * 2
    eager.answer = lambda: False
    for pitch in pitches:
        eager.module.matmul(torch.empty_strided((64, 64), (pitch, 1), dtype=torch.float16), half(64, 64))
    assert [launch["lda"] for launch in eager.launches] == pitches


def test_a_size_without_a_plan_is_torchs_call(eager: Eager) -> None:
    for rows in (8, 32):  # 32: the table says cuBLAS
        a, b, bias = half(rows, 64), half(64, 64), half(64)
        assert torch.equal(eager.module.matmul(a, b), torch.matmul(a, b))
        assert torch.equal(eager.module.linear(a, b, bias), F.linear(a, b, bias))
    assert not eager.launches


def test_inference_mode(eager: Eager) -> None:
    a, b = half(64, 64).requires_grad_(), half(64, 64)
    with torch.inference_mode():
        assert eager.module.matmul(a, b).is_inference()
    with torch.no_grad():
        assert not eager.module.matmul(a, b).requires_grad
    assert len(eager.launches) == 2


def test_it_holds_on_to_nothing(eager: Eager) -> None:
    a, b = half(64, 64), half(64, 64)
    result = eager.module.matmul(a, b)
    gone = [weakref.ref(tensor) for tensor in (a, b, result)]
    del a, b, result
    gc.collect()
    assert [reference() for reference in gone] == [None] * 3


# What it leaves alone ------------------------------------------------------------------------------------------------


class _Subclass(Tensor):
    pass


REFUSED: dict[str, Callable[[], tuple[Any, Any]]] = {
    "a_wants_grad": lambda: (half(64, 64).requires_grad_(), half(64, 64)),
    "b_wants_grad": lambda: (half(64, 64), half(64, 64).requires_grad_()),
    "a_subclass": lambda: (half(64, 64).as_subclass(_Subclass), half(64, 64)),
    "b_subclass": lambda: (half(64, 64), half(64, 64).as_subclass(_Subclass)),
    "no_tensor": lambda: (half(64, 64), 2),
    "a_negative_bit": lambda: (negative_bit(half(64, 64)), half(64, 64)),
    "b_negative_bit": lambda: (half(64, 64), negative_bit(half(64, 64))),
    "a_at_odd_offset": lambda: (half(64 * 64 + 1)[1:].view(64, 64), half(64, 64)),
    "b_at_odd_offset": lambda: (half(64, 64), half(64 * 64 + 1)[1:].view(64, 64)),
    "odd_pitch": lambda: (half(64, 65)[:, :64], half(64, 64)),
    "float32": lambda: (rand(64, 64), rand(64, 64)),
    "mixed": lambda: (half(64, 64), half(64, 64).bfloat16()),
    "five_dimensions": lambda: (half(2, 2, 2, 8, 64), half(64, 64)),
    "batched_b": lambda: (half(2, 64, 64), half(2, 64, 64)),
    "b_is_a_vector": lambda: (half(64, 64), half(64)),
    "no_dimension": lambda: (half(), half(64, 64)),
    "empty": lambda: (half(0, 64), half(64, 64)),
    "shapes_that_do_not_fit": lambda: (half(64, 32), half(64, 64)),
    "sparse": lambda: (half(64, 64).to_sparse(), half(64, 64)),
    "meta": lambda: (half(64, 64).to("meta"), half(64, 64)),
    "zero_tensor": lambda: (torch._efficientzerotensor((64, 64), dtype=torch.float16), half(64, 64)),
}


@pytest.mark.parametrize("case", REFUSED)
def test_operands_that_it_leaves_alone(eager: Eager, case: str) -> None:
    a, b = REFUSED[case]()
    assert eager.module.matmul(a, b) is None
    assert eager.module.linear(a, b, None) is None
    assert not eager.launches


@pytest.mark.parametrize(
    "bias",
    [
        lambda: half(1, 64),
        lambda: half(1),
        lambda: half(128)[::2],
        lambda: rand(64),
        lambda: half(64).requires_grad_(),
        lambda: negative_bit(half(64)),
    ],
    ids=["2d", "broadcast", "strided", "float32", "wants_grad", "negative_bit"],
)
def test_a_bias_that_it_leaves_alone(eager: Eager, bias: Callable[[], Tensor]) -> None:
    assert eager.module.linear(half(64, 64), half(64, 64), bias()) is None
    assert not eager.launches


@pytest.mark.parametrize("case", BAD_MATMUL)
def test_bad_arguments_of_matmul(eager: Eager, case: str) -> None:
    assert eager.module.matmul(*BAD_MATMUL[case](torch.float16, "cpu")) is None


@pytest.mark.parametrize("case", BAD_LINEAR)
def test_bad_arguments_of_linear(eager: Eager, case: str) -> None:
    arguments = BAD_LINEAR[case](torch.float16, "cpu")
    expected = outcome(F.linear, *arguments)
    assert outcome(eager.module.linear, *arguments) in (None, expected)


class _DispatchMode(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        return func(*args, **(kwargs or {}))


class _FunctionMode(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def _autocast() -> Iterator[None]:
    """What torch.autocast("cuda") sets, where there is a GPU."""
    torch.set_autocast_enabled("cuda", True)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", False)


STATES: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "autocast": _autocast,
    "dispatch_mode": _DispatchMode,
    "function_mode": _FunctionMode,
    "default_device": lambda: torch.device("cpu"),
    "forward_ad": forward_ad.dual_level,
    "profiler": lambda: torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]),
}


@pytest.mark.parametrize("state", STATES)
def test_states_of_torch_that_it_leaves_alone(eager: Eager, state: str) -> None:
    a, b = half(64, 64), half(64, 64)
    with STATES[state]():
        assert eager.module.matmul(a, b) is None
        assert eager.module.linear(a, b, None) is None
    assert eager.module.matmul(a, b) is not None
    assert len(eager.launches) == 1


def test_transforms_and_traces_are_left_alone(eager: Eager) -> None:
    answers: list[object] = []

    def product(a: Tensor, b: Tensor) -> Tensor:
        answers.append(eager.module.matmul(a, b))
        return torch.matmul(a, b)

    a, b = half(64, 64), half(64, 64)
    torch.func.vmap(product, in_dims=(0, None))(a[None], b)
    torch.func.grad(lambda x: product(x, b).sum())(a)
    torch.jit.trace(product, (a, b), check_trace=False)
    torch.fx.experimental.proxy_tensor.make_fx(product, tracing_mode="real")(a, b)
    torch.fx.experimental.proxy_tensor.make_fx(product, pre_dispatch=True)(a, b)
    assert answers == [None] * len(answers)
    assert len(answers) >= 5


def test_another_current_device(eager: Eager) -> None:
    eager.set(device=1)
    assert eager.module.matmul(half(64, 64), half(64, 64)) is None


# Errors --------------------------------------------------------------------------------------------------------------


def test_errors_of_launch_and_plan_table(eager: Eager) -> None:
    a, b = half(64, 64), half(64, 64)
    eager.answer = lambda: False
    assert eager.module.matmul(a, b) is None  # no memory for a workspace: torch may have it

    def fail() -> bool:
        raise ValueError

    eager.answer = fail
    with pytest.raises(RuntimeError, match="cudal2: launch of a kernel: unspecified launch failure"):
        eager.module.matmul(a, b)
    eager.set(table_error="cudal2: plan table x.csv, line 5")
    with pytest.raises(RuntimeError, match=r"plan table x\.csv, line 5"):
        eager.module.matmul(half(72, 64), b)


@pytest.mark.parametrize("what", ["no table", "another capsule", "no capsule", "abiflags"])
def test_where_it_cannot_work(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """A torch without what it needs, or with something else by that name; a free-threaded Python."""
    if what == "abiflags":
        monkeypatch.setattr(sys, what, "t")
    elif what == "no table":
        monkeypatch.delattr(Tensor, "__dlpack_c_exchange_api__")
    else:
        other = object() if what == "no capsule" else torch.zeros(1).__dlpack__()  # a capsule of another name
        monkeypatch.setattr(Tensor, "__dlpack_c_exchange_api__", other)
    assert native._plain_calls() == (native._refuse, native._refuse)


def test_calls_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "plain_matmul", native._refuse)
    monkeypatch.setattr(ops, "plain_linear", native._refuse)
    a, b = rand(4, 8), rand(8, 4)
    assert torch.equal(cudal2.matmul(a, b), torch.matmul(a, b))
    assert torch.equal(cudal2.linear(a, a), F.linear(a, a))


def test_calls_with_it(eager: Eager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "plain_matmul", eager.module.matmul)
    monkeypatch.setattr(ops, "plain_linear", eager.module.linear)
    a, b = half(64, 64), half(64, 64)
    torch.testing.assert_close(cudal2.matmul(a, b), torch.matmul(a, b))
    torch.testing.assert_close(cudal2.linear(a, b), F.linear(a, b))
    assert len(eager.launches) == 2
    cudal2.matmul(a, b, out=torch.empty_like(a))
    compiled = torch.compile(cudal2.matmul, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(a, b), torch.matmul(a, b))
    assert len(eager.launches) == 2
