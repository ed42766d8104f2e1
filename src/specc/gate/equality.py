"""The equality judge: on the built engine, greedy and coupled text must be the same ids with speculation on and off.

It counts only if speculation had something to do: a drafter right for exactly j tokens (j = 0..K in turn) and a random
one go through every accepted length; the bundle's own drafter comes as it is.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specc.gate.checks import Check
from specc.runtime import Certificate, DraftContext, Drafter, Model, Node, Ort, Session

MODES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0, "rule": "rejection"},
    "coupled T=0.8": {"temperature": 0.8, "rule": "coupled"},
}
Progress = Callable[[int, int], Any]


@dataclass(frozen=True)
class Work:
    """What is generated: prompts of calibration ids, new tokens for each, and the seed of the coupled draws."""

    prompts: tuple[tuple[int, ...], ...]
    new_tokens: int
    seed: int


class Scripted(Drafter):
    """Proposes the true continuation for j tokens, then a wrong one; j goes 0 to K and again from round to round."""

    name = "scripted"

    def __init__(self) -> None:
        self.truth: tuple[int, ...] = ()       # prompt and plain output
        self.rounds = 0

    def propose(self, state: Any, context: DraftContext) -> Sequence[Node | int]:
        """At most k tokens of the script."""
        at = len(context.tokens)
        right = self.rounds % (context.k + 1)
        self.rounds += 1
        chain = list(self.truth[at : at + right])
        if len(chain) < context.k and at + len(chain) < len(self.truth):
            chain.append((self.truth[at + len(chain)] + 1) % context.n_ids)
        return chain


class Random(Drafter):
    """Proposes ids that have nothing to do with the text, the same ones each time."""

    name = "random"

    def propose(self, state: Any, context: DraftContext) -> Sequence[Node | int]:
        """k ids from a linear congruence over the position."""
        at = len(context.tokens)
        return [(1103515245 * (at + i) + 12345) % context.n_ids for i in range(context.k)]


def make_work(tokens: Sequence[int], context: int, seed: int, prompts: int = 4, new_tokens: int = 64) -> Work:
    """Prompts from calibration ids, spread over the text, of different lengths; all fit the context."""
    new_tokens = max(1, min(new_tokens, context // 2))
    room = max(1, context - new_tokens - 1)
    lengths = [max(1, min(room, length)) for length in (9, 33, 64, 120)]
    step = max(1, len(tokens) // prompts)
    chosen = [tuple(tokens[i * step : i * step + lengths[i % 4]]) or tuple(tokens[:1]) for i in range(prompts)]
    return Work(tuple(chosen), new_tokens, seed)


def judge(session: Session, work: Work, name: str, script: Scripted | None = None,
          every_length: int = 0) -> Iterator[Check]:
    """Token for token on against off in each mode; `every_length`: K up to which all accepted lengths must occur."""
    lengths = [0] * 17
    for mode, options in MODES.items():
        different, proposing, rounds = 0, 0, 0
        for prompt in work.prompts:
            plain = generate(session, prompt, work, options, False)
            if script is not None:
                script.truth = (*prompt, *plain)
            different += differing(plain, generate(session, prompt, work, options, True))
            stats = session.stats
            proposing, rounds = proposing + stats["rounds_proposing"], rounds + stats["rounds"]
            lengths = [a + b for a, b in zip(lengths, stats["accepted_length"], strict=True)]
        label = f"equality: {name}, {mode}, {proposing} of {rounds} rounds proposing"
        yield Check(label, 0.0, float(different), different == 0, work.seed)
    if every_length:
        missing = sum(count == 0 for count in lengths[: every_length + 1])
        label = f"equality: {name}, accepted lengths 0..{every_length} that never occur"
        yield Check(label, 0.0, float(missing), missing == 0)


def generate(session: Session, prompt: Sequence[int], work: Work, options: dict[str, Any], on: bool) -> tuple[int, ...]:
    """Output ids."""
    result = session.run(prompt, text=False, seed=work.seed, max_new_tokens=work.new_tokens, ignore_eos=True,
                         speculation=on, **options)
    return tuple(result.tokens)


def differing(a: Sequence[int], b: Sequence[int]) -> int:
    """Places at which two texts differ, missing ones included."""
    return sum(x != y for x, y in zip(a, b, strict=False)) + abs(len(a) - len(b))


def judge_bundle(model: Model, work: Work, progress: Progress | None = None) -> list[Check]:
    """The bundle's own drafter."""
    with model.session() as session:
        checks = list(judge(session, work, model.info.drafter))
    if progress is not None:
        progress(1, 3)
    return checks


def judge_drafters(engine: Ort, certificate: Certificate, n_ids: int, context: int, k: int, work: Work,
                   progress: Progress | None = None) -> list[Check]:
    """Scripted and random drafters over the bundle's engine, under the certificate just measured."""
    checks: list[Check] = []
    for step, drafter in enumerate((Scripted(), Random())):
        with Model.from_parts(engine, drafter, n_ids=n_ids, context=context, k_max=k) as model:
            model.apply(certificate)
            script = drafter if isinstance(drafter, Scripted) else None
            with model.session() as session:
                checks += judge(session, work, drafter.name, script, k if script else 0)
        if progress is not None:
            progress(step + 2, 3)
    return checks


def engine_of(folder: Path, manifest: dict[str, Any], threads: int, library: Path | None) -> Ort | None:
    """The target engine of a bundle as a part; None for backends that have none in Python."""
    part = manifest["engines"]["target"]
    if part["backend"] != "ort":
        return None
    return Ort(folder / part["file"], part["vocab"], part["layers"], part["kv_heads"], part["head_dim"],
               part["capacity"], tuple(part["widths"]), threads, library)
