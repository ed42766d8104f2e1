"""Prompts for measuring drafts: four classes of sixteen, half for tuning, half held out for the measurement.

The held-out half is fixed by its hash below, which was committed before any draft was trained.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path

import yaml

from specc.errors import InputError

CLASSES = ("chat", "code", "json", "rewriting")
SPLITS = ("held-out", "tuning")
HELD_OUT_SHA256 = "3f22cd88e7fd9f78847384834ca5a4d3304728ce0c8a70e02079cf507aac967d"
"""Of the held-out prompts as canonical JSON; `hash_prompts(load("held-out"))`."""


def load(split: str) -> dict[str, list[str]]:
    """Prompts of one split, eight a class, classes in alphabetical order. Raises InputError."""
    if split not in SPLITS:
        raise InputError(f"there is no split {split!r} of the prompts; allowed are {', '.join(SPLITS)}")
    return {name: list(read_class(name)[split]) for name in CLASSES}


@cache
def read_class(name: str) -> dict[str, tuple[str, ...]]:
    """Both splits of one class, from its file."""
    text = (Path(__file__).parent / "prompts" / f"{name}.yaml").read_text(encoding="utf-8")
    table = yaml.safe_load(text)
    return {split: tuple(prompt.strip() for prompt in table[split.replace("-", "_")]) for split in SPLITS}


def hash_prompts(prompts: dict[str, list[str]]) -> str:
    """SHA-256 of the prompts as JSON with sorted keys and no spaces, in UTF-8."""
    text = json.dumps(prompts, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
