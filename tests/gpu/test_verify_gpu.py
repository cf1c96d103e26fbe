"""verify on a GPU: a sample of the compiled kernels passes, and a kernel that is wrong on the GPU is found."""

from __future__ import annotations

import pytest
import torch

from cudal2 import cli, verify
from cudal2.plans import Knobs
from cudal2.shapes import Shape
from cudal2.spec import ALL_DTYPES, LAYOUTS, KernelSpec
from cudal2.verifier import Session, Subject

SEED = 3


def _sample() -> list[str]:
    """Two kernels of each dtype, layout, family, schedule, kind of cluster and sharing, and alignment."""
    if not torch.cuda.is_available():
        return ["none"]
    kinds: dict[tuple[object, ...], list[str]] = {}
    for name in verify.compiled_kernels(list(ALL_DTYPES), list(LAYOUTS)):
        spec = KernelSpec.parse(name)
        shares = spec.cluster_m * spec.cluster_n > 1
        kinds.setdefault(
            (
                spec.dtype,
                spec.layout,
                spec.family,
                spec.schedule,
                shares,
                spec.split > 1,
                spec.stream_k,
                spec.workspace,
                spec.tma_store,
                spec.swap,
                spec.vector,
            ),
            [],
        ).append(name)
    return sorted({name for names in kinds.values() for name in (names[0], names[len(names) // 2])})


@pytest.fixture
def session() -> Session:
    return Session(torch.device("cuda", 0), SEED)


@pytest.mark.parametrize("name", _sample())
def test_kernels_are_right(name: str, session: Session) -> None:
    session.kernel(name, quick=True)
    assert session.checked > 0
    assert session.failures == 0


@pytest.mark.parametrize("shape", ["256,512,1024", "64,64,64", "1,128,64"])
def test_the_command_passes_as_dispatched(shape: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", "--shape", shape, "--seed", str(SEED)]) == 0
    assert "verify passed" in capsys.readouterr().out


def test_a_family_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    name = _sample()[0]
    family = KernelSpec.parse(name).family
    command = ["verify", "--family", family, "--shape", "256,512,1024", "--seed", str(SEED)]
    assert cli.main(command) == 0
    assert "verify passed" in capsys.readouterr().out


def test_the_command_reproduces_a_named_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    name = _sample()[0]
    command = ["verify", "--shape", "200,264,392", "--kernel", name, "--knobs", "3,1,8,1,1", "--seed", str(SEED)]
    assert cli.main(command) == 0
    assert " 0 failures" in capsys.readouterr().out


class TestWrongOnTheGpu:
    """The same session, with a kernel spoiled after the fact."""

    SHAPE = Shape(256, 512, 1024)

    def _failures(self, spoil: object, session: Session, monkeypatch: pytest.MonkeyPatch) -> int:
        run = Subject.run

        def spoiled(
            self: Subject, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, bias: torch.Tensor | None = None
        ) -> None:
            run(self, a, b, out, bias)
            spoil(self, out)  # type: ignore[operator]

        monkeypatch.setattr(Subject, "run", spoiled)
        spec = KernelSpec.parse(_sample()[0])
        subject = Subject(spec.dtype, spec.layout, spec.name)
        session.product(self.SHAPE, spec.dtype, [subject])
        if session.failures == 0:
            session.behaviour(subject)
        return session.failures

    def test_one_element(self, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self._failures(lambda _, out: out[17, 33].add_(64), session, monkeypatch) > 0

    def test_an_element_left_unwritten(self, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self._failures(lambda _, out: out[-1, -1].fill_(float("nan")), session, monkeypatch) > 0

    def test_a_write_behind_the_output(self, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
        def behind(_: Subject, out: torch.Tensor) -> None:
            out.as_strided((1,), (1,), out.storage_offset() + out.numel()).fill_(0)

        assert self._failures(behind, session, monkeypatch) > 0

    def test_a_chain_under_pdl(self, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
        def only_with_pdl(subject: Subject, out: torch.Tensor) -> None:
            if subject.knobs.pdl:
                out[0, 0] += 64

        assert self._failures(only_with_pdl, session, monkeypatch) == 1


def test_a_launch_on_the_wrong_stream_is_found(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Subject.run

    def on_the_default_stream(
        self: Subject, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, bias: torch.Tensor | None = None
    ) -> None:
        with torch.cuda.stream(torch.cuda.default_stream()):
            run(self, a, b, out, bias)
        torch.cuda.default_stream().synchronize()

    monkeypatch.setattr(Subject, "run", on_the_default_stream)
    spec = KernelSpec.parse(_sample()[0])
    subject = Subject(spec.dtype, spec.layout, spec.name, Knobs())
    assert not session._side_stream(subject, Shape(520, 776, 672))
