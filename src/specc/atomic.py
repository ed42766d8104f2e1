"""Folders that appear whole or not at all: written under a hidden name beside their place, then renamed.

A lock on the hidden folder tells a running build from a dead one: the next build removes what a killed build
left.
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
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def scratch_folder(place: Path) -> Iterator[Path]:
    """An empty, locked folder beside `place`; what it still holds at the end is removed."""
    place.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(place.parent)
    folder, lock = make_locked_folder(place)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def make_locked_folder(place: Path) -> tuple[Path, int]:
    """Make a hidden folder and lock it; once more if another build removed it before it was locked.

    On a file system without locks the folder is not locked, and no build removes it either.
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
    """A descriptor that holds the folder's lock, None where another process holds it, or the folder is
    gone.
    """
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


def remove_abandoned(parent: Path) -> None:
    """Remove the hidden folders of builds that are no longer running."""
    for folder in parent.glob(f".*{SUFFIX}"):
        lock = try_lock(folder)
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def rename_into_place(folder: Path, place: Path) -> None:
    """Rename `folder` to `place` in one step; a folder that is there takes the hidden name and is removed
    with it.
    """
    if place.is_dir():
        swap_folders(folder, place)
    else:
        os.rename(folder, place)


def swap_folders(first: Path, second: Path) -> None:
    """Swap two folders atomically; on systems without such a call, by two renames. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "renameat2"):
        paths = AT_FDCWD, os.fsencode(first), AT_FDCWD, os.fsencode(second)
        if libc.renameat2(*paths, RENAME_EXCHANGE) == 0:
            return
        if ctypes.get_errno() not in (errno.ENOSYS, errno.EINVAL):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(second))
    aside = first.with_name(f".{second.name}.{uuid.uuid4().hex}{SUFFIX}")
    os.rename(second, aside)
    os.rename(first, second)
    shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def io_errors(action: str) -> Iterator[None]:
    """Turn an OSError into an EnvironmentFault: one sentence that says which `action` failed, and why."""
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        advice = (
            "free some space or choose another folder"
            if error.errno in DISK_FULL
            else "check the path and its rights"
        )
        raise EnvironmentFault(f"{action} failed: {error.strerror or error}{where}; {advice}") from error
