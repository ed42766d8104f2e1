"""One protocol for everything that takes long enough to be watched."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called as work goes on, from the thread that does the work."""

    def __call__(self, step: str, done: float) -> None:
        """`step`: what is being done now, in words for a person; `done`: the finished part of it, 0 to 1."""


def no_progress(step: str, done: float) -> None:
    """The progress callback of a caller that does not watch."""
