"""Measuring and the search for plans, on a fake GPU whose kernels take the time that a test gives them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_gpu import SPECS, TORCH_US, FakeGpu, FakeWatch, install
from fake_tools import ROOT

from cudal2 import plans
from cudal2.plans import Key, Knobs
from cudal2.search import cost, knobs, measure, sweep
from cudal2.search import tuner as tuner_module
from cudal2.search.journal import Candidate, Journal
from cudal2.search.measure import Operands, Pool, launches_for
from cudal2.search.tuner import DeviceFailure, Tuner
from cudal2.shapes import Shape
from cudal2.spec import KernelSpec

SHAPE = Shape(256, 384, 512)
F16_TN = {spec.name: spec for spec in SPECS}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return install(monkeypatch)


def _operands(shape: Shape = SHAPE) -> Operands:
    return Pool("f16", [shape], seed=0, device="cpu").operands(shape, "tn")


def _tuner(gpu: FakeGpu) -> Tuner:
    return Tuner(FakeWatch(gpu), dict(F16_TN))


class TestMeasure:
    @pytest.mark.parametrize(("us", "launches"), [(0.0, 20), (2.0, 20), (4.0, 10), (30.0, 2), (40.0, 1), (9e3, 1)])
    def test_launches_fill_a_replay(self, us: float, launches: int) -> None:
        assert launches_for(us) == launches

    @pytest.mark.parametrize("layout", ["nn", "tn"])
    def test_pool_gives_aligned_random_views(self, layout: str) -> None:
        pool = Pool("bf16", [Shape(64, 128, 256), Shape(8, 8, 8)], seed=1, device="cpu")
        first, second = (pool.operands(Shape(64, 128, 256), layout) for _ in range(2))
        assert first.shape == Shape(64, 128, 256)
        assert first.b.stride() == ((128, 1) if layout == "nn" else (1, 256))
        assert not torch.equal(first.a, second.a)
        assert all(t.data_ptr() % 256 == pool._a.data_ptr() % 256 for t in (first.a,))
        assert abs(first.b.float().mean()) < 0.1
        assert 0.9 < first.b.float().std() < 1.1

    def test_gemm_gives_pitches_by_layout(self, gpu: FakeGpu) -> None:
        gemm = _operands().gemm()
        assert (gemm.m, gemm.n, gemm.k) == SHAPE
        assert (gemm.lda, gemm.ldb, gemm.ldc) == (512, 512, 384)
        assert (gemm.dtype, gemm.layout) == ("f16", "tn")

    def test_a_race_replays_everyone_every_round(self, gpu: FakeGpu) -> None:
        watch = FakeWatch(gpu)
        problem = _operands().gemm()
        graphs = {name: watch.kernel(name, Knobs(), [problem], 4) for name in list(F16_TN)[:3]}
        times = watch.race(graphs, rounds=5)
        assert [len(values) for values in times.values()] == [5, 5, 5]
        rounds = [gpu.raced[start : start + 3] for start in range(0, 15, 3)]
        assert all(sorted(order) == [0, 1, 2] for order in rounds)
        assert len({tuple(order) for order in rounds}) > 1

    def test_a_settled_race_first_keeps_the_device_busy(self, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
        now = [100.0]
        monkeypatch.setattr(measure.time, "monotonic", lambda: now[0])
        first, second = list(F16_TN)[:2]
        gpu.us = {first: 300.0, second: 700.0}
        watch = FakeWatch(gpu)
        graphs = {name: watch.kernel(name, Knobs(), [_operands().gemm()], 10) for name in (first, second)}
        rounds = round(measure.SETTLED_US / (10 * (300.0 + 700.0)))

        times = watch.race(graphs, rounds=3, settled=True)
        assert [len(values) for values in times.values()] == [3, 3]
        assert len(gpu.raced) == 2 * (rounds + 3)
        now[0] += measure.SETTLED_FOR_S / 2
        watch.race(graphs, rounds=3, settled=True)  # one has only just ended
        assert len(gpu.raced) == 2 * (rounds + 6)

    def test_an_idle_device_is_woken_first(self, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
        now = [100.0]
        monkeypatch.setattr(measure.time, "monotonic", lambda: now[0])
        name = next(iter(F16_TN))
        gpu.us = {name: 10.0}
        watch = FakeWatch(gpu)
        watch._idle_s = measure.IDLE_S
        graphs = {name: watch.kernel(name, Knobs(), [_operands().gemm()], 100)}
        waking = round(measure.WAKE_US / 1000.0)
        replays = []
        for pause in (0.0, measure.IDLE_S / 2, measure.IDLE_S * 2):
            now[0] += pause
            gpu.raced.clear()
            assert len(watch.race(graphs, rounds=3)[name]) == 3
            replays.append(len(gpu.raced))
        assert replays == [waking + 3, 3, waking + 3]

    @pytest.mark.parametrize("between", ["time", "rest", "another race"])
    def test_it_settles_in_full_again(self, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, between: str) -> None:
        now = [100.0]
        monkeypatch.setattr(measure.time, "monotonic", lambda: now[0])
        monkeypatch.setattr(measure.time, "sleep", lambda s: None)
        name = next(iter(F16_TN))
        gpu.us = {name: 1000.0}
        watch = FakeWatch(gpu)
        graphs = {name: watch.kernel(name, Knobs(), [_operands().gemm()], 1)}
        watch.race(graphs, rounds=100, settled=True)
        if between == "time":
            now[0] += measure.SETTLED_FOR_S * 2
        elif between == "rest":
            watch.rest()
        else:
            watch.race(graphs, rounds=1)
        gpu.raced.clear()
        watch.race(graphs, rounds=3, settled=True)
        assert len(gpu.raced) == round(measure.SETTLED_US / 1000.0) + 3


class TestCost:
    def test_more_work_takes_longer(self) -> None:
        for spec in F16_TN.values():
            times = [cost.predict_us(spec, Shape(size, size, size)) for size in (64, 512, 2048, 8192)]
            assert times == sorted(times)
            assert times[0] < times[-1]

    def test_large_shapes_are_predicted_within_a_factor(self) -> None:
        best = min(cost.predict_us(spec, Shape(8192, 8192, 8192)) for spec in F16_TN.values())
        assert 0.8 < best / (2 * 8192**3 / 750e12 * 1e6) < 1.4

    def test_waves_count_clusters(self) -> None:
        spec = KernelSpec.parse("sm90_f16_tn_128x256x64_s4_c2x1_coop2")
        assert cost.tiles(spec, Shape(129, 257, 64)) == (2, 2)
        assert cost.tiles(spec, Shape(257, 256, 64)) == (4, 1)
        assert cost.ctas_per_sm(spec) == 1
        assert cost.waves(spec, Shape(128 * 132, 256, 64)) == 1.0

    def test_shortlist_keeps_other_kinds_beside_the_best(self) -> None:
        shape = Shape(2048, 2048, 2048)
        alike = [replace(F16_TN["sm90_f16_tn_128x128x64_s5_c2x1_coop2"], stages=stages) for stages in range(2, 6)]
        other = F16_TN["sm90_f16_tn_64x64x64_s8_c1x1_coop1"]
        specs = [*alike, other]
        assert cost.predict_us(other, shape) > max(cost.predict_us(spec, shape) for spec in alike[1:])
        chosen = cost.shortlist(specs, shape, keep=3)
        assert len(chosen) == 3
        assert other in chosen
        predictions = [cost.predict_us(spec, shape) for spec in chosen]
        assert predictions == sorted(predictions)
        assert predictions[0] == min(cost.predict_us(spec, shape) for spec in specs)

    def test_shortlist_leaves_out_the_hopeless(self) -> None:
        shape = Shape(16384, 16384, 16384)
        chosen = cost.shortlist(F16_TN.values(), shape, keep=1000)
        best = cost.predict_us(chosen[0], shape)
        hopeless = [spec for spec in F16_TN.values() if cost.predict_us(spec, shape) > cost.SPREAD * best]
        assert "sm90_f16_tn_64x16x128_s6_c1x1_coop1" in {spec.name for spec in hopeless}
        assert set(chosen) == set(F16_TN.values()) - set(hopeless)


class TestTuner:
    def test_the_fastest_wins(self, gpu: FakeGpu) -> None:
        fastest = sorted(F16_TN)[-1]
        gpu.us[fastest] = 1.5
        plan = _tuner(gpu).tune(_operands())
        assert plan is not None
        assert (plan.kernel, plan.us, plan.torch_us, plan.use) == (fastest, 1.5, TORCH_US, "own")
        assert plan.key == Key("f16", "tn", *SHAPE)

    def test_cublas_is_used_where_it_is_faster(self, gpu: FakeGpu) -> None:
        gpu.us = dict.fromkeys(F16_TN, TORCH_US * 0.999)
        plan = _tuner(gpu).tune(_operands())
        assert plan is not None
        assert plan.use == "cublas"

    def test_a_wrong_kernel_cannot_win(self, gpu: FakeGpu) -> None:
        wrong, right = sorted(F16_TN)[:2]
        gpu.us = {wrong: 1.0, right: 1.2}
        gpu.wrong = {wrong}
        tuner = _tuner(gpu)
        plan = tuner.tune(_operands())
        assert plan is not None
        assert plan.kernel == right
        refused = [entry for entry in tuner.entries if entry.stage == "check"]
        assert {entry.candidate.kernel for entry in refused} == {wrong}
        assert all("over" in entry.note for entry in refused)

    def test_no_kernel_no_plan(self, gpu: FakeGpu) -> None:
        gpu.refusing = set(F16_TN)
        tuner = _tuner(gpu)
        assert tuner.tune(_operands()) is None
        shortlist = {spec.name for spec in cost.shortlist(F16_TN.values(), SHAPE, tuner.keep)}
        assert {entry.candidate.kernel for entry in tuner.entries if entry.note.endswith("pitch")} == shortlist

    def test_all_right_kernels_wrong_no_plan(self, gpu: FakeGpu) -> None:
        gpu.wrong = set(F16_TN)
        assert _tuner(gpu).tune(_operands()) is None

    def test_knobs_are_varied_on_finalists_only(self, gpu: FakeGpu) -> None:
        fastest = "sm90_f16_tn_64x64x64_s8_c1x1_coop1"
        gpu.us = {**dict.fromkeys(F16_TN, 9.0), fastest: 2.0}
        tuner = _tuner(gpu)
        tuner.tune(_operands(Shape(1024, 1024, 512)))
        tried = {entry.candidate.knobs for entry in tuner.entries if entry.candidate.kernel == fastest}
        assert {(chosen.group, chosen.raster) for chosen in tried} >= {(1, 0), (1, 1), (4, 0), (16, 1), (8, 0), (8, 1)}
        varied = {e.candidate.kernel for e in tuner.entries if e.stage == "knobs" and e.candidate.knobs.group != 8}
        assert len(varied) == 2

    def test_long_products_race_few_kernels_and_orders_of_the_best(
        self, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tuner_module, "TENSOR_LONG_US", 0.0)
        monkeypatch.setattr(tuner_module, "MOST_LONG", 4)
        shape = Shape(1024, 1024, 512)
        few = [spec.name for spec in cost.shortlist(F16_TN.values(), shape, 40)[:4]]
        gpu.us = {few[2]: 2.0, few[1]: 2.5, few[0]: 3.0, few[3]: 9.0}
        tuner = _tuner(gpu)
        monkeypatch.setattr(measure, "LONG_US", 1.5)
        medians = tuner.watch.medians
        settled_seen: list[bool] = []

        def seen(*race: Any, settled: bool) -> dict[Candidate, float]:
            settled_seen.append(settled)
            return medians(*race, settled=settled)

        monkeypatch.setattr(tuner.watch, "medians", seen)
        plan = tuner.tune(_operands(shape))
        assert plan is not None
        assert plan.kernel == few[2]
        assert {e.candidate.kernel for e in tuner.entries if e.stage == "quick"} == set(few)
        finalists = {e.candidate for e in tuner.entries if e.stage == "final"} - {Candidate("torch")}
        assert {candidate.kernel for candidate in finalists} == set(few[:3])
        orders = {(c.knobs.group, c.knobs.raster) for c in finalists if c.kernel == few[2]}
        assert orders == {(8, 0), (8, 1), (16, 0), (16, 1)}
        assert settled_seen == [True] * 2, "of the first stage by the prediction, of the last by what was seen"

    def test_a_long_stream_of_weights_races_as_any_other(self, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tuner_module, "TENSOR_LONG_US", 0.0)
        monkeypatch.setattr(tuner_module, "MOST_LONG", 2)
        tuner = _tuner(gpu)
        tuner.tune(_operands(Shape(16, 8192, 8192)))
        assert len({e.candidate.kernel for e in tuner.entries if e.stage == "quick"}) > 2

    def test_seeds_replace_the_shortlist(self, gpu: FakeGpu) -> None:
        seeds = [Candidate(name, Knobs(group=4)) for name in sorted(F16_TN)[:2]]
        tuner = _tuner(gpu)
        plan = tuner.tune(_operands(), seeds)
        assert plan is not None
        assert Candidate(plan.kernel, plan.knobs) in seeds
        assert {e.candidate.kernel for e in tuner.entries} == {seeds[0].kernel, seeds[1].kernel, "torch"}

    def test_winners_nearby_join_the_shortlist(self, gpu: FakeGpu) -> None:
        tuner = _tuner(gpu)
        tuner.keep = 1
        first = tuner.tune(_operands(Shape(8192, 64, 64)))
        assert first is not None
        gpu.captured.clear()
        tuner.tune(_operands(Shape(64, 64, 8192)))
        timed = {kernel for kernel, _, _ in gpu.captured}
        assert first.kernel in timed
        assert len(timed) == 2

    def test_a_crash_in_a_race_has_no_name_and_a_careful_run_gives_it(self, gpu: FakeGpu) -> None:
        culprit = sorted(F16_TN)[0]
        gpu.crashing = {culprit}
        with pytest.raises(DeviceFailure, match=r"quick of .*illegal memory access") as caught:
            _tuner(gpu).tune(_operands())
        assert caught.value.kernel == ""
        with pytest.raises(DeviceFailure) as caught:
            _tuner(gpu).tune(_operands(), careful=True)
        assert caught.value.kernel == culprit


class TestKnobs:
    SHARING = KernelSpec.parse("multistage_f16_tn_64x64x64_s4_w2x2k1_sk")

    def test_a_split_fills_one_wave(self) -> None:
        assert knobs.first(self.SHARING, Shape(64, 1024, 4096), slots=264) == Knobs(split=16)
        assert knobs.first(self.SHARING, Shape(64, 4096, 4096), slots=264) == Knobs(split=4)
        assert knobs.first(self.SHARING, Shape(4096, 4096, 4096), slots=264) == Knobs()

    def test_each_cta_of_a_first_split_has_two_blocks(self) -> None:
        assert knobs.first(self.SHARING, Shape(64, 64, 640), slots=264) == Knobs(split=4)
        assert knobs.first(self.SHARING, Shape(64, 64, 64), slots=264) == Knobs()

    def test_variants_share_tiles_in_every_way_that_fits(self) -> None:
        tried = knobs.variants(self.SHARING, Shape(64, 4096, 8192), 264, Knobs(split=4))
        assert {other.split for other in tried if not other.ctas} == {1, 2, 3, 6, 8, 16}
        assert [other for other in tried if other.ctas] == [Knobs(ctas=264)]
        few = knobs.variants(self.SHARING, Shape(64, 4096, 256), 264, Knobs())
        assert {other.split for other in few} == {2, 3, 4}
        assert not any(other.ctas for other in few)  # 256 blocks of work for 264 CTAs
        large = knobs.variants(self.SHARING, Shape(8192, 8192, 8192), 264, Knobs())
        assert {other.split for other in large} == {1}
        assert Knobs(ctas=264) in large

    def test_no_split_beyond_the_workspace(self) -> None:
        wide = KernelSpec.parse("multistage_f16_tn_128x128x32_s4_w2x2k1_sk")
        tried = knobs.variants(wide, Shape(128, 8192, 8192), 264, Knobs())
        assert max(other.split for other in tried) == 4  # 64 tiles x 4 CTAs x 2 partial tiles of 64 KB

    def test_constants_are_the_runtime_s(self) -> None:
        header = (ROOT / "csrc" / "kernels" / "params.h").read_text()
        assert f"constexpr int kMostParts = {cost.MOST_PARTS};" in header

    def test_hopper_kernels_share_tiles_in_one_wave(self) -> None:
        spec = KernelSpec.parse("sm90_f16_tn_128x128x64_s6_c1x1_coop2_ws")
        long = Shape(256, 1024, 16384)  # 16 tiles
        assert knobs.first(spec, long, 132) == Knobs(split=8)
        splits = {other.split for other in knobs.variants(spec, long, 132, Knobs(split=8))}
        assert splits >= {1, 2, 4, 6}
        assert max(splits) == 8  # those that share a tile wait for each other
        assert knobs.first(spec, Shape(4096, 4096, 4096), 132) == Knobs(ctas=132)
        assert {other.split for other in knobs.variants(spec, Shape(4096, 4096, 4096), 132, Knobs())} == {1}
        assert cost.predict_us(spec, long) < 0.5 * cost.predict_us(replace(spec, workspace=False), long)

    def test_streaming_kernels_have_no_split(self) -> None:
        spec = KernelSpec.parse("sm90_f16_tn_128x128x64_s6_c2x1_ping2_tma_sk")
        shapes = Shape(128, 4096, 8192), Shape(4096, 4096, 4096)
        for shape in shapes:
            start = knobs.first(spec, shape, 132)
            assert {other.split for other in (start, *knobs.variants(spec, shape, 132, start))} == {1}
        assert knobs.first(spec, shapes[1], 132) == Knobs(ctas=132)

    def test_streaming_starts_from_the_second_wave_on(self) -> None:
        spec = KernelSpec.parse("sm90_f16_tn_128x256x64_s4_c2x1_coop2_tma_sk")
        assert knobs.first(spec, Shape(2048, 4096, 8192), 132) == Knobs(ctas=132)
        assert knobs.first(replace(spec, stream_k=False), Shape(2048, 4096, 8192), 132) == Knobs()
        assert knobs.first(spec, Shape(1024, 4096, 8192), 132) == Knobs()

    def test_streaming_fills_every_wave(self) -> None:
        plain = KernelSpec.parse("sm90_f16_tn_128x192x64_s5_c1x1_ping2_tma")
        shape = Shape(4096, 4096, 8192)  # 5.33 waves of its tiles
        gain = cost.predict_us(plain, shape) / cost.predict_us(replace(plain, stream_k=True), shape)
        assert 1.05 < gain < 6 / 5.33

    def test_other_kernels_share_nothing(self) -> None:
        for spec in SPECS:
            start = knobs.first(spec, Shape(64, 4096, 8192), 132)
            assert start.split == 1
            assert all(other.split == 1 for other in knobs.variants(spec, Shape(64, 4096, 8192), 132, start))

    def test_the_tuner_tries_them(self, gpu: FakeGpu) -> None:
        tuner = Tuner(FakeWatch(gpu), {self.SHARING.name: self.SHARING})
        plan = tuner.tune(_operands(Shape(256, 384, 2048)))
        assert plan is not None
        assert {entry.candidate.knobs.split for entry in tuner.entries} >= {1, 2, 3, 4, 6, 8, 16}
        assert any(entry.candidate.knobs.ctas for entry in tuner.entries)


class TestSweep:
    @pytest.fixture
    def arguments(self, tmp_path: Path) -> list[str]:
        shapes = tmp_path / "shapes.csv"
        shapes.write_text("m,n,k\n64,64,64\n128,256,512\n")
        return ["--shapes", str(shapes), "--out", str(tmp_path / "h200.csv"), "--log", str(tmp_path / "log.csv")]

    def test_writes_plans_for_every_problem(
        self, gpu: FakeGpu, arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert sweep.main([*arguments, "--worker"]) == 0
        table = plans.read(tmp_path / "h200.csv")
        assert {(key.dtype, key.layout) for key in table.plans} == {("f16", "nn"), ("f16", "tn")}
        assert len(table.plans) == 4
        assert table.header["mode"] == "graph, PDL off"
        out = capsys.readouterr().out
        assert "f16 nn: 2 shapes, geomean over torch: own " in out
        assert "f16 tn: 2 shapes" in out

    def test_another_dtype_is_seeded_and_added(self, gpu: FakeGpu, arguments: list[str], tmp_path: Path) -> None:
        assert sweep.main([*arguments, "--layout", "tn", "--worker"]) == 0
        before = len(gpu.captured)
        log = str(tmp_path / "log.csv")
        more = ["--layout", "tn", "--dtype", "bf16", "--seed-log", log, "--top", "2", "--log", str(tmp_path / "b.csv")]
        assert sweep.main([*arguments, *more, "--worker"]) == 0
        table = plans.read(tmp_path / "h200.csv")
        assert sorted(key.dtype for key in table.plans) == ["bf16", "bf16", "f16", "f16"]
        timed = {kernel for kernel, _, _ in gpu.captured[before:]}
        assert all(kernel.split("_")[1] == "bf16" for kernel in timed)
        assert len(timed) <= 4

    def test_a_crash_is_survived_without_its_kernel(self, gpu: FakeGpu, arguments: list[str], tmp_path: Path) -> None:
        culprit = "wmma_f16_tn_32x32x64_s4_w2x2k1"
        gpu.crashing = {culprit}
        worker = [*arguments, "--layout", "tn", "--worker"]
        assert sweep.main(worker) == sweep.CRASHED
        gpu._failure = ""
        assert sweep.main([*worker, "--resume"]) == sweep.CRASHED  # careful: finds the culprit
        gpu._failure = ""
        assert sweep.main([*worker, "--resume"]) == 0
        assert len(plans.read(tmp_path / "h200.csv").plans) == 2
        assert Journal(tmp_path / "log.csv", resume=True).culprits() == {culprit}

    def test_plans_of_kernels_no_longer_compiled_are_dropped(
        self, gpu: FakeGpu, arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        key = Key("bf16", "tn", 8, 8, 8)
        gone = plans.Plan(key, "wmma_bf16_tn_16x16x16_s2_w1x1k1", Knobs(), us=1.0, torch_us=2.0)
        plans.write(tmp_path / "h200.csv", plans.Table({"gpu": "NVIDIA H200"}, {key: gone}))
        assert sweep.main([*arguments, "--worker"]) == 0
        assert key not in plans.read(tmp_path / "h200.csv").plans
        assert "dropping 1 plans" in capsys.readouterr().err

    def test_resume_leaves_out_what_is_done(self, gpu: FakeGpu, arguments: list[str]) -> None:
        assert sweep.main([*arguments, "--worker"]) == 0
        before = len(gpu.captured)
        assert sweep.main([*arguments, "--worker", "--resume"]) == 0
        assert len(gpu.captured) == before

    def test_the_parent_restarts_a_crashed_worker(
        self, arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        codes, commands = [sweep.CRASHED, sweep.CRASHED, 0], []

        def call(command: list[str]) -> int:
            commands.append(command)
            return codes.pop(0)

        monkeypatch.setattr(sweep.subprocess, "call", call)
        assert sweep.main([*arguments, "--budget-seconds", "100"]) == 0
        assert ["--resume" in command for command in commands] == [False, True, True]
        assert all("--worker" in command for command in commands)
        assert capsys.readouterr().err.count("took the device down") == 2

    def test_a_spent_budget_stops_with_what_there_is(
        self, gpu: FakeGpu, arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert sweep.main([*arguments, "--budget-seconds", "-1", "--worker"]) == 0
        assert plans.read(tmp_path / "h200.csv").plans == {}
        assert "budget spent after 0 of 4 problems" in capsys.readouterr().err

    def test_shards_are_disjoint_and_whole(self, arguments: list[str]) -> None:
        parse = sweep._parser().parse_args
        shards = [sweep.selection(parse([*arguments, "--shapes", "grid", "--shard", f"{i}/3"])) for i in range(3)]
        assert len(set().union(*shards)) == sum(map(len, shards)) == 1000
