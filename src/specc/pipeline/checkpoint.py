"""What a checkpoint says about itself, remembered between builds by the sizes and times of its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specc.contracts.model_spec import ModelSpec
from specc.contracts.recipe import Source
from specc.errors import EnvironmentFault
from specc.pipeline.cache import code_hash, stage

if TYPE_CHECKING:
    from specc.exporter.checkpoint.checkpoint import Checkpoint

PACKAGE = "package:"


@dataclass(frozen=True)
class Described:
    """A checkpoint's spec and origin; `open` loads the exporter, which is slow, so it is called on demand only."""

    source: Source
    base: Path
    spec: ModelSpec
    provenance: dict[str, Any]
    cached: bool

    def open(self) -> Checkpoint:
        """The checkpoint itself, opened once a process."""
        return open_once(self.source, self.base)


def describe(source: Source, base: Path) -> Described:
    """Spec and provenance of a checkpoint. `base`: the folder where relative paths start. Raises InputError."""
    signature = signature_of(source.checkpoint, base)
    if signature is None:
        return described(source, base, facts_of(open_once(source, base)), False)
    inputs = {"source": asdict(source), "signature": signature, "code": code_hash("specc.exporter")}
    found = stage("spec", inputs, lambda _: facts_of(open_once(source, base)))
    return described(source, base, found.facts, found.cached)


def described(source: Source, base: Path, facts: Mapping[str, Any], cached: bool) -> Described:
    """From facts back to a ModelSpec."""
    spec = dict(facts["spec"])
    spec["eos"] = tuple(spec["eos"])
    return Described(source, base, ModelSpec(**spec), dict(facts["provenance"]), cached)


def facts_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """What is remembered."""
    return {"spec": asdict(checkpoint.spec), "provenance": dict(checkpoint.provenance)}


@cache
def open_once(source: Source, base: Path) -> Checkpoint:
    """Open through the exporter. Raises EnvironmentFault where the packages of the extra `build` are missing."""
    with build_extra():
        from specc.exporter.checkpoint.checkpoint import open_checkpoint

        return open_checkpoint(source.checkpoint, source.revision, base)


class build_extra:
    """Turns a missing package of the extra `build` into a sentence; a context manager."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ModuleNotFoundError) and error.name and not error.name.startswith("specc"):
            message = f"building needs the package {error.name!r}, which is not installed; pip install 'specc[build]'"
            raise EnvironmentFault(message) from error


def signature_of(checkpoint: str, base: Path) -> list[list[Any]] | None:
    """Name, size, times and inode of every file of a local checkpoint; None where it is not a local one."""
    place = locate(checkpoint, base)
    if not place.exists():
        return None
    paths = [place] if place.is_file() else sorted(path for path in place.iterdir() if path.is_file())
    return [[str(path), *times_of(path)] for path in paths]


def times_of(path: Path) -> tuple[int, int, int, int]:
    """What changes when a file does."""
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino


def locate(checkpoint: str, base: Path) -> Path:
    """Where a local checkpoint lies or would lie: inside an installed package, or relative to `base`."""
    if not checkpoint.startswith(PACKAGE):
        return base / Path(checkpoint).expanduser()
    from specc.exporter.checkpoint.source import find_in_package

    return find_in_package(checkpoint)[0]
