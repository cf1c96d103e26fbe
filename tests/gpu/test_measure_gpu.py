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
from cudal2.search.measure import Operands, Pool, Stopwatch, native_knobs
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
    return check.Judge(operands.a, operands.b, operands.dtype).problem(operands.c) is None


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
        assert len(problem) > 1
        operands.c.fill_(float("nan"))
        problem.call(0, watch.stream.cuda_stream)()
        assert _is_right(operands)
        ranking = cublaslt.autotune(problem, watch, us=5.0)
        graphs = cublaslt.graphs(problem, watch, range(len(problem)), launches=10)
        times = watch.medians(graphs, rounds=7)
    assert ranking.tried == len(problem)
    assert ranking.busy_us > 0
    assert times[ranking.order[0]] <= 1.15 * min(times.values())


@pytest.mark.parametrize("layout", ["nn", "tn"])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_cublas_is_right_on_any_stream(dtype: str, layout: str, watch: Stopwatch) -> None:
    operands = _operands(layout, dtype)
    blas = cublaslt.Blas()
    for stream in (torch.cuda.default_stream(), watch.stream, torch.cuda.default_stream()):
        with torch.cuda.stream(stream):
            operands.c.fill_(float("nan"))
            blas.call(operands, stream.cuda_stream)()
            assert _is_right(operands)


def test_the_clock_in_c_agrees_with_python_s(watch: Stopwatch) -> None:
    operands = _operands("tn", shape=Shape(4096, 4096, 4096))
    call = cublaslt.Blas().call(operands, watch.stream.cuda_stream)
    call()
    times = watch.timer.wall([call], [0] * 9, [])
    paced = watch.timer.wall([call], [0] * 9, [2000.0] * 9)
    on_device = watch.medians({"cublas": watch.calls(lambda _: call(), 3)}, 3)["cublas"]
    assert on_device < sorted(times)[4] < on_device + 100
    assert on_device < sorted(paced)[4] < 3 * on_device + 200
    with pytest.raises(ValueError, match="gaps_us has 1 entries; expected none or 2"):
        watch.timer.wall([call], [0, 0], [1.0])


def test_a_prepared_kernel_of_ours_is_right(watch: Stopwatch) -> None:
    operands = _operands("tn")
    for name in tools.kernel_names(dtype="f16", layout="tn")[::20]:
        if tools.require().unsupported(name, operands.gemm()) is not None:
            continue
        with watch.scope():
            operands.c.fill_(float("nan"))
            watch.timer.prepare(name, native_knobs(Knobs()), operands.gemm(), watch.stream.cuda_stream)()
            assert _is_right(operands), name


def test_a_graph_says_what_it_holds(watch: Stopwatch) -> None:
    operands = _operands("nn")
    work = watch.matmul(operands, 3).work
    assert len(work) >= 3
    assert len(work) % 3 == 0


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
