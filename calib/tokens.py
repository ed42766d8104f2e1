"""The calibration text: token ids that the gate replays, from a user's file or Python's documentation."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from specc.errors import EnvironmentFault, InputError

MAX_TOKENS = 8192
MIN_TOKENS = 64
CHARACTERS_PER_TOKEN = 16
"""Above the average of any tokenizer; text beyond MAX_TOKENS times as many characters is not tokenized."""
MODULES = (
    "argparse",
    "collections",
    "contextlib",
    "csv",
    "datetime",
    "decimal",
    "difflib",
    "doctest",
    "fractions",
    "functools",
    "heapq",
    "inspect",
    "json",
    "logging",
    "optparse",
    "pathlib",
    "pickle",
    "random",
    "shelve",
    "statistics",
    "string",
    "tarfile",
    "textwrap",
    "threading",
    "typing",
    "unittest",
    "uuid",
    "zipfile",
)


@dataclass(frozen=True)
class Text:
    """A calibration text, where it comes from, and its hash."""

    origin: str
    text: str

    @property
    def sha256(self) -> str:
        """Of the UTF-8 text."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def identify_text(path: Path | None) -> str:
    """What the text depends on, without reading the library: the file's hash, or the Python version."""
    return f"documentation of Python {platform.python_version()}" if path is None else read_text(path).sha256


def load_text(path: Path | None) -> Text:
    """The file at `path`, or the standard library's documentation where there is none."""
    return read_documentation() if path is None else read_text(path)


def read_text(path: Path) -> Text:
    """The user's text file, UTF-8. Raises InputError."""
    try:
        return Text(path.name, path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"cannot read the calibration text {path}: {error}; give a UTF-8 text file"
        ) from error


def read_documentation() -> Text:
    """English prose and code that every Python has: docstrings of the standard modules in MODULES."""
    parts: list[str] = []
    for module in MODULES:
        parts.extend(extract_docstrings(module))
        if sum(map(len, parts)) > MAX_TOKENS * CHARACTERS_PER_TOKEN:
            break
    text = "\n\n".join(parts)
    if not text:
        raise EnvironmentFault(
            "this Python comes without library sources; name a file under calibration.text"
        )
    return Text("documentation of the Python standard library", text)


def extract_docstrings(module: str) -> Iterator[str]:
    """Docstrings of one module in the order of its source."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return
    tree = ast.parse(Path(spec.origin).read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and (
            text := ast.get_docstring(node)
        ):
            yield text


def tokenize_text(encode: Callable[[str], Sequence[int]], text: Text, limit: int = MAX_TOKENS) -> list[int]:
    """The first `limit` ids of the text. Raises InputError where it gives too few to measure anything."""
    ids = list(encode(text.text[: limit * CHARACTERS_PER_TOKEN]))[:limit]
    if len(ids) < MIN_TOKENS:
        raise InputError(
            f"the calibration text {text.origin} gives {len(ids)} tokens; at least {MIN_TOKENS} are needed"
        )
    return ids
