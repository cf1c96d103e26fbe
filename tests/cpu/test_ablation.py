"""The ablation: its variants, their sources and build, a run on a fake GPU, and the report of known figures."""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path

import pytest
import torch
from fake_gpu import FakeGpu, install
from fake_tools import fake_toolkit

from cudal2.search import emit, space
from cudal2.shapes import Shape
from cudal2.spec import LAYOUTS, KernelSpec

ROOT = Path(__file__).parents[2]
if not (ROOT / "benchmarks").is_dir():
    pytest.skip("the benchmarks need the source tree", allow_module_level=True)
sys.path.append(str(ROOT))

from benchmarks import ablation, ablation_report  # noqa: E402
from benchmarks.ablation import LARGE, MIDDLE, SMALL, TECHNIQUES, TINY, Base  # noqa: E402
from build_tools import arch, cuda, native, ninja_file, torch_headers  # noqa: E402
from build_tools.errors import BuildError  # noqa: E402

SLOTS = 264
BASES = [(name, base) for name in TECHNIQUES for base in ablation.bases(name)]


# Variants ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("technique", "base"), BASES)
def test_variants_are_valid_and_named(technique: str, base: Base, layout: str) -> None:
    specs = ablation.kernels(technique, base, layout)
    assert next(iter(specs.values())) == space.multistage(base.line, layout=layout)
    for spec in specs.values():
        spec.validate()
        assert KernelSpec.parse(spec.name) == spec
    assert len(set(specs.values())) == len(specs)


@pytest.mark.parametrize("technique", TECHNIQUES)
def test_every_technique_has_something_to_compare_on_sixty_shapes(technique: str) -> None:
    compared = [
        len(ablation.candidates(technique, base, "tn", shape, SLOTS))
        for base in ablation.bases(technique)
        for shape in ablation.suited(base, 60, 0)
    ]
    assert sum(count > 1 for count in compared) >= 60


def test_one_field_changes_at_a_time() -> None:
    assert list(ablation.kernels("prefetch", LARGE, "tn")) == ["1", "0"]
    assert list(ablation.kernels("copies", TINY, "tn")) == ["early", "stagger", "spread"]
    assert list(ablation.kernels("stream_k", MIDDLE, "nn")) == ["with", "without"]
    raced = ablation.candidates("stream_k", MIDDLE, "nn", Shape(128, 128, 8192), SLOTS)
    assert {candidate.knobs.split for candidate in raced.values()} == {1}  # not every one of them could split


def test_launches_of_one_kernel() -> None:
    spec = space.multistage(MIDDLE.line)
    deep = Shape(128, 128, 8192)
    assert list(ablation.launches("split-k", spec, deep, SLOTS))[:3] == ["1", "2", "3"]
    wide = Shape(1024, 2048, 1024)
    shared = ablation.launches("stream-k", spec, wide, SLOTS)
    assert [knobs.ctas for knobs in shared.values()] == [0, 256]  # what the workspace has room for
    assert list(ablation.launches("stream-k", spec, Shape(128, 128, 64), SLOTS)) == ["off"]
    assert list(ablation.launches("stream-k", spec, Shape(4096, 4096, 64), SLOTS)) == ["off"]  # whole tiles for all
    orders = ablation.launches("order", spec, Shape(4096, 4096, 64), SLOTS)
    assert next(iter(orders)) == "group 8, along M"
    assert len(orders) == 8
    assert list(ablation.launches("order", spec, Shape(256, 4096, 1024), SLOTS)) == [
        *("group 8, along M", "group 1, along M"),  # two tiles along M: larger groups are the same
        *(f"group {group}, along N" for group in (8, 1, 4, 16)),
    ]
    assert list(ablation.launches("order", spec, deep, SLOTS)) == ["group 8, along M"]


