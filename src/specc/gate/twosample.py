"""The two-sample judge: on the built engine, plain text and text by `rejection` come from one law.

At fixed contexts it draws the first two tokens many times, plain and with the bundle's drafter, with independent seeds,
and compares the counts of the first token and of the pair. Bits are compared by the certificate and by equality; this
is the check that sampled text of the whole is right, with the power that the time allows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from specc.gate.checks import Check
from specc.gate.stats import smallest_tv, two_sample
from specc.runtime import Certificate, Model, Session

FAMILY_ERROR = 1e-5
OPTIONS: dict[str, Any] = {"rule": "rejection", "temperature": 2.0, "top_k": 4}  # flat: much is rejected
TRIALS = 300  # of each kind in each context, where the prompt stays in the cache
SLOW_TRIALS = 40  # where every trial reads the prompt again
BATCH = 20
Progress = Callable[[int, int], Any]


@dataclass(frozen=True)
class Drawn:
    """Trials of one kind in one context."""

    tokens: npt.NDArray[np.int32]  # [trials, 2] the first two tokens
    proposing: int  # rounds that proposed


def judge(
    model: Model, certificate: Certificate, prompts: Sequence[Sequence[int]], seed: int, progress: Progress
) -> tuple[list[Check], dict[str, Any]]:
    """Two checks for each prompt, and what they can see."""
    trials = TRIALS if keeps_prompt(certificate) else SLOW_TRIALS
    limit, checks, total = FAMILY_ERROR / (2 * len(prompts)), list[Check](), 2 * trials * len(prompts)
    with model.session() as session:
        for i, prompt in enumerate(prompts):
            plain = draw(session, prompt, trials, seed, False, partial(told, progress, 2 * trials * i, total))
            other = (seed + (1 << 40)) % 2**64
            spec = draw(
                session, prompt, trials, other, True, partial(told, progress, 2 * trials * i + trials, total)
            )
            found = compare(plain.tokens, spec.tokens)
            label = f"two-sample: context {i}, {spec.proposing} of {2 * trials} rounds proposing"
            checks += [Check(f"{label}, {name}", limit, p, p >= limit, seed) for name, p in found.items()]
    cells = int(OPTIONS["top_k"])
    seen = smallest_tv(trials / 2, cells - 1, limit, 0.99)
    return checks, {"trials": trials, "tests": len(checks), "family_error": FAMILY_ERROR, "smallest_tv": seen}


def told(progress: Progress, before: int, total: int, done: int) -> None:
    """Progress of one part of the whole."""
    progress(before + done, total)


def keeps_prompt(certificate: Certificate) -> bool:
    """Whether the prefill chunk is in the law's class, so that a session need not read the same prompt again."""
    number = dict(zip(certificate.widths, certificate.width_class, strict=True))
    return certificate.kind == "bit-exact" and number[certificate.widths[-1]] == number[certificate.law_width]


def draw(
    session: Session, prompt: Sequence[int], trials: int, seed: int, on: bool, tick: Callable[[int], Any]
) -> Drawn:
    """Trial t has seed `seed` + t; in batches, so that there is something to tell."""
    parts = []
    for start in range(0, trials, BATCH):
        count = min(BATCH, trials - start)
        parts.append(session.trials(prompt, count, 2, seed=(seed + start) % 2**64, speculation=on, **OPTIONS))
        tick(start + count)
    rounds = np.concatenate(parts)
    return Drawn(first_two(rounds), int((rounds[:, :, 0] > 0).sum()))


def first_two(rounds: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """[trials, 2] from two rounds each: the second token is the first round's, or what the next round begins with."""
    emitted = rounds[:, :, 2 + (rounds.shape[2] - 3) // 2 :]
    second = np.where(emitted[:, 0, 1] >= 0, emitted[:, 0, 1], emitted[:, 1, 0])
    return np.stack([emitted[:, 0, 0], second], axis=1)


def compare(a: npt.NDArray[np.int32], b: npt.NDArray[np.int32]) -> dict[str, float]:
    """p-values of the first token and of the pair."""
    return {"first token": p_value(a[:, :1], b[:, :1]), "first two tokens": p_value(a, b)}


def p_value(a: npt.NDArray[np.int32], b: npt.NDArray[np.int32]) -> float:
    """Homogeneity of the rows of a and b."""
    cells, where = np.unique(np.concatenate([a, b]), axis=0, return_inverse=True)
    where = where.reshape(-1)
    count = len(cells)
    return two_sample(
        np.bincount(where[: len(a)], minlength=count), np.bincount(where[len(a) :], minlength=count)
    )
