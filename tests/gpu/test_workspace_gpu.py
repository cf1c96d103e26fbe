"""Split-K and stream-K through a workspace: launches that run at once must not meet in it, whatever streams, graphs and
threads they come from. A kernel that met another would add up the other's partial tiles, or wait for ever."""

from __future__ import annotations

import gc
import subprocess
import sys
from typing import Any

import pytest
import torch
from products import half, in_threads
from torch import Tensor

from cudal2 import tools
from cudal2.spec import KernelSpec

M, N, K = 64, 256, 8192
"""Few tiles and a long K: several such launches fit the device at once."""
STREAMED = 640, 512, 2048
"""More tiles than CTAs, and no multiple of them."""
SHARED = [
    ("stream_k", {"split": 5}),
    ("stream_k", {"ctas": 13}),
    ("workspace", {"split": 5}),
    ("swapped workspace", {"split": 5}),
    ("streamed", {"ctas": 10}),
]
MANY = 40
"""More streams than keep a workspace of their own (kMostStreams in csrc/runtime/workspace.h)."""


def _kernel(kind: str = "stream_k") -> str:
    """A kernel that shares tiles by a split and by stream-K, by one of them (workspace, streamed), or by none; a
    swapped one where the kind says so."""
    kinds = {(True, True): "stream_k", (False, True): "workspace", (True, False): "streamed", (False, False): "none"}
    swapped = kind.startswith("swapped ")
    native = tools.load()
    major, minor = torch.cuda.get_device_capability() if torch.cuda.is_available() else (0, 0)
    found = [
        kernel["name"]
        for kernel in (native.kernels() if native else [])
        if kinds[kernel["stream_k"], kernel["workspace"]] == kind.removeprefix("swapped ")
        and KernelSpec.parse(kernel["name"]).swap == swapped
        and (kernel["dtype"], kernel["layout"]) == ("f16", "tn")
        and kernel["min_arch"] <= 10 * major + minor <= kernel["max_arch"]
    ]
    if not found:
        pytest.skip("no such kernel in this build for this device")
    return found[0]


@pytest.fixture(params=SHARED, ids=str)
def knobs(request: pytest.FixtureRequest) -> dict[str, Any]:
    kind, shared = request.param
    return {"name": _kernel(kind), **shared}


def _shape(name: str) -> tuple[int, int, int]:
    return STREAMED if KernelSpec.parse(name).streams_waves else (M, N, K)


def gemm(a: Tensor, b: Tensor, out: Tensor, name: str | None = None, **knobs: Any) -> None:
    chosen = {"group": 8, "raster": 0, "ctas": 0, "split": 1, "pdl": False, **knobs}
    torch.ops.cudal2.gemm(a, b, out, None, name or _kernel(), **chosen)


class Product:
    """Operands of their own, what their product must be, bit for bit, and outputs for `count` launches."""

    def __init__(self, knobs: dict[str, Any], count: int = 10):
        self.knobs = knobs
        m, n, k = _shape(knobs["name"])
        self.a, self.b = half(m, k), half(n, k).t()
        self.outs = [torch.full((m, n), torch.nan, device="cuda").half() for _ in range(count)]
        self.expected = torch.empty_like(self.outs[0])
        torch.cuda.synchronize()
        gemm(self.a, self.b, self.expected, **knobs)
        torch.cuda.synchronize()
        torch.testing.assert_close(self.expected, torch.matmul(self.a, self.b), rtol=1e-2, atol=0.5)

    def launch(self) -> None:
        for out in self.outs:
            gemm(self.a, self.b, out, **self.knobs)

    def capture(self, stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            self.launch()
        return graph

    def forget(self) -> None:
        for out in self.outs:
            out.fill_(torch.nan)

    def check(self) -> None:
        for out in self.outs:
            assert torch.equal(out, self.expected)


def _together(work: list[tuple[torch.cuda.Stream, Any]]) -> None:
    """Queues each call on its stream, all held back until the last is queued."""
    torch.cuda.synchronize()
    for stream, call in work:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(2_000_000)
            call()
    torch.cuda.synchronize()


def _streams(count: int) -> list[torch.cuda.Stream]:
    return [torch.cuda.Stream() for _ in range(count)]


def test_two_graphs_of_one_stream_replayed_at_once(knobs: dict[str, Any]) -> None:
    products = [Product(knobs) for _ in range(2)]
    one, *two = _streams(3)
    graphs = [product.capture(one) for product in products]
    for _ in range(30):
        for product in products:
            product.forget()
        _together([(stream, graph.replay) for stream, graph in zip(two, graphs, strict=True)])
        for product in products:
            product.check()


def test_a_graph_replayed_beside_eager_launches_on_its_stream(knobs: dict[str, Any]) -> None:
    captured, eager = Product(knobs), Product(knobs)
    stream, other = _streams(2)
    with torch.cuda.stream(stream):
        eager.launch()
    torch.cuda.synchronize()
    graph = captured.capture(stream)
    for _ in range(30):
        captured.forget()
        eager.forget()
        _together([(other, graph.replay), (stream, eager.launch)])
        captured.check()
        eager.check()


def test_streams_of_one_capture(knobs: dict[str, Any]) -> None:
    products = [Product(knobs) for _ in range(3)]
    main, *sides = _streams(3)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=main):
        for side, product in zip(sides, products, strict=False):
            side.wait_stream(main)
            with torch.cuda.stream(side):
                product.launch()
        products[2].launch()
        for side in sides:
            main.wait_stream(side)
    for _ in range(30):
        for product in products:
            product.forget()
        graph.replay()
        torch.cuda.synchronize()
        for product in products:
            product.check()


