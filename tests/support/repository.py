"""The repository's own files, for tests about its structure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON_FOLDERS = ("src", "exporter", "calib", "targets", "recipes", "runtime", "tests", "examples")
C_FOLDERS = ("runtime", "tests", "examples")
C_SUFFIXES = (".c", ".h", ".cpp", ".cu")


def files(folders: tuple[str, ...], suffixes: tuple[str, ...]) -> list[Path]:
    """Files below the folders, sorted; hidden folders and caches are left out."""
    found = (path for folder in folders for path in (ROOT / folder).rglob("*"))
    kept = (path for path in found if path.suffix in suffixes and not is_hidden(path))
    return sorted(kept)


def is_hidden(path: Path) -> bool:
    """Whether a path lies in a folder that version control does not see."""
    parts = path.relative_to(ROOT).parts
    return any(part.startswith(".") or part in ("__pycache__", "build", "bundles", "dist") for part in parts)


def python_files() -> list[Path]:
    """Every Python file."""
    return files(PYTHON_FOLDERS, (".py",))


def c_files() -> list[Path]:
    """Every C, C++ and CUDA file and header."""
    return files(C_FOLDERS, C_SUFFIXES)


def documents() -> list[Path]:
    """Every Markdown file."""
    return sorted(ROOT.glob("*.md")) + files(("docs", "recipes", "tests", "examples"), (".md",))


def relative(path: Path) -> str:
    """The path from the repository's root, with forward slashes."""
    return path.relative_to(ROOT).as_posix()


RUNTIME_FOLDER = "runtime/python"
"""CMake puts it into specc/runtime: runtime/install/install.cmake."""


@cache
def package_folders() -> Mapping[str, str]:
    """Package by folder, as the wheel is laid out: "exporter" is "specc.exporter"."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    table = text.partition("[tool.scikit-build.wheel.packages]")[2].partition("\n[")[0]
    rows = re.findall(r'^"([^"]+)" = "([^"]+)"$', table, re.M)
    return {folder: name.replace("/", ".") for name, folder in rows} | {RUNTIME_FOLDER: "specc.runtime"}


def modules() -> Iterator[tuple[str, Path]]:
    """(dotted name, file) of every module of the package."""
    for folder, package in package_folders().items():
        for path in files((folder,), (".py",)):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            yield ".".join((package, *parts)).removesuffix(".__init__"), path


@cache
def syntax(path: Path) -> ast.Module:
    """The parsed file."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of two or more nodes that reach each other, by Tarjan's algorithm (1972)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(node: str) -> None:
        number[node] = lowest[node] = len(number)
        stack.append(node)
        for target in sorted(graph.get(node, ())):
            if target not in number:
                visit(target)
            if target in stack:
                lowest[node] = min(lowest[node], lowest[target])
        if lowest[node] == number[node]:
            at = stack.index(node)
            group = sorted(stack[at:])
            del stack[at:]
            if len(group) > 1:
                groups.append(group)

    for node in sorted(graph):
        if node not in number:
            visit(node)
    return groups
