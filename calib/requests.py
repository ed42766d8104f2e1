"""Training prompts: templates of ours over many subjects, code and text that Python brings, requests by the target.

A shard's prompts are a function of its number and the seed. Nothing here reads specc.calib.prompts.
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
from specc.calib.tokens import MODULES, docstrings

Pick = random.Random


@dataclass(frozen=True)
class Prompt:
    """One user turn and the class it belongs to."""

    kind: str
    text: str


def openings(pick: Pick, count: int) -> list[str]:
    """First words from which the target writes a user's turn."""
    return [pick.choice(subjects.OPENINGS) for _ in range(count)]


def paragraphs(pick: Pick, count: int) -> list[Prompt]:
    """Requests for short texts; the answers are also what rewriting and JSON prompts are about."""
    return [Prompt("chat", filled(pick, subjects.PARAGRAPHS)) for _ in range(count)]


def prompts(pick: Pick, written: Sequence[str], texts: Sequence[str], size: int) -> list[Prompt]:
    """About 4 x `size` prompts over all classes: `written` are the target's requests, `texts` its paragraphs."""
    chat = [Prompt("chat", text) for text in written] + [
        Prompt("chat", filled(pick, subjects.REQUESTS)) for _ in range(max(0, size - len(written)))
    ]
    code = [Prompt("code", pick.choice((completion, completion, coding))(pick)) for _ in range(size)]
    sources = [*texts, *(docstring(pick) for _ in range(size // 4))]
    rewriting = [
        Prompt("rewriting", pick.choice(subjects.REWRITINGS).format(text)) for text in sources[-size:]
    ]
    halves: tuple[Callable[[], str], ...] = (
        lambda: pick.choice(subjects.JSON_THINGS).format(pick.choice(subjects.THINGS)),
        lambda: pick.choice(subjects.JSON_TEXTS).format(pick.choice(sources)),
    )
    return [*chat, *code, *rewriting, *(Prompt("json", halves[i % 2]()) for i in range(size))]


def filled(pick: Pick, forms: Sequence[str]) -> str:
    """A form with two different subjects."""
    return pick.choice(forms).format(*pick.sample(subjects.SUBJECTS, 2))


def coding(pick: Pick) -> str:
    """A request for a program."""
    return pick.choice(subjects.CODING).format(pick.choice(subjects.LANGUAGES), pick.choice(subjects.TASKS))


def completion(pick: Pick) -> str:
    """The beginning of a function of the standard library."""
    lines = pick.choice(functions()).splitlines()
    cut = pick.randint(min(3, len(lines)), max(3, min(len(lines) - 1, 24)))
    return pick.choice(subjects.COMPLETIONS).format("\n".join(lines[:cut]))


def docstring(pick: Pick) -> str:
    """A text of 60 to 160 words from the standard library's documentation."""
    return pick.choice(documented())


@cache
def functions() -> tuple[str, ...]:
    """Sources of documented functions and small classes of the standard library, 6 to 60 lines."""
    found: list[str] = []
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
                    found.append(source)
    return tuple(found)


@cache
def documented() -> tuple[str, ...]:
    """Prose of docstrings, paragraph runs of 60 to 160 words."""
    found: list[str] = []
    for module in MODULES:
        for text in docstrings(module):
            run: list[str] = []
            for part in text.split("\n\n"):
                run.append(" ".join(part.split()))
                if len(" ".join(run).split()) >= 60:
                    words = " ".join(run).split()
                    found.append(" ".join(words[:160]))
                    run = []
    return tuple(found)
