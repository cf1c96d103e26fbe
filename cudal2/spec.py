"""KernelSpec: what is compiled. Names, code generation, the search space and reports all derive from it."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, replace
from typing import Any

DTYPES = ("f16", "bf16")
ALL_DTYPES = (*DTYPES, "f16acc16")
"""f16acc16: fp16 operands accumulated in fp16, never used unless asked for by name (the paper's F16F16F16F16 set)."""
LAYOUTS = ("nn", "tn")
MAX_SMEM = {"sm90": 227 * 1024, "multistage": 227 * 1024, "direct": 99 * 1024, "wmma": 99 * 1024}
"""Bytes of shared memory a CTA may use: 9.0's, or the least of 8.x. Cards that have less than a multistage kernel needs
are told at run time."""
DIRECT_CHUNK = 32
"""What a direct warp loads of K at a time."""

TWO_CTAS_SMEM = 113 * 1024
"""Bytes of shared memory with which two CTAs fit one SM of compute capability 9.0."""

_HEAD = r"(?P<family>{family})_(?P<dtype>f16|bf16|f16acc16)_(?P<layout>nn|tn)_(?P<bm>\d+)x(?P<bn>\d+)x(?P<bk>\d+)"
_STAGES = r"_s(?P<stages>\d+)"
_WARPS = r"_w(?P<warps_m>\d+)x(?P<warps_n>\d+)k(?P<warps_k>\d+)"
_TAILS = {
    "sm90": _STAGES
    + r"_c(?P<cluster_m>\d+)x(?P<cluster_n>\d+)(?:k(?P<split>\d+))?_(?P<schedule>coop|ping)(?P<consumers>\d+)"
    + r"(?:_(?P<tma_store>tma))?(?:_(?P<workspace>ws))?(?:_(?P<stream_k>sk))?(?:_(?P<swap>swap))?",
    "wmma": _STAGES + _WARPS,
    "direct": _WARPS,
    "multistage": _STAGES
    + _WARPS
    + r"(?:_p(?P<prefetch>\d+))?(?:_(?P<copies>stagger|spread))?(?:_(?P<stream_k>sk))?(?:_(?P<vector>any))?",
}
_NAMES = [re.compile(_HEAD.format(family=family) + tail) for family, tail in _TAILS.items()]
_FLAGS: dict[str, Any] = {"sk": True, "ws": True, "tma": True, "swap": True, "any": 1}
"""What the words of a name stand for that are neither a number nor themselves."""


MOST_NAME = 120
"""Characters of the longest name that is read."""

COPIES = ("early", "stagger", "spread")


def nn_panel_columns(bn: int) -> int:
    """Columns of one shared-memory panel of B under nn: a swizzle's width that a narrow tile does not overfill much."""
    if bn % 64 == 0 or bn > 96:
        return 64
    return 32 if bn % 32 == 0 else 16


class SpecError(ValueError):
    """A KernelSpec that no kernel template can be instantiated with."""


@dataclass(frozen=True)
class KernelSpec:
    """One kernel's compile-time knobs.

    A CTA computes BM x BN of C (each consumer warpgroup its own BM x BN under `ping`), stepping BK through K with
    `stages` shared-memory buffers.

    sm90: TMA + WGMMA. `consumers` warpgroups; `schedule` coop (they share a tile's rows) or ping (they alternate over
    tiles, one's epilogue under the other's mainloop); `cluster_m` x `cluster_n` CTAs share loads by multicast; `split`
    CTAs of the cluster split K and reduce through distributed shared memory, in a fixed order; `tma_store`: C leaves
    by TMA; `workspace`: up to 16 clusters can split K and reduce through global memory (the knob `split`);
    `stream_k`: a persistent grid shares the tiles that do not make whole waves, each between two neighbours; `swap`:
    computes C^T = B^T A^T, so that wgmma's rows, multiples of 64, lie along N and its columns along M.
    The others have `warps_m` x `warps_n` warps that tile the CTA tile, and `warps_k` that split each BK.
    wmma: cp.async + wmma fragments.
    direct: from global memory to mma.sync registers; no stages, BK is what is in flight at once.
    multistage: cp.async + ldmatrix + mma.sync. `prefetch`: steps of k16, 0 or 1, that fragments are loaded ahead;
    `copies`: the next block's before a step's products (early), A's before and B's after (stagger) or over all steps
    (spread); `stream_k`: a persistent grid shares all tiles evenly, and the knob `split` is there; `vector`: elements
    to which operands must be aligned, 8 or 1.
    """

    family: str
    dtype: str
    layout: str
    bm: int
    bn: int
    bk: int
    stages: int = 1
    cluster_m: int = 1
    cluster_n: int = 1
    split: int = 1
    schedule: str = "coop"
    consumers: int = 1
    warps_m: int = 1
    warps_n: int = 1
    warps_k: int = 1
    prefetch: int = 1
    copies: str = "early"
    stream_k: bool = False
    tma_store: bool = False
    workspace: bool = False
    swap: bool = False
    vector: int = 8

    @property
    def name(self) -> str:
        """The canonical name, e.g. ``sm90_f16_tn_128x256x64_s4_c2x1_coop2``."""
        head = f"{self.family}_{self.dtype}_{self.layout}_{self.bm}x{self.bn}x{self.bk}"
        if self.family != "direct":
            head += f"_s{self.stages}"
        if self.family == "sm90":
            split = f"k{self.split}" if self.split > 1 else ""
            options = "_tma" * self.tma_store + "_ws" * self.workspace + "_sk" * self.stream_k + "_swap" * self.swap
            return f"{head}_c{self.cluster_m}x{self.cluster_n}{split}_{self.schedule}{self.consumers}{options}"
        head += f"_w{self.warps_m}x{self.warps_n}k{self.warps_k}"
        if self.family != "multistage":
            return head
        words = {
            f"p{self.prefetch}": self.prefetch != 1,
            self.copies: self.copies != "early",
            "sk": self.stream_k,
            "any": self.vector == 1,
        }
        return "_".join([head, *(word for word, present in words.items() if present)])

    @classmethod
    @functools.cache
    def parse(cls, name: str) -> KernelSpec:
        """The spec that has this canonical name. Raises SpecError if none has."""
        match = None
        if len(name) <= MOST_NAME:
            match = next((found for pattern in _NAMES if (found := pattern.fullmatch(name))), None)
        if not match:
            raise SpecError(f"kernel name {name!r} is not of the form sm90_f16_tn_128x256x64_s4_c2x1_coop2")
        fields: dict[str, Any] = {
            key: int(value) if value.isdigit() else _FLAGS.get(value, value)
            for key, value in match.groupdict().items()
            if value is not None
        }
        spec = cls(**fields)
        if spec.name != name:
            raise SpecError(f"kernel name {name!r} is not canonical: expected {spec.name!r}")
        return spec

    def variant(self, dtype: str, layout: str) -> KernelSpec:
        """The same knobs for another dtype and layout."""
        return replace(self, dtype=dtype, layout=layout)

    @property
    def threads(self) -> int:
        """Threads per CTA. sm90 adds a producer: a warp, or a warpgroup that lends its registers."""
        if self.family != "sm90":
            return 32 * self.warps_m * self.warps_n * self.warps_k
        return 128 * self.consumers + (128 if self.reallocates else 32)

    @property
    def streams_waves(self) -> bool:
        """Whether stream-K is for what does not make whole waves (sm90), not for all tiles (multistage)."""
        return self.stream_k and self.family == "sm90"

    @property
    def splits_tiles(self) -> bool:
        """Whether CTAs can split each tile's K through a workspace: the knob `split`."""
        return self.workspace or (self.stream_k and not self.streams_waves)

    @property
    def partials(self) -> int:
        """Partial tiles that a CTA may leave in the workspace: multistage's stream-K begins and ends in one."""
        return 2 if self.family == "multistage" else 1

    @property
    def reallocates(self) -> bool:
        """Whether the accumulators need registers from a producer warpgroup: 168 a thread otherwise with two consumer
        warpgroups, 128 with three."""
        limit = {2: 112, 3: 72}.get(self.consumers)
        return self.family == "sm90" and limit is not None and self.accumulator_registers > limit

    @property
    def cluster_size(self) -> int:
        return self.cluster_m * self.cluster_n * self.split

    @property
    def accumulator_rows(self) -> int:
        """sm90: rows of a tile's accumulators, which warpgroups take by 64: along M, or with `swap` along N."""
        return self.bn if self.swap else self.bm

    @property
    def warpgroup_rows(self) -> int:
        """sm90: of them, those of one consumer warpgroup."""
        return self.accumulator_rows if self.schedule == "ping" else self.accumulator_rows // self.consumers

    @property
    def accumulator_columns(self) -> int:
        """sm90: N of its wgmma instructions, any multiple of 8: along N, or with `swap` along M."""
        return self.bm if self.swap else self.bn

    @property
    def accumulator_registers(self) -> int:
        """Registers of accumulators per consumer thread."""
        if self.family != "sm90":
            return self.bm * self.bn // (32 * self.warps_m * self.warps_n) // (2 if self.dtype == "f16acc16" else 1)
        return self.warpgroup_rows * self.accumulator_columns // 128

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory of one CTA; the kernels assert the same figure."""
        if self.family == "wmma":
            a = self.bm * (self.bk + 8)
            b = self.bk * (self.bn + 8) if self.layout == "nn" else self.bn * (self.bk + 8)
            pipeline = self.stages * 2 * (a + b)
            epilogue = 4 * self.warps_k * self.bm * (self.bn + 4)
            return max(pipeline, epilogue)
        if self.family == "direct":
            return 4 * self.warps_k * self.bm * self.bn if self.warps_k > 1 else 0
        if self.family == "multistage":
            return self._multistage_smem()
        panel = 64 if self.layout == "tn" else nn_panel_columns(self.bn)
        b_columns = self.bn if self.layout == "tn" else -(-self.bn // panel) * panel
        pipeline = self.stages * 2 * self.bk * (self.bm + b_columns)
        small, large = (self._sm90_smem(pipeline, staging) for staging in (2048, 4096))
        limit = TWO_CTAS_SMEM if small <= TWO_CTAS_SMEM else MAX_SMEM["sm90"]
        return large if self.tma_store and large <= limit else small

    def _sm90_smem(self, pipeline: int, staging: int) -> int:
        """With `staging` bytes for each warp's part of C on its way out."""
        around = 1024 + 4 * self.consumers * staging + 16 * self.stages + 16
        beside = pipeline + self._reduction_bytes + around
        over = max(pipeline, self._reduction_bytes) + around
        reuse = self.split > 1 and (beside > MAX_SMEM["sm90"] or beside > TWO_CTAS_SMEM >= over)
        return over if reuse else beside

    def _multistage_smem(self) -> int:
        pipeline = self.stages * 2 * self.bk * (self.bm + self.bn)
        if self.warps_k > 1:
            return max(pipeline, 4 * self.warps_k * self.bm * (self.bn + 4))
        return max(pipeline, 2 * self.bm * (self.bn + 8))

    @property
    def _reduction_bytes(self) -> int:
        """fp32 partial tiles received from the cluster's split-K CTAs: beside the pipeline's buffers, or over them."""
        if self.split == 1:
            return 0
        column_blocks = -(-(self.accumulator_columns // 8) // self.split)
        return self.split * column_blocks * 8 * self.accumulator_rows * 4

    def validate(self) -> None:
        """Raise SpecError, naming the field, unless a kernel can be compiled from this spec."""
        problem = self._problem()
        if problem:
            raise SpecError(f"{self.name}: {problem}")

    def _problem(self) -> str | None:
        if self.family not in MAX_SMEM:
            return f"family={self.family!r}; expected one of {sorted(MAX_SMEM)}"
        dtypes = ALL_DTYPES if self.family == "multistage" else DTYPES
        if self.dtype not in dtypes or self.layout not in LAYOUTS:
            return f"dtype={self.dtype!r}, layout={self.layout!r}; expected one of {dtypes} and {LAYOUTS}"
        tile = ("bm", "bn", "bk", "stages", "cluster_m", "cluster_n", "split")
        for name in (*tile, "consumers", "warps_m", "warps_n", "warps_k"):
            if getattr(self, name) < 1:
                return f"{name}={getattr(self, name)}; at least 1"
        if self.family != "direct" and self.stages < 2:
            return f"stages={self.stages}; at least 2"
        if self.family != "sm90" and not 32 <= self.threads <= 1024:
            return f"{self.threads} threads; expected 32 to 1024"
        if self.family != "sm90" and self.cluster_size != 1:
            return f"{self.family} has no cluster"
        if self.smem_bytes > MAX_SMEM[self.family]:
            return f"needs {self.smem_bytes} bytes of shared memory; at most {MAX_SMEM[self.family]}"
        problems = {
            "sm90": self._sm90_problem,
            "wmma": self._wmma_problem,
            "direct": self._direct_problem,
            "multistage": self._multistage_problem,
        }
        return problems[self.family]() or self._unnamed()

    def _unnamed(self) -> str | None:
        """Which field the family does not have: its name does not show it."""
        named = KernelSpec.parse(self.name)
        different = [name for name, value in vars(self).items() if getattr(named, name) != value]
        return f"{self.family} kernels have no choice of {', '.join(different)}" if different else None

    def _sm90_problem(self) -> str | None:
        if not 1 <= self.consumers <= 3:
            return f"consumers={self.consumers}; expected 1 to 3"
        side, other = ("bn", "bm") if self.swap else ("bm", "bn")
        rows, columns = self.accumulator_rows, self.accumulator_columns
        if self.warpgroup_rows % 64 or self.warpgroup_rows == 0 or (self.schedule == "coop" and rows % self.consumers):
            return f"{side}={rows}: each of the consumers needs a multiple of 64 rows"
        if self.schedule == "ping" and self.consumers != 2:
            return f"consumers={self.consumers}: ping has exactly 2"
        if self.schedule == "ping" and self.split != 1:
            return f"split={self.split}: ping does not split K"
        if columns % 8 or not 8 <= columns <= 256:
            return f"{other}={columns}; expected a multiple of 8, 8 to 256"
        if self.bk % 64 or self.bk == 0:
            return f"bk={self.bk}; expected a multiple of 64 (one 128-byte swizzle row)"
        registers = {1: 255, 2: 224, 3: 160}[self.consumers]
        if self.accumulator_registers + 32 > registers or (self.consumers == 3 and columns > 192):
            return f"{self.accumulator_registers} accumulator registers do not fit {self.threads} threads"
        if not 1 <= self.cluster_size <= 8 and self.cluster_size != 16:
            return f"cluster of {self.cluster_size} CTAs; expected 1 to 8, or 16"
        if self.workspace and (self.schedule == "ping" or self.split > 1):
            return "workspace: not with ping, nor with a split in the cluster"
        if self.stream_k and (self.workspace or self.split > 1):
            return "stream_k: not with a split"
        if self.bm % (8 * self.cluster_n):
            return f"cluster_n={self.cluster_n}: slices of A need 8-row alignment"
        if self.bm > 256 * self.cluster_n:
            return f"bm={self.bm}: each of {self.cluster_n} CTAs loads at most 256 rows of A at once"
        b_rows = self.bn if self.layout == "tn" else self.bk
        if b_rows % (8 * self.cluster_m):
            return f"cluster_m={self.cluster_m}: slices of B need 8-row alignment"
        if b_rows > 256 * self.cluster_m:
            return f"{b_rows} rows of B: each of {self.cluster_m} CTAs loads at most 256 of them at once"
        return None

    def _wmma_problem(self) -> str | None:
        if self.bm % (16 * self.warps_m) or self.bn % (16 * self.warps_n) or self.bk % (16 * self.warps_k):
            return "each warp needs a multiple of 16 in M, N and K"
        return None

    @property
    def chunks(self) -> int:
        """direct: chunks of K that each warp has in flight."""
        return self.bk // (DIRECT_CHUNK * self.warps_k)

    def _direct_problem(self) -> str | None:
        if self.bk % (DIRECT_CHUNK * self.warps_k) or self.chunks == 0:
            return f"bk={self.bk}; expected a multiple of {DIRECT_CHUNK} for each of warps_k={self.warps_k}"
        if self.bm % (16 * self.warps_m) or self.bm == 0:
            return f"bm={self.bm}; each warp needs a multiple of 16 rows"
        if self.bn not in (8 * self.warps_n * columns for columns in (1, 2, 4, 8)):
            return f"bn={self.bn}; expected 8, 16, 32 or 64 columns for each of warps_n={self.warps_n}"
        rows, columns = self.bm // self.warps_m // 8, self.bn // self.warps_n // 8
        fragments = 4 * self.chunks * (rows + columns)
        if self.accumulator_registers + fragments > min(200, 65536 // self.threads - 32):
            return f"{self.accumulator_registers} accumulator and {fragments} fragment registers do not fit a thread"
        return None

    def _multistage_problem(self) -> str | None:
        if self.bm % (16 * self.warps_m) or self.bn % (16 * self.warps_n) or self.bk % (16 * self.warps_k):
            return "each warp needs a multiple of 16 in M, N and K"
        if not all(16 <= extent <= 256 for extent in (self.bm, self.bn, self.bk)):
            return f"tile {self.bm}x{self.bn}x{self.bk}; expected 16 to 256"
        if self.copies not in COPIES:
            return f"copies={self.copies!r}; expected one of {COPIES}"
        if self.stages > 8 or self.vector not in (1, 8):
            return f"stages={self.stages}, vector={self.vector}; expected 2 to 8, and 1 or 8"
        steps = self.bk // 16 // self.warps_k
        if not 0 <= self.prefetch < min(2, steps):
            return f"prefetch={self.prefetch}; expected 0, or 1 where a warp takes several steps through a block"
        if self.stream_k and self.warps_k > 1:
            return f"warps_k={self.warps_k}: stream-K joins whole tiles of accumulators"
        if self.accumulator_registers > 160:
            return f"{self.accumulator_registers} accumulator registers do not fit a thread"
        return self._copy_problem()

    def _copy_problem(self) -> str | None:
        """multistage: whether the CTA's threads cover each operand's rows in whole passes, enough of them to spread."""
        nn = self.layout == "nn"
        passes = 0
        for name, rows, columns in (
            ("A", self.bm, self.bk),
            ("B", self.bk if nn else self.bn, self.bn if nn else self.bk),
        ):
            panel = next(width for width in (64, 32, 16) if columns % width == 0)
            per_pass, odd = divmod(self.threads, panel // 8)
            if odd or per_pass % 8:
                return f"{self.threads} threads do not copy {name}'s rows of {panel} elements in whole passes"
            if panel != columns and per_pass % rows and rows % per_pass:
                return f"{self.threads} threads do not divide {name}'s {rows} rows"
            passes += -(-rows * columns // (8 * self.threads))
        steps = self.bk // 16 // self.warps_k
        if self.copies == "spread" and passes < steps:
            return f"copies='spread': {passes} passes of copies do not spread over {steps} steps"
        return None
