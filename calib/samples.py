"""Samples: prompts with the target's own answers, their hash, and the removal of held-out text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

RUN_LENGTH = 8
"""Tokens in a row that a training sample must not share with a held-out one."""


@dataclass(frozen=True)
class Sample:
    """A prompt with its answer."""

    kind: str
    """The prompt class, one of calib.prompts.CLASSES."""
    temperature: float
    ids: npt.NDArray[np.int32]
    """[n] prompt and answer, the end token included where the answer has one."""
    n_prompt: int
    n_user: int
    """Ids of the prompt before the user's own text."""
    hidden: npt.NDArray[np.float16] | None = None
    """[n - 1, H] hidden states after the final norm; row i predicts id i + 1."""

    @property
    def answer(self) -> npt.NDArray[np.int32]:
        """The ids that the target generated."""
        return self.ids[self.n_prompt :]


def hash_samples(samples: Iterable[Sample]) -> str:
    """SHA-256 of every sample's ids, class, temperature and prompt length, in order."""
    digest = hashlib.sha256()
    for s in samples:
        digest.update(json.dumps([s.kind, s.temperature, s.n_prompt]).encode())
        digest.update(np.ascontiguousarray(s.ids, np.int32).tobytes())
    return digest.hexdigest()


def collect_runs(ids: npt.NDArray[np.int32], n: int = RUN_LENGTH) -> set[bytes]:
    """Every run of n ids, as bytes."""
    row = np.ascontiguousarray(ids, np.int32)
    return {row[i : i + n].tobytes() for i in range(len(row) - n + 1)}


def drop_overlaps(samples: Iterable[Sample], held_out: set[bytes]) -> list[Sample]:
    """The samples whose user text and answer share no run (of RUN_LENGTH ids) with `held_out`."""
    return [
        s
        for s in samples
        if held_out.isdisjoint(collect_runs(s.ids[s.n_user : s.n_prompt]))
        and held_out.isdisjoint(collect_runs(s.answer))
    ]
