"""The stages of a build, timed and reported as they run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from specc.progress import Progress, no_progress


class Reporter(Protocol):
    """Called when a stage begins, goes on and ends."""

    def begin(self, name: str) -> None:
        """A stage begins."""

    def step(self, name: str, step: str, done: float) -> None:
        """A stage goes on: what it does now, and the finished part of it, 0 to 1."""

    def end(self, name: str, seconds: float, cached: bool) -> None:
        """A stage has ended; `cached`: its result came from the cache."""


@dataclass(frozen=True)
class StageTime:
    """One stage's line in the summary."""

    stage: str
    seconds: float
    cached: bool


class Clock:
    """Times the stages of one build and calls the reporter."""

    def __init__(self, reporter: Reporter | None) -> None:
        self._reporter = reporter
        self.times: list[StageTime] = []

    def progress(self, name: str) -> Progress:
        """The progress callback of the stage `name`."""
        reporter = self._reporter
        if reporter is None:
            return no_progress

        def call(step: str, done: float) -> None:
            reporter.step(name, step, done)

        return call

    @contextmanager
    def stage(self, name: str) -> Iterator[Callable[[bool], None]]:
        """Time one stage; the body calls the value with whether its result came from the cache."""
        cached = [False]
        start = time.perf_counter()
        if self._reporter:
            self._reporter.begin(name)
        yield lambda hit: cached.__setitem__(0, hit)
        ended = StageTime(name, time.perf_counter() - start, cached[0])
        self.times.append(ended)
        if self._reporter:
            self._reporter.end(ended.stage, ended.seconds, ended.cached)
