"""The measuring: plain and speculative generations in turn over one session, each from an empty cache."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specc.bench import machine
from specc.bench.numbers import Round
from specc.progress import Progress, no_progress
from specc.runtime import Session

MODES = ("plain", "spec")
Ids = Sequence[int]
Prompts = Mapping[str, Sequence[Ids]]


@dataclass(frozen=True)
class Setting:
    """How tokens are drawn."""

    temperature: float
    rule: str


@dataclass(frozen=True)
class Task:
    """What is run: every prompt under every setting, `repeats` times, plain and speculative."""

    prompts: Prompts
    settings: tuple[Setting, ...]
    repeats: int
    max_new_tokens: int
    seed: int
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of specc.runtime.Request."""

    @property
    def total(self) -> int:
        """Generations."""
        return len(MODES) * self.repeats * len(self.settings) * sum(map(len, self.prompts.values()))


@dataclass(frozen=True)
class Generation:
    """One answer, timed."""

    prompt_class: str
    prompt: int
    """Its number in the class."""
    mode: str
    """"plain" or "spec"."""
    setting: Setting
    first_s: float
    """From the request to the first token, the prompt's reading included."""
    rounds: tuple[Round, ...]
    seconds: float
    """Of decoding, the prompt's reading apart."""
    target_seconds: float
    draft_seconds: float
    target_calls: int
    tokens: tuple[int, ...]
    peak_mb: float
    enabled: bool
    reasons: tuple[str, ...]

    @property
    def rate(self) -> float:
        """Tokens per second of decoding."""
        return len(self.tokens) / max(self.seconds, 1e-12)


def measure_generations(session: Session, task: Task, progress: Progress = no_progress) -> list[Generation]:
    """All generations; which mode goes first changes from pair to pair, so that a drift of the machine hits
    both.
    """
    out: list[Generation] = []
    for pair, (name, number, setting, repeat) in enumerate(list_runs(task)):
        for mode in MODES if pair % 2 == 0 else MODES[::-1]:
            ids, seed = task.prompts[name][number], task.seed + repeat
            out.append(run_generation(session, ids, mode, setting, task, name, number, seed))
            progress("bench", len(out) / task.total)
    return out


def list_runs(task: Task) -> Iterator[tuple[str, int, Setting, int]]:
    """Repeats outermost: a slow minute costs each cell one of its numbers, and the median forgets it."""
    for repeat in range(task.repeats):
        for name, prompts in task.prompts.items():
            for number in range(len(prompts)):
                for setting in task.settings:
                    yield name, number, setting, repeat


def run_generation(
    session: Session, ids: Ids, mode: str, setting: Setting, task: Task, name: str, number: int, seed: int
) -> Generation:
    """One answer from an empty cache."""
    clear_cache(session, ids)
    machine.reset_peak()
    options = {
        **task.options,
        "temperature": setting.temperature,
        "rule": setting.rule,
        "seed": seed,
        "max_new_tokens": task.max_new_tokens,
        "speculation": mode == "spec",
    }
    first, rounds = time_generation(session, ids, options)
    stats = session.stats
    return Generation(
        name,
        number,
        mode,
        setting,
        first,
        rounds,
        stats["seconds"],
        stats["target_seconds"],
        stats["draft_seconds"],
        stats["target_calls"],
        tuple(session.tokens),
        machine.read_peak_mb(),
        stats["enabled"],
        tuple(stats["reasons"]),
    )


def clear_cache(session: Session, ids: Ids) -> None:
    """Make the session forget: a generation that begins otherwise leaves nothing in the cache that `ids`
    could use.
    """
    session.run([0 if ids[0] else 1], text=False, max_new_tokens=1, temperature=0.0, ignore_eos=True)


def time_generation(
    session: Session, ids: Ids, options: Mapping[str, Any]
) -> tuple[float, tuple[Round, ...]]:
    """Seconds to the first token, and the rounds."""
    start = last = time.perf_counter()
    first, rounds = 0.0, []
    for event in session.generate(ids, **options):
        now = time.perf_counter()
        if not event.prefill:
            rounds.append(Round(len(event.tokens), event.proposed, event.accepted, now - last))
        first, last = first or (now - start if event.tokens else 0.0), now
    return first, tuple(rounds)
