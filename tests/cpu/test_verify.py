"""The verifier finds what it is there to find: kernels that are wrong in one way each, run on the CPU."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from cudal2 import check, cli, verifier
from cudal2.plans import Knobs
from cudal2.problem import TORCH_DTYPES, Inputs, Output, exact_product, generator, normal, zero_one
from cudal2.search import cost, knobs, space
from cudal2.shapes import Shape
from cudal2.spec import KernelSpec
from cudal2.verifier import Session, Subject

CPU = torch.device("cpu")
SHAPE = Shape(65, 72, 1040)
KERNEL = "sm90_f16_tn_128x256x64_s4_c2x1_coop2"
STREAMING = [s.name for s in space.compiled() if s.streams_waves and (s.dtype, s.layout) == ("f16", "tn")]
Kernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, "torch.Tensor | None"], None]


def right(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, bias: torch.Tensor | None) -> None:
    result = a.float() @ b.float()
    out.copy_(result if bias is None else result + bias.float())


def leaves_a_row(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, bias: torch.Tensor | None) -> None:
    kept = out[-1].clone()
    right(a, b, out, bias)
    out[-1] = kept


def writes_behind(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, bias: torch.Tensor | None) -> None:
    right(a, b, out, bias)
    out.as_strided((1,), (1,), out.storage_offset() + out.shape[0] * out.stride(0)).fill_(1.0)


def writes_before(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, bias: torch.Tensor | None) -> None:
    right(a, b, out, bias)
    out.as_strided((1,), (1,), out.storage_offset() - 1).fill_(1.0)


def drops_the_last_k(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, bias: torch.Tensor | None) -> None:
    right(a[:, :-1], b[:-1], out, bias)


def accumulates_in_half(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, bias: torch.Tensor | None) -> None:
    total = torch.zeros_like(out)
    for start in range(0, a.shape[1], 16):
        total += (a[:, start : start + 16].float() @ b[start : start + 16].float()).to(out.dtype)
    out.copy_(total if bias is None else total + bias)


def swaps_two_elements(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, bias: torch.Tensor | None) -> None:
    right(a, b, out, bias)
    out[3, :2] = out[3, :2].flip(0).clone()


def changes_from_run_to_run() -> Kernel:
    runs = [0]

    def kernel(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, bias: torch.Tensor | None) -> None:
        right(a, b, out, bias)
        runs[0] += 1
        bits = out.view(torch.int16)
        bits[0, 0] += runs[0] % 2

    return kernel


def _check(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch, dtype: str = "f16", layout: str = "tn", **options: object
) -> Session:
    monkeypatch.setattr(Subject, "run", lambda _, a, b, out, bias=None: kernel(a, b, out, bias))
    session = Session(CPU, seed=1)
    name = KernelSpec.parse(KERNEL).variant(dtype, layout).name
    session.product(SHAPE, dtype, [Subject(dtype, layout, name)], **options)  # type: ignore[arg-type]
    return session


@pytest.mark.parametrize("options", [{}, {"pad": 8}, {"bias": True}], ids=["dense", "padded", "bias"])
@pytest.mark.parametrize("layout", ["nn", "tn"])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_a_right_kernel_passes(
    dtype: str, layout: str, options: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = _check(right, monkeypatch, dtype, layout, **options)
    assert (session.checked, session.failures) == (1, 0)


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        (leaves_a_row, "error: max error nan"),
        (writes_behind, "elements written outside C: 1"),
        (writes_before, "elements written outside C: 1"),
        (drops_the_last_k, "elements wrong on 0/1 inputs"),
        (accumulates_in_half, "error: max error"),
        (swaps_two_elements, "error: max error"),
        (changes_from_run_to_run(), "elements that differ in a second run: 1"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_wrong_kernel_fails(
    kernel: Kernel, reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session = _check(kernel, monkeypatch)
    assert session.failures >= 1
    printed = capsys.readouterr().err
    assert reason in printed
    assert f"python -m cudal2 verify --shape {SHAPE} --dtype f16 --layout tn --seed 1 --kernel {KERNEL}" in printed


def test_fp16_accumulation_passes_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _check(accumulates_in_half, monkeypatch, "f16acc16").failures == 0
    assert _check(right, monkeypatch, "f16acc16").failures == 0
    assert _check(drops_the_last_k, monkeypatch, "f16acc16").failures > 0
    assert _check(swaps_two_elements, monkeypatch, "f16acc16").failures > 0


class TestBoundOfHalfAccumulation:
    """The bound for f16acc16 is analytic: it must hold for sums in fp16, and not for a product that lacks something."""

    @staticmethod
    def _emulated(a: torch.Tensor, b: torch.Tensor, step: int, parts: int = 1) -> torch.Tensor:
        """Sums rounded to fp16 after every `step` of K, in `parts` that are added up in fp32 (split-K)."""
        total = torch.zeros(a.shape[0], b.shape[1])
        for columns, rows in zip(a.float().chunk(parts, 1), b.float().chunk(parts, 0), strict=True):
            partial = torch.zeros_like(total, dtype=torch.float16)
            for start in range(0, columns.shape[1], step):
                partial = (partial.float() + columns[:, start : start + step] @ rows[start : start + step]).half()
            total += partial.float()
        return total.half()

    @staticmethod
    def _problem(result: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> str | None:
        wanted = check.reference(a, b)
        by_torch = check.errors(torch.matmul(a, b), wanted).tolist()
        bound = check.Bound.of(tuple(by_torch), tuple(check.magnitude(wanted).tolist()), "f16acc16", a.shape[1])
        return bound.problem(tuple(check.errors(result, wanted).tolist()))

    @pytest.mark.parametrize("k", [8, 64, 512, 1040, 4096])
    @pytest.mark.parametrize(("step", "parts"), [(16, 1), (8, 1), (16, 4)])
    def test_holds(self, step: int, parts: int, k: int) -> None:
        a, b = torch.randn(200, k).half(), torch.randn(k, 264).half()
        assert self._problem(self._emulated(a, b, step, parts), a, b) is None
        assert self._problem(torch.matmul(a, b), a, b) is None

    @pytest.mark.parametrize("k", [64, 512, 1024, 4096])
    def test_one_wrong_block_of_k_does_not(self, k: int) -> None:
        a, b = torch.randn(200, k).half(), torch.randn(k, 264).half()
        for block in (16, 32):
            left_out = self._emulated(a[:, block:], b[block:], 16)
            assert "what fp16 accumulation explains" in (self._problem(left_out, a, b) or "")
            twice = self._emulated(torch.cat([a, a[:, -block:]], 1), torch.cat([b, b[-block:]]), 16)
            assert self._problem(twice, a, b) is not None

    def test_one_wrong_tile_does_not(self) -> None:
        a, b = torch.randn(512, 4096).half(), torch.randn(4096, 512).half()
        result = torch.matmul(a, b)
        result[:64, :64] = torch.matmul(a[:64, 32:], b[32:, :64])
        assert "max error" in (self._problem(result, a, b) or "")


def test_a_padded_output_guards_the_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    def spills(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, bias: torch.Tensor | None) -> None:
        right(a, b, out, bias)
        out.as_strided((1,), (1,), out.storage_offset() + out.shape[1]).fill_(0.0)

    assert _check(spills, monkeypatch, pad=8).failures >= 1


def test_a_kernel_that_refuses_is_counted_not_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, bias: torch.Tensor | None) -> None:
        raise RuntimeError(f"kernel={KERNEL!r} cannot run M=65: pitch")

    session = _check(refuses, monkeypatch)
    assert (session.checked, session.skipped, session.failures) == (0, 1, 0)
    session.product(SHAPE, "f16", [Subject("f16", "tn", KERNEL, use="cublas")])  # but a plan must not name it
    assert session.failures == 1


def test_dispatch_that_ignores_the_plan_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Subject, "run", lambda _, a, b, out, bias=None: right(a, b, out, bias))
    session = Session(CPU, seed=1)
    session.product(SHAPE, "f16", [Subject("f16", "tn", KERNEL, use="own")])
    assert session.failures == 1
    assert "dispatch ran 'torch', not the plan's kernel" in capsys.readouterr().err


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_zero_one_inputs_have_exact_sums(dtype: str) -> None:
    shape = Shape(96, 80, 16384)
    inputs = zero_one(shape, TORCH_DTYPES[dtype], generator(0, shape, CPU))
    product = exact_product(inputs)
    assert torch.equal(inputs.nn, inputs.tn)
    assert inputs.tn.stride() == (1, shape.k)
    assert torch.equal(product, (inputs.a.double() @ inputs.nn.double()).float())
    assert 256 < product.mean() < 1024
    assert product.max() <= 2048


def test_inputs_depend_on_seed_and_shape_alone() -> None:
    shape = Shape(8, 16, 24)
    first = normal(shape, torch.float16, generator(3, shape, CPU))
    normal(Shape(5, 8, 8), torch.float16, generator(3, Shape(5, 8, 8), CPU))
    again = normal(shape, torch.float16, generator(3, shape, CPU))
    other = normal(shape, torch.float16, generator(4, shape, CPU))
    assert torch.equal(first.a, again.a)
    assert torch.equal(first.nn, again.tn)
    assert not torch.equal(first.a, other.a)


def test_output_is_poisoned_and_counts_strays() -> None:
    output = Output(Shape(4, 8, 1), torch.bfloat16, CPU, pitch=16)
    assert output.c.isnan().all()
    assert output.c.stride() == (16, 1)
    output.c.fill_(0)
    assert output.strays() == 0


@pytest.mark.parametrize("make", [normal, zero_one])
@pytest.mark.parametrize("k", [13, 16])
def test_operands_are_aligned_unless_ragged(make: Callable[..., Inputs], k: int) -> None:
    shape = Shape(5, 24, k)
    plain, ragged = (make(shape, torch.float16, generator(3, shape, CPU), ragged=ragged) for ragged in (False, True))
    for layout in ("nn", "tn"):
        assert plain.b(layout).data_ptr() % 16 == 0
        assert ragged.b(layout).data_ptr() % 16 == 2
    for inputs in (plain, ragged):
        assert torch.equal(inputs.nn, inputs.tn)
    assert (plain.a.stride(0), plain.tn.stride(1)) == (16, 16)
    assert (ragged.a.stride(0), ragged.tn.stride(1)) == (k, k)


def test_a_ragged_output_is_guarded_on_all_sides() -> None:
    output = Output(Shape(4, 7, 1), torch.float16, CPU, pitch=9, ragged=True)
    assert output.c.data_ptr() % 16 == 2
    assert output.c.stride() == (9, 1)
    output.c.fill_(0)
    assert output.strays() == 0
    for offset in (-1, 7, 35):  # before, between and behind rows
        output.c.as_strided((1,), (1,), output.c.storage_offset() + offset).fill_(0)
    assert output.strays() == 3


def test_odd_shapes_fit_every_kernel_s_rules() -> None:
    for shape in verifier.odd_shapes(KernelSpec.parse(KERNEL)):
        assert shape.n % 8 == 0
        assert min(shape) >= 1
    assert all(shape.k % 32 == 0 for shape in verifier.odd_shapes(KernelSpec.parse("direct_f16_tn_16x16x64_w1x1k2")))


class TestWhatAKernelIsCheckedFor:
    """Session.kernel, with a kernel that is right: which products and knobs it meets."""

    def _met(self, name: str, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Shape, Knobs, bool]]:
        met: list[tuple[Shape, Knobs, bool]] = []

        def run(
            self: Subject, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, bias: torch.Tensor | None = None
        ) -> None:
            met.append((Shape(*out.shape, a.shape[1]), self.knobs, a.data_ptr() % 16 != 0))
            right(a, b, out, bias)

        monkeypatch.setattr(Subject, "run", run)
        monkeypatch.setattr(
            Session, "behaviour", lambda self, subject: met.append((Shape(0, 0, 0), subject.knobs, False))
        )
        monkeypatch.setattr(verifier, "odd_shapes", lambda spec: [Shape(8, 8, 8)])
        monkeypatch.setattr(verifier, "ragged_shapes", lambda: [Shape(7, 33, 1), Shape(1, 7, 33)])
        monkeypatch.setattr(check, "FP64_WORK", 0)
        session = Session(CPU, seed=1)
        session.kernel(name)
        assert session.failures == 0
        return met

    def test_sharing_tiles(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(verifier, "sharing", _small_sharing(verifier.sharing))
        met = self._met("multistage_f16_tn_64x64x64_s4_w2x2k1_sk", monkeypatch)
        assert {knobs.split for _, knobs, _ in met} == {1, 2, 3, 5, 16}
        assert {knobs.ctas for _, knobs, _ in met} >= {0, 7, 131}
        assert {knobs for shape, knobs, _ in met if shape == Shape(0, 0, 0)} == {
            Knobs(),
            Knobs(split=3),
            Knobs(ctas=131),
        }
        assert not any(ragged for *_, ragged in met)

    def test_sharing_tiles_of_a_hopper_kernel(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(verifier, "sharing", _small_sharing(verifier.sharing))
        met = self._met("sm90_f16_tn_128x128x64_s6_c1x1_coop2_ws", monkeypatch)
        assert {knobs.split for _, knobs, _ in met} == {1, 2, 3, 5, 16}
        assert {knobs for shape, knobs, _ in met if shape == Shape(0, 0, 0)} == {Knobs(), Knobs(split=3)}

    @pytest.mark.parametrize("name", STREAMING)
    def test_streaming_waves(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(verifier, "sharing", _small_sharing(verifier.sharing))
        met = self._met(name, monkeypatch)
        assert {knobs.split for _, knobs, _ in met} == {1}
        assert {knobs for shape, knobs, _ in met if shape == Shape(0, 0, 0)} == {Knobs(), Knobs(ctas=131)}

    def test_any_alignment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        met = self._met("multistage_f16_tn_64x64x32_s4_w2x2k1_any", monkeypatch)
        assert {shape for shape, _, ragged in met if ragged} == {Shape(7, 33, 1), Shape(1, 7, 33)}
        assert all(knobs.split == 1 for _, knobs, _ in met)


def _small_sharing(of: Callable[[KernelSpec], list[tuple[Shape, Knobs]]]) -> Callable[[KernelSpec], object]:
    return lambda spec: [(Shape(8, 8, 8), knobs) for _, knobs in of(spec)]


def test_ways_of_sharing_have_fewer_and_more_tiles_than_ctas() -> None:
    spec = KernelSpec.parse("multistage_f16_tn_128x128x32_s4_w2x2k1_sk")
    for shape, chosen in verifier.sharing(spec):
        blocks = -(-shape.k // spec.bk)
        assert chosen.split <= blocks
        assert blocks % chosen.split or chosen.split == 1
        along_m, along_n = cost.tiles(spec, shape)
        ctas = chosen.ctas or along_m * along_n * chosen.split
        assert knobs._fits(spec, shape, ctas)


@pytest.mark.parametrize("name", STREAMING)
@pytest.mark.parametrize("quick", [False, True])
def test_streaming_kernels_stream(name: str, quick: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the verifier runs with a grid to share tiles has tiles to share."""
    spec = KernelSpec.parse(name)
    ways = verifier.sharing(spec)[:: 3 if quick else 1]
    for behaviour in ("_back_to_back", "_pdl_chain", "_side_stream", "_graph"):
        monkeypatch.setattr(Session, behaviour, lambda self, subject, shape: not ways.append((shape, subject.knobs)))
    session = Session(CPU, seed=1)
    session.behaviour(Subject("f16", "tn", name, Knobs(ctas=132)))
    assert len(ways) >= 5
    for shape, chosen in ways:
        tiles, clusters = math.prod(cost.tiles(spec, shape)) // spec.cluster_size, chosen.ctas // spec.cluster_size
        assert tiles > clusters > 1
        assert tiles % clusters
        assert knobs._fits(spec, shape, chosen.ctas)


