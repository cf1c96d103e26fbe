"""Finds the fastest kernel and knobs for one problem, by successive halving on the device.

    quick   every candidate, 2 replays                 -> the best 6 (long products: see MOST_LONG)
    top     those, more replays                        -> the best 3
    knobs   other tile orders and grids of those       -> a ranking
    check   down the ranking, until 3 compute rightly
    final   those, torch.matmul and cuBLASLt, longer replays, interleaved: the figures of the plan

All contenders of a stage hold the same number of launches and are replayed interleaved (see measure).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from cudal2 import check, plans
from cudal2.plans import Key, Knobs, Plan
from cudal2.search import cost, cublaslt, journal, knobs, measure
from cudal2.search.journal import Candidate, Entry
from cudal2.search.measure import Operands, Stopwatch, launches_for, native_knobs
from cudal2.spec import KernelSpec

OWN_MARGIN = 0.995
"""Dispatch runs the own kernel only where it measured at most this times torch.matmul."""

TENSOR_LONG_US, MOST_LONG, LONG_GRAPH_US = 60.0, 12, 200.0
"""Products of this length that the tensor cores bound run at a clock that power sets: one kernel's times differ by more
than kernels do. So only so many are timed, in graphs of this length, all in one race of more rounds; the best three and
other tile orders of the best are finalists."""

TORCH, LT, LT_HEURISTIC = Candidate("torch"), Candidate("lt"), Candidate("lt_heuristic")


class DeviceFailure(RuntimeError):
    """A kernel hung or took the device's context down: the process cannot go on."""

    def __init__(self, message: str, kernel: str = ""):
        super().__init__(message)
        self.kernel = kernel


@dataclass
class Tuner:
    """Tunes problems of one dtype and layout on one device.

    `specs` are the compiled kernels; `keep` of them are timed per problem by the cost model's advice, and beside them
    those that won on the nearest shapes tuned before. `lt`: time cuBLASLt, too. `seconds`: past this, no knobs stage.
    """

    watch: Stopwatch
    specs: dict[str, KernelSpec]
    keep: int = 40
    lt: cublaslt.Handle | None = None
    seconds: float = 4.0
    entries: list[Entry] = field(default_factory=list)
    tuned: list[Plan] = field(default_factory=list)
    _slots: dict[str, int] = field(default_factory=dict)

    def tune(self, operands: Operands, seeds: list[Candidate] | None = None, careful: bool = False) -> Plan | None:
        """The plan for a problem, or None if no kernel can run it. `seeds` replace the cost model's candidates.

        With `careful`, each candidate first runs alone, so that one that takes the device down is known by name.
        What was measured is left in `entries`. Raises DeviceFailure.
        """
        self.entries = []
        key = Key(operands.dtype, operands.layout, *operands.shape)
        try:
            with self.watch.scope():
                plan = _Run(self, key, operands, careful).plan(seeds)
        except DeviceFailure:
            raise
        except RuntimeError as error:  # torch met what a kernel of ours left behind
            raise DeviceFailure(f"{key}: {error}") from error
        if plan is not None:
            self.tuned.append(plan)
        return plan

    def neighbours(self, key: Key, count: int = 6) -> list[KernelSpec]:
        """The kernels that won on the `count` nearest shapes tuned so far."""
        near = sorted(self.tuned, key=lambda plan: plans.distance(plan.key.shape, key.shape))
        return [self.specs[plan.kernel] for plan in near[:count]]

    def slots(self, spec: KernelSpec, gemm: Any) -> int:
        """CTAs of a kernel that the device runs at once, in whole clusters."""
        if spec.name not in self._slots:
            found = self.watch.timer.occupancy(spec.name, native_knobs(Knobs()), gemm)
            by_sm = found["ctas_per_sm"] * self.watch.sms // spec.cluster_size
            self._slots[spec.name] = max(1, found.get("clusters", by_sm)) * spec.cluster_size
        return self._slots[spec.name]


