"""Training data: the target's own answers, in shards on disk that are made once and never changed.

A shard is a function of the target, its number and the seed alone, so that a run that was stopped goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from specc.calib import requests
from specc.calib.prompts import CLASSES

if TYPE_CHECKING:
    from specc.calib.batch import Ask, Batch

SAMPLED = 0.8
"""Temperature of every second answer; the others are greedy."""
WRITTEN = 0.9
"""Temperature of requests that the target writes itself."""
LIMIT, REQUEST_LIMIT = 200, 64
LONGEST = 400
"""Prompts of more tokens are left out."""
GRAM = 8


@dataclass(frozen=True)
class Sample:
    """A prompt with its answer."""

    kind: str
    temperature: float
    ids: npt.NDArray[np.int32]
    """[n] prompt and answer, the end token included where it came."""
    n_prompt: int
    n_user: int
    """Of the prompt, ids before the user's own text."""
    hidden: npt.NDArray[np.float16] | None = None
    """[n - 1, H] final normalised hidden states; row i predicts id i + 1."""

    @property
    def answer(self) -> npt.NDArray[np.int32]:
        """The ids that the target made."""
        return self.ids[self.n_prompt :]


@dataclass(frozen=True)
class Dialogue:
    """How a user's turn becomes ids: the ids before it, after it, and of its text."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    encode: Callable[[str], list[int]]
    decode: Callable[[Sequence[int]], str]

    def prompt(self, text: str) -> tuple[int, ...]:
        """Ids of a prompt with one user turn."""
        return (*self.before, *self.encode(text), *self.after)


def make_shard(
    batch: Batch,
    dialogue: Dialogue,
    seed: int,
    number: int,
    size: int = 16,
    tell: Callable[[int], None] = lambda n: None,
) -> list[Sample]:
    """About 5 x `size` samples: requests and paragraphs by the target first, then answers over all classes."""
    from specc.calib.batch import Ask

    pick = random.Random(f"{seed}/{number}")
    starts = requests.openings(pick, size - size // 4)
    turns = [Ask((*dialogue.before, *dialogue.encode(text)), WRITTEN, REQUEST_LIMIT) for text in starts]
    wanted = requests.paragraphs(pick, size)
    asks = [Ask(dialogue.prompt(p.text), SAMPLED * (i % 2), LIMIT) for i, p in enumerate(wanted)]
    answers = batch.answer([*turns, *asks], hash_number(seed, number, 0), tell)
    first = [
        sample(p.kind, ask, dialogue, a)
        for p, ask, a in zip(wanted, asks, answers[len(turns) :], strict=True)
    ]
    written = [start + dialogue.decode(a.ids) for start, a in zip(starts, answers, strict=False)]
    texts = [dialogue.decode([int(id) for id in s.answer]).strip() for s in first]
    prompts = requests.prompts(pick, [t.strip() for t in written if t.strip()], texts, size)
    asks = [Ask(dialogue.prompt(p.text), SAMPLED * (i % 2), LIMIT) for i, p in enumerate(prompts)]
    kept = [(p, ask) for p, ask in zip(prompts, asks, strict=True) if len(ask.ids) <= LONGEST]
    answers = batch.answer([ask for _, ask in kept], hash_number(seed, number, 1), tell)
    return first + [sample(p.kind, ask, dialogue, a) for (p, ask), a in zip(kept, answers, strict=True)]


def sample(kind: str, ask: Ask, dialogue: Dialogue, answer: object) -> Sample:
    """One record from what the batch gave."""
    from specc.calib.batch import Answer

    assert isinstance(answer, Answer)
    ids = np.asarray([*ask.ids, *answer.ids], np.int32)
    return Sample(kind, ask.temperature, ids, len(ask.ids), len(dialogue.before), answer.hidden.numpy())


def hash_number(*parts: int) -> int:
    """A 63-bit seed from whole numbers."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "little") >> 1


# ---------------------------------------------------------------------- on disk


def write_shard(folder: Path, number: int, samples: Sequence[Sample]) -> Path:
    """`shard-00012.npz` in the folder, and beside it `.hidden.npy`; whole or not at all."""
    path = folder / f"shard-{number:05d}.npz"
    hidden = [s.hidden for s in samples if s.hidden is not None]
    if hidden:
        part = path.with_suffix(".part.npy")
        np.save(part, np.concatenate(hidden))
        os.replace(part, path.with_suffix(".hidden.npy"))
    part = folder / f"{path.stem}.part.npz"
    np.savez(
        part,
        ids=np.concatenate([s.ids for s in samples]),
        lengths=np.asarray([len(s.ids) for s in samples], np.int32),
        n_prompt=np.asarray([s.n_prompt for s in samples], np.int32),
        n_user=np.asarray([s.n_user for s in samples], np.int32),
        kind=np.asarray([CLASSES.index(s.kind) for s in samples], np.int32),
        temperature=np.asarray([s.temperature for s in samples], np.float32),
    )
    os.replace(part, path)
    return path


def read_shard(path: Path, with_hidden: bool = False) -> list[Sample]:
    """The samples of one shard; hidden states are mapped, not read."""
    with np.load(path) as file:
        table = {name: file[name] for name in file.files}
    ends = np.cumsum(table["lengths"])
    hidden = np.load(path.with_suffix(".hidden.npy"), mmap_mode="r") if with_hidden else None
    out = []
    for i, end in enumerate(ends):
        start, skip = int(end - table["lengths"][i]), i
        states = None if hidden is None else hidden[start - skip : int(end) - skip - 1]
        kind, heat = CLASSES[int(table["kind"][i])], round(float(table["temperature"][i]), 4)
        ids = table["ids"][start : int(end)]
        out.append(Sample(kind, heat, ids, int(table["n_prompt"][i]), int(table["n_user"][i]), states))
    return out


def shards(folder: Path) -> list[Path]:
    """Finished shards by number."""
    return sorted(path for path in folder.glob("shard-*.npz") if ".part" not in path.name)


def data_sha256(samples: Iterable[Sample]) -> str:
    """Of every sample's ids, classes and temperatures, in order."""
    digest = hashlib.sha256()
    for s in samples:
        digest.update(json.dumps([s.kind, s.temperature, s.n_prompt]).encode())
        digest.update(np.ascontiguousarray(s.ids, np.int32).tobytes())
    return digest.hexdigest()


# ---------------------------------------------------------------------- nothing held out


def grams(ids: npt.NDArray[np.int32], n: int = GRAM) -> set[bytes]:
    """Every run of n ids."""
    row = np.ascontiguousarray(ids, np.int32)
    return {row[i : i + n].tobytes() for i in range(len(row) - n + 1)}


def without(samples: Iterable[Sample], banned: set[bytes]) -> list[Sample]:
    """Samples whose user text and answer share no run with `banned` (of GRAM ids)."""
    return [
        s
        for s in samples
        if banned.isdisjoint(grams(s.ids[s.n_user : s.n_prompt])) and banned.isdisjoint(grams(s.answer))
    ]
