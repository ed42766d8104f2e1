"""Folders that appear whole or not at all: written under a hidden name beside their place, then renamed.

A lock on the hidden folder tells a running build from a dead one, so that what a killed build left is swept away by the
next one.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from specc.errors import EnvironmentFault

SUFFIX = ".specc-tmp"
AT_FDCWD, RENAME_EXCHANGE = -100, 2
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def scratch_folder(place: Path) -> Iterator[Path]:
    """An empty, locked folder beside `place`; whatever it still holds at the end is removed."""
    place.parent.mkdir(parents=True, exist_ok=True)
    sweep(place.parent)
    folder, lock = locked_folder(place)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def locked_folder(place: Path) -> tuple[Path, int]:
    """Make the folder and lock it; once more if another build's sweep came between.

    A file system without locks gives an unlocked folder, which no sweep removes either.
    """
    while True:
        folder = place.with_name(f".{place.name}.{uuid.uuid4().hex}{SUFFIX}")
        folder.mkdir()
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if folder.exists():
            return folder, lock
        os.close(lock)


def try_lock(folder: Path) -> int | None:
    """A descriptor that holds the folder's lock, None where another process holds it, or the folder is gone."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock


def sweep(parent: Path) -> None:
    """Remove the hidden folders of builds that are no longer running."""
    for folder in parent.glob(f".*{SUFFIX}"):
        lock = try_lock(folder)
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def put(folder: Path, place: Path) -> None:
    """Give `folder` its place in one step; what stood there takes the hidden name and goes with it."""
    if place.is_dir():
        exchange(folder, place)
    else:
        os.rename(folder, place)


def exchange(one: Path, other: Path) -> None:
    """Swap two folders atomically; on systems without such a call, by two renames."""
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "renameat2"):
        if libc.renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0:
            return
        if ctypes.get_errno() not in (errno.ENOSYS, errno.EINVAL):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(other))
    aside = one.with_name(f".{other.name}.{uuid.uuid4().hex}{SUFFIX}")
    os.rename(other, aside)
    os.rename(one, other)
    shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def told(doing: str) -> Iterator[None]:
    """Turn an error of the file system into one sentence that says what was being done."""
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        advice = (
            "free some space or choose another folder"
            if error.errno in FULL
            else "check the path and its rights"
        )
        raise EnvironmentFault(f"{doing} failed: {error.strerror or error}{where}; {advice}") from error