class _Run:
    """One call of Tuner.tune."""

    def __init__(self, tuner: Tuner, key: Key, operands: Operands, careful: bool):
        self.tuner, self.key, self.operands, self.careful = tuner, key, operands, careful
        self.watch = tuner.watch
        self.gemm = operands.gemm()
        self.deadline = time.monotonic() + tuner.seconds
        self.refused: set[Candidate] = set()
        self.expected = 0.0
        self.long = False

    def plan(self, seeds: list[Candidate] | None) -> Plan | None:
        if seeds:
            candidates = seeds
        else:
            specs = cost.shortlist(self.tuner.specs.values(), self.key.shape, self.tuner.keep)
            if specs and self.is_long(self.predict(specs[0])):
                specs = specs[:MOST_LONG]
            specs = list(dict.fromkeys([*specs, *self.tuner.neighbours(self.key)]))
            candidates = [started for spec in specs if (started := self.start(spec)) is not None]
        if self.careful:
            self.try_each(candidates)
        self.expected = min((self.predict(self.spec(c)) for c in candidates), default=0.0)
        self.long = self.is_long(self.expected)
        launches = launches_for(self.expected, LONG_GRAPH_US) if self.long else launches_for(self.expected)
        if seeds:
            ranking = self.stage("top", candidates, launches, 5 if self.long else 3)
        elif self.long:
            ranking = self.stage("quick", candidates, launches, 4)[:3]
            ranking += self.orders(ranking[0]) if ranking else []
        else:
            ranking = self.stage("quick", candidates, launches, 2)[:6]
            ranking = self.stage("top", ranking, launches, 5)
            if time.monotonic() < self.deadline:
                ranking = self.knobs(ranking, launches)
        finalists = self.right_ones(ranking, 6 if self.long else 3) if ranking else []
        return self.final(finalists) if finalists else None

    # Candidates ------------------------------------------------------------------------------------------------------

    def spec(self, candidate: Candidate) -> KernelSpec:
        return self.tuner.specs[candidate.kernel]

    def predict(self, spec: KernelSpec) -> float:
        return cost.predict_us(spec, self.key.shape)

    def is_long(self, us: float) -> bool:
        """Whether power bounds a product of about `us`: memory does not."""
        return us > TENSOR_LONG_US and cost.hbm_us(self.key.shape) < us / 2

    def start(self, spec: KernelSpec) -> Candidate | None:
        """A kernel with the knobs to try first; None if it cannot run the problem."""
        try:
            slots = self.tuner.slots(spec, self.gemm)
        except ValueError:
            return None
        except RuntimeError as error:
            self.refuse(Candidate(spec.name), "start", str(error))
            return None
        return Candidate(spec.name, knobs.first(spec, self.key.shape, slots))

    def variants(self, candidate: Candidate) -> list[Candidate]:
        """The candidate with other knobs."""
        spec = self.spec(candidate)
        slots = self.tuner.slots(spec, self.gemm)
        changed = knobs.variants(spec, self.key.shape, slots, candidate.knobs)
        return [Candidate(candidate.kernel, other) for other in changed]

    # Stages ----------------------------------------------------------------------------------------------------------

    def stage(self, name: str, candidates: list[Candidate], launches: int, rounds: int) -> list[Candidate]:
        """Race the candidates; returns them fastest first, without those that could not be launched."""
        graphs = {}
        for candidate in candidates:
            try:
                graphs[candidate] = self.watch.kernel(candidate.kernel, candidate.knobs, [self.gemm], launches)
            except (ValueError, RuntimeError) as error:
                self.refuse(candidate, name, str(error))
        times = self.race(name, graphs, rounds)
        return sorted(times, key=times.__getitem__)

    def orders(self, candidate: Candidate) -> list[Candidate]:
        """The candidate with other tile orders, in groups no narrower."""
        least, grid = candidate.knobs.group, (candidate.knobs.ctas, candidate.knobs.split)
        others = self.variants(candidate)
        return [o for o in others if o.knobs.group >= least and (o.knobs.ctas, o.knobs.split) == grid]

    def knobs(self, ranking: list[Candidate], launches: int) -> list[Candidate]:
        """Order and grid of the best two (grid only of the third), raced together with what they change."""
        contenders = ranking[:3]
        for candidate in ranking[:2]:
            contenders = contenders + self.variants(candidate)
        for candidate in ranking[2:3]:
            grid = candidate.knobs.ctas, candidate.knobs.split
            others = self.variants(candidate)
            contenders = contenders + [other for other in others if (other.knobs.ctas, other.knobs.split) != grid]
        if len(contenders) == len(ranking[:3]):
            return ranking
        raced = self.stage("knobs", contenders, launches, 3)
        return raced + [candidate for candidate in ranking if candidate not in raced]

    def right_ones(self, ranking: list[Candidate], count: int) -> list[Candidate]:
        """The first `count` of the ranking that compute rightly: within check.Bound on this random data."""
        judge = check.Judge(self.operands.a, self.operands.b, self.key.dtype)
        passed: list[Candidate] = []
        for candidate in ranking:
            if len(passed) == count:
                break
            self.operands.c.fill_(float("nan"))
            self.run_alone(candidate, journal.CHECK)
            if problem := judge.problem(self.operands.c):
                self.refuse(candidate, journal.CHECK, problem)
            else:
                passed.append(candidate)
        return passed

    def final(self, finalists: list[Candidate]) -> Plan:
        """Race the finalists with the baselines and make the plan of the fastest."""
        launches = launches_for(self.fastest(1.0), target_us=200.0)
        graphs = {
            candidate: self.watch.kernel(candidate.kernel, candidate.knobs, [self.gemm], launches)
            for candidate in finalists
        }
        graphs[TORCH] = self.watch.matmul(self.operands, launches)
        if self.tuner.lt is not None:
            graphs.update(self.lt_graphs(launches))
        times = self.race("final", graphs, 9)
        best = min(finalists, key=times.__getitem__)
        use = "own" if times[best] <= OWN_MARGIN * times[TORCH] else "cublas"
        return Plan(self.key, best.kernel, best.knobs, times[best], times[TORCH], times.get(LT), use)

    def lt_graphs(self, launches: int) -> dict[Candidate, Any]:
        """cuBLASLt's first suggestion and its fastest."""
        assert self.tuner.lt is not None
        try:
            problem = cublaslt.Problem(self.tuner.lt, self.operands)
            fastest = cublaslt.autotune(problem, self.watch, self.fastest(1.0)).order[0]
            return {
                name: cublaslt.graphs(problem, self.watch, [index], launches)[index]
                for name, index in ((LT, fastest), (LT_HEURISTIC, 0))
            }
        except (cublaslt.LtError, KeyError) as error:
            self.refuse(LT, "final", str(error))
            return {}

    def fastest(self, default: float) -> float:
        """µs of the fastest measured so far, or the default."""
        return min((entry.us for entry in self.tuner.entries if entry.us is not None), default=default)

    # Device ----------------------------------------------------------------------------------------------------------

    def race(self, stage: str, graphs: dict[Candidate, Any], rounds: int) -> dict[Candidate, float]:
        if not graphs:
            return {}
        try:
            times = self.watch.medians(graphs, rounds, settled=self.fastest(self.expected) >= measure.LONG_US)
        except RuntimeError as error:
            raise DeviceFailure(f"{stage} of {self.key}: {error}") from error
        self.tuner.entries += [Entry(self.key, candidate, us, stage) for candidate, us in times.items()]
        return times

    def run_alone(self, candidate: Candidate, stage: str) -> None:
        try:
            self.watch.timer.launch(candidate.kernel, native_knobs(candidate.knobs), self.gemm)
            self.watch.synchronize(timeout_s=10.0)
        except ValueError as error:
            self.refuse(candidate, stage, str(error))
        except RuntimeError as error:
            raise DeviceFailure(f"{stage} of {self.key}: {error}", candidate.kernel) from error

    def try_each(self, candidates: list[Candidate]) -> None:
        for candidate in candidates:
            self.run_alone(candidate, "careful")

    def refuse(self, candidate: Candidate, stage: str, reason: str) -> None:
        if candidate not in self.refused:
            self.refused.add(candidate)
            self.tuner.entries.append(Entry(self.key, candidate, None, stage, reason))
