"""What holds until it is undone: by `undo()`, or at the end of a `with` block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import TypeVar

_Self = TypeVar("_Self", bound="Undoable")


class Undoable(ABC):
    """A change that its `undo` takes back; as a context manager, on leaving the block, however it is left."""

    @abstractmethod
    def undo(self) -> None:
        """Take the change back. A second call does nothing."""

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.undo()
