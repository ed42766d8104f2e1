"""What a checkpoint says about itself, kept between builds and found again by the content of its files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specc.contracts.model_spec import ModelSpec
from specc.contracts.recipe import Source
from specc.errors import EnvironmentFault
from specc.pipeline.cache import tool_versions
from specc.pipeline.identity import Identity, identify, run_reading_stage
from specc.pipeline.source_code import code_hash

if TYPE_CHECKING:
    from specc.exporter.checkpoint.checkpoint import Checkpoint

CODE = (
    "specc.exporter.checkpoint.checkpoint",
    "specc.exporter.checkpoint.files",
    "specc.pipeline.checkpoint",
)
"""What decides a checkpoint's spec, and which of its files count."""


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
    identity: Identity
    cached: bool

    def open(self) -> Checkpoint:
        """The checkpoint itself, opened once a process."""
        return open_once(self.source, self.base, self.identity.sha256)


def describe(source: Source, base: Path) -> CheckpointRecord:
    """Spec and provenance of a checkpoint; relative paths start at `base`. Raises InputError,
    EnvironmentFault.
    """
    from specc.exporter.checkpoint.source import find_source

    found = find_source(source.checkpoint, source.revision, base)
    identity = identify(found.path, {"template": source.template, "eos": source.eos})
    inputs = {
        "source": asdict(source),
        "revision": found.revision,
        "code": code_hash(*CODE),
        "tools": tool_versions(),
    }

    def run(_: Path) -> dict[str, Any]:
        checkpoint = open_once(source, base, identity.sha256)
        return {
            "spec": asdict(checkpoint.spec),
            "provenance": dict(checkpoint.provenance),
            "stop_ids": list(checkpoint.stop_ids),
        }

    entry = run_reading_stage("spec", inputs, [identity], run)
    spec = dict(entry.facts["spec"])
    spec["eos"] = tuple(spec["eos"])
    return CheckpointRecord(
        source=source,
        base=base,
        spec=ModelSpec(**spec),
        provenance=dict(entry.facts["provenance"]),
        stop_ids=tuple(entry.facts["stop_ids"]),
        identity=identity,
        cached=entry.cached,
    )


@cache
def open_once(source: Source, base: Path, identity: str) -> Checkpoint:
    """Open with the exporter, again when the identity is another. Raises EnvironmentFault without the
    packages of the extra `build`.
    """
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
