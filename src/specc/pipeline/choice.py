"""`k: auto` and `draft: auto`: acceptance along the target's answers to the tuning prompts chooses K and the stages.

Costs are the plan's: a further row by the dialect's kernels, a draft call by memory traffic. They decide the largest K;
what pays on the device is measured by its gate, whose certificate may only lower it. No clock: the same build chooses
the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specc.contracts.draft_kinds import Draft
from specc.contracts.files import describe_file
from specc.contracts.plan import Plan
from specc.contracts.recipe import Recipe
from specc.errors import InputError
from specc.pipeline import cache
from specc.pipeline.cache import Stage, code_hash
from specc.pipeline.checkpoint import Described, build_extra
from specc.pipeline.clock import Steps
from specc.pipeline.draft_files import norm_of

if TYPE_CHECKING:
    from specc.calib import acceptance
    from specc.calib.answers import Sample

MOST = 8
"""Largest K that is tried."""
ROW_COST = {"specc-cpu": 0.07, "ort": 0.29, "onnx24": 0.02}
"""Of a further row, in calls of one row: our own kernels on two cores with AVX512-VNNI (5 rows 1.28 by `bench_peers.py
--only rows`), ONNX Runtime's int4 (9.8 ms for one row, 21 for five), a GPU, few rows wait for weights (assumed)."""
STEP = "answers to the tuning prompts"


@dataclass(frozen=True)
class Asked:
    """A provisional plan with everything that the recipe names, and what it was made from."""

    plan: Plan
    target: Described
    draft: Described | None


def is_asked(recipe: Recipe) -> bool:
    """Whether the recipe leaves something to be chosen."""
    return recipe.draft.kind == "auto" or (recipe.measured_k and recipe.draft.kind != "none")


def known(asked: Asked) -> dict[str, Any] | None:
    """What an earlier build chose under the same circumstances."""
    found = cache.known("choice", inputs_of(asked))
    return None if found is None else found.facts


def choose(asked: Asked, steps: Steps) -> Stage:
    """Measure and choose. Raises InputError, EnvironmentFault."""
    return cache.stage("choice", inputs_of(asked), partial(measure, asked, steps))


def settled(recipe: Recipe, facts: Mapping[str, Any]) -> Recipe:
    """The recipe with what was chosen in place of auto."""
    draft = recipe.draft
    if draft.kind == "auto":
        kept = [draft.stages[i] for i in facts["stages"]]
        draft = kept[0] if len(kept) == 1 else Draft("staged", stages=tuple(kept))
    return replace(recipe, k=int(facts["k"]), draft=draft)


def sentence(facts: Mapping[str, Any]) -> str:
    """`k: auto chose 3: ...` for tables."""
    tried = ", ".join(f"{k} {value:.2f}x" for k, value in facts["by_k"].items())
    classes = ", ".join(f"{name} {part['speed_up']:.2f}x" for name, part in facts["classes"].items())
    others = "; ".join(f"{name} {value:.2f}x" for name, value in facts["drafts"].items())
    chosen = f"; of the drafts {others}" if len(facts["drafts"]) > 1 else ""
    return f"k: auto chose {facts['k']} with {facts['draft']}, predicted by K {tried}; by class {classes}{chosen}"


def inputs_of(asked: Asked) -> dict[str, Any]:
    """Everything that decides the choice."""
    from specc.calib import prompts

    plan, recipe = asked.plan, asked.plan.recipe
    table = recipe.draft.table_part
    path = recipe.folder / table.file if table is not None and table.file else None
    return {
        "target": asked.target.spec.weights_sha256,
        "draft": asdict(recipe.draft),
        "weights": asked.draft.spec.weights_sha256 if asked.draft else None,
        "head": plan.head.sha256 if plan.head else None,
        "norm": describe_file(norm.parent, norm.name).sha256 if (norm := norm_of(plan)) else None,
        "table": describe_file(path.parent, path.name).sha256 if path else None,
        "k": [recipe.k, recipe.context],
        "costs": costs_of(plan),
        "prompts": prompts.sha256_of(prompts.load("tuning")),
        "code": [code_hash("specc.calib"), code_hash("specc.pipeline.choice")],
    }


