"""patch(model): every nn.Linear of one model through cudal2.linear, until undone.

The patch is an entry `forward` in the layer's own `__dict__`: no class and no other model sees it. Nothing else of
the layer is touched, and nothing of it is kept: weight and bias are read at each call, so that in-place updates,
replaced or tied weights, parametrizations and hooks behave as ever.
"""

from __future__ import annotations

import copy
import threading
import types
import weakref
from typing import Any, TypeGuard

import torch.nn.functional as F
from torch import Tensor, nn

from cudal2.ops import linear
from cudal2.undoable import Undoable

_LOCK = threading.Lock()
"""Held while layers change hands: patches may come and go in several threads."""


class Patch(Undoable):
    """The layers that one call of :func:`patch` routed to cudal2.linear. A context manager; also undone by `undo()`."""

    def __init__(self, model: nn.Module) -> None:
        with _LOCK:
            self._forwards = [_forward_for(layer).claim(layer) for layer in model.modules() if _is_patchable(layer)]
        self._layers = len(self._forwards)

    def undo(self) -> None:
        """Give the layers their own forward back, unless another patch still wants them. A second call does nothing."""
        with _LOCK:
            while self._forwards:
                self._forwards.pop().release()

    def __repr__(self) -> str:
        return f"<cudal2.Patch: {self._layers} nn.Linear layers, {'active' if self._forwards else 'undone'}>"


def patch(model: nn.Module) -> Patch:
    """Route every nn.Linear in `model`, or `model` itself, to :func:`cudal2.linear`, until undone.

    ::

        with cudal2.patch(model):
            model(x)

        handle = cudal2.patch(model)      # for as long as the model lives, or until handle.undo()

    Results are F.linear's, tuned where there is a plan. Patches nest, and may be undone in any order. The model's
    parameters, buffers, hooks and state_dict are left alone, and torch.compile works before, during and after. A copy
    (deepcopy, pickle, torch.save) of a patched model is an ordinary model: patch it too if it is to be.

    Left alone: layers whose forward is not nn.Linear's (subclasses that define one, instances that were given one).
    Not covered: nn.MultiheadAttention and nn.TransformerEncoderLayer's fast path, which use a layer's weights and
    never call its forward; code that calls torch.nn.functional.linear itself. nn.DataParallel copies layers in a way
    that keeps the original's forward: patch no model that is in one. So does copy.copy. torch.jit.script cannot compile
    a patched layer: undo first.

    Args:
        model: any module. Layers that are added to it later are not patched.

    Returns:
        A Patch, whose repr tells how many layers it found.

    Raises:
        TypeError: `model` is not an nn.Module.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is a {type(model).__name__}; expected an nn.Module")
    return Patch(model)


class _Forward:
    """What stands in a patched layer's `forward`, in place of `replaced`; `patches` counts those that want it there.

    It holds its layer weakly: a cycle would keep a dropped model's memory until Python's garbage collector runs.
    """

    def __init__(self, layer: nn.Linear) -> None:
        self.layer = weakref.ref(layer)
        self.replaced = layer.__dict__.get("forward")
        self.patches = 0
        self.active = True

    def __call__(self, input: Tensor) -> Tensor:
        layer = self.layer()
        if layer is None:
            raise ReferenceError("the nn.Linear that this forward belonged to is gone")
        if not self.active:  # undone, but wrapped meanwhile by something that still calls it
            return F.linear(input, layer.weight, layer.bias)
        return linear(input, layer.weight, layer.bias)

    @property
    def __code__(self) -> types.CodeType:
        """Where this forward's code stands, which torch.export asks of the module that it is given."""
        return type(self).__call__.__code__

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        # While a layer is copied, its copy is in `memo` and has no attributes yet: this is its class's forward.
        return getattr(copy.deepcopy(self.layer(), memo), "forward")  # noqa: B009

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self.layer(), "forward")  # likewise, when the pickle is loaded

    def claim(self, layer: nn.Linear) -> _Forward:
        layer.__dict__["forward"] = self
        self.patches += 1
        self.active = True
        return self

    def release(self) -> None:
        self.patches -= 1
        self.active = self.patches > 0
        layer = self.layer()
        if self.active or layer is None or layer.__dict__.get("forward") is not self:
            return
        if self.replaced is None:
            del layer.__dict__["forward"]
        else:
            layer.__dict__["forward"] = self.replaced


def _is_patchable(layer: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether calling `layer` runs nn.Linear's forward, or ours in its place."""
    if not isinstance(layer, nn.Linear) or type(layer).forward is not nn.Linear.forward:
        return False
    own = layer.__dict__.get("forward")  # a copy of a patched layer has nn.Linear's own here
    return own is None or isinstance(own, _Forward) or getattr(own, "__func__", None) is nn.Linear.forward


def _forward_for(layer: nn.Linear) -> _Forward:
    own = layer.__dict__.get("forward")
    return own if isinstance(own, _Forward) and own.layer() is layer else _Forward(layer)
