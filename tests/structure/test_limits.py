"""Files, functions and lines stay short enough to be read: no list of exceptions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from support.repository import c_files, python_files, relative, syntax

PYTHON_FILE, C_FILE = 350, 450
FUNCTION = 45
COLUMNS = 110
REMARK = re.compile(r"\s*# (noqa|type: ignore).*$")


def python_functions(path: Path) -> Iterator[tuple[str, int, int]]:
    """(name, first line, lines) of each function, its decorators left out."""
    for node in ast.walk(syntax(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.lineno, (node.end_lineno or node.lineno) - node.lineno + 1


def c_functions(text: str) -> Iterator[tuple[str, int, int]]:
    """(name, first line, lines) of each function: from its head at the first column to a brace there.

    clang-format ends a line with a function's opening brace and puts its closing brace at the first column.
    """
    lines = text.splitlines()
    start = 0
    for number, line in enumerate(lines):
        if line and not line[0].isspace() and line[0] not in "}#/*":
            start = number
        if line == "}":
            head = " ".join(lines[start:number])
            named = re.search(r"(\w+)\s*\([^{]*\)[^{;=]*\{", head)
            if named and not re.match(r"(typedef |static const )?(struct|enum|union)\b[^(]*\{", head):
                yield named[1], start + 1, number - start + 1


def test_files_are_short() -> None:
    limits = [(python_files(), PYTHON_FILE), (c_files(), C_FILE)]
    found = [
        f"{relative(path)} has {count} lines, at most {limit}"
        for paths, limit in limits
        for path in paths
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > limit
    ]
    assert not found, "\n".join(found)


def test_functions_are_short() -> None:
    python = ((path, found) for path in python_files() for found in python_functions(path))
    c = ((path, found) for path in c_files() for found in c_functions(path.read_text(encoding="utf-8")))
    found = [
        f"{relative(path)}:{line} {name} has {count} lines, at most {FUNCTION}"
        for paths in (python, c)
        for path, (name, line, count) in paths
        if count > FUNCTION
    ]
    assert not found, "\n".join(found)


def test_lines_are_short() -> None:
    """A remark to a tool at the end of a line does not count, as in ruff's E501."""
    found = [
        f"{relative(path)}:{number} has {len(line)} columns, at most {COLUMNS}"
        for path in (*python_files(), *c_files())
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(REMARK.sub("", line)) > COLUMNS
    ]
    assert not found, "\n".join(found)


def test_long_functions_are_found() -> None:
    """Negative control: the reader of C finds every function and its length."""
    body = "static int one(int a,\n    int b) {\n  if (a) {\n    b++;\n  }\n  return b;\n}\n"
    body += "\nenum e {\n  A\n};\n"
    assert list(c_functions(body)) == [("one", 1, 7)]
    assert list(c_functions("struct s {\n  int (*f)(int);\n};\nvoid two(void) {\n}\n")) == [("two", 4, 2)]
