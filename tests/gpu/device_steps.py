"""Steps of a check on a device: commands with a limit and a log, one after the other within a budget."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

LEAST = 10
"""Seconds without which no step is begun."""


@dataclass(frozen=True)
class Step:
    """One thing to try: what it lacks ("" for nothing), commands, the seconds they may take, environment."""

    name: str
    lacks: str
    commands: Sequence[Sequence[str]]
    limit: int
    environment: dict[str, str] = field(default_factory=dict)
    gpu: bool = True
    """Whether it runs something on the GPU."""


@dataclass(frozen=True)
class Result:
    """How a step ended; `said` is the last line that it printed, or why it was skipped."""

    name: str
    status: str
    seconds: float
    said: str


def attempt(step: Step, left: float, logs: Path) -> Result:
    """Runs a step's commands within its limit and what is left of the budget."""
    if step.lacks:
        return Result(step.name, "skipped", 0.0, step.lacks)
    limit = min(step.limit, left)
    if limit < LEAST:
        return Result(step.name, "skipped", 0.0, f"{max(left, 0):.0f} s are left of the budget")
    began = time.monotonic()
    log = logs / f"{step.name.replace(' ', '-').replace(':', '').replace('/', '-')}.txt"
    with log.open("w") as file:
        for command in step.commands:
            code = run(command, limit - (time.monotonic() - began), step.environment, file)
            if code:
                break
    status = {0: "passed", 77: "skipped", None: "failed"}.get(code, "failed")
    said = sentence(log.read_text(errors="replace"))
    said = f"not done in {limit:.0f} s; it last said: {said}" if code is None else said
    return Result(step.name, status, round(time.monotonic() - began, 1), said)


def sentence(text: str) -> str:
    """The last line that says something: no frame of a table, no bracket."""
    lines = (line.strip(" │┃|\t") for line in reversed(text.splitlines()) if not line.startswith("$ "))
    return next((line for line in lines if any(map(str.isalpha, line))), "nothing said")[:300]


def run(command: Sequence[str], limit: float, environment: dict[str, str], file: IO[str]) -> int | None:
    """Exit status of a command, None past its limit; output goes to the file, no child of it stays."""
    file.write(f"$ {' '.join(command)}\n")
    file.flush()
    try:
        started = subprocess.Popen(
            command,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,
        )
    except OSError as error:
        file.write(f"{command[0]} does not start: {error}\n")
        return 127
    try:
        return int(started.wait(timeout=max(limit, 1)))
    except subprocess.TimeoutExpired:
        os.killpg(started.pid, signal.SIGKILL)
        started.wait()
        return None


def check(steps: Sequence[Step], budget: float, logs: Path, report: Callable[[Result], None]) -> list[Result]:
    """All steps in order; a failed build ends them, a failed step of a bundle ends that bundle's."""
    began, results, failed = time.monotonic(), list[Result](), dict[str, str]()
    for step in steps:
        before = failed.get(step.name.partition(":")[0]) if ":" in step.name else None
        step = replace(step, lacks=f"{before} failed") if before and not step.lacks else step
        results.append(attempt(step, budget - (time.monotonic() - began), logs))
        report(results[-1])
        if results[-1].status == "failed":
            failed.setdefault(step.name.partition(":")[0], step.name)
        if "build" in failed:
            break
    return results


def verdict(steps: Sequence[Step], results: Sequence[Result]) -> int:
    """1 if a step failed, 3 if nothing ran on a GPU, else 0."""
    on_gpu = {step.name for step in steps if step.gpu}
    if any(result.status == "failed" for result in results):
        return 1
    return 0 if any(result.status == "passed" and result.name in on_gpu for result in results) else 3
