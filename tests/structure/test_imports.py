"""Imports go down a list of layers and have no cycles, in Python and in C; docs/design.md shows the list.

An import counts wherever it stands: at the top of a module, within a function, under TYPE_CHECKING.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from support.repository import ROOT, c_files, cycles, modules, relative, syntax

LAYERS = (
    ("specc", "specc.__main__"),
    ("specc.cli",),
    ("specc.bench", "specc.distill", "specc.inspection"),
    ("specc.pipeline", "specc.diff"),
    ("specc.gate",),
    ("specc.calib", "specc.generate"),
    ("specc.exporter", "specc.exporter.draft_heads"),
    ("specc.exporter.export",),
    ("specc.exporter.check",),
    ("specc.exporter.trace", "specc.exporter.probe", "specc.exporter.tensorrt"),
    ("specc.exporter.lower",),
    ("specc.exporter.rewrites",),
    (
        "specc.exporter.checkpoint",
        "specc.exporter.graph",
        "specc.exporter.module_view",
        "specc.exporter.decoder",
    ),
    ("specc.contracts",),
    ("specc.targets", "specc.report", "specc.runtime", "specc.recipes"),
    ("specc.atomic", "specc.yaml_table"),
    ("specc.errors", "specc.progress", "specc.version"),
)
"""Packages and modules from the top down; each may import what stands in a lower row. Modules of one package
may import each other; a module belongs to the longest entry that begins its name."""
C_LAYERS = (
    ("controls",),
    ("core/bundle",),
    ("core/draft", "core/certify"),
    ("core/certificate", "core/session"),
    ("core/model", "core/manifest"),
    ("backends/ort",),
    ("backends/nvidia", "backends/table"),
    ("ops", "abi"),
    ("core/numbers",),
    ("core/io",),
    ("include",),
)
"""Folders of runtime/ from the top down."""
GENERATED = ("fault_list.h",)
"""Headers that the build writes."""
RUNTIME_MAY_IMPORT = ("specc.errors",)


def place(name: str, layers: tuple[tuple[str, ...], ...], separator: str) -> tuple[int, str]:
    """(height, entry) of the longest entry of the list that holds the name; the lowest row has height 0."""
    entries = [
        (len(entry), len(layers) - 1 - row, entry)
        for row, names in enumerate(layers)
        for entry in names
        if name == entry or (name.startswith(entry + separator) and entry != "specc")
    ]
    assert entries, f"{name} stands in no layer; add it to the list of tests/structure/test_imports.py"
    _, height, entry = max(entries)
    return height, entry


def imported(path: Path, known: frozenset[str]) -> Iterator[str]:
    """Modules of ours that a file imports; `from a import b` is a.b where that is a module, else a."""
    for node in ast.walk(syntax(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in known else node.module


def python_graph() -> dict[str, set[str]]:
    """Imported modules by module."""
    files = dict(modules())
    known = frozenset(files)
    return {name: set(imported(path, known)) - {name} for name, path in files.items()}


def includes() -> Iterator[tuple[Path, Path]]:
    """(file, header) for every #include of a header of ours in runtime/, relative to it."""
    runtime = ROOT / "runtime"
    for path in c_files():
        if not path.is_relative_to(runtime):
            continue
        for name in re.findall(r'^\s*#\s*include "([^"]+)"', path.read_text(encoding="utf-8"), re.M):
            bases = (runtime, runtime / "include", path.parent)
            found = [base / name for base in bases if (base / name).exists()]
            assert found or name in GENERATED, (
                f"{relative(path)} includes {name}, which is nowhere in runtime/"
            )
            if found:
                yield path.relative_to(runtime), found[0].resolve().relative_to(runtime)


def upward(
    edges: Iterator[tuple[str, str]], layers: tuple[tuple[str, ...], ...], separator: str
) -> list[str]:
    """Arrows that do not go down."""
    wrong = []
    for source, target in edges:
        (high, own), (low, other) = place(source, layers, separator), place(target, layers, separator)
        if own != other and low >= high:
            wrong.append(f"{source} -> {target}")
    return sorted(set(wrong))


def test_python_imports_go_down() -> None:
    edges = ((source, target) for source, targets in python_graph().items() for target in targets)
    wrong = upward(edges, LAYERS, ".")
    assert not wrong, "\n".join(wrong)


def test_python_modules_have_no_cycle() -> None:
    found = python_graph()
    assert {"specc.runtime.model", "specc.exporter.trace", "specc.calib.prompts"} <= found.keys()
    assert cycles(found) == []


def test_runtime_stands_alone() -> None:
    """A device installs the runtime without the rest."""
    found = {
        target
        for source, targets in python_graph().items()
        if source.startswith("specc.runtime")
        for target in targets
        if not target.startswith("specc.runtime")
    }
    assert found <= set(RUNTIME_MAY_IMPORT)


def test_c_includes_go_down() -> None:
    edges = ((source.parent.as_posix(), header.parent.as_posix()) for source, header in includes())
    wrong = upward(edges, C_LAYERS, "/")
    assert not wrong, "\n".join(wrong)


DEFINITION = re.compile(r"^(\w[\w *]*?[ *])(\w+)\([^;{}]*\)\s*\{", re.M)


def calls() -> dict[str, set[str]]:
    """For each C file of the library those that define the functions it names, static ones left out."""
    runtime = ROOT / "runtime"
    texts = {path: plain_c(path) for path in c_files() if path.is_relative_to(runtime)}
    headers = "\n".join(text for path, text in texts.items() if path.suffix == ".h")
    declared = set(re.findall(r"\b(\w+)\(", headers))
    sources = {relative(path): text for path, text in texts.items() if path.suffix == ".c"}
    owners: dict[str, str] = {}
    own: dict[str, set[str]] = {name: set() for name in sources}
    for path, text in sources.items():
        for head, name in DEFINITION.findall(text):
            own[path].add(name)
            if "static" not in head and name in declared:
                owners[name] = path
    return {
        path: {owners[word] for word in set(re.findall(r"\w+", text)) & owners.keys() - own[path]}
        for path, text in sources.items()
    }


def plain_c(path: Path) -> str:
    """A C file without its comments and strings."""
    text = re.sub(r"/\*.*?\*/", " ", path.read_text(encoding="utf-8"), flags=re.S)
    return re.sub(r'"(\\.|[^"\\\n])*"', '""', text)


def test_c_files_have_no_cycle() -> None:
    """No two C files call each other, directly or over others."""
    found = calls()
    assert sum(map(len, found.values())) > 100
    assert cycles(found) == []


def test_an_upward_import_is_found() -> None:
    """Negative control: arrows from the gate to the pipeline, between neighbours, and a cycle."""
    edges = [("specc.gate.judge", "specc.pipeline.build"), ("specc.calib.tokens", "specc.generate.run")]
    assert len(upward(iter(edges), LAYERS, ".")) == 2
    assert upward(iter([("specc.gate.judge", "specc.gate.law")]), LAYERS, ".") == []
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
