"""Plan tables and shape lists: what is written is read again, and what is malformed is named by file and row."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from cudal2 import plans, shapes
from cudal2.plans import Key, Knobs, Plan, PlanError, Table
from cudal2.search import merge
from cudal2.shapes import Shape

KERNEL = "sm90_f16_tn_128x256x64_s4_c2x1_coop2"
SHARING = "multistage_f16_tn_64x64x64_s4_w2x2k1_sk"
HEADER = {"gpu": "NVIDIA H200", "arch": "9.0", "sms": "132", "mode": "graph, PDL off", "date": "2026-01-02"}


def _plan(m: int, n: int, k: int, **changes: object) -> Plan:
    fields: dict[str, object] = {
        "key": Key("f16", "tn", m, n, k),
        "kernel": KERNEL,
        "knobs": Knobs(4, 1, 132, 1, True),
        "us": 12.345,
        "torch_us": 13.5,
        "lt_us": None,
        "use": "own",
    }
    return Plan(**{**fields, **changes})  # type: ignore[arg-type]


def _table(*entries: Plan) -> Table:
    return Table(dict(HEADER), {plan.key: plan for plan in entries})


def test_write_then_read(tmp_path: Path) -> None:
    table = _table(_plan(512, 64, 64, lt_us=12.5), _plan(64, 64, 128, use="cublas"), _plan(64, 128, 64))
    plans.write(tmp_path / "h200.csv", table)
    read = plans.read(tmp_path / "h200.csv")
    assert read.header == HEADER
    assert read.plans == table.plans
    assert list(read.plans) == sorted(table.plans)
    assert (read.gpu, read.sms) == ("NVIDIA H200", 132)


def test_the_file_is_the_format_that_the_runtime_reads(tmp_path: Path) -> None:
    plans.write(tmp_path / "h200.csv", _table(_plan(64, 128, 256)))
    assert (tmp_path / "h200.csv").read_text().splitlines() == [
        "# gpu: NVIDIA H200",
        "# arch: 9.0",
        "# sms: 132",
        "# mode: graph, PDL off",
        "# date: 2026-01-02",
        "dtype,layout,m,n,k,kernel,group,raster,ctas,split,pdl,us,torch_us,lt_us,use",
        f"f16,tn,64,128,256,{KERNEL},4,1,132,1,1,12.345,13.500,,own",
    ]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (f"f32,tn,1,8,8,{KERNEL},8,0,0,1,0,1,1,,own", "dtype='f32'"),
        (f"f16,tt,1,8,8,{KERNEL},8,0,0,1,0,1,1,,own", "layout='tt'"),
        (f"f16,nn,1,8,8,{KERNEL},8,0,0,1,0,1,1,,own", "is not for dtype=f16, layout=nn"),
        (f"f16,tn,0,8,8,{KERNEL},8,0,0,1,0,1,1,,own", "positive"),
        (f"f16,tn,one,8,8,{KERNEL},8,0,0,1,0,1,1,,own", "'one'"),
        ("f16,tn,1,8,8,sm90_best,8,0,0,1,0,1,1,,own", "sm90_best"),
        (f"f16,tn,1,8,8,{KERNEL},0,0,0,1,0,1,1,,own", "group"),
        (f"f16,tn,1,8,8,{KERNEL},{2**20 + 1},0,0,1,0,1,1,,own", "at most 1048576"),
        (f"f16,tn,1,8,8,{KERNEL},8,0,{2**20 + 1},1,0,1,1,,own", "at most 1048576"),
        (f"f16,tn,1,8,8,{KERNEL},8,2,0,1,0,1,1,,own", "raster"),
        (f"f16,tn,1,8,8,{KERNEL},8,0,-1,1,0,1,1,,own", "ctas"),
        (f"f16,tn,1,8,8.0,{KERNEL},8,0,0,1,0,1,1,,own", "k='8.0'; expected an integer"),
        (f"f16,tn,1,8,8,{KERNEL},8,0,1_3,1,0,1,1,,own", "ctas='1_3'; expected an integer"),
        (f"f16,tn,1,8,8,{KERNEL}, 8,0,0,1,0,1,1,,own", "group=' 8'; expected an integer"),
        (f"f16,tn,1,8,8,{KERNEL},8,0,0,0,0,1,1,,own", "split"),
        (f"f16,tn,1,8,8,{KERNEL},8,0,0,2,0,1,1,,own", "split > 1 needs a kernel that can"),
        (f"f16,tn,1,8,8,{SHARING},8,0,4,2,0,1,1,,own", "and ctas=0"),
        (f"f16,tn,1,8,8,{KERNEL},8,0,0,1,0,,1,,own", "''"),
        (f"f16,tn,1,8,8,{KERNEL},8,0,0,1,0,1,,,own", "''"),
        (f"f16,tn,1,8,8,{KERNEL},8,0,0,1,yes,1,1,,own", "pdl"),
        (f"f16,tn,1,8,8,{KERNEL},8,0,0,1,0,fast,1,,own", "'fast'"),
        (f"f16,tn,1,8,8,{KERNEL},8,0,0,1,0,1,1,,mine", "use='mine'"),
        (f"f16,tn,1,8,8,{KERNEL},8,0,0,1,0,1,1", "13 fields; expected 15"),
        (f"f16,tn,64,128,256,{KERNEL},8,0,0,1,0,1,1,,own", "a second row for f16,tn,64,128,256"),
    ],
)
def test_a_malformed_row_is_named(row: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "h200.csv"
    plans.write(path, _table(_plan(64, 128, 256)))
    path.write_text(path.read_text() + row + "\n")
    with pytest.raises(PlanError) as caught:
        plans.read(path)
    assert str(caught.value).startswith(f"{path}:8: ")
    assert reason in str(caught.value)


@pytest.mark.parametrize("text", ["", "# gpu: x\n", "dtype,layout,m\n"])
def test_a_table_without_its_columns_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "h200.csv"
    path.write_text(text)
    with pytest.raises(PlanError, match="expected dtype,layout,m,n,k,kernel"):
        plans.read(path)


def test_a_failed_write_leaves_the_old_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "h200.csv"
    plans.write(path, _table(_plan(64, 128, 256)))
    before = path.read_text()

    def fails(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(OSError, match="disk full"):
        plans.write(path, _table(_plan(1, 8, 8)))
    assert path.read_text() == before
    assert [file.name for file in tmp_path.iterdir()] == ["h200.csv"]


def test_expected_time_is_that_of_what_dispatch_runs() -> None:
    assert _plan(8, 8, 8).expected_us == 12.345
    assert _plan(8, 8, 8, use="cublas").expected_us == 13.5


def test_a_table_of_rules_needs_no_times(tmp_path: Path) -> None:
    path = tmp_path / "a100.csv"
    rules = Table(HEADER | {"source": "rules"}, {})
    plan = _plan(64, 4096, 4096, kernel=SHARING, knobs=Knobs(split=6), us=None, torch_us=None)
    rules.plans[plan.key] = plan
    plans.write(path, rules)
    assert path.read_text().splitlines()[-1] == f"f16,tn,64,4096,4096,{SHARING},8,0,0,6,0,,,,own"
    read = plans.read(path)
    assert read.rules
    assert read.plans == rules.plans
    assert plan.expected_us is None
    for figure in ("measured", "speedup"):
        with pytest.raises(ValueError, match="64,4096,4096 comes from rules"):
            getattr(plan, figure)
    path.write_text(path.read_text().replace("source: rules", "source: measurements"))
    with pytest.raises(PlanError, match="us=''; expected a time"):
        plans.read(path)
    with pytest.raises(ValueError, match="comes from rules"):
        plans.write(path, _table(plan))


def test_fp16_accumulation_is_a_dtype_of_its_own(tmp_path: Path) -> None:
    key = Key("f16acc16", "tn", 64, 64, 64)
    table = _table(_plan(64, 64, 64), _plan(64, 64, 64, key=key, kernel=SHARING.replace("f16", "f16acc16")))
    plans.write(tmp_path / "h200.csv", table)
    assert plans.read(tmp_path / "h200.csv").plans == table.plans


def test_nearest_goes_by_ratios_within_dtype_and_layout() -> None:
    table = _table(_plan(64, 4096, 4096), _plan(1024, 4096, 4096), _plan(16, 1024, 1024))
    near = table.nearest(Key("f16", "tn", 80, 6144, 4096))
    assert near is not None
    assert near.key.shape == Shape(64, 4096, 4096)
    assert table.nearest(Key("bf16", "tn", 64, 4096, 4096)) is None


def test_tables_are_found_by_gpu_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plans.write(tmp_path / "h200.csv", _table(_plan(64, 128, 256)))
    monkeypatch.setenv("CUDAL2_PLANS", str(tmp_path))
    for name in ("h200", "NVIDIA H200"):
        path, table = plans.for_gpu(name)
        assert path == tmp_path / "h200.csv"
        assert len(table.plans) == 1
    with pytest.raises(PlanError, match=r"gpu='b300' has no plan table .*; there: h200"):
        plans.for_gpu("b300")


@pytest.mark.parametrize("name", sorted(file.name for file in plans.directory().glob("*.csv")) or [None])
def test_shipped_tables_name_compiled_kernels(name: str | None) -> None:
    from cudal2.search.space import compiled

    if name is None:
        assert list(plans.directory().glob("*.csv")) == []
        return
    kernels = {spec.name for spec in compiled()}
    table = plans.read(plans.directory() / name)
    measured = set() if table.rules else {"mode", "date", "torch", "cublas", "commit"}
    assert {"gpu", "arch", "sms", *measured} <= table.header.keys()
    assert [plan.kernel for plan in table.plans.values() if plan.kernel not in kernels] == []
    assert plans.for_gpu(table.gpu)[0] == plans.for_gpu(Path(name).stem)[0] == plans.directory() / name


class TestShapes:
    def test_grid(self) -> None:
        grid = shapes.grid()
        assert len(set(grid)) == 1000
        assert grid[0] == Shape(64, 64, 64)
        assert grid[-1] == Shape(16384, 16384, 16384)

    def test_flops_and_bytes(self) -> None:
        assert (Shape(2, 3, 5).flops, Shape(2, 3, 5).bytes) == (60, 2 * (10 + 15 + 6))

    @pytest.mark.parametrize("text", ["8,16,24", "8x16x24"])
    def test_parse(self, text: str) -> None:
        assert shapes.parse(text) == Shape(8, 16, 24)

    @pytest.mark.parametrize("text", ["", "1,2", "1,2,3,4", "1,2,x", "0,8,8", "-1,8,8"])
    def test_parse_says_what_it_expects(self, text: str) -> None:
        with pytest.raises(ValueError, match="expected three positive integers M,N,K"):
            shapes.parse(text)

    def test_load(self, tmp_path: Path) -> None:
        path = tmp_path / "shapes.csv"
        path.write_text("# comment\nm,layout,n,k\n1,tn,2,3\n1,nn,2,3\n4,tn,5,6\n")
        assert shapes.load(str(path)) == [Shape(1, 2, 3), Shape(4, 5, 6)]
        assert shapes.load("7,8,9") == [Shape(7, 8, 9)]
        assert len(shapes.load("grid")) == 1000
        assert Shape(2048, 28672, 4096) in shapes.load("llama")

    def test_load_names_the_file(self, tmp_path: Path) -> None:
        path = tmp_path / "shapes.csv"
        path.write_text("a,b\n1,2\n")
        with pytest.raises(ValueError, match=r"shapes\.csv: expected a CSV file with columns m, n, k"):
            shapes.load(str(path))

    def test_sample_is_by_seed(self) -> None:
        assert shapes.sample(shapes.grid(), 10, 1) == shapes.sample(shapes.grid(), 10, 1)
        assert shapes.sample(shapes.grid(), 10, 1) != shapes.sample(shapes.grid(), 10, 2)
        assert sorted(shapes.sample(shapes.grid(), 2000, 1)) == shapes.grid()


class TestMerge:
    def test_later_tables_win(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        first, second = str(tmp_path / "a.csv"), str(tmp_path / "b.csv")
        plans.write(first, _table(_plan(8, 8, 8, us=1.0), _plan(16, 8, 8)))
        plans.write(second, _table(_plan(8, 8, 8, us=0.5), _plan(24, 8, 8)))
        assert merge.main([first, first, second]) == 0
        table = plans.read(first)
        assert [key.m for key in table.plans] == [8, 16, 24]
        assert table.plans[Key("f16", "tn", 8, 8, 8)].us == 0.5
        assert "3 plans" in capsys.readouterr().out

    def test_tables_of_two_gpus_are_refused(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        first, second = str(tmp_path / "a.csv"), str(tmp_path / "b.csv")
        plans.write(first, _table(_plan(8, 8, 8)))
        plans.write(second, Table({"gpu": "NVIDIA A100"}, {}))
        assert merge.main([str(tmp_path / "out.csv"), first, second]) == 2
        assert "tables of several GPUs: 'NVIDIA A100', 'NVIDIA H200'" in capsys.readouterr().err
        assert not (tmp_path / "out.csv").exists()

    @pytest.mark.parametrize("order", [(0, 1), (1, 0)])
    def test_measured_and_rules_do_not_mix(
        self, order: tuple[int, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        paths = [str(tmp_path / "a.csv"), str(tmp_path / "b.csv")]
        plans.write(paths[0], _table(_plan(8, 8, 8)))
        plans.write(paths[1], Table({"gpu": "NVIDIA H200", "source": "rules"}, {}))
        assert merge.main([str(tmp_path / "out.csv"), *(paths[index] for index in order)]) == 2
        assert "some tables were measured and some come from rules" in capsys.readouterr().err

    def test_what_is_no_file_is_not_replaced(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        table = str(tmp_path / "a.csv")
        plans.write(table, _table(_plan(8, 8, 8)))
        os.mkfifo(tmp_path / "pipe")
        for target in (tmp_path / "pipe", tmp_path):
            assert merge.main([str(target), table]) == 2
            assert "no regular file" in capsys.readouterr().err
        assert (tmp_path / "pipe").is_fifo()

    def test_a_link_is_followed(self, tmp_path: Path) -> None:
        table, link = tmp_path / "a.csv", tmp_path / "link.csv"
        plans.write(table, _table(_plan(8, 8, 8)))
        link.symlink_to(table)
        plans.write(link, _table(_plan(16, 8, 8)))
        assert link.is_symlink()
        assert [key.m for key in plans.read(table).plans] == [16]


@pytest.mark.parametrize(
    ("line", "reason"),
    [(f"sms: {sms}", f"sms='{sms}'; expected a positive integer") for sms in ("0", "-5", "abc", "")]
    + [(f"arch: {arch}", f"arch='{arch}'; expected a compute capability") for arch in ("nine", "-9.0", "9.0.1", "")],
)
def test_a_malformed_header_is_named(line: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "h200.csv"
    plans.write(path, _table(_plan(64, 128, 256)))
    path.write_text(f"# {line}\n{path.read_text()}")
    with pytest.raises(PlanError, match=re.escape(f"h200.csv:1: {reason}")):
        plans.read(path)
