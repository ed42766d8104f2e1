"""Files by path, size and hash."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

READ_BYTES = 1 << 20


@dataclass(frozen=True)
class File:
    """One file of a folder: path relative to it with forward slashes, size in bytes, SHA-256 in hex."""

    path: str
    bytes: int
    sha256: str


def describe_file(root: Path, path: str) -> File:
    """Size and hash of one file below `root`."""
    return File(path, (root / path).stat().st_size, hash_file(root / path))


def hash_file(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as reader:
        while data := reader.read(READ_BYTES):
            digest.update(data)
    return digest.hexdigest()


def hash_engine(files: Sequence[File]) -> str:
    """SHA-256 over one line 'path sha256' for each file, sorted by path: what a certificate is bound to."""
    lines = "".join(f"{file.path} {file.sha256}\n" for file in sorted(files, key=lambda file: file.path))
    return hashlib.sha256(lines.encode()).hexdigest()
