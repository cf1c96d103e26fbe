"""Loads the native libraries, once, when cudal2 is imported. Initialises neither CUDA nor a thread."""

from __future__ import annotations

from pathlib import Path

import torch

LIBRARY = Path(__file__).resolve().parent / "lib" / "libcudal2_ops.so"


def _load(library: Path) -> None:
    """Register the ops of `library` with torch. Raises ImportError, saying what to do, if it is not there or unfit."""
    if not library.is_file():
        raise ImportError(
            f"cudal2's native library {library} is not there: this source tree was not built. If cudal2 is installed, "
            "run Python in another folder, where it is found; to work in this tree, build it: `pip install -e .`."
        )
    try:
        torch.ops.load_library(str(library))
    except OSError as error:
        raise ImportError(
            f"cudal2's native library {library} does not load under torch {torch.__version__}: {error}. "
            "It needs torch 2.10 or later; if torch is that new, reinstall cudal2."
        ) from error


_load(LIBRARY)

# The tuned ops, without autograd: cudal2/ops.py decides when to call them.
matmul_forward = torch.ops.cudal2.matmul_forward.default
matmul_into = torch.ops.cudal2.matmul_into.default
linear_forward = torch.ops.cudal2.linear_forward.default

# The same, with fp16 accumulation where there is a plan that has it.
matmul_acc16 = torch.ops.cudal2.matmul_acc16.default
linear_acc16 = torch.ops.cudal2.linear_acc16.default

# For ordinary eager calls: refuse sizes without a plan (see `deferred`), and skip OpOverload's Python on the way.
matmul_eager = getattr(torch.ops.cudal2.matmul_eager.default, "_op", torch.ops.cudal2.matmul_eager.default)
linear_eager = getattr(torch.ops.cudal2.linear_eager.default, "_op", torch.ops.cudal2.linear_eager.default)


def deferred(error: RuntimeError) -> bool:
    """Whether an op's `error` stands for one of torch's, whose type and text are lost in C++: torch must raise it."""
    return "cudal2 defers to torch" in str(error)


def unplanned(error: RuntimeError) -> bool:
    """Whether an `_eager` op refused because no tensors of these sizes have a plan."""
    return "cudal2 defers to torch: a product without a plan" in str(error)


def last_path() -> str:
    """What the last product of this thread ran: the name of a cudal2 kernel, or ``"torch"``.

    Reading it sets it back to ``"torch"``, so read it after each call that matters.
    """
    return torch.ops.cudal2.last_path.default()