def test_the_command_for_a_failure_has_all_knobs() -> None:
    subject = Subject("f16", "tn", KERNEL, Knobs(3, 1, 0, 5, True))
    assert subject.command(SHAPE, 7).endswith(f"--seed 7 --kernel {KERNEL} --knobs 3,1,0,5,1")


@pytest.mark.skipif(torch.cuda.is_available(), reason="what verify says where there is no GPU")
class TestWithoutGpu:
    def test_shape_checks_the_fallback(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["verify", "--shape", "33,17,65", "--seed", "5"]) == 0
        out = capsys.readouterr().out
        assert "fallback on the CPU" in out
        assert out.count("33,17,65: passed") == 6

    @pytest.mark.parametrize("arguments", [["--grid"], ["--kernel", KERNEL], []])
    def test_kernels_need_a_gpu(self, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["verify", *arguments]) == 3
        assert "no GPU" in capsys.readouterr().out

    @pytest.mark.parametrize("arguments", [[], ["--grid", "--kernel", KERNEL]])
    def test_a_family_goes_with_shapes(self, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["verify", "--family", "direct", *arguments]) == 2
        assert "--family direct goes with --grid or --shape" in capsys.readouterr().err

    def test_a_family_needs_a_gpu(self) -> None:
        assert cli.main(["verify", "--family", "direct", "--shape", "64,64,64"]) == 3

    def test_a_bad_dtype_is_an_error(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["verify", "--shape", "8,8,8", "--dtype", "f32"]) == 2
        assert "--dtype f32; expected one or more of f16,bf16,f16acc16" in capsys.readouterr().err
