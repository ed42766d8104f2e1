"""The data of one distillation: shards of the target's answers in a folder, and what is held out from them."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specc.calib import answers, prompts
from specc.calib.answers import Dialogue, Sample
from specc.errors import InputError
from specc.generate.template import Prompter

if TYPE_CHECKING:
    from specc.calib.batch import Ask, Batch
    from specc.exporter.checkpoint.checkpoint import Checkpoint

MARK = "\x01user\x01"
SLOTS, CAPACITY = 48, 640
MEASURED = 77
"""Seed of the answers to the measuring prompts."""
OWN = 64
"""Prompts of the user's in one shard."""
Tell = Callable[[str, int, int, float], None]
"""Hears (what, done, of, seconds left)."""


@dataclass(frozen=True)
class DataSettings:
    """What decides the data, beside the target."""

    seed: int = 2026
    tokens: int = 240_000
    """Answer tokens; shards are made until so many are there."""
    size: int = 48
    """Of a shard, see calib.answers.make_shard: few shards end with slots that wait for the last answers."""
    prompts: tuple[str, ...] = ()
    """The user's own, used instead of ours."""


def data_folder(root: Path, weights_sha256: str, settings: DataSettings) -> Path:
    """Where the shards lie: by target and settings; more tokens only add shards."""
    inputs = {**asdict(settings), "tokens": 0, "weights": weights_sha256, "format": 1}
    return root / "distill" / hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:32]


def dialogue_of(checkpoint: Checkpoint) -> Dialogue:
    """How the target's chat template frames a user's turn; nothing around it where there is no template."""
    from tokenizers import Tokenizer

    tokenizer, spec = Tokenizer.from_str(checkpoint.tokens.text), checkpoint.spec
    prompter = Prompter(tokenizer, checkpoint.chat_template, spec.bos, spec.eos, spec.token_ids)
    before, after = "", ""
    if prompter.has_template:
        before, _, after = prompter.render([{"role": "user", "content": MARK}]).partition(MARK)

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(ids: Sequence[int]) -> str:
        return str(tokenizer.decode(list(ids), skip_special_tokens=True))

    begin = [] if prompter.has_template or spec.bos is None else [spec.bos]
    return Dialogue((*begin, *encode(before)), tuple(encode(after)), encode, decode)


def gather(batch: Batch, dialogue: Dialogue, folder: Path, settings: DataSettings, tell: Tell) -> list[Path]:
    """Make the shards that are missing; returns those that hold the wanted tokens. A killed call goes on from there."""
    folder.mkdir(parents=True, exist_ok=True)
    total, made, used, began = 0, 0, [], time.monotonic()
    for number in range(10**5):
        path = folder / f"shard-{number:05d}.npz"
        if not path.exists():
            samples = shard_of(batch, dialogue, settings, number)
            if not samples:
                break
            answers.write_shard(folder, number, samples)
            made += sum(len(s.answer) for s in samples)
        used.append(path)
        total += sum(len(s.answer) for s in answers.read_shard(path))
        left = (settings.tokens - total) * (time.monotonic() - began) / made if made else 0.0
        tell("answers", min(total, settings.tokens), settings.tokens, max(0.0, left))
        if total >= settings.tokens:
            break
    return used


def shard_of(batch: Batch, dialogue: Dialogue, settings: DataSettings, number: int) -> list[Sample]:
    """One shard: of our prompts, or of the user's; empty behind their last one."""
    if not settings.prompts:
        return answers.make_shard(batch, dialogue, settings.seed, number, settings.size)
    own = settings.prompts[number * OWN : (number + 1) * OWN]
    return answered(batch, dialogue, [("chat", text) for text in own], settings.seed + number)


def answered(batch: Batch, dialogue: Dialogue, asked: Sequence[tuple[str, str]], seed: int) -> list[Sample]:
    """Answers to (class, text), each greedy and sampled."""
    from specc.calib.batch import Ask

    def ask(text: str, heat: float) -> Ask:
        return Ask(dialogue.prompt(text), heat, answers.LIMIT)

    pairs = [(kind, ask(text, heat)) for heat in (0.0, answers.SAMPLED) for kind, text in asked]
    kept = [(kind, item) for kind, item in pairs if len(item.ids) <= answers.LONGEST]
    found = batch.answer([item for _, item in kept], seed)
    return [answers.sample(kind, item, dialogue, a) for (kind, item), a in zip(kept, found, strict=True)]


def measured(batch: Batch, dialogue: Dialogue, folder: Path, split: str) -> list[Sample]:
    """Answers to the measuring prompts of one split, made once."""
    place = folder / split
    place.mkdir(parents=True, exist_ok=True)
    if not answers.shards(place):
        asked = [(kind, text) for kind, texts in prompts.load(split).items() for text in texts]
        answers.write_shard(
            place, 0, answered(batch, dialogue, asked, MEASURED + prompts.SPLITS[::-1].index(split))
        )
    return answers.read_shard(answers.shards(place)[0], with_hidden=True)


def banned_by(held_out: Sequence[Sample]) -> set[bytes]:
    """Every run of ids of the held-out user texts and answers."""
    runs = (answers.grams(s.ids[s.n_user : s.n_prompt]) | answers.grams(s.answer) for s in held_out)
    return set().union(*runs)


def own_prompts(path: Path) -> tuple[str, ...]:
    """One prompt a line of a UTF-8 file. Raises InputError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"cannot read the prompts {path}: {error}; give a UTF-8 file with one prompt a line"
        ) from error
    found = tuple(line.strip() for line in lines if line.strip())
    if len(found) < 2:
        raise InputError(f"{path} holds {len(found)} prompts; give at least 2, one a line")
    return found


def frequent_ids(samples: Sequence[Sample], count: int) -> list[int]:
    """The ids seen most often in the answers, rising; lower ids first on ties."""
    seen: Counter[int] = Counter()
    for s in samples:
        seen.update(s.answer.tolist())
    return sorted(sorted(seen, key=lambda id: (-seen[id], id))[:count])


def contexts(samples: Sequence[Sample], longest: int) -> Iterator[Any]:
    """Each answer with the ids before it that a context may read."""
    for s in samples:
        yield s.ids[max(s.n_user, s.n_prompt - longest) :]
