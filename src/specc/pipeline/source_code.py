"""The source code that a stage depends on, as a hash: edits void only the results that
they may change.

A stage names the modules and packages that do its work. The hash covers them, subfolders included, and every
module of specc that they import, directly or through others, inside functions too. A package's `__init__`
alone is named `PACKAGE.__init__`. No module is imported to find this out.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from functools import cache
from importlib import util
from pathlib import Path

OURS = "specc"
NOT_FOLLOWED = ("specc.runtime", "specc.pipeline")
"""The runtime only checks what a stage writes; a stage names its own modules of the pipeline."""


@cache
def code_hash(*names: str) -> str:
    """SHA-256 over the source of the named modules and packages and of all modules of specc that they import.

    Raises ModuleNotFoundError for a name that does not exist, so that a moved module cannot drop out of a
    key.
    """
    digest = hashlib.sha256()
    for module, path in sorted(covered_modules(*names).items()):
        digest.update(module.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def covered_modules(*names: str) -> dict[str, Path]:
    """Every module whose source code_hash reads, with its file."""
    waiting: dict[str, Path] = {}
    for name in names:
        files = source_files(name)
        if not files:
            raise ModuleNotFoundError(f"no source of {name}, which a stage's key names", name=name)
        waiting.update(files)
    covered: dict[str, Path] = {}
    while waiting:
        module, path = waiting.popitem()
        covered[module] = path
        for imported in () if is_exempt(module) else imported_modules(path):
            file = module_file(imported)
            if file is not None and imported not in covered and not is_exempt(imported):
                waiting[imported] = file
    return covered


def is_exempt(module: str) -> bool:
    """Whether imports of and by this module are not followed."""
    return any(module == name or module.startswith(f"{name}.") for name in NOT_FOLLOWED)


def source_files(name: str) -> dict[str, Path]:
    """A module's own file, or all Python files below a package's folder, by module name; empty for what is
    not there.
    """
    place = module_place(name)
    if place is None or not place.is_dir():
        return {} if place is None else {name: place}
    return {
        ".".join((name, *path.relative_to(place).with_suffix("").parts)).removesuffix(".__init__"): path
        for path in place.rglob("*.py")
    }


def module_file(name: str) -> Path | None:
    """The file of a module, or a package's `__init__.py`; None where the name is none, such as that of a
    function.
    """
    place = module_place(name)
    return place / "__init__.py" if place is not None and place.is_dir() else place


@cache
def module_place(name: str) -> Path | None:
    """Where a module's file or a package's folder lies. Only `specc` itself is imported to find it."""
    depth = 2 if name.startswith(f"{OURS}.") else 1
    parts = name.split(".")
    spec = util.find_spec(".".join(parts[:depth]))
    if spec is None:
        return None
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    if not folders:
        return Path(spec.origin) if spec.origin and len(parts) == depth else None
    for folder in folders:
        place = folder.joinpath(*parts[depth:])
        if (place / "__init__.py").is_file():
            return place
        if place.with_suffix(".py").is_file() and len(parts) > depth:
            return place.with_suffix(".py")
    return None


@cache
def imported_modules(path: Path) -> frozenset[str]:
    """Names of specc that the file imports anywhere but under TYPE_CHECKING; `from a import b` gives `a` and
    `a.b`.
    """
    names: set[str] = set()
    for node in runtime_statements(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.update((node.module, *(f"{node.module}.{alias.name}" for alias in node.names)))
    return frozenset(name for name in names if name.startswith(f"{OURS}."))


def runtime_statements(tree: ast.AST) -> Iterator[ast.stmt]:
    """All statements of a syntax tree, nested ones too, but those under `if TYPE_CHECKING`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.stmt):
            yield node
        if not isinstance(node, ast.expr):
            yield from runtime_statements(node)
