"""Training prompts: from templates, from code and prose of Python's standard library, and by the target.

They depend on the random generator alone. Nothing here reads specc.calib.prompts, the prompts for
measurements.
"""

from __future__ import annotations

import ast
import importlib.util
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from specc.calib import subjects
from specc.calib.tokens import MODULES, extract_docstrings


@dataclass(frozen=True)
class Prompt:
    """One user turn and the class it belongs to."""

    kind: str
    text: str


def draw_openings(rng: random.Random, count: int) -> list[str]:
    """First words from which the target writes a user's turn."""
    return [rng.choice(subjects.OPENINGS) for _ in range(count)]


def draw_paragraph_prompts(rng: random.Random, count: int) -> list[Prompt]:
    """Prompts for short texts; rewriting and JSON prompts are made from the answers."""
    return [Prompt("chat", fill_template(rng, subjects.PARAGRAPHS)) for _ in range(count)]


def draw_prompts(
    rng: random.Random, own_prompts: Sequence[str], paragraphs: Sequence[str], size: int
) -> list[Prompt]:
    """About 4 x `size` prompts of all classes; `own_prompts` and `paragraphs` were written by the target."""
    chat = [Prompt("chat", text) for text in own_prompts] + [
        Prompt("chat", fill_template(rng, subjects.REQUESTS)) for _ in range(max(0, size - len(own_prompts)))
    ]
    code = [
        Prompt("code", rng.choice((draw_completion, draw_completion, draw_coding_task))(rng))
        for _ in range(size)
    ]
    sources = [*paragraphs, *(draw_prose(rng) for _ in range(size // 4))]
    rewriting = [
        Prompt("rewriting", rng.choice(subjects.REWRITINGS).format(text)) for text in sources[-size:]
    ]
    halves: tuple[Callable[[], str], ...] = (
        lambda: rng.choice(subjects.JSON_THINGS).format(rng.choice(subjects.THINGS)),
        lambda: rng.choice(subjects.JSON_TEXTS).format(rng.choice(sources)),
    )
    return [*chat, *code, *rewriting, *(Prompt("json", halves[i % 2]()) for i in range(size))]


def fill_template(rng: random.Random, templates: Sequence[str]) -> str:
    """One of the templates with two different subjects."""
    return rng.choice(templates).format(*rng.sample(subjects.SUBJECTS, 2))


def draw_coding_task(rng: random.Random) -> str:
    """A request for a program."""
    return rng.choice(subjects.CODING).format(rng.choice(subjects.LANGUAGES), rng.choice(subjects.TASKS))


def draw_completion(rng: random.Random) -> str:
    """A request to complete a function of the standard library from its first lines."""
    lines = rng.choice(collect_functions()).splitlines()
    cut = rng.randint(min(3, len(lines)), max(3, min(len(lines) - 1, 24)))
    return rng.choice(subjects.COMPLETIONS).format("\n".join(lines[:cut]))


def draw_prose(rng: random.Random) -> str:
    """A text of 60 to 160 words from the standard library's documentation."""
    return rng.choice(collect_prose())


@cache
def collect_functions() -> tuple[str, ...]:
    """Sources of documented functions and small classes of the standard library, 6 to 60 lines."""
    sources: list[str] = []
    for module in MODULES:
        spec = importlib.util.find_spec(module)
        if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
            continue
        text = Path(spec.origin).read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            if (
                isinstance(node, (ast.FunctionDef, ast.ClassDef))
                and node.col_offset == 0
                and ast.get_docstring(node)
            ):
                source = ast.get_source_segment(text, node) or ""
                if 6 <= source.count("\n") <= 60 and len(source) < 3000:
                    sources.append(source)
    return tuple(sources)


@cache
def collect_prose() -> tuple[str, ...]:
    """Prose of docstrings: paragraphs joined until they have 60 words, cut at 160."""
    texts: list[str] = []
    for module in MODULES:
        for docstring in extract_docstrings(module):
            paragraphs: list[str] = []
            for paragraph in docstring.split("\n\n"):
                paragraphs.append(" ".join(paragraph.split()))
                words = " ".join(paragraphs).split()
                if len(words) >= 60:
                    texts.append(" ".join(words[:160]))
                    paragraphs = []
    return tuple(texts)
