"""Stages of a build, timed and told of."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

Steps = Callable[[str, float], None]
"""What a stage calls as it goes on: what it does now, and the part done, 0 to 1."""


class Reporter(Protocol):
    """Told of each stage as it begins, goes on and ends."""

    def begin(self, name: str) -> None:
        """A stage begins."""

    def step(self, name: str, doing: str, part: float) -> None:
        """A stage goes on: what it does now, and the part done, 0 to 1."""

    def end(self, name: str, seconds: float, cached: bool) -> None:
        """A stage is done."""


@dataclass(frozen=True)
class Row:
    """One stage's line in the summary."""

    stage: str
    seconds: float
    cached: bool


class Clock:
    """Times the stages of one build and tells the reporter."""

    def __init__(self, reporter: Reporter | None) -> None:
        self._reporter = reporter
        self.rows: list[Row] = []

    def steps(self, name: str) -> Callable[[str, float], None]:
        """What a stage calls as it goes on."""
        reporter = self._reporter
        return (
            (lambda doing, part: reporter.step(name, doing, part)) if reporter else (lambda doing, part: None)
        )

    @contextmanager
    def stage(self, name: str) -> Iterator[Callable[[bool], None]]:
        """Time one stage; the value is called with whether the result came from the cache."""
        cached = [False]
        start = time.perf_counter()
        if self._reporter:
            self._reporter.begin(name)
        yield lambda hit: cached.__setitem__(0, hit)
        row = Row(name, time.perf_counter() - start, cached[0])
        self.rows.append(row)
        if self._reporter:
            self._reporter.end(row.stage, row.seconds, row.cached)
