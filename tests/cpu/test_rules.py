"""Tables by rules: up to date, of kernels that run on their card, and what the runtime makes of them on other cards."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from cudal2 import cli, info, plans, tools
from cudal2.plans import Table
from cudal2.search import cost, knobs, rules, space
from cudal2.search.rules import CARDS, Card
from cudal2.shapes import Shape, grid

if not rules.ROOT.is_dir():
    pytest.skip("an installed package without the source tree", allow_module_level=True)

SOURCE = rules.ROOT.parents[1] / "csrc" / "runtime" / "plan_table.cpp"
cards = pytest.mark.parametrize("card", CARDS, ids=lambda card: card.file)


def _table(card: Card) -> Table:
    return plans.read(rules.ROOT / card.file)


def test_committed_tables_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert rules.main(["--check"]) == 0, "run python -m cudal2.search.rules"
    assert capsys.readouterr().out == ""


def test_check_names_what_is_missing_or_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rules, "_texts", lambda: {"a.csv": "new\n", "b.csv": "same\n", "c.csv": "there\n"})
    (tmp_path / "a.csv").write_text("old\n")
    (tmp_path / "b.csv").write_text("same\n")
    assert rules.stale(tmp_path) == ["a.csv", "c.csv"]
    assert rules.write(tmp_path) == ["a.csv", "c.csv"]
    assert rules.stale(tmp_path) == []


@cards
def test_every_kernel_runs_on_the_card(card: Card) -> None:
    table = _table(card)
    compiled = {spec.name for spec in space.compiled()}
    for plan in table.plans.values():
        spec = plan.spec
        assert plan.kernel in compiled
        assert spec.family != "sm90"
        assert spec.smem_bytes <= card.cta_smem
        slots = cost.usable_sms(spec, card.machine) * cost.ctas_per_sm(spec, card.machine)
        assert plan.knobs == knobs.first(spec, plan.key.shape, slots)


@cards
def test_the_registry_agrees(card: Card) -> None:
    module = tools.load()
    registry = {kernel["name"]: kernel for kernel in module.kernels()} if module is not None else {}
    used = {plan.kernel for plan in _table(card).plans.values()} & registry.keys()
    if not used:
        pytest.skip("this build has none of the kernels")
    arch = round(10 * float(card.arch))
    assert [name for name in used if not registry[name]["min_arch"] <= arch <= registry[name]["max_arch"]] == []
    assert [name for name in used if registry[name]["smem_bytes"] > card.cta_smem] == []


@cards
def test_the_grid_without_times(card: Card) -> None:
    table = _table(card)
    assert table.rules
    assert (table.gpu, table.sms) == (card.gpu, card.machine.sms)
    for dtype in ("f16", "bf16"):
        for layout in ("nn", "tn"):
            assert {key.shape for key in table.plans if (key.dtype, key.layout) == (dtype, layout)} == set(grid())
    assert {(plan.us, plan.torch_us, plan.lt_us) for plan in table.plans.values()} == {(None, None, None)}


@cards
def test_ours_only_where_launch_and_latency_count(card: Card) -> None:
    limit = rules.own_products(card)
    assert limit <= rules.OWN_PRODUCTS
    for plan in _table(card).plans.values():
        if plan.key.dtype != "f16acc16":
            m, n, k = plan.key.shape
            assert plan.use == ("own" if m * n * k <= limit else "cublas")


@cards
def test_fp16_accumulation_only_where_it_doubles_the_rate(card: Card) -> None:
    found = [plan for plan in _table(card).plans.values() if plan.key.dtype == "f16acc16"]
    assert bool(found) == ("GeForce" in card.gpu)
    assert {plan.use for plan in found} <= {"own"}
    assert Shape(64, 64, 64) not in {plan.key.shape for plan in found}
    assert not found or Shape(8192, 8192, 8192) in {plan.key.shape for plan in found}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C++ plan table, as whatever device the environment says."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    target = tmp_path_factory.mktemp("rules") / "main"
    sources = [str(Path(__file__).with_name("plan_table_main.cpp")), str(SOURCE)]
    subprocess.run(
        ["g++", "-std=c++17", "-O1", f"-I{SOURCE.parents[1]}", *sources, "-ldl", "-o", str(target)], check=True
    )
    return target


SMALL, LARGE = ("64", "128", "256"), ("8192", "8192", "8192")


@pytest.mark.parametrize(
    ("gpu", "arch", "sms", "table", "acc16"),
    [
        *((card.gpu, card.arch, card.machine.sms, card.gpu, card.acc16 > 1) for card in CARDS),
        ("NVIDIA A100-SXM4-40GB", "8.0", 108, "NVIDIA A100-SXM4-80GB", False),
        ("NVIDIA A100-PCIE-40GB", "8.0", 108, "NVIDIA A100-SXM4-80GB", False),
        ("NVIDIA A100 80GB PCIe", "8.0", 108, "NVIDIA A100-SXM4-80GB", False),
        ("NVIDIA A30", "8.0", 56, "NVIDIA A100-SXM4-80GB", False),
        ("NVIDIA GeForce RTX 3080", "8.6", 68, "NVIDIA GeForce RTX 3090", True),
        ("NVIDIA A10", "8.6", 72, "NVIDIA GeForce RTX 3090", False),
        ("NVIDIA A40", "8.6", 84, "NVIDIA GeForce RTX 3090", False),
        ("NVIDIA RTX A6000", "8.6", 84, "NVIDIA GeForce RTX 3090", False),
        ("NVIDIA GeForce RTX 4060", "8.9", 24, "NVIDIA GeForce RTX 4090", True),
        ("NVIDIA L4", "8.9", 58, "NVIDIA GeForce RTX 4090", False),
        ("NVIDIA L40S", "8.9", 142, "NVIDIA GeForce RTX 4090", False),
    ],
)
def test_what_the_runtime_takes(program: Path, gpu: str, arch: str, sms: int, table: str, acc16: bool) -> None:
    """Every GPU of a compute capability takes its table, said to be of rules; fp16 accumulation GeForce cards alone."""
    device = {"GPU": gpu, "ARCH": arch.replace(".", ""), "SMS": str(sms)}
    variables = {**os.environ, **device, "KERNELS": " ".join(spec.name for spec in space.compiled())}

    def run(dtype: str, *problem: str) -> tuple[list[str], str]:
        command = [str(program), str(rules.ROOT), *problem]
        result = subprocess.run(command, env={**variables, "DTYPE": dtype}, capture_output=True, text=True, timeout=60)
        assert result.returncode == 0, result.stdout
        return result.stdout.splitlines(), result.stderr.strip()

    (status, small, large), chosen = run("f16", *SMALL, *LARGE)
    assert chosen == f"table_gpu={table}"
    rows = _table(next(card for card in CARDS if card.gpu == table)).plans
    loaded = len(rows) if acc16 else sum(key.dtype != "f16acc16" for key in rows)
    assert status == f"plans={loaded} tuned={int(gpu == table)} rules=1"
    assert small.endswith("own=1 us=0.000")
    assert large.endswith("own=0 us=0.000")
    assert (
        run("f16acc16", *LARGE)[0][1].endswith("own=1 us=0.000") if acc16 else run("f16acc16", *LARGE)[0][1] == "none"
    )


class TestWhatIsSaid:
    @cards
    def test_explain(self, card: Card, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        monkeypatch.setenv("CUDAL2_PLANS", str(rules.ROOT))
        for name in (Path(card.file).stem, card.gpu):
            assert cli.main(["explain", "8192", "8192", "8192", "--gpu", name]) == 0
            out = capsys.readouterr().out
            assert f"table     {card.gpu}, {rules.ROOT / card.file}\n          {plans.RULES}\n" in out
            assert "dispatch  runs cuBLAS, by the rules\n" in out
            assert f"over {card.machine.sms} SMs" in out

    def test_explain_counts_the_card_s_own_shared_memory(self) -> None:
        """What an SM holds at once is the card's, not an H200's."""
        spec = next(spec for spec in space.compiled() if 80 << 10 <= spec.smem_bytes <= 99 << 10)
        found = [cost.ctas_per_sm(spec, rules.machine(Table(card.header, {}))) for card in CARDS]
        assert found == [1, 1, 1]
        assert rules.machine(Table({"gpu": "NVIDIA H200", "sms": "132"}, {})) == cost.H200
        assert rules.machine(Table({"gpu": "NVIDIA H100 PCIe", "sms": "114"}, {})).sms == 114

    def test_info(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CUDAL2_PLANS", str(rules.ROOT))
        monkeypatch.setattr(tools, "load", lambda: None)
        own = sum(plan.use == "own" for plan in _table(CARDS[0]).plans.values())
        said = f"plans    a100.csv: NVIDIA A100-SXM4-80GB, 4000 shapes, own kernel used on {own}, {plans.RULES}"
        assert said in info._tables()
