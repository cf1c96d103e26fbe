"""The one exception that the build raises for what a user can put right."""

from __future__ import annotations


class BuildError(RuntimeError):
    """The native build cannot go on. The message says what was found, and what to do about it."""
