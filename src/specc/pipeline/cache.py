"""The build cache: the result of a stage, found again by a hash of everything that went into it.

An entry is a folder with the stage's files and `stage.json`: their sizes, times and SHA-256, and the stage's
facts. It takes its place by one rename, so a killed build leaves no half entry.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from specc.atomic import io_errors, rename_into_place, scratch_folder
from specc.contracts.files import File, describe_file
from specc.version import __version__

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
class CacheEntry:
    """The result of one stage: files, and facts as plain JSON values."""

    folder: Path
    files: tuple[File, ...]
    facts: dict[str, Any]
    key: str
    cached: bool
    """Whether it was there already."""

    def sources(self) -> dict[str, tuple[Path, File]]:
        """Path in the bundle -> where the file lies, and its size and hash."""
        return {file.path: (self.folder / file.path, file) for file in self.files}


def root() -> Path:
    """$SPECC_CACHE, or `specc` in the user's cache folder."""
    if folder := os.environ.get("SPECC_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specc"


def run_stage(kind: str, inputs: Mapping[str, Any], run: Callable[[Path], Mapping[str, Any]]) -> CacheEntry:
    """The result of a stage: from the cache where the same inputs met the same code, else by calling
    `run(folder)`.

    `run` writes its files into the folder and returns the facts (plain JSON values).
    """
    key = key_of(kind, inputs)
    place = root() / kind / key[:32]
    entry = read_entry(place, key)
    if entry is not None:
        return entry
    with io_errors(f"writing the cache {place.parent}"):
        place.parent.mkdir(parents=True, exist_ok=True)
    with scratch_folder(place) as folder:
        write_listing(folder, run(folder))
        rename_into_place(folder, place)
    entry = read_entry(place, key)
    assert entry is not None, f"{place} vanished while it was written"
    return replace(entry, cached=False)


def find_entry(kind: str, inputs: Mapping[str, Any]) -> CacheEntry | None:
    """The result of a stage if the cache has it; nothing is run."""
    key = key_of(kind, inputs)
    return read_entry(root() / kind / key[:32], key)


def key_of(kind: str, inputs: Mapping[str, Any]) -> str:
    """The key of an entry: SHA-256 over specc's version, the kind of stage and its inputs."""
    return digest_of({"specc": __version__, "kind": kind, **inputs})


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


def read_entry(place: Path, key: str) -> CacheEntry | None:
    """The entry at `place` if it is whole: every file there with its size and time."""
    try:
        listing = json.loads((place / LISTING).read_text())
        whole = all(
            size_and_time(place / file["path"]) == (file["bytes"], file["mtime_ns"])
            for file in listing["files"]
        )
        files = tuple(File(file["path"], file["bytes"], file["sha256"]) for file in listing["files"])
        facts = dict(listing["facts"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return CacheEntry(place, files, facts, key, cached=True) if whole else None


def size_and_time(path: Path) -> tuple[int, int]:
    """Size and modification time."""
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns


@cache
def tool_versions() -> dict[str, str]:
    """Installed versions of the packages that shape what a build writes."""
    return {name: version for name in TOOLS if (version := version_of(name)) is not None}


def version_of(package: str) -> str | None:
    """The installed version, None where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
