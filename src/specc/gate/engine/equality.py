"""The equality judge: on the built engine, greedy and coupled text has the same ids with speculation on and
off.

Not a statistical test: a single differing id fails. It counts only if speculation had something to do, so a
scripted drafter that is right for exactly j tokens (j = 0..K in turn) and a random one go through every
accepted length; the bundle's own drafter is judged as it is. Plain text is generated once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from specc.gate.checks import Check
from specc.progress import Progress
from specc.runtime import Certificate, DraftContext, Drafter, Model, Node, Ort, Session

MODES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0, "rule": "rejection"},
    "coupled T=0.8": {"temperature": 0.8, "rule": "coupled"},
}
PENALTIES = {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.7}
PlainTexts = dict[tuple[str, int], tuple[int, ...]]
"""Ids generated with speculation off, by mode and number of the prompt."""


@dataclass(frozen=True)
class Work:
    """What is generated: prompts of calibration ids, new tokens for each, and the seed of the coupled
    draws.
    """

    prompts: tuple[tuple[int, ...], ...]
    new_tokens: int
    seed: int
    modes: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: MODES)


class ScriptedDrafter(Drafter):
    """Proposes the true continuation for j tokens, then a wrong one; j rises by one a round, modulo K + 1."""

    name = "scripted"

    def __init__(self) -> None:
        self.begin((), 0)

    def begin(self, truth: tuple[int, ...], first: int) -> None:
        """Sets the script of a generation. truth: prompt and plain output; first: j of the first round."""
        self.truth, self.rounds = truth, first

    def propose(self, state: Any, context: DraftContext) -> Sequence[Node | int]:
        """At most k tokens of the script."""
        at = len(context.tokens)
        right = self.rounds % (context.k + 1)
        self.rounds += 1
        chain = list(self.truth[at : at + right])
        if len(chain) < context.k and at + len(chain) < len(self.truth):
            chain.append((self.truth[at + len(chain)] + 1) % context.n_ids)
        return chain


class RandomDrafter(Drafter):
    """Proposes ids that have nothing to do with the text, the same ones each time."""

    name = "random"

    def propose(self, state: Any, context: DraftContext) -> Sequence[Node | int]:
        """k ids from a linear congruence over the position."""
        at = len(context.tokens)
        return [(1103515245 * (at + i) + 12345) % context.n_ids for i in range(context.k)]


def do_nothing() -> None:
    """The callback of a caller that does not count generations."""


def select_modes(options: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The modes for a recipe's `certify` list: the two of MODES, and one for each kind of option in
    the list.
    """
    penalties = {name: value for name, value in PENALTIES.items() if name in options}
    bias = {"logit_bias": {0: -1.0, 1: 2.0}} if "logit_bias" in options else {}
    modes = dict(MODES)
    if penalties:
        modes["greedy with penalties"] = {**MODES["greedy"], **penalties}
    if bias:
        modes["coupled with bias"] = {**MODES["coupled T=0.8"], **bias}
    return modes


