"""The verifier finds what it is there to find: kernels that are wrong in one way each, run on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from cudal2 import cli, verifier
from cudal2.problem import TORCH_DTYPES, Output, exact_product, generator, normal, zero_one
from cudal2.shapes import Shape
from cudal2.spec import KernelSpec
from cudal2.verifier import Session, Subject

CPU = torch.device("cpu")
SHAPE = Shape(65, 72, 1040)
KERNEL = "sm90_f16_tn_128x256x64_s4_c2x1_coop2"
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


def test_odd_shapes_fit_every_kernel_s_rules() -> None:
    for shape in verifier.odd_shapes(KernelSpec.parse(KERNEL)):
        assert shape.n % 8 == 0
        assert min(shape) >= 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="what verify says where there is no GPU")
class TestWithoutGpu:
    def test_shape_checks_the_fallback(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["verify", "--shape", "33,17,65", "--seed", "5"]) == 0
        out = capsys.readouterr().out
        assert "fallback on the CPU" in out
        assert out.count("33,17,65: passed") == 4

    @pytest.mark.parametrize("arguments", [["--grid"], ["--kernel", KERNEL], []])
    def test_kernels_need_a_gpu(self, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["verify", *arguments]) == 3
        assert "no GPU" in capsys.readouterr().out

    def test_a_bad_dtype_is_an_error(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["verify", "--shape", "8,8,8", "--dtype", "f32"]) == 2
        assert "--dtype f32; expected one or more of f16,bf16" in capsys.readouterr().err
