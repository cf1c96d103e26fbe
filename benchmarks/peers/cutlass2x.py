"""CUTLASS 2.x's sm_80-style kernels (cutlass2x.cu) as a benchmark peer: built with nvcc, called through ctypes.

    python -m benchmarks.peers.cutlass2x --build      # about 90 s on one core, 1 GB of memory
    python -m benchmarks.peers.cutlass2x              # which kernels the built library holds

The headers are those of the nvidia-cutlass wheel, which pip's build of cudal2 needs, too.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from build_tools import cuda, host
from build_tools.errors import BuildError
from cudal2.search.measure import Operands

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(__file__).with_suffix(".cu")
LIBRARY = ROOT / "build" / "peers" / "libcutlass2x.so"
BUILD = "python -m benchmarks.peers.cutlass2x --build"
FLAGS = ("-O3", "-DNDEBUG", "-std=c++17", "--expt-relaxed-constexpr", "--cudart=static", "-shared", "-Xcompiler=-fPIC")
ARCH = "-gencode=arch=compute_90,code=sm_90"
"""The kernels are written for compute capability 8.0; they are timed on 9.0, which does not run 8.0's machine code."""


class PeerError(RuntimeError):
    """The library is not built, is not this version's, or a call of it failed."""


def build(library: Path = LIBRARY) -> Path:
    """Compile the library. Raises BuildError, saying what is missing, where it cannot be."""
    command = build_command(library)
    library.parent.mkdir(parents=True, exist_ok=True)
    if subprocess.run(command).returncode:
        raise BuildError("compiling cutlass2x failed: the compiler's messages are above.")
    Path(command[-1]).replace(library)
    return library


def build_command(library: Path = LIBRARY) -> list[str]:
    """What `build` runs; the last argument is the file that it writes. Raises BuildError where something is missing."""
    headers = host.package_folder("cutlass_library", "source", "include")
    if headers is None:
        raise BuildError("no CUTLASS headers: the peer needs them from pip's nvidia-cutlass. Install that.")
    nvcc = cuda.find_nvcc()
    if nvcc is None:
        raise BuildError(cuda.not_found_message())
    toolkit = cuda.inspect(nvcc)
    includes = [f"-I{folder}" for folder in (headers, *toolkit.foreign_includes)]
    partial = library.with_name(f".{library.name}.{os.getpid()}")
    return [
        *(str(nvcc), f"-ccbin={host.find_cxx()}", *FLAGS, ARCH, *includes, f"-L{toolkit.cudart}"),
        *(str(SOURCE), "-o", str(partial)),
    ]


class Library:
    """The loaded library: kernels by index. Raises PeerError where it is not built."""

    def __init__(self, path: Path = LIBRARY):
        if not path.is_file():
            raise PeerError(f"not built: {BUILD}")
        try:
            native = ctypes.CDLL(str(path))
            self._supports, self._run, self._error = (
                getattr(native, f"cutlass2x_{name}") for name in ("supports", "run", "error")
            )
            native.cutlass2x_name.restype = self._error.restype = ctypes.c_char_p
            self.names = [native.cutlass2x_name(index).decode() for index in range(native.cutlass2x_count())]
        except (OSError, AttributeError) as error:
            raise PeerError(f"{error}; build it anew: {BUILD}") from error
        size, pointer = ctypes.c_int64, ctypes.c_void_p
        self._supports.argtypes = [ctypes.c_int, *[size] * 6]
        self._run.argtypes = [
            *[ctypes.c_int] * 3,
            *(size, size, size, pointer, size, pointer, size, pointer, size, pointer),
        ]

    def supports(self, index: int, operands: Operands) -> bool:
        """Whether a kernel can run operands with these sizes and pitches."""
        m, n, k = operands.shape
        return bool(self._supports(index, m, n, k, *_pitches(operands)))

    def call(self, index: int, operands: Operands, stream: int) -> Callable[[], None]:
        """A kernel on operands, prepared for a stream (cudaStream_t): call it to queue it. That raises PeerError."""
        m, n, k = operands.shape
        lda, ldb, ldc = _pitches(operands)
        a, b, c = operands.a.data_ptr(), operands.b.data_ptr(), operands.c.data_ptr()
        kind = (int(operands.dtype == "bf16"), int(operands.layout == "tn"))
        queue = functools.partial(self._run, index, *kind, m, n, k, a, lda, b, ldb, c, ldc, stream)

        def run() -> None:
            status = queue()
            if status:
                raise PeerError(f"{self.names[index]} on {operands.shape}: {self._error(status).decode()}")

        return run


class Problem:
    """The kernels that can run one GEMM, most useful first for large ones. For `cublaslt.autotune`.

    Raises PeerError where there are none.
    """

    def __init__(self, library: Library, operands: Operands):
        self.library, self.operands = library, operands
        self._indices = [index for index in range(len(library.names)) if library.supports(index, operands)]
        if not self._indices:
            raise PeerError(f"{operands.shape}: sizes and pitches must be multiples of 8")

    def __len__(self) -> int:
        return len(self._indices)

    def name(self, index: int) -> str:
        """The kernel: tile, stages, a warp's tile, swizzle."""
        return self.library.names[self._indices[index]]

    def call(self, index: int, stream: int, operands: Operands | None = None) -> Callable[[], None]:
        """A kernel, prepared for a stream, on the problem's operands or others of the same shape and pitches."""
        return self.library.call(self._indices[index], operands or self.operands, stream)


def _pitches(operands: Operands) -> tuple[int, int, int]:
    """Elements from a row to the next of a, b as it is stored, and c."""
    ldb = operands.b.stride(0 if operands.layout == "nn" else 1)
    return operands.a.stride(0), ldb, operands.c.stride(0)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.cutlass2x", description=__doc__.split("\n")[0])
    parser.add_argument("--build", action="store_true", help=f"compile {LIBRARY.relative_to(ROOT)} first")
    try:
        if parser.parse_args(argv).build:
            build()
        names = Library().names
    except (BuildError, PeerError) as error:
        print(f"cutlass2x: {error}", file=sys.stderr)
        return 1
    print("\n".join(names))
    return 0


if __name__ == "__main__":
    sys.exit(main())
