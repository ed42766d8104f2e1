"""What each drafter of a recipe proposes along the target's own answers to the tuning prompts, as floats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specc.contracts.draft_kinds import KINDS, Draft, import_function
from specc.errors import InputError
from specc.pipeline import cache
from specc.pipeline.checkpoint import CheckpointRecord
from specc.pipeline.planned import Planned
from specc.progress import Progress

if TYPE_CHECKING:
    from specc.calib import acceptance
    from specc.calib.samples import Sample

    Propose = Callable[[Sample], acceptance.Stage]

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
    parts = tuple(part for part in planned.plan.recipe.draft.parts if KINDS[part.kind].is_drafter)
    parts = parts[:1] if planned.plan.recipe.draft.small else parts
    progress("acceptance", 0.8)
    drafters = [import_function(KINDS[part.kind].offline)(planned, part, most) for part in parts]
    proposals = tuple(tuple(propose(sample) for propose in drafters) for sample in samples)
    return Measured(tuple(part.kind for part in parts), tuple(samples), proposals)


def answer_prompts(target: CheckpointRecord, progress: Progress) -> list[Sample]:
    """Greedy answers to the tuning prompts, generated once a target and shared with `specc distill`."""
    import torch

    from specc.calib import answers
    from specc.calib.batch import Batch
    from specc.calib.shards import DataSettings, data_folder, list_shards, read_shard
    from specc.pipeline.dialogue import make_dialogue

    folder = data_folder(cache.root(), target.identity.sha256, DataSettings())
    if not list_shards(folder / "tuning"):
        progress(ANSWERING, 0.0)
        checkpoint = target.open()
        model = checkpoint.load().to("cuda" if torch.cuda.is_available() else "cpu", torch.bfloat16)
        batch = Batch(model, answers.SLOTS, answers.CAPACITY, checkpoint.spec.eos)
        dialogue = make_dialogue(checkpoint)
        target.identity.check_unchanged()
        answers.answer_split(batch, dialogue, folder, "tuning")
    samples = read_shard(list_shards(folder / "tuning")[0], with_hidden=True)
    return [sample for sample in samples if sample.temperature == 0 and len(sample.answer) > 2]


# ------------------------------------------------------------ one function a kind (contracts.draft_kinds)


def open_lookup(planned: Planned, part: Draft, most: int) -> Propose:
    """The continuation of the longest earlier match."""
    from specc.calib.acceptance import make_lookup_stage

    return lambda sample: make_lookup_stage(sample, part.min_match, part.max_match)


def open_table(planned: Planned, part: Draft, most: int) -> Propose:
    """The likeliest next id of the static n-gram table."""
    from specc.calib.acceptance import make_table_stage
    from specc.calib.ngram_table import read_table

    orders = read_table(planned.plan.recipe.folder / str(part.file))[1]
    return lambda sample: make_table_stage(sample, orders, part.min_count)


def open_feature(planned: Planned, part: Draft, most: int) -> Propose:
    """A trained feature head beside the float target."""
    from specc.calib.acceptance import make_feature_stage

    head, ids = load_head(planned)
    return lambda sample: make_feature_stage(sample, head, ids, most, part.stop)


def open_medusa(planned: Planned, part: Draft, most: int) -> Propose:
    """Trained parallel heads beside the float target."""
    from specc.calib.acceptance import make_medusa_stage

    head, ids = load_head(planned)
    return lambda sample: make_medusa_stage(sample, head, ids, part.stop)


def load_head(planned: Planned) -> tuple[Any, Any]:
    """The module of the trained draft head, and its draft ids."""
    from specc.exporter.draft_heads.build import build_draft_head
    from specc.exporter.draft_heads.file import load_draft_head

    assert planned.plan.head is not None
    file = load_draft_head(Path(planned.plan.head.file))
    return build_draft_head(file, planned.target.open().load()), file.ids


def open_model(planned: Planned, part: Draft, most: int) -> Propose:
    """A draft model, as floats."""
    assert planned.draft is not None
    return propose_argmax(planned.draft.open().load())


def open_early_exit(planned: Planned, part: Draft, most: int) -> Propose:
    """The target's first layers as floats, behind the norm that was trained for them."""
    from specc.exporter.draft_heads.file import load_exit_norm

    assert planned.plan.draft is not None
    model: Any = planned.target.open().load()
    model.config.num_hidden_layers = planned.plan.draft.layers
    if part.norm:
        load_exit_norm(planned.plan.recipe.folder / part.norm)(model)
    return propose_argmax(model)


def propose_argmax(model: Any) -> Propose:
    """The greedy next id of a float model at every position."""
    import torch

    from specc.calib.acceptance import make_model_stage

    def argmax(ids: Sequence[int]) -> Sequence[int]:
        with torch.no_grad():
            best: list[int] = model(torch.tensor([ids]), use_cache=False).logits[0].argmax(-1).tolist()
        return best

    return lambda sample: make_model_stage(sample, argmax)
