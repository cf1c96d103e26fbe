"""One launch per kernel family and mode on small odd shapes, without torch: what to run under compute-sanitizer.

    compute-sanitizer --tool memcheck  --error-exitcode 1 python tests/gpu/sanitize.py
    compute-sanitizer --tool racecheck --error-exitcode 1 python tests/gpu/sanitize.py
    compute-sanitizer --tool racecheck python tests/gpu/sanitize.py 'multistage_.*_sk'  # every kernel of that name

Results are compared with numpy's, so a kernel that the tool changed the timing of into a wrong answer shows, too.
"""

from __future__ import annotations

import ctypes
import glob
import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
SHAPES = ((200, 136, 352), (128, 264, 1024), (136, 1096, 352))

MODES = {
    "wmma": r"wmma_.*",
    "cooperative, one warpgroup": r"sm90_.*_64x\d+x64_s\d+_c1x1_coop1",
    "cooperative, two": r"sm90_.*_128x64x64_.*_c1x1_coop2",
    "cooperative, registers reallocated": r"sm90_.*_(128x256|256x128)x64_.*_coop2(_tma)?(_ws)?",
    "cooperative, three": r"sm90_.*_192x.*_coop3(_tma)?",
    "pingpong": r"sm90_.*_128x128x64_.*_c1x1_ping2(_tma)?",
    "multicast of A": r"sm90_.*_c1x2_(coop|ping)\d(_tma)?",
    "multicast of B": r"sm90_.*_c2x1_(coop|ping)\d(_tma)?",
    "stores by TMA": r"sm90_.*_128x128x64_.*_ping2_tma",
    "stores by TMA in narrow boxes": r"sm90_.*x(144|160)x64_.*_tma",
    "workspace": r"sm90_.*_c1x1_coop\d(_tma)?_ws",
    "workspace with multicast": r"sm90_.*_c(1x2|2x1)_coop\d(_tma)?_ws",
    "stream-K": r"sm90_.*_c1x1_ping2_tma_sk",
    "stream-K with multicast": r"sm90_.*_c2x1_ping2_tma_sk",
    "stream-K, cooperative": r"sm90_.*_coop2_tma_sk",
    "operands swapped": r"sm90_.*_c1x1_coop\d_swap",
    "operands swapped, with multicast": r"sm90_.*_c(1x2|2x1)_coop\d(_tma)?_swap",
    "operands swapped, pingpong": r"sm90_.*_ping2_tma_swap",
    "operands swapped, workspace": r"sm90_.*_c1x1_coop\d_ws_swap",
    "operands swapped, workspace with multicast": r"sm90_.*_c(1x2|2x1)_coop\d_ws_swap",
    "operands swapped, stream-K": r"sm90_.*_sk_swap",
    "split-K": r"sm90_.*_c1x1k\d_coop\d",
    "multistage": r"multistage_.*_w2x2k1",
    "multistage, stream-K": r"multistage_.*_sk",
    "multistage, any alignment": r"multistage_.*_any",
    "direct": r"direct_.*_w1x1k[24]",
    "narrow tile": r"sm90_.*_64x(16|32|48)x.*_c1x1_coop1",
}


def main() -> int:
    """Run the first kernel of each mode, or every one that a pattern fits, dtype fp16, both layouts.

    Returns 1 if a result is wrong, or a mode has no kernel.
    """
    tools, cuda = load_tools(), Cuda()
    timer = tools.Timer(0)
    names = [kernel["name"] for kernel in tools.kernels() if "_f16_" in kernel["name"]]
    wrong = 0
    modes = MODES
    if len(sys.argv) > 1:
        modes = {name: re.escape(name) for name in names if re.fullmatch(sys.argv[1], name)}
    for mode, pattern in modes.items():
        for layout in ("nn", "tn"):
            chosen = next((n for n in names if re.fullmatch(pattern, n) and f"_{layout}_" in n), None)
            if chosen is None:
                if modes is not MODES:
                    continue
                print(f"{mode} {layout}: no kernel in this build")
                wrong += 1
                continue
            for shape in SHAPES:
                error = launch(tools, timer, cuda, chosen, layout, shape)
                wrong += not error < 0.1
                knobs = " ".join(f"{name}={value}" for name, value in knobs_for(chosen).items())
                print(f"{mode} {layout} {shape}: {chosen} {knobs}: largest error {error:.4f}", flush=True)
    return 1 if wrong else 0


