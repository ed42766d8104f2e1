"""Shards: files of samples in one folder, written once and never changed; a stopped run goes on from them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from specc.calib.prompts import CLASSES
from specc.calib.samples import Sample
from specc.errors import InputError

OWNER = "target.json"
"""Says whose answers a folder holds."""


@dataclass(frozen=True)
class DataSettings:
    """What decides the training data, beside the target."""

    seed: int = 2026
    tokens: int = 240_000
    """Answer tokens that are wanted; shards are made until there are as many."""
    size: int = 48
    """Of a shard, see calib.answers.make_shard. Slots idle at the end of a shard: few large ones are faster.
    """
    prompts: tuple[str, ...] = ()
    """The user's own prompts, used instead of the built-in ones."""


def data_folder(root: Path, identity: str, settings: DataSettings) -> Path:
    """The folder of the shards, by the target's identity (a hash over all its files) and the settings without
    `tokens`: more tokens only add shards.
    """
    inputs = {**asdict(settings), "tokens": 0, "target": identity, "format": 1}
    return root / "distill" / hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:32]


def claim_folder(folder: Path, identity: str) -> None:
    """Write into a folder of shards which target's answers it holds.

    Raises InputError where it holds those of another target, or of one that it does not name.
    """
    path = folder / OWNER
    if path.is_file():
        try:
            owner = json.loads(path.read_text(encoding="utf-8"))["identity"]
        except (OSError, ValueError, KeyError, TypeError):
            raise InputError(
                f"The file {path} cannot be read; name another folder for the answers."
            ) from None
        if owner != identity:
            raise InputError(
                f"The folder {folder} holds answers of another target, or of this one before its weights, "
                "configuration, tokenizer or chat template changed; name another folder."
            )
        return
    record = json.dumps({"identity": identity})
    if any(folder.rglob("shard-*.npz")):
        raise InputError(
            f"The folder {folder} does not say which target's answers it holds; name another folder, or, if "
            f"they are this target's, write {record} into {path}."
        )
    folder.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(record, encoding="utf-8")
    os.replace(part, path)


def shard_path(folder: Path, number: int) -> Path:
    """The path of one shard: `shard-00012.npz`."""
    return folder / f"shard-{number:05d}.npz"


def list_shards(folder: Path) -> list[Path]:
    """Complete shards by number."""
    return sorted(path for path in folder.glob("shard-*.npz") if ".part" not in path.name)


def write_shard(folder: Path, number: int, samples: Sequence[Sample]) -> Path:
    """Write `shard-00012.npz` and the hidden states as `shard-00012.hidden.npy`, each whole or not at all."""
    path = shard_path(folder, number)
    hidden = [s.hidden for s in samples if s.hidden is not None]
    if hidden:
        part = path.with_suffix(".part.npy")
        np.save(part, np.concatenate(hidden))
        os.replace(part, path.with_suffix(".hidden.npy"))
    part = folder / f"{path.stem}.part.npz"
    np.savez(
        part,
        ids=np.concatenate([s.ids for s in samples]),
        lengths=np.asarray([len(s.ids) for s in samples], np.int32),
        n_prompt=np.asarray([s.n_prompt for s in samples], np.int32),
        n_user=np.asarray([s.n_user for s in samples], np.int32),
        kind=np.asarray([CLASSES.index(s.kind) for s in samples], np.int32),
        temperature=np.asarray([s.temperature for s in samples], np.float32),
    )
    os.replace(part, path)
    return path


def read_shard(path: Path, with_hidden: bool = False) -> list[Sample]:
    """The samples of one shard; hidden states are memory-mapped, and None without `with_hidden`."""
    with np.load(path) as file:
        table = {name: file[name] for name in file.files}
    ends = np.cumsum(table["lengths"])
    hidden = np.load(path.with_suffix(".hidden.npy"), mmap_mode="r") if with_hidden else None
    samples = []
    for i, end in enumerate(ends):
        # Sample i has one row of hidden states fewer than ids, so i rows are missing before it.
        start = int(end - table["lengths"][i])
        states = None if hidden is None else hidden[start - i : int(end) - i - 1]
        kind, temperature = CLASSES[int(table["kind"][i])], round(float(table["temperature"][i]), 4)
        ids = table["ids"][start : int(end)]
        n_prompt, n_user = int(table["n_prompt"][i]), int(table["n_user"][i])
        samples.append(Sample(kind, temperature, ids, n_prompt, n_user, states))
    return samples
