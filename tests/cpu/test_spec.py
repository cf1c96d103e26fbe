"""KernelSpec: names round-trip, rules reject what cannot compile, and the C++ templates agree with its figures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cudal2 import tools
from cudal2.search import space
from cudal2.spec import DTYPES, LAYOUTS, MAX_SMEM, KernelSpec, SpecError

SM90 = KernelSpec("sm90", "f16", "tn", 128, 256, 64, 4, cluster_m=2, consumers=2)
DIRECT = KernelSpec("direct", "f16", "nn", 16, 32, 128, warps_n=2, warps_k=2)
MULTISTAGE = KernelSpec("multistage", "f16", "nn", 128, 128, 64, 3, warps_m=2, warps_n=2)
WMMA = KernelSpec("wmma", "bf16", "nn", 32, 32, 64, 4, warps_m=2, warps_n=2)


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        (SM90, "sm90_f16_tn_128x256x64_s4_c2x1_coop2"),
        (replace(SM90, cluster_m=1, bn=128, split=4), "sm90_f16_tn_128x128x64_s4_c1x1k4_coop2"),
        (replace(SM90, bn=128, schedule="ping", cluster_n=2), "sm90_f16_tn_128x128x64_s4_c2x2_ping2"),
        (replace(SM90, tma_store=True), "sm90_f16_tn_128x256x64_s4_c2x1_coop2_tma"),
        (replace(SM90, workspace=True), "sm90_f16_tn_128x256x64_s4_c2x1_coop2_ws"),
        (replace(SM90, tma_store=True, stream_k=True), "sm90_f16_tn_128x256x64_s4_c2x1_coop2_tma_sk"),
        (replace(SM90, tma_store=True, workspace=True), "sm90_f16_tn_128x256x64_s4_c2x1_coop2_tma_ws"),
        (replace(SM90, bm=176, bn=128, swap=True), "sm90_f16_tn_176x128x64_s4_c2x1_coop2_swap"),
        (WMMA, "wmma_bf16_nn_32x32x64_s4_w2x2k1"),
        (DIRECT, "direct_f16_nn_16x32x128_w1x2k2"),
        (MULTISTAGE, "multistage_f16_nn_128x128x64_s3_w2x2k1"),
        (replace(MULTISTAGE, dtype="f16acc16", prefetch=0), "multistage_f16acc16_nn_128x128x64_s3_w2x2k1_p0"),
        (replace(MULTISTAGE, stream_k=True, vector=1), "multistage_f16_nn_128x128x64_s3_w2x2k1_sk_any"),
    ],
)
def test_name_is_canonical(spec: KernelSpec, name: str) -> None:
    assert spec.name == name
    assert KernelSpec.parse(name) == spec


def test_every_compiled_name_round_trips_and_is_unique() -> None:
    specs = space.compiled()
    assert [KernelSpec.parse(spec.name) for spec in specs] == list(specs)
    assert len({spec.name for spec in specs}) == len(specs)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "sm90_f16_tn_128x256x64",
        "sm80_f16_tn_64x64x64_s4_w2x2k1",
        WMMA.name + "x",
        DIRECT.name + "_swap",
        "sm90_f16_tn_96x64x64_s5_c1x1_coop1_swap_tma",
        f"direct_f16_nn_{'9' * 5000}x8x32_w1x1k1",
    ],
)
def test_parse_rejects_other_names(name: str) -> None:
    with pytest.raises(SpecError, match="is not of the form"):
        KernelSpec.parse(name)


def test_parse_rejects_a_name_that_is_not_canonical() -> None:
    with pytest.raises(SpecError, match="is not canonical"):
        KernelSpec.parse("sm90_f16_tn_128x256x64_s4_c2x1k1_coop2")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "f32"}, "dtype"),
        ({"layout": "nt"}, "layout"),
        ({"stages": 1}, "at least 2"),
        ({"stages": 9}, "shared memory"),
        ({"bm": 96}, "multiple of 64"),
        ({"bn": 100}, "multiple of 8"),
        ({"bn": 264, "stages": 2}, "8 to 256"),
        ({"bk": 32}, "multiple of 64"),
        ({"bm": 256, "stages": 2}, "accumulator"),
        ({"consumers": 4, "bm": 256, "stages": 2}, "1 to 3"),
        ({"schedule": "ping", "bn": 128, "consumers": 1}, "ping"),
        ({"schedule": "ping", "bn": 128, "split": 2}, "ping"),
        ({"split": 6}, "cluster of 12"),
        ({"split": 2, "workspace": True}, "nor with a split"),
        ({"schedule": "ping", "bn": 128, "workspace": True}, "not with ping"),
        ({"stream_k": True, "workspace": True}, "not with a split"),
        ({"bn": 72, "cluster_m": 2}, "8-row"),
        ({"split": 0}, "split=0; at least 1"),
        ({"warps_m": 7, "copies": "spread"}, "sm90 kernels have no choice of warps_m, copies"),
        ({"swap": True, "bn": 96}, "bn=96: each of the consumers needs a multiple of 64 rows"),
        ({"swap": True, "bm": 100, "bn": 128}, "bm=100; expected a multiple of 8"),
        ({"swap": True, "bm": 264, "bn": 128, "stages": 2}, "bm=264; expected a multiple of 8, 8 to 256"),
        ({"swap": True, "bm": 88, "bn": 128, "cluster_n": 2}, "8-row"),
        ({"swap": True, "bm": 32, "bn": 512, "stages": 2, "cluster_m": 1}, "512 rows of B: each of 1 CTAs"),
        ({"bm": 384, "bn": 64, "stages": 3, "consumers": 3}, "bm=384: each of 1 CTAs"),
    ],
)
def test_rules_reject_what_cannot_compile(change: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        replace(SM90, **change).validate()  # type: ignore[arg-type]


def test_a_swapped_kernel_is_its_mirror_image() -> None:
    wide = replace(SM90, bm=128, bn=176, cluster_m=1, cluster_n=2, schedule="ping", tma_store=True)
    high = replace(wide, bm=176, bn=128, cluster_m=2, cluster_n=1, swap=True)
    high.validate()
    for field in ("accumulator_rows", "accumulator_columns", "accumulator_registers", "smem_bytes", "threads"):
        assert getattr(high, field) == getattr(wide, field), field


@pytest.mark.parametrize("change", [{"bm": 24}, {"bk": 24}, {"warps_k": 16}, {"cluster_m": 2}, {"stages": 40}])
def test_wmma_rules(change: dict[str, int]) -> None:
    with pytest.raises(SpecError):
        replace(WMMA, **change).validate()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "f16acc16"}, "dtype"),
        ({"bm": 24}, "multiple of 16 rows"),
        ({"bn": 48}, "8, 16, 32 or 64 columns"),
        ({"bk": 32}, "multiple of 32"),
        ({"bk": 1024}, "registers"),
        ({"warps_k": 64, "bk": 2048}, "threads"),
        ({"cluster_n": 2}, "no cluster"),
        ({"swap": True}, "direct kernels have no choice of swap"),
        ({"bm": 0}, "bm=0; at least 1"),
    ],
)
def test_direct_rules(change: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        replace(DIRECT, **change).validate()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bm": 24}, "multiple of 16"),
        ({"bm": 320, "stages": 2}, "16 to 256"),
        ({"stages": 1}, "at least 2"),
        ({"stages": 8}, "shared memory"),
        ({"bm": 32, "bn": 32, "stages": 9}, "2 to 8"),
        ({"vector": 4}, "1 or 8"),
        ({"prefetch": 2}, "prefetch=2; expected 0, or 1 where"),
        ({"stream_k": True, "warps_k": 2}, "stream-K"),
        ({"bm": 64, "bn": 32, "warps_m": 4, "layout": "tn", "copies": "spread"}, "3 passes of copies"),
        ({"bm": 256, "bn": 256, "bk": 32, "stages": 2}, "accumulator"),
        ({"bm": 32, "bn": 16, "bk": 64, "warps_m": 1, "warps_n": 1}, "whole passes"),
    ],
)
def test_multistage_rules(change: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        replace(MULTISTAGE, **change).validate()  # type: ignore[arg-type]


def test_both_dtypes_and_layouts_have_the_same_tiles() -> None:
    tiles = {
        (dtype, layout): {(s.family, s.bm, s.bn, s.bk, s.cluster_m, s.cluster_n, s.split, s.schedule)
                          for s in space.compiled() if (s.dtype, s.layout) == (dtype, layout)}
        for dtype in DTYPES
        for layout in LAYOUTS
    }  # fmt: skip
    assert len(set(map(frozenset, tiles.values()))) == 1


def test_templates_agree_with_the_spec() -> None:
    """Threads and shared memory are computed in C++ too; a difference would launch with too little of either."""
    try:
        registry = tools.require().kernels()
    except RuntimeError as error:
        pytest.skip(str(error))
    if not registry:
        pytest.skip("fallback-only build: no kernels to compare with")
    assert {kernel["name"] for kernel in registry} <= {spec.name for spec in space.compiled()}
    for kernel in registry:
        spec = KernelSpec.parse(kernel["name"])
        assert kernel["threads"] == spec.threads, spec.name
        assert kernel["smem_bytes"] == spec.smem_bytes <= MAX_SMEM[spec.family], spec.name