def make_work(tokens: Sequence[int], context: int, seed: int, prompts: int = 4, new_tokens: int = 64) -> Work:
    """Prompts of different lengths from calibration ids, spread over the text; all fit the context."""
    new_tokens = max(1, min(new_tokens, context // 2))
    room = max(1, context - new_tokens - 1)
    lengths = [max(1, min(room, length)) for length in (9, 33, 64, 120)]
    step = max(1, len(tokens) // prompts)
    texts = [tuple(tokens[i * step : i * step + lengths[i % 4]]) or tuple(tokens[:1]) for i in range(prompts)]
    return Work(tuple(texts), new_tokens, seed)


def judge_equality(
    model: Model, engine: Ort | None, certificate: Certificate, work: Work, progress: Progress
) -> list[Check]:
    """The bundle's own drafter, then a scripted and a random one over the same engine under the same
    certificate.

    engine: the target's engine for the other two drafters, None to leave them out; progress: called with
    "equality" after each generation.
    """
    total, generations = (4 if engine else 2) * len(work.modes) * len(work.prompts), count(1)

    def tick() -> None:
        progress("equality", next(generations) / total)

    with model.session() as session:
        plain = generate_plain(session, work, tick)
        checks = list(judge_drafter(session, work, model.info.drafter, plain, None, tick))
    for drafter in (ScriptedDrafter(), RandomDrafter()) if engine else ():
        checks += judge_other_drafter(engine, drafter, model, certificate, work, plain, tick)
    return checks


def judge_other_drafter(
    engine: Any,
    drafter: ScriptedDrafter | RandomDrafter,
    model: Model,
    certificate: Certificate,
    work: Work,
    plain: PlainTexts,
    tick: Callable[[], Any],
) -> list[Check]:
    """Another drafter in the place of the model's own."""
    info = model.info
    script = drafter if isinstance(drafter, ScriptedDrafter) else None
    parts: dict[str, Any] = {"n_ids": info.n_ids, "context": info.context, "k_max": info.k_max}
    with Model.from_parts(engine, drafter, **parts) as other:
        other.apply(certificate)
        with other.session() as session:
            checks = list(judge_drafter(session, work, drafter.name, plain, script, tick))
            return checks if script is None else [*checks, judge_lengths(session, work, script, info.k_max)]


def judge_drafter(
    session: Session,
    work: Work,
    name: str,
    plain: PlainTexts,
    script: ScriptedDrafter | None = None,
    tick: Callable[[], Any] = do_nothing,
) -> Iterator[Check]:
    """One Check for each mode: how many ids differ from the plain text with speculation on; the limit
    is 0.
    """
    for mode, options in work.modes.items():
        different, proposing, rounds = 0, 0, 0
        for i, prompt in enumerate(work.prompts):
            if script is not None:
                script.begin((*prompt, *plain[mode, i]), i)
            different += count_differences(plain[mode, i], generate_ids(session, prompt, work, options, True))
            stats = session.stats
            proposing, rounds = proposing + stats["rounds_proposing"], rounds + stats["rounds"]
            tick()
        label = f"equality: {name}, {mode}, {proposing} of {rounds} rounds proposing"
        yield Check(label, 0.0, float(different), different == 0, work.seed)


def judge_lengths(session: Session, work: Work, script: ScriptedDrafter, k: int) -> Check:
    """Every accepted length 0..K occurs, each in a generation of its own whose first round is right for j of
    K.
    """
    missing, short = 0, replace(work, new_tokens=k + 1)
    for j in range(k + 1):
        prompt = work.prompts[j % len(work.prompts)][:1]
        for options in MODES.values():
            plain = generate_ids(session, prompt, short, options, False)
            script.begin((*prompt, *plain), j)
            same = generate_ids(session, prompt, short, options, True) == plain
            missing += not same or not session.stats["accepted_length"][j]
    label = f"equality: {script.name}, accepted lengths 0..{k} that never occur"
    return Check(label, 0.0, float(missing), missing == 0, work.seed)


def generate_plain(session: Session, work: Work, tick: Callable[[], Any] = do_nothing) -> PlainTexts:
    """The expected ids: every prompt in every mode with speculation off."""
    texts: PlainTexts = {}
    for mode, options in work.modes.items():
        for i, prompt in enumerate(work.prompts):
            texts[mode, i] = generate_ids(session, prompt, work, options, False)
            tick()
    return texts


def generate_ids(
    session: Session, prompt: Sequence[int], work: Work, options: Mapping[str, Any], speculation: bool
) -> tuple[int, ...]:
    """Ids of one generation."""
    result = session.run(
        prompt,
        text=False,
        seed=work.seed,
        max_new_tokens=work.new_tokens,
        ignore_eos=True,
        speculation=speculation,
        **options,
    )
    return tuple(result.tokens)


def count_differences(a: Sequence[int], b: Sequence[int]) -> int:
    """Places at which two texts differ, missing ones included."""
    return sum(x != y for x, y in zip(a, b, strict=False)) + abs(len(a) - len(b))


def open_target_engine(
    folder: Path, manifest: dict[str, Any], threads: int, library: Path | None
) -> Ort | None:
    """The target engine of a bundle as a part; None for backends that have none in Python."""
    part = manifest["engines"]["target"]
    if part["backend"] != "ort":
        return None
    return Ort(
        folder / part["file"],
        part["vocab"],
        part["layers"],
        part["kv_heads"],
        part["head_dim"],
        part["capacity"],
        tuple(part["widths"]),
        threads,
        library,
        part.get("hidden", 0),
    )
