"""The C++ plan table: what it loads, and that each malformed table is an error that names file and row."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "csrc" / "runtime" / "plan_table.cpp"
if not SOURCE.is_file() or shutil.which("g++") is None:
    pytest.skip("needs the source tree and g++", allow_module_level=True)

KERNEL = "sm90_f16_tn_128x128x64_s6_c1x1_ping2"
HEADER = "# gpu: NVIDIA H200\n# arch: 9.0\n# sms: 132\n"
COLUMNS = "dtype,layout,m,n,k,kernel,group,raster,ctas,split,pdl,us,torch_us,lt_us,use\n"
ROW = f"f16,tn,64,128,256,{KERNEL},4,1,132,1,0,2.5,3.25,,own\n"
Load = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("plan_table") / "main"
    sources = [str(Path(__file__).with_name("plan_table_main.cpp")), str(SOURCE)]
    sanitize = ["-fsanitize=address,undefined", "-fno-sanitize-recover"]
    command = ["g++", "-std=c++17", "-O1", *sanitize, f"-I{ROOT / 'csrc'}", *sources, "-ldl", "-o", str(target)]
    subprocess.run(command, check=True)
    return target


@pytest.fixture
def load(program: Path, tmp_path: Path) -> Load:
    def run(text: str, *problem: int, kernels: str = KERNEL, **environment: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "h200.csv").write_bytes(text.encode("utf-8"))
        variables = {**os.environ, "KERNELS": kernels, **environment}
        arguments = [str(program), str(tmp_path), *map(str, problem)]
        return subprocess.run(arguments, env=variables, capture_output=True, text=True, timeout=60)

    return run


def test_a_plan_is_found_by_its_whole_key(load: Load) -> None:
    result = load(HEADER + COLUMNS + ROW, 64, 128, 256, 64, 256, 128)
    assert result.stdout.splitlines() == [
        "plans=1 tuned=1 rules=0",
        f"{KERNEL} group=4 ctas=132 split=1 own=1 us=2.500",
        "none",
    ]


@pytest.mark.parametrize(("folder", "plans"), [("other", 1), ("", 2)])
def test_the_folder_is_the_environment_s_or_beside_the_library_s(
    program: Path, tmp_path: Path, folder: str, plans: int
) -> None:
    (tmp_path / "lib").mkdir()
    shutil.copy(program, tmp_path / "lib" / "main")
    for name, rows in (("other", ROW), ("plans", ROW + ROW.replace("256", "512"))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "h200.csv").write_text(HEADER + COLUMNS + rows)
    chosen = str(tmp_path / folder) if folder else ""  # empty: as if unset
    result = subprocess.run(
        [str(tmp_path / "lib" / "main"), ""],
        env={**os.environ, "KERNELS": KERNEL, "CUDAL2_PLANS": chosen},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.stdout == f"plans={plans} tuned=1 rules=0\n"


def test_windows_line_ends_and_blank_lines(load: Load) -> None:
    assert load((HEADER + COLUMNS + "\n" + ROW).replace("\n", "\r\n")).stdout == "plans=1 tuned=1 rules=0\n"


def test_another_gpu_of_the_architecture_is_untuned(load: Load) -> None:
    assert load(HEADER.replace("H200", "H100") + COLUMNS + ROW).stdout == "plans=1 tuned=0 rules=0\n"
    assert load(HEADER.replace("9.0", "8.0") + COLUMNS + ROW).stdout == "plans=0 tuned=0 rules=0\n"
    assert load(HEADER.replace("132", "-2147483648") + COLUMNS + ROW).returncode == 0


def test_a_table_of_rules_needs_no_times(load: Load) -> None:
    rules = HEADER + "# source: rules\n" + COLUMNS
    result = load(rules + ROW.replace("2.5,3.25", ","), 64, 128, 256)
    assert result.stdout.splitlines() == [
        "plans=1 tuned=1 rules=1",
        f"{KERNEL} group=4 ctas=132 split=1 own=1 us=0.000",
    ]
    assert "us='0'" in load(rules + ROW.replace("2.5", "0")).stdout


def test_a_split_of_each_tile(load: Load) -> None:
    result = load(HEADER + COLUMNS + ROW.replace("132,1,0", "0,6,0"), 64, 128, 256, STREAM_K="1")
    assert result.stdout.splitlines()[1] == f"{KERNEL} group=4 ctas=0 split=6 own=1 us=2.500"


@pytest.mark.parametrize(("kernel", "ctas", "split", "sms", "own"), [
    ("sm90_f16_tn_128x128x64_s6_c1x1_coop2_ws", 0, 6, "132", 1),
    ("sm90_f16_tn_128x128x64_s6_c1x1_coop2_ws", 0, 6, "114", 0),
    ("sm90_f16_tn_128x128x64_s6_c1x1_coop2_ws", 0, 1, "114", 1),
    ("sm90_f16_tn_128x128x64_s6_c2x1_ping2_tma_sk", 132, 1, "114", 1),
    ("multistage_f16_tn_64x64x64_s4_w2x2k1_sk", 0, 6, "114", 1),
])  # fmt: skip
def test_ctas_that_wait_for_each_other_need_the_table_s_multiprocessors(
    load: Load, kernel: str, ctas: int, split: int, sms: str, own: int
) -> None:
    """An H100 with 114 takes the H200's table. Who streams waits only for CTAs that started before."""
    row = ROW.replace(KERNEL, kernel).replace("132,1,0", f"{ctas},{split},0")
    result = load(HEADER + COLUMNS + row, 64, 128, 256, kernels=kernel, GPU="NVIDIA H100 PCIe", SMS=sms)
    assert result.stdout.splitlines()[1] == f"{kernel} group=4 ctas={ctas} split={split} own={own} us=2.500"


