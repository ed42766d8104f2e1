"""Files of other cache entries in the folder of a running stage, so that a graph can refer to them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from specc.pipeline.cache import CacheEntry


@contextmanager
def temporary_links(entries: Iterable[CacheEntry], folder: Path) -> Iterator[None]:
    """All files of the entries lie in `folder` while the body runs."""
    paths = [
        path
        for entry in entries
        for path in link_files(entry.folder, [file.path for file in entry.files], folder)
    ]
    yield
    for path in paths:  # after an error the whole folder is removed
        path.unlink()


def link_files(source: Path, names: Iterable[str], folder: Path) -> list[Path]:
    """Put files of one folder into another, as hard links where the file system has them, else as copies."""
    paths = []
    for name in names:
        paths.append(folder / name)
        try:
            os.link(source / name, paths[-1])
        except OSError:
            shutil.copyfile(source / name, paths[-1])
    return paths
