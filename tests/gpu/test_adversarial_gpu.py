"""The guard of the benchmarks on a GPU: every cheat is caught, and every contender of the harness passes."""

from __future__ import annotations

import functools
import re
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
if not (ROOT / "benchmarks").is_dir():
    pytest.skip("the benchmarks need the source tree", allow_module_level=True)
sys.path.append(str(ROOT))

from adversaries import CAUGHT, Honest  # noqa: E402

from benchmarks.contenders import DEFAULTS, Field, Skipped  # noqa: E402
from benchmarks.guard import Call, Guard  # noqa: E402
from benchmarks.modes import Captured  # noqa: E402
from cudal2 import tools, verify  # noqa: E402
from cudal2.search.measure import Operands, Stopwatch  # noqa: E402
from cudal2.shapes import Shape  # noqa: E402

SHAPES = [Shape(256, 128, 512), Shape(512, 256, 2048)]
GPU = torch.device("cuda", 0)


def _now(step):  # type: ignore[no-untyped-def]
    step()


def _guard(shape: Shape, dtype: str = "f16") -> Guard:
    return Guard(shape, dtype, GPU, 1)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("kind", "message"), CAUGHT, ids=[kind.__name__ for kind, _ in CAUGHT])
def test_each_is_caught_with_its_own_message(kind: type[Honest], message: str, shape: Shape) -> None:
    guard = _guard(shape)
    assert guard.check(Honest(_now)).problem == ""
    problem = guard.check(kind(_now)).problem
    assert re.match(message, problem), problem


def test_torch_with_fp16_accumulation_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real thing: cuBLAS's own kernels that accumulate in fp16."""
    if not hasattr(torch.backends.cuda.matmul, "allow_fp16_accumulation"):
        pytest.skip("this torch cannot accumulate in fp16")

    class Narrow(Honest):
        """torch.matmul, accumulating in fp16."""

        def bind(self, operands: Operands) -> Call:
            def matmul() -> torch.Tensor:
                torch.backends.cuda.matmul.allow_fp16_accumulation = True
                try:
                    return torch.matmul(operands.a, operands.b)
                finally:
                    torch.backends.cuda.matmul.allow_fp16_accumulation = False

            return matmul

    guard = _guard(Shape(512, 512, 8192))
    assert guard.check(Narrow(_now)).problem.startswith("accumulates in fp16")
    assert guard.check(Narrow(_now, strict=False)).problem.startswith("accumulates in fp16")


def test_a_graph_of_another_stream_lacks_launches() -> None:
    watch = Stopwatch(0)
    side = torch.cuda.Stream()
    a = torch.randn(64, 64, device=GPU)
    a.sin()
    torch.cuda.synchronize()

    def elsewhere() -> None:
        with torch.cuda.stream(side):
            a.add_(1)

    def here() -> None:
        a.add_(1)

    assert Captured(watch, [elsewhere], 3).is_empty
    assert not Captured(watch, [here], 3).is_empty


@pytest.mark.skipif(tools.load() is None, reason="cudal2._tools is not built for this Python")
@pytest.mark.parametrize("layout", ["nn", "tn"])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("shape", [*SHAPES, Shape(64, 64, 64)])
def test_the_harness_s_own_contenders_pass(shape: Shape, dtype: str, layout: str) -> None:
    watch = Stopwatch(0)
    field = Field(watch, verify.table_in_use())
    passed = []
    with watch.scope():
        guard = _guard(shape, dtype)
        for name in DEFAULTS["graph"]:
            try:
                contender = next(field.candidates(name, guard.operands(layout), 5.0))
            except Skipped:
                continue
            assert guard.check(contender).problem == "", name
            captured = Captured(watch, [contender.bind(guard.operands(layout))], 3)
            guard.poison(captured.output)
            watch.replay(captured.graph)
            output = guard.output.c if captured.output is None else captured.output
            worst, rms = guard.result(output).tolist()
            assert guard.bound.problem((worst, rms)) is None, name
            assert not captured.is_empty, name
            passed.append(name)
    assert {"torch", "cublas", "lt_heuristic", "lt_autotune", "cudal2"} <= set(passed)


def test_an_allocating_contender_that_does_nothing_is_caught() -> None:
    """The allocator would hand it the block of an earlier, right result."""

    class Nothing(Honest):
        """Allocates an output, and leaves it as it is."""

        def bind(self, operands: Operands) -> Call:
            return functools.partial(torch.empty_like, operands.c.contiguous())

    guard = _guard(SHAPES[0])
    assert "unwritten" in guard.check(Nothing(_now)).problem