def test_shapes_suit_the_base() -> None:
    tile = next(iter(ablation.bases("tile")))
    assert ablation.suited(tile, 60, 3)[0] == Shape(8192, 512, 2048)
    for base in ablation.BASES:
        chosen = ablation.suited(base, 60, 3)
        assert len(set(chosen)) == 60
        assert all(2**base.low <= shape.flops // 2 <= 2**base.high for shape in chosen)
        assert chosen == ablation.suited(base, 60, 3) != ablation.suited(base, 60, 4)


# Sources and build ---------------------------------------------------------------------------------------------------


def test_emit_writes_what_the_library_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ablation.main(["--emit", str(tmp_path), "--techniques", "copies,tile", "--layout", "nn"]) == 0
    text = "".join(path.read_text() for path in tmp_path.rglob("*.cu"))
    names = re.findall(r'"(multistage_[^"]+)"', text)
    assert sorted(names) == sorted(s.name for s in ablation.extra_kernels(["copies", "tile"], ["nn"]))
    assert f"{len(names)} kernels" in capsys.readouterr().out
    assert {path.parent.name for path in tmp_path.rglob("*.*")} == {"multistage"}
    assert not set(names) & {spec.name for spec in space.compiled()}
    assert "multistage_f16_nn_256x128x64_s3_w4x2k1_stagger" in names
    assert emit.write(tmp_path, ablation.extra_kernels(["copies", "tile"], ["nn"])) == []


def test_emit_leaves_the_library_s_own_kernels_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert ablation.main(["--emit", str(emit.ROOT)]) == 2
    assert "name another folder" in capsys.readouterr().err


def _setup(tmp_path: Path, extra: Path | None, archs: str = "9.0a") -> ninja_file.Setup:
    return ninja_file.Setup(
        root=ROOT,
        cxx="g++",
        torch=torch_headers.Torch(tmp_path / "torch", "2.13.0"),
        pybind11=tmp_path,
        interpreters=(),
        archs=tuple(arch.parse(archs)),
        toolkit=cuda.inspect(fake_toolkit(tmp_path / "cuda")),
        extra_kernels=extra,
    )


def test_extra_kernels_are_in_the_library(tmp_path: Path) -> None:
    folder = tmp_path / "extra"
    (folder / "multistage").mkdir(parents=True)
    (folder / "sm90").mkdir()
    (folder / "multistage" / "f16_nn_0.cu").touch()
    (folder / "sm90" / "f16_nn_0.cu").touch()
    plain = ninja_file.generate(_setup(tmp_path, None)).edges
    edges = ninja_file.generate(_setup(tmp_path, folder)).edges
    target = "build/native/obj/extra/multistage/f16_nn_0.cu.o"
    (edge,) = [edge for edge in edges if edge.startswith(f"build {target}: nvcc_extra {folder}/multistage")]
    assert "-Icsrc" in edge
    (core,) = [edge for edge in edges if "libcudal2.so: link" in edge]
    assert {target, target.replace("multistage", "sm90")} <= set(core.split())
    assert set(plain) - set(edges) == {edge for edge in plain if "libcudal2.so: link" in edge}
    ampere = ninja_file.generate(_setup(tmp_path, folder, "8.0")).edges
    assert sum(": nvcc_extra " in edge for edge in ampere) == 1


def test_a_folder_without_extra_kernels_is_named(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=f"CUDAL2_EXTRA_KERNELS={tmp_path}"):
        ninja_file.generate(_setup(tmp_path, tmp_path))


def test_the_variable_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native.host, "find_cxx", lambda env: "g++")
    monkeypatch.setattr(native.cuda, "find_nvcc", lambda env: None)
    monkeypatch.setattr(native.host, "interpreters", lambda env: [])
    monkeypatch.setattr(native.host, "pybind11_include", lambda: tmp_path)
    monkeypatch.setattr(native.torch_headers, "require", lambda: torch_headers.Torch(tmp_path, "2.13.0"))
    monkeypatch.chdir(tmp_path)
    assert native.look_around(ROOT, {"CUDAL2_EXTRA_KERNELS": "some/where"}).extra_kernels == tmp_path / "some/where"
    assert native.look_around(ROOT, {"CUDAL2_EXTRA_KERNELS": ""}).extra_kernels is None


# A run ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """A device with every kernel built; the bases are timed on small shapes."""
    fake = install(monkeypatch)
    specs = [*space.compiled(), *ablation.extra_kernels()]
    built = [{"name": s.name, "family": s.family, "dtype": s.dtype, "layout": s.layout} for s in specs]
    monkeypatch.setattr(fake, "kernels", lambda: built)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    small = {Shape(128, 256, 64), Shape(64, 64, 512), Shape(256, 128, 2048)}
    monkeypatch.setattr(ablation, "suited", lambda base, count, seed: sorted(small)[:count])
    return fake


def _run(tmp_path: Path, *options: str) -> tuple[int, list[dict[str, str]], str]:
    path = tmp_path / "ablation.csv"
    code = ablation.main(["--out", str(path), "--shapes", "3", *options])
    text = path.read_text()
    return code, list(csv.DictReader(line for line in text.splitlines() if line[0] != "#")), text