def costs_of(plan: Plan) -> list[float]:
    """A further row and a draft call, in target calls of one row."""
    timing = plan.timing
    return [ROW_COST[plan.target.dialect], round(timing.draft_call_ms / timing.target_call_ms, 4)]


# ---------------------------------------------------------------------- measuring


def measure(asked: Asked, steps: Steps, folder: Path) -> dict[str, Any]:
    """The facts of a choice; nothing is written."""
    with build_extra():
        samples = tuning_answers(asked.target, steps)
        if not samples:
            raise InputError(
                "the target answers none of the tuning prompts; write k and draft into the recipe"
            )
        parts = tuple(part for part in asked.plan.recipe.draft.parts if part.kind != "none")
        parts = parts[:1] if asked.plan.recipe.draft.small else parts
        steps("acceptance", 0.8)
        makers = [maker(asked, part) for part in parts]
        tables = [[make(sample) for make in makers] for sample in samples]
    kinds = [sample.kind for sample in samples]
    return chosen(asked.plan, [part.kind for part in parts], kinds, samples, tables)


def tuning_answers(target: Described, steps: Steps) -> list[Sample]:
    """Greedy answers to the tuning prompts, made once a target and shared with `specc distill`."""
    import torch

    from specc.calib import answers
    from specc.calib.batch import Batch
    from specc.distill import data

    folder = data.data_folder(cache.root(), target.spec.weights_sha256, data.DataSettings())
    if not answers.shards(folder / "tuning"):
        steps(STEP, 0.0)
        checkpoint = target.open()
        model = checkpoint.load().to("cuda" if torch.cuda.is_available() else "cpu", torch.bfloat16)
        batch = Batch(model, data.SLOTS, data.CAPACITY, checkpoint.spec.eos)
        data.measured(batch, data.dialogue_of(checkpoint), folder, "tuning")
    found = answers.read_shard(answers.shards(folder / "tuning")[0], with_hidden=True)
    return [s for s in found if s.temperature == 0 and len(s.answer) > 2]


def maker(asked: Asked, part: Draft) -> Callable[[Sample], acceptance.Stage]:
    """What one drafter proposes along an answer."""
    from specc.calib import acceptance

    if part.kind == "ngram":
        return lambda sample: acceptance.lookup_stage(sample, part.min_match, part.max_match)
    if part.kind == "table":
        from specc.calib.ngram_table import read_table

        orders = read_table(asked.plan.recipe.folder / str(part.file))[1]
        return lambda sample: acceptance.table_stage(sample, orders, part.min_count)
    return head_maker(asked, part) if asked.plan.head is not None else model_maker(asked, part)


def head_maker(asked: Asked, part: Draft) -> Callable[[Sample], acceptance.Stage]:
    """A trained head beside the float target."""
    from specc.calib import acceptance
    from specc.exporter.draft_heads.build import build_draft_head
    from specc.exporter.draft_heads.file import load_draft_head
    from specc.exporter.draft_heads.modules import MedusaHead

    assert asked.plan.head is not None
    file = load_draft_head(Path(asked.plan.head.file))
    head = build_draft_head(file, asked.target.open().load())
    if isinstance(head, MedusaHead):
        return lambda sample: acceptance.medusa_stage(sample, head, file.ids, part.stop)
    return lambda sample: acceptance.feature_stage(sample, head, file.ids, MOST, part.stop)


def model_maker(asked: Asked, part: Draft) -> Callable[[Sample], acceptance.Stage]:
    """A draft model, or the target's first layers, as floats."""
    import torch

    from specc.calib import acceptance
    from specc.exporter.draft_heads.file import load_exit_norm

    model: Any = (asked.draft or asked.target).open().load()
    assert asked.plan.draft is not None
    if part.kind == "early-exit":
        model.config.num_hidden_layers = asked.plan.draft.layers
        if part.norm:
            load_exit_norm(asked.plan.recipe.folder / part.norm)(model)

    def argmax(ids: Sequence[int]) -> Sequence[int]:
        with torch.no_grad():
            found: list[int] = model(torch.tensor([ids]), use_cache=False).logits[0].argmax(-1).tolist()
        return found

    return lambda sample: acceptance.model_stage(sample, argmax)


