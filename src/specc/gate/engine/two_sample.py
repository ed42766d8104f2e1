"""The two-sample judge: on the built engine, plain text and text by `rejection` come from one law.

Hypothesis: at a fixed context, the first token and the first pair of tokens have the same distribution with
speculation on and off. Statistic: chi-square of homogeneity between the counts of independent trials of each
kind (`stats.homogeneity_p_value`). Level: FAMILY_ERROR divided by the number of tests (Bonferroni). Power:
the report gives the smallest total variation of the first token's law that so many trials find with
probability 0.99. Bits are compared by the certificate and by equality; this judge tests that sampled text as
a whole is right, as far as the time allows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from specc.gate.checks import Check
from specc.gate.stats import homogeneity_p_value, smallest_tv
from specc.progress import Progress
from specc.runtime import Certificate, Model, Session

FAMILY_ERROR = 1e-5
OPTIONS: dict[str, Any] = {"rule": "rejection", "temperature": 2.0, "top_k": 4}
"""A flat law, so that many drafts are rejected."""
TRIALS = 300
"""Of each kind in each context, where the prompt stays in the cache."""
SLOW_TRIALS = 40
"""Where every trial reads the prompt again."""
BATCH = 20
"""Trials between two calls of the progress callback."""


@dataclass(frozen=True)
class Samples:
    """Trials of one kind in one context."""

    tokens: npt.NDArray[np.int32]
    """[trials, 2] the first two tokens."""
    proposing: int
    """Rounds that proposed."""


def judge_two_sample(
    model: Model, certificate: Certificate, prompts: Sequence[Sequence[int]], seed: int, progress: Progress
) -> tuple[list[Check], dict[str, Any]]:
    """Two checks for each prompt, and what they can find. progress: called with "two-sample"."""
    trials = TRIALS if is_prompt_kept(certificate) else SLOW_TRIALS
    limit, checks, total = FAMILY_ERROR / (2 * len(prompts)), list[Check](), 2 * trials * len(prompts)
    with model.session() as session:
        for i, prompt in enumerate(prompts):
            tick = count_from(2 * trials * i, total, progress)
            plain = draw_samples(session, prompt, trials, seed, False, tick)
            tick, other_seed = (
                count_from(2 * trials * i + trials, total, progress),
                (seed + (1 << 40)) % 2**64,
            )
            speculative = draw_samples(session, prompt, trials, other_seed, True, tick)
            label = f"two-sample: context {i}, {speculative.proposing} of {2 * trials} rounds proposing"
            p_values = compare_samples(plain.tokens, speculative.tokens)
            checks += [Check(f"{label}, {name}", limit, p, p >= limit, seed) for name, p in p_values.items()]
    cells = int(OPTIONS["top_k"])
    tv = smallest_tv(trials / 2, cells - 1, limit, 0.99)
    return checks, {"trials": trials, "tests": len(checks), "family_error": FAMILY_ERROR, "smallest_tv": tv}


def count_from(before: int, total: int, progress: Progress) -> Callable[[int], None]:
    """A callback for the trials of one kind in one context, after `before` of all `total` trials."""
    return lambda done: progress("two-sample", (before + done) / total)


def is_prompt_kept(certificate: Certificate) -> bool:
    """Whether the prefill chunk is in the law's class, so that a session need not read the same
    prompt again.
    """
    width_class = dict(zip(certificate.widths, certificate.width_class, strict=True))
    same = width_class[certificate.widths[-1]] == width_class[certificate.law_width]
    return certificate.kind == "bit-exact" and same


def draw_samples(
    session: Session,
    prompt: Sequence[int],
    trials: int,
    seed: int,
    speculation: bool,
    tick: Callable[[int], None],
) -> Samples:
    """Trial t draws from seed `seed` + t; `tick` gets the number of finished trials after each batch."""
    parts = []
    for start in range(0, trials, BATCH):
        count = min(BATCH, trials - start)
        batch_seed = (seed + start) % 2**64
        parts.append(session.trials(prompt, count, 2, seed=batch_seed, speculation=speculation, **OPTIONS))
        tick(start + count)
    rounds = np.concatenate(parts)
    return Samples(take_first_two(rounds), int((rounds[:, :, 0] > 0).sum()))


def take_first_two(rounds: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """[trials, 2] from two rounds each: the second token is the first round's, or the first of the next
    round.
    """
    emitted = rounds[:, :, 2 + (rounds.shape[2] - 3) // 2 :]
    second = np.where(emitted[:, 0, 1] >= 0, emitted[:, 0, 1], emitted[:, 1, 0])
    return np.stack([emitted[:, 0, 0], second], axis=1)


def compare_samples(a: npt.NDArray[np.int32], b: npt.NDArray[np.int32]) -> dict[str, float]:
    """p-values of the first token and of the pair."""
    return {"first token": row_p_value(a[:, :1], b[:, :1]), "first two tokens": row_p_value(a, b)}


def row_p_value(a: npt.NDArray[np.int32], b: npt.NDArray[np.int32]) -> float:
    """p-value of the hypothesis that the rows of a and of b come from one law."""
    cells, where = np.unique(np.concatenate([a, b]), axis=0, return_inverse=True)
    where, count = where.reshape(-1), len(cells)
    return homogeneity_p_value(
        np.bincount(where[: len(a)], minlength=count), np.bincount(where[len(a) :], minlength=count)
    )