def test_run_writes_a_row_for_each_variant(gpu: FakeGpu, tmp_path: Path) -> None:
    spread = "multistage_f16_tn_64x64x64_s4_w2x2k1_spread_sk"
    gpu.us = {space.multistage(SMALL.line).name: 2.0, spread: 4.0}
    gpu.occupancy = lambda name, *_: {"ctas_per_sm": 1, "local_bytes": 8 * (name == spread)}  # type: ignore
    code, rows, text = _run(tmp_path, "--layout", "tn")
    assert code == 0
    assert {row["technique"] for row in rows} == set(TECHNIQUES)
    (row,) = [row for row in rows if row["kernel"] == spread and row["k"] == "512"]
    assert (row["variant"], row["instead_of"], row["base"], row["layout"]) == ("spread", "early", SMALL.line, "tn")
    assert (float(row["us"]), float(row["base_us"])) == (4.0, 2.0)
    assert "split=4" in row["knobs"]
    expected = {
        "gpu": "NVIDIA H200",
        "wrong": "none",
        "left_out": "nothing",
        "not_built": "none",
        "spills": f"{spread} 8 bytes",
    }
    for key, value in expected.items():
        assert f"# {key}: {value}\n" in text
    assert ablation_report.markdown(*ablation_report.read(tmp_path / "ablation.csv"))


def test_a_wrong_kernel_is_reported_and_left_out(gpu: FakeGpu, tmp_path: Path) -> None:
    gpu.wrong = {"multistage_f16_nn_64x64x64_s4_w2x2k1_spread_sk"}
    code, rows, text = _run(tmp_path, "--techniques", "copies", "--layout", "nn")
    assert code == 1
    assert not any(row["kernel"] in gpu.wrong for row in rows)
    assert "# wrong: multistage_f16_nn_64x64x64_s4_w2x2k1_spread_sk on 64,64,512" in text


def test_what_is_not_built_or_has_no_time_is_reported(
    gpu: FakeGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = gpu.kernels()
    monkeypatch.setattr(gpu, "kernels", lambda: [kernel for kernel in built if "_spread" not in kernel["name"]])
    _, rows, text = _run(tmp_path, "--techniques", "copies", "--layout", "nn")
    assert {row["variant"] for row in rows} == {"stagger"}
    assert re.search("# not_built: .*multistage_f16_nn_64x64x64_s4_w2x2k1_spread_sk", text)
    _, rows, text = _run(tmp_path, "--techniques", "copies", "--layout", "nn", "--budget-seconds", "-1")
    assert rows == []
    assert f"{MIDDLE.line}: 3 problems" in text


def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert ablation.main([]) == 2
    assert "no GPU" in capsys.readouterr().err


# Report --------------------------------------------------------------------------------------------------------------


def _synthetic(path: Path) -> Path:
    lines = ["# gpu: NVIDIA H200", ",".join(ablation_report.COLUMNS)]
    for layout, k, stagger, spread in (("nn", 64, 20.0, 10.1), ("tn", 64, 5.0, 40.0), ("nn", 16384, 10.0, 40.0)):
        shape = f"2048,2048,{k}"
        lines.append(f'copies,{SMALL.line},{layout},stagger,early,{shape},{stagger},10.0,kernel,"knobs"')
        lines.append(f'copies,{SMALL.line},{layout},spread,early,{shape},{spread},10.0,kernel,"knobs"')
    lines.append(f"noise,{TINY.line},nn,again,once,64,64,64,2.0,2.02,kernel,knobs")
    path.write_text("\n".join(lines) + "\n# clocks: SM 1980 MHz\n")
    return path


def test_report(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    source = _synthetic(tmp_path / "ablation.csv")
    assert ablation.main(["--report", str(source), "--out", str(tmp_path / "report")]) == 0
    text = (tmp_path / "report" / "ablation.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    stagger = ["copies", f"`{SMALL.line}`", "stagger", "early", "3", "**1.000**", "33%", "33%", "0.707", "2.000"]
    sizes = ["", "", "1.000", "", "1.000"]  # 2^28 and 2^36
    assert [*stagger, *sizes, "2.00 at 2048,2048,64 tn", "0.50 at 2048,2048,64 nn"] in rows
    assert ["copies", ablation_report.CHOICE, "early", "3", "**1.260**", "33%", "0%"] in rows
    assert ["noise", "again", "once", "1", "**1.010**", "0%", "0%"] in rows
    assert "- clocks: SM 1980 MHz" in text
    assert (tmp_path / "report" / "ablation.png").read_bytes().startswith(b"\x89PNG")


def test_another_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "other.csv"
    path.write_text("m,n,k\n1,2,3\n")
    assert ablation.main(["--report", str(path)]) == 2
    assert "is no ablation" in capsys.readouterr().err
