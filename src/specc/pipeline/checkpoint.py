"""What a checkpoint says about itself, kept between builds and found again by the sizes and times of its
files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specc.contracts.model_spec import ModelSpec
from specc.contracts.recipe import Source
from specc.errors import EnvironmentFault
from specc.pipeline.cache import run_stage
from specc.pipeline.source_code import code_hash

if TYPE_CHECKING:
    from specc.exporter.checkpoint.checkpoint import Checkpoint

PACKAGE = "package:"
CODE = ("specc.exporter.checkpoint.checkpoint", "specc.pipeline.checkpoint")
"""What decides a checkpoint's spec."""


@dataclass(frozen=True)
class CheckpointRecord:
    """A checkpoint's spec and origin; `open` imports the exporter, which is slow, so it is called on demand
    only.
    """

    source: Source
    base: Path
    spec: ModelSpec
    provenance: dict[str, Any]
    stop_ids: tuple[int, ...]
    """Of the recipe, as ids."""
    cached: bool

    def open(self) -> Checkpoint:
        """The checkpoint itself, opened once a process."""
        return open_once(self.source, self.base)


def describe(source: Source, base: Path) -> CheckpointRecord:
    """Spec and provenance of a checkpoint; relative paths start at `base`. Raises InputError."""
    signature = file_signature(source.checkpoint, base)
    if signature is None:
        return record_of(source, base, facts_of(open_once(source, base)), False)
    inputs = {"source": asdict(source), "signature": signature, "code": code_hash(*CODE)}
    entry = run_stage("spec", inputs, lambda _: facts_of(open_once(source, base)))
    return record_of(source, base, entry.facts, entry.cached)


def record_of(source: Source, base: Path, facts: Mapping[str, Any], cached: bool) -> CheckpointRecord:
    """A record from the facts that the cache keeps."""
    spec = dict(facts["spec"])
    spec["eos"] = tuple(spec["eos"])
    return CheckpointRecord(
        source, base, ModelSpec(**spec), dict(facts["provenance"]), tuple(facts["stop_ids"]), cached
    )


def facts_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """Spec, provenance and stop ids as the cache keeps them."""
    return {
        "spec": asdict(checkpoint.spec),
        "provenance": dict(checkpoint.provenance),
        "stop_ids": list(checkpoint.stop_ids),
    }


@cache
def open_once(source: Source, base: Path) -> Checkpoint:
    """Open with the exporter. Raises EnvironmentFault without the packages of the extra `build`."""
    with require_build_extra():
        from specc.exporter.checkpoint.checkpoint import open_checkpoint
        from specc.exporter.checkpoint.end_tokens import Overrides

        overrides = Overrides(source.template, source.eos, source.stop_ids)
        return open_checkpoint(source.checkpoint, source.revision, base, overrides)


@contextmanager
def require_build_extra() -> Iterator[None]:
    """Raise EnvironmentFault, which says what to install, where the body needs a package of the extra
    `build`.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if not error.name or error.name.startswith("specc"):
            raise
        message = (
            f"building needs the package {error.name!r}, which is not installed; pip install 'specc[build]'"
        )
        raise EnvironmentFault(message) from error


def file_signature(checkpoint: str, base: Path) -> list[list[Any]] | None:
    """Name, size, times and inode of every file of a local checkpoint; None where it is not a local one."""
    place = locate(checkpoint, base)
    if not place.exists():
        return None
    paths = [place] if place.is_file() else sorted(path for path in place.iterdir() if path.is_file())
    stats = [(str(path), path.stat()) for path in paths]
    return [[name, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino] for name, stat in stats]


def locate(checkpoint: str, base: Path) -> Path:
    """Where a local checkpoint lies or would lie: inside an installed package, or relative to `base`."""
    if not checkpoint.startswith(PACKAGE):
        return base / Path(checkpoint).expanduser()
    from specc.exporter.checkpoint.source import find_in_package

    return find_in_package(checkpoint)[0]
