"""The identity of a checkpoint: a digest over the content of every file that is read of it.

Every stage that opens a checkpoint runs through `run_reading_stage`, which puts the identity into its key: a
changed file is never answered with an old result.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specc.atomic import io_errors
from specc.contracts.files import hash_file
from specc.errors import InputError
from specc.pipeline.cache import CacheEntry, digest_of, find_entry, run_stage

SMALL = 1 << 18
"""Files of up to so many bytes are read each time; hashes of larger ones are remembered."""
SETTLED_NS = 2_000_000_000
"""A file that changed later than this before it is hashed may change again without another time stamp: file
systems count in steps, the coarsest in use of two seconds.
"""


@dataclass(frozen=True)
class Identity:
    """What a checkpoint consisted of when it was looked at."""

    path: Path
    """Its folder, or its GGUF file."""
    files: Mapping[str, str]
    """Name of each file that is read -> SHA-256 of its content."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """What a recipe sets in place of the checkpoint's own, as plain JSON values."""

    @property
    def sha256(self) -> str:
        """Digest over names and content."""
        return digest_of({"files": dict(self.files), "overrides": dict(self.overrides)})

    def check_unchanged(self) -> None:
        """Raise InputError where a file was changed, added or removed since."""
        now = identify(self.path).files
        changed = sorted(name for name in {*now, *self.files} if now.get(name) != self.files.get(name))
        if changed:
            raise InputError(
                f"The checkpoint {self.path} changed while it was read ({', '.join(changed[:3])}); "
                "let its files be and start again."
            )


def identify(path: Path, overrides: Mapping[str, Any] | None = None) -> Identity:
    """The identity of the checkpoint at `path`. Raises EnvironmentFault where a file cannot be read."""
    from specc.exporter.checkpoint.files import list_read_files

    with io_errors(f"reading the checkpoint {path}"):
        files = {name: hash_content(file) for name, file in list_read_files(path).items()}
    return Identity(path, files, overrides or {})


def hash_content(path: Path) -> str:
    """SHA-256 of a file; that of a large one is found again by its place, size, times and inode.

    Raises InputError for a file that changes while it is read.
    """
    before = file_signature(path)
    if before[0] <= SMALL or time.time_ns() - before[2] < SETTLED_NS:
        return hash_file(path)

    def run(_: Path) -> dict[str, Any]:
        digest = hash_file(path)
        if file_signature(path) != before:
            raise InputError(f"The file {path} changed while it was read; let it be and start again.")
        return {"sha256": digest}

    inputs = {"path": str(path.resolve()), "signature": before}
    return str(run_stage("file", inputs, run).facts["sha256"])


def file_signature(path: Path) -> list[int]:
    """Size, modification time, change time and inode of a file, of the target where it is a link."""
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]


def run_reading_stage(
    kind: str,
    inputs: Mapping[str, Any],
    checkpoints: Sequence[Identity],
    run: Callable[[Path], Mapping[str, Any]],
) -> CacheEntry:
    """`run_stage` for a stage that opens checkpoints: their identities are a part of the key.

    Raises InputError where a checkpoint changed meanwhile; nothing is kept then.
    """

    def run_checked(folder: Path) -> Mapping[str, Any]:
        facts = run(folder)
        for checkpoint in checkpoints:
            checkpoint.check_unchanged()
        return facts

    return run_stage(kind, add_identities(inputs, checkpoints), run_checked)


def find_reading_entry(
    kind: str, inputs: Mapping[str, Any], checkpoints: Sequence[Identity]
) -> CacheEntry | None:
    """The result of such a stage if the cache has it; nothing is run."""
    return find_entry(kind, add_identities(inputs, checkpoints))


def add_identities(inputs: Mapping[str, Any], checkpoints: Sequence[Identity]) -> dict[str, Any]:
    """The inputs of a stage and the checkpoints that it opens."""
    return {**inputs, "checkpoints": [checkpoint.sha256 for checkpoint in checkpoints]}
