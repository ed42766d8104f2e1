"""Every number of a build, before any weight is read: widths, capacity, memory, time, digest."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from specc.contracts.costs import ENGINE_OVERHEAD, Memory, Timing, estimate_memory, estimate_timing
from specc.contracts.draft_engine import plan_draft_engine
from specc.contracts.draft_head import DraftHead
from specc.contracts.engine_plan import EnginePlan, plan_engine
from specc.contracts.model_spec import ModelSpec
from specc.contracts.precision import (
    check_cache_type,
    check_scheme,
    choose_dialect,
    set_cache_type,
    set_types,
)
from specc.contracts.recipe import Recipe
from specc.targets import Hardware

DEFAULT_K = 4


@dataclass(frozen=True)
class Plan:
    """All numbers of one build on one kind of hardware."""

    recipe: Recipe
    hardware: Hardware
    k: int
    context: int
    chunk: int
    threads: int
    target: EnginePlan
    draft: EnginePlan | None
    memory: Memory
    timing: Timing
    digest: str
    head: DraftHead | None = None
    """The trained draft head, if one drafts."""
    choice: dict[str, Any] | None = None
    """What `k: auto` and `draft: auto` measured and chose."""

    @property
    def rows(self) -> int:
        """Rows of the verification graph."""
        return self.k + 1

    @property
    def fits(self) -> bool:
        """Whether the device's memory, less the system's reserve, holds everything."""
        return self.memory.total <= self.hardware.budget_mb << 20

    @property
    def engines(self) -> tuple[EnginePlan, ...]:
        """Target first, then the draft where it has a graph."""
        return (self.target,) if self.draft is None else (self.target, self.draft)


def make_plan(
    recipe: Recipe,
    hardware: Hardware,
    target: ModelSpec,
    draft: ModelSpec | None = None,
    head: DraftHead | None = None,
) -> Plan:
    """Join recipe, hardware and model specs. `draft` is needed for a draft model, `head` for a trained draft
    head.

    Raises RecipeError where the recipe asks for more than the models or the hardware have.
    """
    k = recipe.k or DEFAULT_K
    check_context(recipe, k, target)
    target_engine = plan_target_engine(recipe, k, hardware, target, head is not None)
    draft_engine = plan_draft_engine(recipe, k, hardware, target_engine, draft, head)
    target_engine = set_types(target_engine, hardware)
    check_cache_type(recipe, hardware, target_engine)
    target_engine = set_cache_type(target_engine, recipe.cache)
    if draft_engine is not None:
        draft_engine = set_cache_type(set_types(draft_engine, hardware), recipe.cache)
    threads = recipe.threads or hardware.threads
    return Plan(
        recipe=recipe,
        hardware=hardware,
        k=k,
        context=recipe.context,
        chunk=target_engine.chunk,
        threads=threads,
        target=target_engine,
        draft=draft_engine,
        memory=estimate_memory(target_engine, draft_engine),
        timing=estimate_timing(target_engine, draft_engine, k, hardware.bandwidth_gb_s),
        digest=hash_plan(recipe, hardware, k, threads, target_engine, draft_engine, head),
        head=head,
    )


def check_context(recipe: Recipe, k: int, spec: ModelSpec) -> None:
    """Raise RecipeError unless the context holds one prompt token and a whole round, and the model takes
    it.
    """
    allowed = f"allowed are {k + 2} (K + 2) to {spec.max_context} (the model's maximum)"
    if not k + 2 <= recipe.context <= spec.max_context:
        raise recipe.make_error("context", f"context is {recipe.context}", allowed)


def plan_target_engine(
    recipe: Recipe, k: int, hardware: Hardware, spec: ModelSpec, gives_hidden: bool
) -> EnginePlan:
    """The target's engine; `gives_hidden`: it also outputs its hidden states. Raises RecipeError."""
    dialect = choose_dialect(recipe, hardware)
    check_scheme(recipe, hardware, dialect, recipe.scheme)
    engine = plan_engine("target", spec, recipe.scheme, spec.layers, recipe.context, k, dialect, None)
    return replace(engine, hidden=gives_hidden)


def hash_plan(
    recipe: Recipe,
    hardware: Hardware,
    k: int,
    threads: int,
    target: EnginePlan,
    draft: EnginePlan | None,
    head: DraftHead | None,
) -> str:
    """SHA-256 over everything that decides what is built; names of files and prose do not count."""
    engines = [asdict(engine) for engine in (target, draft) if engine is not None]
    parts = {
        "engines": engines,
        "hardware": hardware.name,
        "k": k,
        "threads": threads,
        "draft": asdict(recipe.draft),
    }
    text = json.dumps(parts | ({"head": head.sha256} if head else {}), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def as_dict(plan: Plan) -> dict[str, Any]:
    """The plan as `specc plan --json` prints it."""
    return {
        "recipe": plan.recipe.name,
        "hardware": plan.hardware.name,
        "k": plan.k,
        "rows": plan.rows,
        "context": plan.context,
        "chunk": plan.chunk,
        "threads": plan.threads,
        "draft": plan.recipe.draft.kind,
        **({"choice": plan.choice} if plan.choice else {}),
        **({"head": plan.head.note} if plan.head is not None and plan.head.note else {}),
        "engines": {engine.name: asdict(engine) for engine in plan.engines},
        "memory": {**asdict(plan.memory), "engine_library": ENGINE_OVERHEAD, "total": plan.memory.total},
        "fits": plan.fits,
        "timing": asdict(plan.timing),
        "digest": plan.digest,
    }