def launch(tools: Any, timer: Any, cuda: Cuda, kernel: str, layout: str, shape: tuple[int, int, int]) -> float:
    """The largest absolute error of one launch, with knobs_for the kernel."""
    m, n, k = shape
    random = np.random.default_rng(0)
    a = random.standard_normal((m, k)).astype(np.float16)
    b = random.standard_normal((k, n)).astype(np.float16)
    stored = b if layout == "nn" else np.ascontiguousarray(b.T)
    pointers = [cuda.upload(x) for x in (a, stored, np.full((m, n), np.nan, np.float16))]
    gemm = tools.Gemm(
        a=pointers[0], b=pointers[1], c=pointers[2], bias=0, m=m, n=n, k=k,
        lda=k, ldb=stored.shape[1], ldc=n, dtype="f16", layout=layout,
    )  # fmt: skip
    timer.launch(kernel, tools.Knobs(group=2, raster=1, pdl=False, **knobs_for(kernel)), gemm)
    timer.synchronize(300.0)
    result = cuda.download(pointers[2], (m, n))
    for pointer in pointers:
        cuda.free(pointer)
    return float(np.abs(result.astype(np.float64) - a.astype(np.float64) @ b.astype(np.float64)).max())


def knobs_for(kernel: str) -> dict[str, int]:
    """How to launch a kernel: K shared through the workspace where it has one, else persistent on few CTAs, which where
    it can (stream-K) they share."""
    return {"split": 3} if "ws" in kernel.split("_") else {"ctas": 5}


def load_tools() -> Any:
    """cudal2._tools without cudal2, which would import torch: under the sanitizer that takes minutes."""
    suffix = f"cpython-{sys.version_info.major}{sys.version_info.minor}"
    path = next((ROOT / "cudal2").glob(f"_tools.{suffix}-*.so"))
    spec = importlib.util.spec_from_file_location("_tools", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Cuda:
    """The few functions of libcudart that allocate and copy."""

    def __init__(self) -> None:
        places = [*sys.path, "/usr/local/cuda/lib64"]
        found = [f for place in places for f in glob.glob(f"{place}/**/libcudart.so.1*", recursive="site-" in place)]
        self.runtime = ctypes.CDLL(found[0] if found else "libcudart.so")
        self.check(self.runtime.cudaSetDevice(0))
        self.check(self.runtime.cudaFree(None))

    def check(self, status: int) -> None:
        if status:
            raise RuntimeError(f"libcudart: error {status}")

    def upload(self, array: np.ndarray[Any, Any]) -> int:
        pointer = ctypes.c_void_p()
        self.check(self.runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(array.nbytes)))
        source = array.ctypes.data_as(ctypes.c_void_p)
        self.check(self.runtime.cudaMemcpy(pointer, source, ctypes.c_size_t(array.nbytes), 1))
        return pointer.value or 0

    def download(self, pointer: int, shape: tuple[int, int]) -> np.ndarray[Any, Any]:
        array = np.empty(shape, np.float16)
        target = array.ctypes.data_as(ctypes.c_void_p)
        self.check(self.runtime.cudaMemcpy(target, ctypes.c_void_p(pointer), ctypes.c_size_t(array.nbytes), 2))
        return array

    def free(self, pointer: int) -> None:
        self.check(self.runtime.cudaFree(ctypes.c_void_p(pointer)))


if __name__ == "__main__":
    sys.exit(main())
