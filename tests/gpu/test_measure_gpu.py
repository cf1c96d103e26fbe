"""Graph timing on a GPU, with and without kernels of our own, and cuBLASLt as a contender."""

from __future__ import annotations

import pytest
import torch

from cudal2 import check, tools
from cudal2.plans import Knobs
from cudal2.shapes import Shape

if tools.load() is None:
    pytest.skip("cudal2._tools is not built for this Python", allow_module_level=True)

from cudal2.search import cublaslt
from cudal2.search.measure import Operands, Pool, Stopwatch
from cudal2.search.tuner import Tuner
from cudal2.spec import KernelSpec

SHAPE = Shape(512, 1024, 768)


@pytest.fixture(scope="module")
def watch() -> Stopwatch:
    return Stopwatch(0)


def _operands(layout: str, dtype: str = "f16", shape: Shape = SHAPE) -> Operands:
    operands = Pool(dtype, [shape], seed=1).operands(shape, layout)
    torch.cuda.synchronize()
    return operands


def _is_right(operands: Operands) -> bool:
    wanted = check.reference(operands.a, operands.b)
    by_torch = check.errors(torch.matmul(operands.a, operands.b), wanted).tolist()
    bound = check.Bound.of(tuple(by_torch), tuple(check.magnitude(wanted).tolist()), operands.c.dtype)
    return bound.problem(tuple(check.errors(operands.c, wanted).tolist())) is None


def test_torch_takes_longer_on_more_work(watch: Stopwatch) -> None:
    small, large = _operands("nn", shape=Shape(512, 512, 512)), _operands("nn", shape=Shape(4096, 4096, 4096))
    times = watch.medians({"small": watch.matmul(small, 20), "large": watch.matmul(large, 2)}, rounds=5)
    assert 0.5 < times["small"] < 50
    assert times["large"] > 5 * times["small"]


def test_a_graph_does_what_was_captured(watch: Stopwatch) -> None:
    operands = _operands("tn")
    graph = watch.matmul(operands, 3)
    operands.c.fill_(float("nan"))
    torch.cuda.synchronize()
    watch.race({"torch": graph}, rounds=1)
    assert _is_right(operands)


@pytest.mark.parametrize("layout", ["nn", "tn"])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_every_kernel_times_and_is_right_in_a_graph(dtype: str, layout: str, watch: Stopwatch) -> None:
    operands = _operands(layout, dtype)
    graphs = {}
    for name in tools.kernel_names(dtype=dtype, layout=layout)[::9]:
        if tools.require().unsupported(name, operands.gemm()) is not None:
            continue
        graphs[name] = watch.kernel(name, Knobs(), [operands.gemm()], 4)
        operands.c.fill_(float("nan"))
        torch.cuda.synchronize()
        watch.race({name: graphs[name]}, rounds=1)
        assert _is_right(operands), name
    assert graphs
    assert all(0.5 < us < 500 for us in watch.medians(graphs, rounds=3).values())


def test_occupancy_is_what_the_spec_says(watch: Stopwatch) -> None:
    operands = _operands("tn")
    checked = 0
    for name in tools.kernel_names(dtype="f16", layout="tn")[::5]:
        spec = KernelSpec.parse(name)
        if tools.require().unsupported(name, operands.gemm()) is not None:
            continue
        found = watch.timer.occupancy(name, tools.require().Knobs(), operands.gemm())
        assert (found["threads"], found["shared_bytes"]) == (spec.threads, spec.smem_bytes)
        assert found["local_bytes"] == 0, f"{name} spills"
        assert found["ctas"] % spec.cluster_size == 0
        assert found["ctas_per_sm"] >= 1
        checked += 1
    assert checked > 0


def test_what_cannot_run_is_refused_before_capture(watch: Stopwatch) -> None:
    operands = _operands("tn")
    name = tools.kernel_names(dtype="bf16", layout="tn")[0]
    with pytest.raises(ValueError, match=name):
        watch.kernel(name, Knobs(), [operands.gemm()], 2)
    assert watch.medians({"torch": watch.matmul(operands, 2)}, rounds=1)["torch"] > 0


@pytest.mark.parametrize("layout", ["nn", "tn"])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_cublaslt_is_right_and_autotuned(dtype: str, layout: str, watch: Stopwatch) -> None:
    operands = _operands(layout, dtype)
    with watch.scope():
        problem = cublaslt.Problem(cublaslt.Handle(), operands)
        assert len(problem.suggestions) > 1
        operands.c.fill_(float("nan"))
        problem.launcher(problem.suggestions[0], watch.stream)(0)
        assert _is_right(operands)
        best = cublaslt.autotune(problem, watch, launches=4)
        graphs = cublaslt.graphs(problem, watch, launches=10)
        times = watch.medians(graphs, rounds=7)
    assert times[best] <= 1.15 * min(times.values())


def test_tuning_finds_a_plan(watch: Stopwatch) -> None:
    operands = _operands("tn")
    names = tools.kernel_names(dtype="f16", layout="tn")
    tuner = Tuner(watch, {name: KernelSpec.parse(name) for name in names}, keep=8, lt=cublaslt.Handle())
    torch.cuda.synchronize()
    plan = tuner.tune(operands)
    assert plan is not None
    assert plan.kernel in names
    assert plan.lt_us is not None
    assert 0.2 < plan.us / plan.torch_us < 5
    assert plan.use == ("own" if plan.us <= 0.995 * plan.torch_us else "cublas")
