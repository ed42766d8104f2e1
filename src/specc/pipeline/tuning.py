"""What each drafter of a recipe proposes along the target's own answers to the tuning prompts, as floats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specc.contracts.draft_kinds import Draft
from specc.errors import InputError
from specc.pipeline import cache
from specc.pipeline.checkpoint import CheckpointRecord
from specc.pipeline.planned import Planned
from specc.progress import Progress

if TYPE_CHECKING:
    from specc.calib import acceptance
    from specc.calib.samples import Sample

ANSWERING = "answers to the tuning prompts"


@dataclass(frozen=True)
class Measured:
    """Proposals of every drafter along every answer."""

    names: tuple[str, ...]
    """Kinds of the drafters, in the recipe's order."""
    samples: tuple[Sample, ...]
    proposals: tuple[tuple[acceptance.Stage, ...], ...]
    """[sample][drafter]"""


def measure_drafters(planned: Planned, most: int, progress: Progress) -> Measured:
    """The target answers, then each drafter proposes up to `most` tokens at each place. Raises InputError."""
    samples = answer_prompts(planned.target, progress)
    if not samples:
        raise InputError("the target answers none of the tuning prompts; write k and draft into the recipe")
    parts = tuple(part for part in planned.plan.recipe.draft.parts if part.kind != "none")
    parts = parts[:1] if planned.plan.recipe.draft.small else parts
    progress("acceptance", 0.8)
    drafters = [open_drafter(planned, part, most) for part in parts]
    proposals = tuple(tuple(propose(sample) for propose in drafters) for sample in samples)
    return Measured(tuple(part.kind for part in parts), tuple(samples), proposals)


def answer_prompts(target: CheckpointRecord, progress: Progress) -> list[Sample]:
    """Greedy answers to the tuning prompts, generated once a target and shared with `specc distill`."""
    import torch

    from specc.calib import answers
    from specc.calib.batch import Batch
    from specc.calib.shards import DataSettings, data_folder, list_shards, read_shard
    from specc.pipeline.dialogue import make_dialogue

    folder = data_folder(cache.root(), target.spec.weights_sha256, DataSettings())
    if not list_shards(folder / "tuning"):
        progress(ANSWERING, 0.0)
        checkpoint = target.open()
        model = checkpoint.load().to("cuda" if torch.cuda.is_available() else "cpu", torch.bfloat16)
        batch = Batch(model, answers.SLOTS, answers.CAPACITY, checkpoint.spec.eos)
        answers.answer_split(batch, make_dialogue(checkpoint), folder, "tuning")
    samples = read_shard(list_shards(folder / "tuning")[0], with_hidden=True)
    return [sample for sample in samples if sample.temperature == 0 and len(sample.answer) > 2]


def open_drafter(planned: Planned, part: Draft, most: int) -> Callable[[Sample], acceptance.Stage]:
    """A function that gives a drafter's proposals along an answer."""
    from specc.calib import acceptance

    if part.kind == "ngram":
        return lambda sample: acceptance.make_lookup_stage(sample, part.min_match, part.max_match)
    if part.kind == "table":
        from specc.calib.ngram_table import read_table

        orders = read_table(planned.plan.recipe.folder / str(part.file))[1]
        return lambda sample: acceptance.make_table_stage(sample, orders, part.min_count)
    return open_head(planned, part, most) if planned.plan.head is not None else open_model(planned, part)


def open_head(planned: Planned, part: Draft, most: int) -> Callable[[Sample], acceptance.Stage]:
    """A trained draft head beside the float target."""
    from specc.calib import acceptance
    from specc.exporter.draft_heads.build import build_draft_head
    from specc.exporter.draft_heads.file import load_draft_head
    from specc.exporter.draft_heads.modules import MedusaHead

    assert planned.plan.head is not None
    file = load_draft_head(Path(planned.plan.head.file))
    head = build_draft_head(file, planned.target.open().load())
    if isinstance(head, MedusaHead):
        return lambda sample: acceptance.make_medusa_stage(sample, head, file.ids, part.stop)
    return lambda sample: acceptance.make_feature_stage(sample, head, file.ids, most, part.stop)


def open_model(planned: Planned, part: Draft) -> Callable[[Sample], acceptance.Stage]:
    """A draft model, or the target's first layers, as floats."""
    import torch

    from specc.calib import acceptance
    from specc.exporter.draft_heads.file import load_exit_norm

    model: Any = (planned.draft or planned.target).open().load()
    assert planned.plan.draft is not None
    if part.kind == "early-exit":
        model.config.num_hidden_layers = planned.plan.draft.layers
        if part.norm:
            load_exit_norm(planned.plan.recipe.folder / part.norm)(model)

    def argmax(ids: Sequence[int]) -> Sequence[int]:
        with torch.no_grad():
            best: list[int] = model(torch.tensor([ids]), use_cache=False).logits[0].argmax(-1).tolist()
        return best

    return lambda sample: acceptance.make_model_stage(sample, argmax)
