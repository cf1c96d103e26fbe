"""The guard of the benchmarks lets honest contenders through, and names what is wrong with the others: on the CPU."""

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

from adversaries import CAUGHT, Half, HalfSplit, Honest, LazyLane, OtherStream, Zeroing  # noqa: E402

from benchmarks.guard import Call, Guard  # noqa: E402
from cudal2.search.measure import Operands  # noqa: E402
from cudal2.shapes import Shape  # noqa: E402

CPU = torch.device("cpu")
SHAPES = [Shape(48, 40, 64), Shape(24, 32, 2048)]


def _guard(shape: Shape = SHAPES[0], dtype: str = "f16", seed: int = 1) -> tuple[Guard, LazyLane]:
    lane = LazyLane()
    return Guard(shape, dtype, CPU, seed, lane=lane), lane


@pytest.mark.parametrize("layout", ["nn", "tn"])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("shape", [*SHAPES, Shape(1, 8, 8), Shape(7, 9, 13), Shape(2, 3, 1)])
def test_an_honest_contender_passes(shape: Shape, dtype: str, layout: str) -> None:
    guard, lane = _guard(shape, dtype)
    verdict = guard.check(Honest(lane.queue, layout))
    assert (verdict.problem, verdict.note) == ("", "")
    assert guard.inputs_problem() == ""


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("kind", "message"), CAUGHT, ids=[kind.__name__ for kind, _ in CAUGHT])
def test_each_is_caught_with_its_own_message(kind: type[Honest], message: str, shape: Shape) -> None:
    guard, lane = _guard(shape)
    assert re.match(message, guard.check(kind(lane.queue)).problem)


def test_one_that_allocates_passes_and_is_caught() -> None:
    class Allocating(Honest):
        """As torch.matmul: the output is its own."""

        def bind(self, operands: Operands) -> Call:
            return functools.partial(torch.matmul, operands.a, operands.b)

    class Repeating(Honest):
        """Returns its first output again and again."""

        def bind(self, operands: Operands) -> Call:
            return functools.cache(lambda: torch.matmul(operands.a, operands.b))

    guard = Guard(SHAPES[0], "f16", CPU, 1)
    assert guard.check(Allocating(guard.lane.queue)).problem == ""
    assert guard.check(Repeating(guard.lane.queue)).problem.startswith("returns a cached output")


def test_a_baseline_may_reduce_in_half_precision_but_not_accumulate_in_it() -> None:
    guard, lane = _guard(Shape(48, 40, 4096))
    split = guard.check(HalfSplit(lane.queue, strict=False))
    assert (split.problem, split.note) == ("", "split sums reduced in half precision")
    assert guard.check(Half(lane.queue, strict=False)).problem.startswith("accumulates in fp16")


def test_plain_zero_one_inputs_do_not_see_fp16_accumulation() -> None:
    """Why the guard adds products that cancel."""
    guard, lane = _guard(Shape(48, 40, 64))
    contender = Half(lane.queue)
    operands = guard.operands("nn")
    assert guard._wrong_on_zero_one(contender.bind(operands), operands) == 0
    assert "accumulates in fp16" in guard.check(contender).problem


def test_a_check_leaves_the_operands_for_timing() -> None:
    guard, lane = _guard()
    assert guard.check(Honest(lane.queue, "tn")).problem == ""
    operands = guard.operands("tn")
    assert torch.equal(operands.a, guard.real.a)
    assert torch.equal(operands.b, guard.real.b)
    assert 0.8 < operands.a.float().std() < 1.2
    guard.check(Zeroing(lane.queue))
    assert guard.inputs_problem().startswith("its inputs are zeros")
    guard.restore()
    assert guard.inputs_problem() == ""


def test_the_next_contender_does_not_inherit_a_fault() -> None:
    guard, lane = _guard()
    for kind, _ in CAUGHT:
        guard.check(kind(lane.queue))
        lane.finish()
        assert guard.check(Honest(lane.queue)).problem == "", kind.__name__


def test_an_eager_lane_cannot_tell_streams_apart() -> None:
    """The lane is what finds another stream: without a lazy one, the same contender passes."""
    guard = Guard(SHAPES[0], "f16", CPU, 1)
    assert guard.check(OtherStream(guard.lane.queue)).problem == ""