@pytest.mark.parametrize("count", [8, MANY])
def test_many_streams(count: int, knobs: dict[str, Any]) -> None:
    """torch hands out 32 streams of each priority in turn: two priorities make more than MANY."""
    streams = [torch.cuda.Stream(priority=-(index % 2)) for index in range(count)]
    products = [Product(knobs, 4) for _ in streams]
    for _ in range(5):
        for product in products:
            product.forget()
        _together([(stream, product.launch) for stream, product in zip(streams, products, strict=True)])
        for product in products:
            product.check()


def test_threads_on_streams_of_their_own_and_on_one(knobs: dict[str, Any]) -> None:
    common = torch.cuda.Stream()
    products = [Product(knobs, 4) for _ in range(8)]

    def work(number: int) -> None:
        product = products[number]
        with torch.cuda.stream(common if number % 2 else torch.cuda.Stream()):
            for _ in range(20):
                product.forget()
                product.launch()
                torch.cuda.current_stream().synchronize()
                product.check()

    in_threads(work, 8)


def test_the_default_stream(knobs: dict[str, Any]) -> None:
    product, other = Product(knobs), Product(knobs)
    side = torch.cuda.Stream()
    for _ in range(10):
        product.forget()
        other.forget()
        _together([(torch.cuda.default_stream(), product.launch), (side, other.launch)])
        product.check()
        other.check()


def test_under_programmatic_dependent_launch(knobs: dict[str, Any]) -> None:
    """The next launch starts while this one still joins its parts, in the same workspace."""
    product = Product(knobs, 50)
    product.knobs = {**knobs, "pdl": True}
    for _ in range(10):
        product.forget()
        product.launch()
        torch.cuda.synchronize()
        product.check()


def test_the_first_call_of_a_process_inside_a_capture(knobs: dict[str, Any]) -> None:
    m, n, k = _shape(knobs["name"])
    code = f"""
import torch, cudal2
a, b = (torch.randn(rows, {k}, device="cuda").half() for rows in ({m}, {n}))
out, again = (torch.empty({m}, {n}, device="cuda").half() for _ in range(2))
torch.cuda.synchronize()
knobs = {{"group": 8, "raster": 0, "ctas": 0, "split": 1, "pdl": False, **{knobs!r}}}
kernel = knobs.pop("name")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    torch.ops.cudal2.gemm(a, b.t(), out, None, kernel, **knobs)
for _ in range(3):
    a.normal_()
    graph.replay()
    torch.ops.cudal2.gemm(a, b.t(), again, None, kernel, **knobs)
    assert torch.equal(out, again)
    torch.testing.assert_close(out, a @ b.t(), rtol=1e-2, atol=0.5)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr


def test_what_a_destroyed_graph_had_is_used_again(knobs: dict[str, Any]) -> None:
    kept, passing = Product(knobs), Product(knobs)
    stream, *two = _streams(3)
    graph = kept.capture(stream)
    for _ in range(3):
        passing.capture(stream)
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.mem_get_info()[0]
    for _ in range(100):
        kept.forget()
        passing.forget()
        temporary = passing.capture(stream)
        _together([(two[0], graph.replay), (two[1], temporary.replay)])
        kept.check()
        passing.check()
        del temporary
    torch.cuda.synchronize()
    assert before - torch.cuda.mem_get_info()[0] < 64 << 20


@pytest.mark.usefixtures("two_gpus")
def test_another_device(knobs: dict[str, Any]) -> None:
    product = Product(knobs, 1)
    a, b, out = (tensor.to("cuda:1") for tensor in (product.a, product.b.t(), product.outs[0]))
    gemm(a, b.t(), out, **knobs)
    gemm(product.a, product.b, product.outs[0], **knobs)
    torch.cuda.synchronize("cuda:1")
    assert torch.equal(out.cpu(), product.expected.cpu())
    torch.cuda.synchronize()
    product.check()


class TestErrors:
    """Knobs that a kernel cannot run with are an error that says so, and do no harm."""

    def _refused(self, reason: str, m: int = M, n: int = N, k: int = K, name: str | None = None, **knobs: int) -> None:
        a, b, out = half(m, k), half(n, k).t(), torch.zeros(m, n, device="cuda").half()
        with pytest.raises(RuntimeError, match=reason):
            gemm(a, b, out, name, **knobs)
        torch.cuda.synchronize()
        assert not out.any()

    def test_a_kernel_without_a_workspace(self) -> None:
        self._refused("split: this kernel has no workspace", name=_kernel("none"), split=2)

    def test_a_split_of_a_kernel_that_streams(self) -> None:
        self._refused("split: this kernel has no workspace", name=_kernel("streamed"), split=2)

    def test_split_and_stream_k_at_once(self) -> None:
        self._refused("exclude each other", name=_kernel(), split=2, ctas=16)

    def test_more_parts_than_blocks(self) -> None:
        self._refused("split: K has fewer blocks", name=_kernel(), k=64, split=64)

    def test_more_parts_than_a_hopper_tile_has(self) -> None:
        self._refused("at most 16 CTAs", name=_kernel("workspace"), k=64 * 256, split=17)

    def test_more_partial_tiles_than_fit(self) -> None:
        spec = KernelSpec.parse(_kernel())
        self._refused("32 MiB", m=32 * spec.bm, n=32 * spec.bn, k=32 * spec.bk, name=_kernel(), split=16)

    def test_more_streaming_ctas_than_fit(self) -> None:
        spec = KernelSpec.parse(_kernel("streamed"))
        self._refused("32 MiB", m=32 * spec.bm, n=32 * spec.bn, k=64, name=spec.name, ctas=(32 << 20) // 65536 + 2)
