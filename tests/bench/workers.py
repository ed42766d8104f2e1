"""Peers in processes of their own, asked in turn; and what the machine itself can read a second."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
Numbers = dict[str, dict[Any, float]]
LEAST = 3
"""Turns that are taken whatever the time."""


class Worker:
    """One peer's process; `missing` says why it is none."""

    def __init__(self, name: str, source: str, context: int, python: str = sys.executable) -> None:
        self.name, self.missing = name, None
        command = [python, str(HERE / "peers" / "serve.py"), name, source, str(context)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
        )

    def wait(self) -> str | None:
        """Until it is ready; why it is not, otherwise."""
        first = self.read()
        self.missing = None if "ready" in first else str(first.get("missing", "it did not start"))
        return self.missing

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return dict(json.loads(line)) if line else {}

    def ask(self, **command: Any) -> dict[str, Any]:
        """The answer; an engine that died is an error that names it."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(command) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        found = self.read()
        if not found:
            raise SystemExit(f"{self.name} died over {str(command)[:120]}")
        return found

    def stop(self) -> None:
        """End of its input."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def started(sources: dict[str, tuple[str, str]], context: int) -> tuple[list[Worker], dict[str, str]]:
    """All at once; those that run, and why others do not. sources: name -> (source, interpreter)."""
    workers = [Worker(name, source, context, python) for name, (source, python) in sources.items()]
    missing = {worker.name: why for worker in workers if (why := worker.wait())}
    return [worker for worker in workers if worker.name not in missing], missing


def turns(count: int, seconds: float | None) -> Iterator[int]:
    """0, 1, ...: `count` of them, fewer where the time is over, but LEAST."""
    start = time.perf_counter()
    for i in range(count):
        if seconds is not None and i >= LEAST and time.perf_counter() - start > seconds:
            return
        yield i


def medians(seen: dict[str, dict[Any, list[float]]]) -> Numbers:
    """Of each list that has any."""
    return {name: {key: median(v) for key, v in by.items() if v} for name, by in seen.items()}


def in_turn(
    workers: Sequence[Worker],
    keys: Sequence[Any],
    count: int,
    seconds: float | None,
    ask: Callable[[Worker, Any, int], float | None],
) -> tuple[Numbers, int]:
    """Medians of `ask(worker, key, turn)`; at each key the workers follow one another, first and last
    changing.
    """
    seen: dict[str, dict[Any, list[float]]] = {w.name: {key: [] for key in keys} for w in workers}
    done = 0
    for turn in turns(count, seconds):
        for key in keys:
            for worker in workers if turn % 2 == 0 else workers[::-1]:
                value = ask(worker, key, turn)
                if value is not None:
                    seen[worker.name][key].append(value)
        done = turn + 1
    return medians(seen), done


def bandwidth() -> float:
    """GB/s of two threads reading 256 MB each (numpy sums): what a step's bytes are held against."""
    blocks = [np.ones(32 << 20, np.float64) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        times = []
        for _ in range(7):
            start = time.perf_counter()
            list(pool.map(np.sum, blocks))
            times.append(time.perf_counter() - start)
    return float(2 * blocks[0].nbytes / min(times) / 1e9)
