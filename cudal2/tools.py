"""The tooling module `cudal2._tools`: kernel registry, plans, occupancy and graph timing.

Only tooling needs it (sweep, benchmarks, explain's occupancy); matmul, linear, patch and verify run without it. It is
built per Python version, so a wheel may lack it for the running one: `require()` then says how to get it.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


class ToolsMissing(RuntimeError):
    """`cudal2._tools` was not built for the running Python."""


def load() -> ModuleType | None:
    """The native tooling module, or None where it was not built for this Python."""
    try:
        return importlib.import_module("cudal2._tools")
    except ModuleNotFoundError:
        return None


def require() -> Any:
    """The native tooling module. Raises ToolsMissing, saying how to build it, where there is none."""
    module = load()
    if module is None:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise ToolsMissing(
            f"cudal2._tools is not built for Python {version}; build cudal2 from source with this Python "
            f"(`pip install --no-build-isolation .`), or with CUDAL2_TOOLS_PYTHONS={sys.executable}"
        )
    return module


def kernel_names(family: str | None = None, dtype: str | None = None, layout: str | None = None) -> list[str]:
    """Names of the compiled kernels, sorted, restricted to what is given. Raises ToolsMissing."""
    wanted = {"family": family, "dtype": dtype, "layout": layout}
    return [
        kernel["name"]
        for kernel in require().kernels()
        if all(value in (None, kernel[field]) for field, value in wanted.items())
    ]
