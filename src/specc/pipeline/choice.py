"""Stage 2: `k: auto` and `draft: auto`, chosen by acceptance along the target's answers to the tuning
prompts.

Costs are the plan's: a further row by the dialect's kernels, a draft call by memory traffic. They decide the
largest K; the gate measures what pays on the device, and its certificate may only lower K. No time is
measured here, so that the same build chooses the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specc.contracts.draft_kinds import KINDS, Draft, list_modules
from specc.contracts.files import describe_file
from specc.contracts.plan import Plan, make_plan
from specc.contracts.recipe import Recipe
from specc.pipeline import tuning
from specc.pipeline.cache import tool_versions
from specc.pipeline.checkpoint import require_build_extra
from specc.pipeline.clock import Clock
from specc.pipeline.draft_files import exit_norm_file
from specc.pipeline.identity import find_reading_entry, run_reading_stage
from specc.pipeline.planned import Planned
from specc.pipeline.source_code import code_hash
from specc.progress import Progress

if TYPE_CHECKING:
    from specc.calib.acceptance import Replay

MOST = 8
"""Largest K that is tried."""
ROW_COST = {"specc-cpu": 0.07, "ort": 0.29, "onnx24": 0.02}
"""Cost of a further row, in calls of one row: our own kernels on two cores with AVX512-VNNI (5 rows 1.28 by
`bench_peers.py --only rows`), ONNX Runtime's int4 (9.8 ms for one row, 21 for five), a GPU, where few rows
wait for weights (assumed).
"""
CODE = (
    "specc.calib",
    "specc.exporter.checkpoint.checkpoint",
    "specc.exporter.draft_heads.file",
    "specc.generate.template",
    "specc.pipeline.choice",
    "specc.pipeline.dialogue",
    "specc.pipeline.tuning",
    *list_modules("offline", "build_head"),
)


@dataclass(frozen=True)
class Candidate:
    """Drafters that may work together, by their place in the recipe, and a K."""

    parts: tuple[int, ...]
    k: int


def choose_draft(planned: Planned, clock: Clock) -> Planned:
    """The plan with K and draft chosen, where the recipe leaves them open. Raises InputError,
    EnvironmentFault.
    """
    if not is_open(planned.plan.recipe) or planned.plan.choice is not None:
        return planned
    with clock.stage("choose") as hit:
        run = partial(measure_choice, planned, clock.progress("choose"))
        entry = run_reading_stage("choice", inputs_of(planned), planned.identities, run)
        hit(entry.cached)
    return apply_choice(planned, entry.facts)


def is_open(recipe: Recipe) -> bool:
    """Whether the recipe leaves something to be chosen."""
    is_drafting = any(KINDS[part.kind].is_drafter for part in recipe.draft.parts)
    return recipe.draft.kind == "auto" or (recipe.measured_k and is_drafting)


def apply_known_choice(planned: Planned) -> Planned:
    """The plan with what an earlier build chose under the same circumstances, if the cache has it."""
    if not is_open(planned.plan.recipe):
        return planned
    entry = find_reading_entry("choice", inputs_of(planned), planned.identities)
    return planned if entry is None else apply_choice(planned, entry.facts)


def apply_choice(planned: Planned, facts: dict[str, Any]) -> Planned:
    """The plan made anew with the chosen K and draft."""
    recipe, device = recipe_with(planned.plan.recipe, facts), planned.plan.hardware
    engine = recipe.draft.engine_part
    draft = planned.draft if engine is not None and engine.checkpoint else None
    head = planned.plan.head if engine is not None and engine.head else None
    plan = make_plan(recipe, device, planned.target.spec, draft.spec if draft else None, head)
    return Planned(replace(plan, choice=facts), planned.target, draft)


def recipe_with(recipe: Recipe, facts: Mapping[str, Any]) -> Recipe:
    """The recipe with the choice in place of auto."""
    draft = recipe.draft
    if draft.kind == "auto":
        kept = [draft.stages[i] for i in facts["stages"]]
        draft = kept[0] if len(kept) == 1 else Draft("staged", stages=tuple(kept))
    return replace(recipe, k=int(facts["k"]), draft=draft)


def sentence(facts: Mapping[str, Any]) -> str:
    """`k: auto chose 3: ...` for tables."""
    by_k = ", ".join(f"{k} {value:.2f}x" for k, value in facts["by_k"].items())
    classes = ", ".join(f"{name} {part['speed_up']:.2f}x" for name, part in facts["classes"].items())
    drafts = "; ".join(f"{name} {value:.2f}x" for name, value in facts["drafts"].items())
    others = f"; of the drafts {drafts}" if len(facts["drafts"]) > 1 else ""
    return (
        f"k: auto chose {facts['k']} with {facts['draft']}, predicted by K {by_k}; by class {classes}{others}"
    )


def inputs_of(planned: Planned) -> dict[str, Any]:
    """Everything that decides the choice, beside the checkpoints."""
    from specc.calib import prompts

    plan, recipe = planned.plan, planned.plan.recipe
    table, norm = recipe.draft.table_part, exit_norm_file(plan)
    path = recipe.folder / table.file if table is not None and table.file else None
    return {
        "draft": asdict(recipe.draft),
        "head": plan.head.sha256 if plan.head else None,
        "norm": describe_file(norm.parent, norm.name).sha256 if norm else None,
        "table": describe_file(path.parent, path.name).sha256 if path else None,
        "k": [recipe.k, recipe.context],
        "costs": costs_of(plan),
        "prompts": prompts.hash_prompts(prompts.load("tuning")),
        "code": code_hash(*CODE),
        "tools": tool_versions(),
    }


def costs_of(plan: Plan) -> tuple[float, float]:
    """A further row and a draft call, in target calls of one row."""
    timing = plan.timing
    return ROW_COST[plan.target.dialect], round(timing.draft_call_ms / timing.target_call_ms, 4)


# ---------------------------------------------------------------------- choosing


def measure_choice(planned: Planned, progress: Progress, folder: Path) -> dict[str, Any]:
    """Every candidate's predicted speed-up along the target's answers; returns the facts of the best one."""
    with require_build_extra():
        measured = tuning.measure_drafters(planned, MOST, progress)
    plan = planned.plan
    played = {
        candidate: play_candidate(measured, candidate)
        for candidate in candidates(plan.recipe, len(measured.names))
    }
    return choose(plan, measured.names, played)


def candidates(recipe: Recipe, parts: int) -> Iterator[Candidate]:
    """What may be chosen: all drafters together, or any of them where the draft is auto; K as written, or up
    to MOST.
    """
    ks = range(1, min(MOST, recipe.context - 2) + 1) if recipe.k is None else [recipe.k]
    sizes = range(1, parts + 1) if recipe.draft.kind == "auto" else [parts]
    for size in sizes:
        for together in combinations(range(parts), size):
            for k in ks:
                yield Candidate(together, k)


def play_candidate(measured: tuning.Measured, candidate: Candidate) -> dict[str, Replay]:
    """Rounds of a candidate along the answers, summed by class of prompt."""
    from specc.calib.acceptance import replay_rounds, sum_replays

    played: dict[str, list[Replay]] = {}
    for sample, proposals in zip(measured.samples, measured.proposals, strict=True):
        stages = [proposals[i] for i in candidate.parts]
        played.setdefault(sample.kind, []).append(replay_rounds(sample, stages, candidate.k))
    return {name: sum_replays(played[name]) for name in sorted(played)}


def choose(
    plan: Plan, names: Sequence[str], played: Mapping[Candidate, Mapping[str, Replay]]
) -> dict[str, Any]:
    """The best by the mean over classes of the predicted speed-up; on ties fewer
    drafters, then a smaller K.
    """
    costs = costs_of(plan)
    gains = {c: mean([p.speed_up(*costs) for p in classes.values()]) for c, classes in played.items()}
    best = max(gains, key=lambda c: (round(gains[c], 4), -len(c.parts), -c.k))
    labels = {c: ", ".join(names[i] for i in c.parts) for c in gains}
    drafts: dict[str, float] = {}
    for candidate, gain in gains.items():
        label = labels[candidate]
        drafts[label] = max(drafts.get(label, 0.0), round(gain, 3))
    return {
        "k": best.k,
        "stages": list(best.parts),
        "draft": labels[best],
        "speed_up": round(gains[best], 3),
        "by_k": {str(c.k): round(gain, 3) for c, gain in gains.items() if c.parts == best.parts},
        "drafts": drafts,
        "classes": {name: class_facts(p, costs) for name, p in played[best].items()},
        "row_cost": costs[0],
        "draft_call_cost": costs[1],
    }


def class_facts(played: Replay, costs: tuple[float, float]) -> dict[str, Any]:
    """Speed-up, tokens a target call, acceptance at each position given that all before it were accepted."""
    accepted = [round(a / b, 3) if b else 0.0 for a, b in zip(played.accepted, played.tried, strict=True)]
    gain = round(played.speed_up(*costs), 3)
    return {"speed_up": gain, "tokens_per_call": round(played.tokens_per_call, 3), "accepted": accepted}


def mean(values: Sequence[float]) -> float:
    """Of at least one."""
    return sum(values) / len(values)
