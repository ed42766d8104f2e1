"""The target's own answers to training prompts and to the prompts that drafts are measured on.

A shard depends on the target, its number and the seed alone: a stopped run goes on from its last shard.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from specc.calib import prompts, training_prompts
from specc.calib.samples import Sample
from specc.calib.shards import list_shards, read_shard, write_shard

if TYPE_CHECKING:
    from specc.calib.batch import Answer, AnswerRequest, Batch

SLOTS, CAPACITY = 48, 640
"""Of the batch that answers: sequences at a time, and most tokens of each."""
ANSWER_TEMPERATURE = 0.8
"""Of every second answer; the others are greedy."""
PROMPT_TEMPERATURE = 0.9
"""Of the prompts that the target writes itself."""
LIMIT, PROMPT_LIMIT = 200, 64
"""Most new tokens of an answer, and of a prompt that the target writes."""
LONGEST_PROMPT = 400
"""Prompts of more tokens are left out."""
SPLIT_SEEDS = {"tuning": 77, "held-out": 78}
"""Seed of the answers to the measuring prompts, by split."""


@dataclass(frozen=True)
class Dialogue:
    """How a user's turn becomes ids: the ids before it, after it, and of its text."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    encode: Callable[[str], list[int]]
    decode: Callable[[Sequence[int]], str]

    def encode_prompt(self, text: str) -> tuple[int, ...]:
        """Ids of a prompt with one user turn."""
        return (*self.before, *self.encode(text), *self.after)


def make_shard(batch: Batch, dialogue: Dialogue, seed: int, number: int, size: int = 16) -> list[Sample]:
    """About 5 x `size` samples: paragraphs first, then answers to prompts of all classes."""
    from specc.calib.batch import AnswerRequest

    rng = random.Random(f"{seed}/{number}")
    openings = training_prompts.draw_openings(rng, size - size // 4)
    prompt_requests = [
        AnswerRequest((*dialogue.before, *dialogue.encode(text)), PROMPT_TEMPERATURE, PROMPT_LIMIT)
        for text in openings
    ]
    paragraph_prompts = training_prompts.draw_paragraph_prompts(rng, size)
    requests = make_requests(dialogue, paragraph_prompts)
    results = batch.answer([*prompt_requests, *requests], derive_seed(seed, number, 0))
    own_prompts = [start + dialogue.decode(a.ids) for start, a in zip(openings, results, strict=False)]
    samples = [
        make_sample(prompt.kind, request, dialogue, answer)
        for prompt, request, answer in zip(
            paragraph_prompts, requests, results[len(prompt_requests) :], strict=True
        )
    ]
    paragraphs = [dialogue.decode([int(id) for id in s.answer]).strip() for s in samples]
    own_prompts = [text.strip() for text in own_prompts if text.strip()]
    class_prompts = training_prompts.draw_prompts(rng, own_prompts, paragraphs, size)
    pairs = zip(class_prompts, make_requests(dialogue, class_prompts), strict=True)
    kept = [(prompt, request) for prompt, request in pairs if len(request.ids) <= LONGEST_PROMPT]
    results = batch.answer([request for _, request in kept], derive_seed(seed, number, 1))
    return samples + [
        make_sample(prompt.kind, request, dialogue, answer)
        for (prompt, request), answer in zip(kept, results, strict=True)
    ]


def make_requests(
    dialogue: Dialogue, class_prompts: Sequence[training_prompts.Prompt]
) -> list[AnswerRequest]:
    """One request a prompt, greedy and sampled in turn."""
    from specc.calib.batch import AnswerRequest

    return [
        AnswerRequest(dialogue.encode_prompt(prompt.text), ANSWER_TEMPERATURE * (i % 2), LIMIT)
        for i, prompt in enumerate(class_prompts)
    ]


def answer_prompts(
    batch: Batch, dialogue: Dialogue, class_prompts: Sequence[tuple[str, str]], seed: int
) -> list[Sample]:
    """Answers to prompts of (class, text): all greedy ones, then all sampled ones."""
    from specc.calib.batch import AnswerRequest

    pairs = [
        (kind, AnswerRequest(dialogue.encode_prompt(text), temperature, LIMIT))
        for temperature in (0.0, ANSWER_TEMPERATURE)
        for kind, text in class_prompts
    ]
    kept = [(kind, request) for kind, request in pairs if len(request.ids) <= LONGEST_PROMPT]
    results = batch.answer([request for _, request in kept], seed)
    return [
        make_sample(kind, request, dialogue, answer)
        for (kind, request), answer in zip(kept, results, strict=True)
    ]


def answer_split(batch: Batch, dialogue: Dialogue, folder: Path, split: str) -> list[Sample]:
    """Answers to the measuring prompts of one split, made once and kept in `folder`/`split`."""
    place = folder / split
    place.mkdir(parents=True, exist_ok=True)
    if not list_shards(place):
        class_prompts = [(kind, text) for kind, texts in prompts.load(split).items() for text in texts]
        write_shard(place, 0, answer_prompts(batch, dialogue, class_prompts, SPLIT_SEEDS[split]))
    return read_shard(list_shards(place)[0], with_hidden=True)


def make_sample(kind: str, request: AnswerRequest, dialogue: Dialogue, answer: Answer) -> Sample:
    """The sample of one request and its answer."""
    ids = np.asarray([*request.ids, *answer.ids], np.int32)
    n_user, hidden = len(dialogue.before), answer.hidden.numpy()
    return Sample(kind, request.temperature, ids, len(request.ids), n_user, hidden)


def derive_seed(*parts: int) -> int:
    """A 63-bit seed from whole numbers."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "little") >> 1
