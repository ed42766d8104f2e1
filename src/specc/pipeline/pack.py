"""Stage 9: the manifest is written, the bundle opened once and put in place, whole or not at all."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specc.contracts.bundle.contents import TokenizerPart, make_manifest
from specc.contracts.bundle.manifest import CERTIFICATES, Bundle
from specc.contracts.bundle.writer import write_bundle
from specc.pipeline import opening
from specc.pipeline.cache import CacheEntry, tool_versions
from specc.pipeline.checkpoint import CheckpointRecord
from specc.pipeline.clock import Clock
from specc.pipeline.draft_files import head_origin, write_draft_files
from specc.pipeline.engines import Engines
from specc.pipeline.planned import Planned
from specc.version import __version__


@dataclass(frozen=True)
class Contents:
    """What the stages before have made of the plan."""

    tokenizer: CacheEntry
    engines: Engines
    quality: Mapping[str, dict[str, Any]]
    lint: tuple[dict[str, str], ...]


@dataclass(frozen=True)
class Packed:
    """The bundle, and whether it had to be written: one of the same digest stays as it is."""

    bundle: Bundle
    written: bool


def pack_bundle(planned: Planned, contents: Contents, place: Path, clock: Clock) -> Packed:
    """Write the bundle into the folder `place`, once it has been opened.

    Raises EnvironmentFault where the disk refuses, InternalFault for a bundle that cannot be opened.
    """
    with clock.stage("pack") as hit:
        engines, tokenizer = contents.engines, contents.tokenizer
        entries = [*engines.entries, tokenizer, *write_draft_files(planned.plan)]
        sources = {path: source for entry in entries for path, source in entry.sources().items()}
        manifest = make_manifest(
            planned.plan,
            [file for _, file in sources.values()],
            engines.paths,
            tokenizer_part(planned, tokenizer),
            list(contents.lint),
            contents.quality,
            provenance_of(planned, tokenizer),
            engines.parts,
        )
        bundle, written = write_bundle(place, manifest, sources, opening.open_new_bundle)
        hit(not written)
    return Packed(bundle, written)


def tokenizer_part(planned: Planned, tokenizer: CacheEntry) -> TokenizerPart:
    """The manifest's view of the tokenizer."""
    target, facts = planned.target, tokenizer.facts
    return TokenizerPart(
        ids=target.spec.token_ids,
        id_map_sha256=target.spec.id_map_sha256,
        strip_leading_space=facts["strip_leading_space"],
        eos=target.spec.eos,
        bos=target.spec.bos,
        has_chat_template=bool(facts["has_chat_template"]),
        special_tokens=dict(facts["special_tokens"]),
        stop_ids=target.stop_ids,
    )


def provenance_of(planned: Planned, tokenizer: CacheEntry) -> dict[str, Any]:
    """Where everything comes from; no times, so that the same build gives the same digest."""
    recipe = planned.plan.recipe
    return {
        "specc": __version__,
        "recipe": {"name": Path(recipe.file).name, "text": recipe.text, "sha256": recipe.sha256},
        "target": checkpoint_origin(planned.target),
        "draft": checkpoint_origin(planned.draft) if planned.draft else head_origin(planned.plan),
        "calibration": tokenizer.facts["calibration"],
        "tools": tool_versions(),
        "host": {
            "machine": platform.machine(),
            "system": platform.system(),
            "python": platform.python_version(),
        },
    }


def checkpoint_origin(checkpoint: CheckpointRecord) -> dict[str, Any]:
    """A checkpoint's name as the recipe writes it, its hashes, revision and licence."""
    spec = checkpoint.spec
    return {
        **checkpoint.provenance,
        "checkpoint": checkpoint.source.checkpoint,
        "revision": spec.revision,
        "weights_sha256": spec.weights_sha256,
        "licence": spec.licence,
        "parameters": spec.parameters,
        "files": dict(checkpoint.identity.files),
    }


def reasons_of(bundle: Bundle, lint: tuple[dict[str, str], ...]) -> tuple[str, ...]:
    """Why speculation is off on any device: the lint has findings, or no certificate is in the bundle."""
    if lint:
        return ("lint",)
    names = [path.name for path in (bundle.folder / CERTIFICATES).glob("*.json")]
    has_certificate = any(not name.endswith(".report.json") for name in names)
    return () if has_certificate else ("uncertified-device",)