# ---------------------------------------------------------------------- choosing


def candidates(draft: Draft, parts: int) -> Iterator[tuple[int, ...]]:
    """Which parts may draft together, in their order; all of them unless the draft is auto."""
    if draft.kind != "auto":
        yield tuple(range(parts))
        return
    for size in range(1, parts + 1):
        yield from combinations(range(parts), size)


def chosen(
    plan: Plan,
    names: Sequence[str],
    kinds: Sequence[str],
    samples: Sequence[Sample],
    tables: Sequence[Sequence[acceptance.Stage]],
) -> dict[str, Any]:
    """The best candidate and K by the mean over classes of the predicted speed-up; on ties fewer parts, a smaller K."""
    recipe, costs = plan.recipe, costs_of(plan)
    lengths = range(1, min(MOST, recipe.context - 2) + 1) if recipe.k is None else [recipe.k]
    found: dict[tuple[tuple[int, ...], int], dict[str, acceptance.Played]] = {}
    for parts in candidates(recipe.draft, len(names)):
        for k in lengths:
            found[parts, k] = by_class(kinds, samples, [[row[i] for i in parts] for row in tables], k)
    gains = {key: mean([p.speed_up(*costs) for p in played.values()]) for key, played in found.items()}
    best = max(gains, key=lambda key: (round(gains[key], 4), -len(key[0]), -key[1]))
    return facts_of(best, gains, found[best], names, costs)


def by_class(
    kinds: Sequence[str], samples: Sequence[Sample], stages: Sequence[Sequence[acceptance.Stage]], k: int
) -> dict[str, acceptance.Played]:
    """Rounds over the answers of each class."""
    from specc.calib.acceptance import play, together

    played = [play(sample, own, k) for sample, own in zip(samples, stages, strict=True)]
    named = {
        name: [p for p, kind in zip(played, kinds, strict=True) if kind == name]
        for name in sorted(set(kinds))
    }
    return {name: together(parts) for name, parts in named.items()}


def facts_of(
    best: tuple[tuple[int, ...], int],
    gains: Mapping[tuple[tuple[int, ...], int], float],
    played: Mapping[str, acceptance.Played],
    names: Sequence[str],
    costs: Sequence[float],
) -> dict[str, Any]:
    """The choice and its figures, as the bundle keeps them."""
    parts, k = best

    def label(kept: tuple[int, ...]) -> str:
        return ", ".join(names[i] for i in kept)

    drafts: dict[str, float] = {}
    for (kept, _), gain in gains.items():
        drafts[label(kept)] = max(drafts.get(label(kept), 0.0), round(gain, 3))
    return {
        "k": k,
        "stages": list(parts),
        "draft": label(parts),
        "speed_up": round(gains[best], 3),
        "by_k": {str(length): round(gain, 3) for (kept, length), gain in gains.items() if kept == parts},
        "drafts": drafts,
        "classes": {name: class_facts(p, costs) for name, p in played.items()},
        "row_cost": costs[0],
        "draft_call_cost": costs[1],
    }


def class_facts(played: acceptance.Played, costs: Sequence[float]) -> dict[str, Any]:
    """Speed-up, tokens a target call, acceptance at each position given that all before it stood."""
    accepted = [round(a / b, 3) if b else 0.0 for a, b in zip(played.right, played.tried, strict=True)]
    gain = round(played.speed_up(costs[0], costs[1]), 3)
    return {"speed_up": gain, "tokens_per_call": round(played.per_call, 3), "accepted": accepted}


def mean(values: Sequence[float]) -> float:
    """Of at least one."""
    return sum(values) / len(values)
