"""cudal2: torch.matmul and nn.Linear on half-precision GEMM kernels that were searched for, shape by shape.

    import cudal2
    c = cudal2.matmul(a, b)                 # torch.matmul, tuned where there is a plan
    y = cudal2.linear(x, weight, bias)      # F.linear, likewise
    with cudal2.patch(model): ...           # every nn.Linear of the model through cudal2.linear
    with cudal2.pdl(True): ...              # with programmatic dependent launch, where a plan gains by it

`cudal2 info` on the command line says what this build can do on this machine.
"""

from __future__ import annotations

__version__ = "0.1.0"

from cudal2 import registration as _registration  # noqa: F401  (tells torch about the ops)
from cudal2.native import last_path
from cudal2.ops import linear, matmul
from cudal2.patching import Patch, patch
from cudal2.switches import PdlSwitch, pdl, pdl_enabled

__all__ = [
    "Patch",
    "PdlSwitch",
    "__version__",
    "last_path",
    "linear",
    "matmul",
    "patch",
    "pdl",
    "pdl_enabled",
]
