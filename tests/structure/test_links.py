"""Documents follow the tree: links resolve, paths and tests that they name exist, numbers are explained."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from support.repository import ROOT, c_files, documents, files, python_files, relative, syntax

FAULTS = "docs/field-faults.md"
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
NAMED_PATH = re.compile(
    r"(?<![\w/.<>$~-])((?:src|exporter|calib|targets|recipes|runtime|tests|docs|examples)/[\w./*-]*)"
)
NUMBER = re.compile(r"\bR(\d\d)\b")
TEST = re.compile(r"`(tests/[\w/.]+)::(\w+)`")
WORDS = (
    "speculative decoding",
    "KV cache",
    "acceptance rate",
    "draft model",
    "verification",
    "greedy",
    "calibration",
)
"""What users search for."""


def links(path: Path) -> Iterator[str]:
    """Targets of a document's links, addresses of the web left out."""
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.S)
    return (
        target for target in LINK.findall(text) if "://" not in target and not target.startswith("mailto:")
    )


def anchors(path: Path) -> set[str]:
    """Anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def is_broken(document: Path, target: str) -> bool:
    """Whether a link of the document leads nowhere."""
    name, _, anchor = target.partition("#")
    place = (document.parent / name).resolve() if name else document
    if not place.exists():
        return True
    return bool(anchor) and place.suffix == ".md" and anchor not in anchors(place)


def cited_numbers(path: Path) -> set[str]:
    """R-numbers that a file cites."""
    return set(NUMBER.findall(path.read_text(encoding="utf-8")))


@cache
def functions(path: Path) -> frozenset[str]:
    """Names of the functions that a test file defines."""
    if path.suffix == ".py":
        return frozenset(node.name for node in ast.walk(syntax(path)) if isinstance(node, ast.FunctionDef))
    return frozenset(re.findall(r"^[\w ]+?[ *](\w+)\(", path.read_text(encoding="utf-8"), re.M))


def explained() -> dict[str, str]:
    """Number -> row of the table of field faults."""
    rows = re.findall(r"^\| R(\d\d) \|(.*)$", (ROOT / FAULTS).read_text(encoding="utf-8"), re.M)
    assert len(rows) == len(dict(rows)), f"a number stands twice in {FAULTS}"
    return dict(rows)


def test_links_resolve() -> None:
    broken = [
        f"{relative(path)}: {target}"
        for path in documents()
        for target in links(path)
        if is_broken(path, target)
    ]
    assert not broken, "\n".join(broken)


def test_named_paths_exist() -> None:
    """Paths in prose, in code blocks and in the Makefile; `*` and NAME stand for anything."""
    missing = []
    for path in (*documents(), ROOT / "Makefile", ROOT / ".ci/run"):
        if path.name == "CHANGELOG.md" or not path.exists():
            continue
        for name in set(NAMED_PATH.findall(path.read_text(encoding="utf-8"))):
            name = name.rstrip(".-").replace("NAME", "*")
            if not any(ROOT.glob(name.rstrip("/"))):
                missing.append(f"{relative(path)}: {name}")
    assert not missing, "\n".join(sorted(missing))


def test_cited_numbers_are_explained() -> None:
    known = set(explained())
    sources = (*python_files(), *c_files(), *files(("runtime",), (".cmake",)), *documents())
    unknown = [
        f"{relative(path)}: R{number}"
        for path in sources
        if relative(path) != FAULTS
        for number in cited_numbers(path) - known
    ]
    assert not unknown, "\n".join(unknown)
    assert sorted(known) == [f"{number:02}" for number in range(1, len(known) + 1)]


def test_named_tests_exist() -> None:
    rows = explained()
    for number, row in rows.items():
        named = TEST.findall(row)
        assert bool(named) != ("not covered yet" in row), (
            f"R{number} needs a test, or the words: not covered yet"
        )
        missing = [f"{file}::{name}" for file, name in named if name not in functions(ROOT / file)]
        assert missing == [], f"R{number} of {FAULTS} names tests that do not exist"


def test_cited_numbers_have_a_test() -> None:
    """A number that a test cites is not called uncovered."""
    cited = {
        number
        for path in (*python_files(), *c_files())
        if "tests" in path.parts
        for number in cited_numbers(path)
    }
    uncovered = {number for number, row in explained().items() if "not covered yet" in row}
    assert cited & uncovered == set()


@pytest.mark.parametrize("place", ["README.md", "docs/glossary.md", "src/specc/cli", "the code"])
def test_words_that_users_search_for(place: str) -> None:
    """They stand in README, documents, help texts and code."""
    code = (*files(("src", "exporter", "calib", "runtime"), (".py", ".c", ".h")),)
    help_texts = [path for path in code if relative(path).startswith("src/specc/cli/")]
    paths = {"the code": code, "src/specc/cli": help_texts}.get(place, [ROOT / place])
    text = " ".join(" ".join(path.read_text(encoding="utf-8") for path in paths).lower().split())
    assert [word for word in WORDS if word.lower() not in text] == []


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 110


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    """Negative control."""
    document = tmp_path / "page.md"
    document.write_text("# A head, of sorts\n[a](page.md#a-head-of-sorts) [b](page.md#other) [c](none.md)\n")
    assert [target for target in links(document) if is_broken(document, target)] == [
        "page.md#other",
        "none.md",
    ]