@pytest.mark.parametrize(
    ("tables", "chosen"),
    [
        # The nearest number of multiprocessors, of the exact compute capability before all of its major one.
        ([("H100 A", "9.0", 114, ""), ("H100 B", "9.0", 131, "")], "H100 B"),
        ([("X", "9.3", 132, ""), ("H100 A", "9.0", 60, "")], "H100 A"),
        ([("X", "9.3", 100, ""), ("Y", "9.4", 131, ""), ("A100", "8.0", 132, "")], "Y"),
        # The GPU's own, rules or not.
        ([("H100", "9.0", 132, ""), ("H200", "9.0", 1, "rules")], "H200"),
        ([("H100", "9.0", 132, ""), ("H200", "9.0", 1, "")], "H200"),
        ([("A100", "8.0", 132, "")], ""),
    ],
)
def test_which_table_a_device_takes(
    program: Path, tmp_path: Path, tables: list[tuple[str, str, int, str]], chosen: str
) -> None:
    for gpu, arch, sms, source in tables:
        head = f"# gpu: NVIDIA {gpu}\n# arch: {arch}\n# sms: {sms}\n" + (f"# source: {source}\n" if source else "")
        (tmp_path / f"{gpu.lower().replace(' ', '-')}.csv").write_text(head + COLUMNS + ROW)
    variables = {**os.environ, "KERNELS": KERNEL}
    result = subprocess.run([str(program), str(tmp_path)], env=variables, capture_output=True, text=True)
    said = f"table_gpu={'NVIDIA ' + chosen if chosen else ''}"
    assert said in result.stderr.splitlines()


def test_numbers_do_not_depend_on_the_locale(load: Load, tmp_path: Path) -> None:
    """A process may have called setlocale; under a comma-decimal one strtof reads 2.5 as 2."""
    if shutil.which("localedef") is None:
        pytest.skip("no localedef to make a comma-decimal locale with")
    made = subprocess.run(
        ["localedef", "-i", "de_DE", "-f", "UTF-8", str(tmp_path / "de_DE.UTF-8")], capture_output=True
    )
    if made.returncode > 1 or not (tmp_path / "de_DE.UTF-8").exists():
        pytest.skip("localedef has no source for de_DE")
    result = load(HEADER + COLUMNS + ROW, 64, 128, 256, LOCPATH=str(tmp_path), LC_ALL="de_DE.UTF-8")
    assert result.stdout.splitlines()[1].replace(",", ".").endswith("us=2.500"), result.stdout


def test_a_build_without_the_family_takes_no_such_rows(load: Load) -> None:
    """TORCH_CUDA_ARCH_LIST=8.0+PTX runs on a 9.0 device, and has no sm90 kernels at all."""
    assert load(HEADER + COLUMNS + ROW, kernels="wmma_f16_tn_16x16x64_s4_w1x1k2").stdout == "plans=0 tuned=1 rules=0\n"


@pytest.mark.parametrize(
    ("change", "line", "message"),
    [
        (lambda text: text.replace(COLUMNS, ""), 4, "expected the columns"),
        (lambda text: text.replace("lt_us,use", "lt_us"), 4, "expected the columns"),
        (lambda text: text.replace("torch_us,lt_us", "torch_us,torch_us"), 4, "expected the columns"),
        (lambda text: text + ROW, 6, "the same dtype,layout,m,n,k as line 5"),
        (lambda text: text.replace(",own", ""), 5, "has 14 cells; expected 15"),
        (lambda text: text.replace("f16,tn,64", "f32,tn,64"), 5, "dtype='f32'"),
        (lambda text: text.replace("f16,tn,64", "f16,tt,64"), 5, "layout='tt'"),
        (lambda text: text.replace(",64,", ",0,"), 5, "m='0'"),
        (lambda text: text.replace(",64,", ",64x,"), 5, "m='64x'"),
        (lambda text: text.replace(",64,", ",64\0x,"), 5, "m='64"),
        (lambda text: text.replace(",64,", f",{2**63},"), 5, "m='9223372036854775808'"),
        (lambda text: text.replace("ping2", "ping9"), 5, "is not compiled into this build"),
        (lambda text: text.replace("tn,64", "nn,64"), 5, "another dtype or layout"),
        (lambda text: text.replace(",4,1,132", f",{2**31},1,132"), 5, "group='2147483648'"),
        (lambda text: text.replace(",4,1,132", ",4,2,132"), 5, "raster='2'"),
        (lambda text: text.replace(",4,1,132", ",4,1,-1"), 5, "ctas='-1'"),
        (lambda text: text.replace("132,1,0,", "132,0,0,"), 5, "split='0'"),
        (lambda text: text.replace("132,1,0,", "132,2,0,"), 5, "split: this kernel has no workspace"),
        (lambda text: text.replace("132,1,0,", "132,1,yes,"), 5, "pdl='yes'"),
        (lambda text: text.replace("3.25", ""), 5, "torch_us=''"),
        *((lambda text, us=us: text.replace("2.5", us), 5, f"us='{us}'") for us in ("", "0", "-1", "nan", "inf")),
        (lambda text: text.replace(",own", ",ours"), 5, "use='ours'"),
    ],
)
def test_malformed(load: Load, change: Callable[[str], str], line: int, message: str) -> None:
    result = load(change(HEADER + COLUMNS + ROW))
    assert result.returncode == 1, result.stdout + result.stderr
    assert message in result.stdout
    assert f"h200.csv, line {line}: " in result.stdout


def test_an_empty_table_is_an_error(load: Load) -> None:
    assert "no header row" in load(HEADER).stdout
