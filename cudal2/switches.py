"""pdl(True): this thread's products may launch with programmatic dependent launch (PDL), where their plans gain by it.

The switch itself is in C++ (csrc/pdl.h), where the ops read it as they launch: a call of matmul or linear costs nothing
more in Python.
"""

from __future__ import annotations

import ctypes
import threading

from cudal2.native import LIBRARY
from cudal2.undoable import Undoable

_native = ctypes.CDLL(str(LIBRARY))  # the one that torch has loaded
_native.cudal2_pdl_error.restype = ctypes.c_char_p


class PdlSwitch(Undoable):
    """One call of :func:`pdl`. A context manager; also undone by `undo()`."""

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled
        self._thread = threading.get_ident()
        self._undone = False
        self._before: int = _native.cudal2_exchange_pdl(int(enabled))

    def undo(self) -> None:
        """Set the thread's switch to what it was before this one. A second call does nothing.

        Raises:
            RuntimeError: the calling thread is not the one that was switched.
        """
        if threading.get_ident() != self._thread:
            raise RuntimeError("cudal2.pdl switches one thread; undo it in the thread that called it")
        if not self._undone:
            self._undone = True
            _native.cudal2_exchange_pdl(self._before)

    def __repr__(self) -> str:
        return f"<cudal2.pdl({self._enabled}){', undone' if self._undone else ''}>"


def pdl(enabled: bool) -> PdlSwitch:
    """Switch programmatic dependent launch on or off for the calling thread, at once and until undone.

    ::

        with cudal2.pdl(True):
            model(x)

        switch = cudal2.pdl(True)      # until switch.undo(), or for good

    A product launches with PDL where the switch is on and its plan says that the kernel gains from it, back to back.
    Its result is the same to the bit. A thread that never called this follows the environment variable CUDAL2_PDL: 0,
    the default, or 1. Switches nest; undo them in the order opposite to that in which they came.

    The switch is read when a product is launched. So it acts on compiled models, and switching recompiles nothing;
    within a function that is compiled it breaks the graph (with fullgraph=True: torch's error). A captured CUDA graph
    keeps what was on when it was captured. Autograd runs the backward pass of CUDA tensors in threads of its own,
    which follow CUDAL2_PDL, unless :func:`torch.autograd.set_multithreading_enabled` keeps it in the calling thread.

    Args:
        enabled: whether plans that gain from PDL use it.

    Raises:
        TypeError: `enabled` is not a bool.
        ValueError: CUDAL2_PDL is neither 0 nor 1.
    """
    if not isinstance(enabled, bool):
        raise TypeError(f"enabled={enabled!r}; expected True or False")
    _check_default()
    return PdlSwitch(enabled)


def pdl_enabled() -> bool:
    """Whether :func:`pdl`, or else CUDAL2_PDL, has programmatic dependent launch on for the calling thread.

    Raises:
        ValueError: CUDAL2_PDL is neither 0 nor 1.
    """
    _check_default()
    return bool(_native.cudal2_pdl_enabled())


def _check_default() -> None:
    error = _native.cudal2_pdl_error()
    if error is not None:
        raise ValueError(error.decode())
