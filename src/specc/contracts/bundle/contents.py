"""What the manifest of a bundle says: a plan, its files and what the build found out, as JSON values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from specc.contracts.bundle.manifest import FORMAT
from specc.contracts.bundle.tables import ID_BYTES
from specc.contracts.draft_kinds import DRAFT_IDS, KINDS, Draft
from specc.contracts.engine_plan import EnginePlan
from specc.contracts.files import File, hash_engine
from specc.contracts.plan import Plan

MOST_INNER = 15
"""Tokens that a small draft proposes to a middle model at a time, as in specc.h."""

NO_END = (
    "the checkpoint names no end token, so an answer ends at a stop string, at --max-new-tokens or where the "
    "context is full; write eos: [...] into the recipe"
)


@dataclass(frozen=True)
class TokenizerPart:
    """What the manifest says of the tokenizer, beside its files."""

    ids: int
    id_map_sha256: str
    strip_leading_space: bool
    eos: tuple[int, ...]
    bos: int | None
    has_chat_template: bool
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    """Strings that the chat template may name."""
    stop_ids: tuple[int, ...] = ()
    """Ids at which a generation ends although they are no end tokens of the model."""


def make_manifest(
    plan: Plan,
    files: Sequence[File],
    engine_files: Mapping[str, Sequence[str]],
    tokenizer: TokenizerPart,
    lint: Sequence[Mapping[str, str]],
    quality: Mapping[str, Any],
    provenance: Mapping[str, Any],
    engine_parts: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """The manifest without its digest.

    `engine_files`: the paths that each engine ("target", "draft") is made of; `engine_parts`: its further
    keys.
    """
    recipe, hashes = plan.recipe, {file.path: file for file in files}
    engines = {
        engine.name: describe_engine(engine, plan, [hashes[path] for path in engine_files[engine.name]])
        for engine in plan.engines
    }
    for name, part in (engine_parts or {}).items():
        engines[name].update(part)
    return {
        "format": FORMAT,
        "name": recipe.name,
        "files": [asdict(hashes[path]) for path in sorted(hashes)],
        "plan": describe_plan(plan),
        "engines": engines,
        "draft": describe_draft(recipe.draft, plan),
        "tokenizer": describe_tokenizer(tokenizer),
        "lint": {"passed": not lint, "findings": [dict(finding) for finding in lint]},
        "quality": dict(quality),
        "sampling": asdict(recipe.sampling),
        "certify": {"options": list(recipe.certify)},
        "gate": asdict(recipe.gate),
        "prompt_template": recipe.prompt_template,
        "provenance": dict(provenance),
    }


def describe_plan(plan: Plan) -> dict[str, Any]:
    """The numbers of a plan that the runtime needs."""
    return {
        "k": plan.k,
        "rows": plan.rows,
        "context": plan.context,
        "chunk": plan.chunk,
        "schemes": {"layers": plan.target.scheme.layers, "head": plan.target.scheme.head},
        "draft": "hierarchy" if plan.recipe.draft.small else plan.recipe.draft.kind,
        "dialect": plan.target.dialect,
        "hardware": plan.hardware.name,
        "threads": plan.threads,
        **({"choice": plan.choice} if plan.choice else {}),
        "digest": plan.digest,
    }


def describe_engine(engine: EnginePlan, plan: Plan, files: Sequence[File]) -> dict[str, Any]:
    """One engine's file, shape and hash."""
    return {
        "file": f"{engine.name}.onnx",
        "backend": plan.hardware.backend,
        "sha256": hash_engine(files),
        "vocab": engine.spec.vocab,
        "layers": engine.layers,
        "kv_heads": engine.spec.kv_heads,
        "head_dim": engine.spec.head_dim,
        "capacity": engine.capacity,
        "widths": list(engine.widths),
        **count_hidden(engine, plan),
    }


def count_hidden(engine: EnginePlan, plan: Plan) -> dict[str, int]:
    """Columns of the hidden states that an engine gives, and of those that it reads."""
    columns = {"hidden": engine.spec.hidden} if engine.hidden else {}
    if engine.name == "draft" and plan.head is not None:
        columns["hidden_in"] = engine.spec.hidden
    return columns


def describe_draft(draft: Draft, plan: Plan) -> dict[str, Any]:
    """A drafter and its parameters, or a chain of them."""
    if draft.stages:
        return {"kind": draft.kind, "stages": [describe_drafter(stage, plan) for stage in draft.stages]}
    return describe_drafter(draft, plan)


def describe_drafter(draft: Draft, plan: Plan) -> dict[str, Any]:
    """One drafter by the record of its kind; a draft model with a draft of its own is the middle of a
    hierarchy.
    """
    if draft.small is not None:
        k = min(plan.k, MOST_INNER)
        return {"kind": "hierarchy", "engine": "draft", "k": k, "draft": describe_draft(draft.small, plan)}
    kind = KINDS[draft.kind]
    part: dict[str, Any] = {"kind": kind.name, **kind.manifest_constants}
    part |= {key: getattr(draft, key) for key in kind.manifest_keys}
    if kind.weights == "head" and plan.head is not None and plan.head.ids is not None:
        part["ids"] = DRAFT_IDS
    return part


def describe_tokenizer(part: TokenizerPart) -> dict[str, Any]:
    """The tokenizer's files and ids. The runtime ends a generation at each id of `eos`, which therefore holds
    the stop ids too.
    """
    return {
        "file": "tokenizer.json",
        "ids": part.ids,
        "id_map_sha256": part.id_map_sha256,
        "bytes": ID_BYTES,
        "strip_leading_space": part.strip_leading_space,
        "eos": sorted({*part.eos, *part.stop_ids}),
        "stop_ids": list(part.stop_ids),
        "bos": part.bos,
        "special_tokens": dict(part.special_tokens),
        "chat_template": "chat_template.jinja" if part.has_chat_template else None,
    }
