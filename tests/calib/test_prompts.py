"""The prompts that drafts are measured on: four classes, two halves that never touch, the held-out one
frozen.
"""

import pytest

from specc.calib import prompts
from specc.errors import InputError


def test_four_classes_of_eight_and_eight() -> None:
    held_out, tuning = prompts.load("held-out"), prompts.load("tuning")
    assert list(held_out) == list(tuning) == ["chat", "code", "json", "rewriting"]
    assert all(len(texts) == 8 for half in (held_out, tuning) for texts in half.values())
    texts = [text for half in (held_out, tuning) for texts in half.values() for text in texts]
    assert all(text and text == text.strip() for text in texts)


def test_held_out_half_is_the_one_committed_before_training() -> None:
    assert prompts.hash_prompts(prompts.load("held-out")) == prompts.HELD_OUT_SHA256
    assert prompts.hash_prompts(prompts.load("tuning")) != prompts.HELD_OUT_SHA256


def test_halves_share_no_run_of_eight_words() -> None:
    runs = [
        {tuple(w[i : i + 8]) for w in split_words(half) for i in range(len(w) - 7)} for half in prompts.SPLITS
    ]
    assert not runs[0] & runs[1]


def split_words(half: str) -> list[list[str]]:
    return [text.split() for texts in prompts.load(half).values() for text in texts]


def test_rewriting_prompts_bring_a_text_of_their_own() -> None:
    for half in prompts.SPLITS:
        assert all(80 <= len(text.split()) <= 220 for text in prompts.load(half)["rewriting"])


def test_unknown_split_is_named() -> None:
    with pytest.raises(InputError, match="'final' of the prompts; allowed are held-out, tuning"):
        prompts.load("final")
