"""Progress on standard error: bars on a terminal, one line a stage elsewhere."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn


class StageBars:
    """One bar a stage on a terminal's standard error, one line a stage elsewhere; a context manager."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        columns = (SpinnerColumn(finished_text=" "), TextColumn("{task.description}"), BarColumn(24))
        columns_after = (TimeElapsedColumn(), TextColumn("{task.fields[note]}"))
        self._progress = Progress(*columns, *columns_after, console=self._console)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> StageBars:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._progress.stop()

    def begin(self, name: str) -> None:
        """A stage begins."""
        if self._console.is_terminal:
            self._tasks[name] = self._progress.add_task(f"{name:16}", total=None, note="")

    def step(self, name: str, step: str, done: float) -> None:
        """A stage goes on: what it does now, and the finished part of it."""
        if name in self._tasks:
            self._progress.update(self._tasks[name], total=1, completed=done, note=step)

    def report(self, step: str, done: float) -> None:
        """The progress callback of gate, bench and diff: `step` names a judge, which gets
        a bar of its own.
        """
        if step not in self._tasks:
            self.begin(step)
        if step in self._tasks:
            self._progress.update(self._tasks[step], total=1, completed=done)

    def end(self, name: str, seconds: float, cached: bool) -> None:
        """A stage is done."""
        note = "cached" if cached else ""
        if name in self._tasks:
            self._progress.update(self._tasks[name], total=1, completed=1, note=note)
        else:
            self._console.print(f"{name:16} {seconds:7.2f} s  {note}".rstrip(), highlight=False)
