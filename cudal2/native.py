"""Loads the native libraries, once, when cudal2 is imported. Initialises neither CUDA nor a thread."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

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

# For eager calls that `plain_matmul` and `plain_linear` (below) leave alone: refuse sizes without a plan (see
# `deferred`), and skip OpOverload's Python on the way.
matmul_eager = getattr(torch.ops.cudal2.matmul_eager.default, "_op", torch.ops.cudal2.matmul_eager.default)
linear_eager = getattr(torch.ops.cudal2.linear_eager.default, "_op", torch.ops.cudal2.linear_eager.default)


def prepare(module: Any, exchange: object, empty_strided: Callable[..., Tensor]) -> bool:
    """Tell `cudal2._eager` (csrc/eager.cpp) about this torch. Whether it can work with it.

    Each mode says whether torch is in a state that makes more of a call than its result, and so does each global, by
    another value than the one given. Raises AttributeError where this torch has no such thing.
    """
    modes = (
        torch._C._is_torch_function_mode_enabled,
        torch._C._len_torch_dispatch_stack,
        torch._C._is_any_autocast_enabled,
        torch._C._is_tracing,
    )
    idle = (
        (forward_ad, "_current_level", -1),
        (torch.autograd.profiler, "_is_profiler_enabled", False),
        (torch.compiler, "_is_compiling_flag", False),
        (torch.fx._symbolic_trace, "_is_fx_tracing_flag", False),
    )
    for owner, name, _ in idle:
        getattr(owner, name)
    types = (Tensor, torch.nn.Parameter)
    variables = tuple((vars(owner), name, value) for owner, name, value in idle)
    gradients = (torch.is_grad_enabled, Tensor.requires_grad, torch.empty(0, device="cpu").is_neg)
    others = (torch.float16, torch.bfloat16, torch.matmul, F.linear)
    return bool(module.prepare(*types, exchange, modes, variables, *gradients, empty_strided, *others))


def _plain_calls() -> tuple[Callable[..., Tensor | None], Callable[..., Tensor | None]]:
    """matmul and linear of `cudal2._eager`: the product, or None if the call must go through the dispatcher.

    Where the module was not built, or this torch lacks something that it needs, they always return None. So too in a
    free-threaded Python, which has no limited API.
    """
    if "t" in sys.abiflags:
        return _refuse, _refuse
    try:
        eager = importlib.import_module("cudal2._eager")
        guards: Any = torch._C._dynamo.guards
        if prepare(eager, Tensor.__dlpack_c_exchange_api__, guards._empty_strided_cuda):
            return eager.matmul, eager.linear
    except (ImportError, AttributeError, TypeError, ValueError):  # a torch whose private names are others, or other
        pass
    return _refuse, _refuse


def _refuse(*tensors: Tensor | None) -> None:
    return None


plain_matmul, plain_linear = _plain_calls()


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
