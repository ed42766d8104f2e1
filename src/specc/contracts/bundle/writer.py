"""A bundle written to a hidden folder and put in place in one step."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from specc.atomic import io_errors, rename_into_place, scratch_folder
from specc.contracts.bundle.manifest import (
    CERTIFICATES,
    MANIFEST,
    Bundle,
    format_manifest,
    read_bundle,
    verify_bundle,
)
from specc.contracts.files import READ_BYTES, File
from specc.errors import EnvironmentFault, InputError


def write_bundle(
    place: Path,
    manifest: Mapping[str, Any],
    sources: Mapping[str, tuple[Path, File]],
    check: Callable[[Path], None] | None = None,
) -> tuple[Bundle, bool]:
    """Write the bundle to `place`: `sources` maps each path to the real file and what it must be.

    Returns the bundle and whether anything was written: a whole bundle that stands there already stays as it
    is, certificates included. `check` gets the folder of the whole bundle before it is put in place, and what
    it raises leaves `place` as it was. Raises InputError (`place` is something else), EnvironmentFault (disk
    full, damaged cache).
    """
    check_destination(place)
    text, digest = format_manifest(manifest)
    if is_written(place, text):
        return read_bundle(place), False
    real = Path(os.path.realpath(place))  # behind a link the folder is replaced, not the link
    with io_errors(f"writing the bundle {place}"), scratch_folder(real) as folder:
        for path, (source, file) in sources.items():
            copy_file(source, folder / path, file)
        (folder / CERTIFICATES).mkdir()
        keep_certificates(place, folder, digest)
        (folder / MANIFEST).write_text(text, encoding="ascii")
        if check is not None:
            check(folder)
        rename_into_place(folder, real)
    return read_bundle(place), True


def check_destination(place: Path) -> None:
    """Raise InputError unless `place` is free, an empty folder or an earlier bundle."""
    is_empty = place.is_dir() and not any(place.iterdir())
    if place.exists() and not is_empty and not (place / MANIFEST).is_file():
        raise InputError(f"{place} exists and is no bundle; choose another folder with -o")


def is_written(place: Path, text: str) -> bool:
    """Whether exactly this bundle is there and whole."""
    try:
        if (place / MANIFEST).read_text(encoding="ascii") != text:
            return False
        verify_bundle(read_bundle(place))
    except (OSError, UnicodeDecodeError, InputError):
        return False
    return True


def copy_file(source: Path, target: Path, file: File) -> None:
    """Copy the bytes themselves, never a link. Raises EnvironmentFault where they are not what `file`
    says.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with source.open("rb") as reader, target.open("wb") as writer:
        while data := reader.read(READ_BYTES):
            digest.update(data)
            writer.write(data)
    if digest.hexdigest() != file.sha256:
        raise EnvironmentFault(
            f"the cached file {source} has changed since it was built; delete {source.parent}"
        )


def keep_certificates(old: Path, new: Path, digest: str) -> None:
    """Copy the certificates of a bundle that is written again with the same content (after damage)."""
    try:
        is_same = read_bundle(old).digest == digest
    except (InputError, OSError):
        return
    if is_same and (old / CERTIFICATES).is_dir():
        shutil.copytree(old / CERTIFICATES, new / CERTIFICATES, dirs_exist_ok=True)
