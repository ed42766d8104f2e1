"""The build cache: what a stage made, found again by a hash of everything that went into it.

A stage's folder holds its files and `stage.json`: their sizes, times and SHA-256, and what the stage found out.
It is put there by one rename, so a killed build leaves no half stage.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata, util
from pathlib import Path
from typing import Any

from specc import __version__
from specc.atomic import io_errors, rename_into_place, scratch_folder
from specc.contracts.files import File, describe_file

LISTING = "stage.json"
TOOLS = (
    "torch",
    "transformers",
    "onnx",
    "onnx-ir",
    "onnxscript",
    "onnxruntime",
    "tokenizers",
    "gguf",
    "numpy",
)


@dataclass(frozen=True)
class Stage:
    """One stage's result in the cache."""

    folder: Path
    files: tuple[File, ...]
    facts: dict[str, Any]
    key: str
    cached: bool

    def sources(self) -> dict[str, tuple[Path, File]]:
        """Each file's path in the bundle, where it lies and what it must be."""
        return {file.path: (self.folder / file.path, file) for file in self.files}


def root() -> Path:
    """$SPECC_CACHE, or `specc` in the user's cache folder."""
    if own := os.environ.get("SPECC_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specc"


def stage(kind: str, inputs: Mapping[str, Any], make: Callable[[Path], Mapping[str, Any]]) -> Stage:
    """The stage's result: from the cache where the same inputs met the same code, made by `make(folder)` where not.

    `make` writes its files into the folder and returns the facts (plain JSON values).
    """
    key = digest_of({"specc": __version__, "kind": kind, **inputs})
    place = root() / kind / key[:32]
    found = look_up(place, key)
    if found is not None:
        return found
    with io_errors(f"writing the cache {place.parent}"):
        place.parent.mkdir(parents=True, exist_ok=True)
    with scratch_folder(place) as folder:
        facts = make(folder)
        write_listing(folder, facts)
        rename_into_place(folder, place)
    made = look_up(place, key)
    assert made is not None, f"{place} vanished while it was written"
    return Stage(made.folder, made.files, made.facts, key, cached=False)


def known(kind: str, inputs: Mapping[str, Any]) -> Stage | None:
    """The stage's result if the cache has it; nothing is made."""
    key = digest_of({"specc": __version__, "kind": kind, **inputs})
    return look_up(root() / kind / key[:32], key)


def digest_of(value: Any) -> str:
    """SHA-256 of a JSON value, key order aside."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def write_listing(folder: Path, facts: Mapping[str, Any]) -> None:
    """Write stage.json last: sizes, times and hashes of the files, and the facts."""
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    files = [
        {**asdict(describe_file(folder, name)), "mtime_ns": (folder / name).stat().st_mtime_ns}
        for name in names
    ]
    (folder / LISTING).write_text(json.dumps({"files": files, "facts": dict(facts)}))


def look_up(place: Path, key: str) -> Stage | None:
    """The stage at `place` if it is whole: every file there with its size and time."""
    try:
        listing = json.loads((place / LISTING).read_text())
        whole = all(
            stat_of(place / item["path"]) == (item["bytes"], item["mtime_ns"]) for item in listing["files"]
        )
        files = tuple(File(item["path"], item["bytes"], item["sha256"]) for item in listing["files"])
        facts = dict(listing["facts"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return Stage(place, files, facts, key, cached=True) if whole else None


def stat_of(path: Path) -> tuple[int, int]:
    """Size and modification time."""
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns


@cache
def code_hash(*names: str) -> str:
    """SHA-256 over the Python source of some of our packages (subfolders included) or modules, found without importing."""
    digest = hashlib.sha256()
    for name in names:
        for relative, path in source_files(name):
            digest.update(f"{name}/{relative}".encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def source_files(name: str) -> list[tuple[str, Path]]:
    """A module's own file, or all Python files below a package's folder, each with its path in there."""
    spec = util.find_spec(name)
    if spec is None:
        return []
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    if folders:
        return sorted(
            (str(path.relative_to(folder)), path) for folder in folders for path in folder.rglob("*.py")
        )
    return [(Path(spec.origin).name, Path(spec.origin))] if spec.origin else []


@cache
def tool_versions() -> dict[str, str]:
    """Versions of the packages that shape what is built."""
    return {name: version for name in TOOLS if (version := version_of(name)) is not None}


def version_of(package: str) -> str | None:
    """The installed version, None where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
