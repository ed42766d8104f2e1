"""The data of one distillation: shards of the target's answers, and what is kept out of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specc.calib import answers
from specc.calib.answers import Dialogue
from specc.calib.samples import Sample, collect_runs, drop_overlaps, hash_samples
from specc.calib.shards import DataSettings, read_shard, shard_path, write_shard
from specc.errors import InputError
from specc.pipeline.dialogue import make_dialogue
from specc.progress import Progress

if TYPE_CHECKING:
    from specc.calib.batch import Batch
    from specc.exporter.checkpoint.checkpoint import Checkpoint

USER_PROMPTS = 64
"""Of the user's own prompts, in one shard."""
MOST_SHARDS = 10**5


@dataclass(frozen=True)
class TrainingData:
    """What a draft is trained on and what its acceptance is measured on."""

    training: list[Sample]
    tuning: list[Sample]
    dropped: int
    """Training samples left out because they share text with a held-out prompt or its answers."""

    @property
    def sha256(self) -> str:
        """Of the training samples."""
        return hash_samples(self.training)


def prepare_data(
    model: Any,
    checkpoint: Checkpoint,
    folder: Path,
    settings: DataSettings,
    leave_out: str | None,
    progress: Progress,
) -> TrainingData:
    """Make what is missing in `folder` and read it. `model` answers in bfloat16 and is fp32 afterwards.

    Raises InputError where no training sample is left.
    """
    import torch

    from specc.calib.batch import Batch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    half = model.to(device, torch.bfloat16)
    batch = Batch(half, answers.SLOTS, answers.CAPACITY, checkpoint.spec.eos)
    dialogue = make_dialogue(checkpoint)
    paths = make_shards(batch, dialogue, folder, settings, progress)
    held_out = answers.answer_split(batch, dialogue, folder, "held-out")
    tuning = answers.answer_split(batch, dialogue, folder, "tuning")
    samples = (s for path in paths for s in read_shard(path, with_hidden=True))
    usable = [s for s in samples if len(s.ids) > 3 and s.kind != leave_out]
    training = drop_overlaps(usable, held_out_runs(held_out))
    if not training:
        raise InputError(
            "no training sample is left without the class left out and what shares text with the "
            "held-out prompts; give more prompts"
        )
    model.to(torch.float32)
    return TrainingData(training, tuning, len(usable) - len(training))


def make_shards(
    batch: Batch, dialogue: Dialogue, folder: Path, settings: DataSettings, progress: Progress
) -> list[Path]:
    """Make the missing shards; returns those that hold the wanted tokens, or as many as the prompts give."""
    folder.mkdir(parents=True, exist_ok=True)
    tokens, paths = 0, list[Path]()
    for number in range(MOST_SHARDS):
        path = shard_path(folder, number)
        if not path.exists():
            progress("answers", tokens / settings.tokens)
            samples = make_shard(batch, dialogue, settings, number)
            if not samples:
                break
            write_shard(folder, number, samples)
        paths.append(path)
        tokens += sum(len(s.answer) for s in read_shard(path))
        if tokens >= settings.tokens:
            break
    progress("answers", 1.0)
    return paths


def make_shard(batch: Batch, dialogue: Dialogue, settings: DataSettings, number: int) -> list[Sample]:
    """One shard, of the built-in prompts or of the user's; empty where the user's prompts are used up."""
    if not settings.prompts:
        return answers.make_shard(batch, dialogue, settings.seed, number, settings.size)
    user_prompts = settings.prompts[number * USER_PROMPTS : (number + 1) * USER_PROMPTS]
    class_prompts = [("chat", text) for text in user_prompts]
    return answers.answer_prompts(batch, dialogue, class_prompts, settings.seed + number)


def held_out_runs(held_out: Sequence[Sample]) -> set[bytes]:
    """Every run of ids of the held-out user texts and answers."""
    runs = (collect_runs(s.ids[s.n_user : s.n_prompt]) | collect_runs(s.answer) for s in held_out)
    return set().union(*runs)


def read_prompts(path: Path) -> tuple[str, ...]:
    """The user's own prompts, one a line of a UTF-8 file. Raises InputError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"cannot read the prompts {path}: {error}; give a UTF-8 file with one prompt a line"
        ) from error
    prompts = tuple(line.strip() for line in lines if line.strip())
    if len(prompts) < 2:
        raise InputError(f"{path} holds {len(prompts)} prompts; give at least 2, one a line")
    return prompts


def select_frequent_ids(samples: Sequence[Sample], count: int) -> list[int]:
    """The ids seen most often in the answers, in rising order; of equally frequent ones the lower ids."""
    seen: Counter[int] = Counter()
    for s in samples:
        seen.update(s.answer.tolist())
    return sorted(sorted(seen, key=lambda id: (-seen[id], id))[:count])


def iterate_contexts(samples: Sequence[Sample], longest: int) -> Iterator[Any]:
    """Each answer's ids, with the `longest` ids of the prompt before it at most."""
    for s in samples:
        yield s.ids[max(s.n_user, s.n_prompt - longest) :]
