"""The weight files of a checkpoint: which they are, what their heads say, their hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specc.errors import InputError


def find_weight_files(path: Path) -> list[Path]:
    """The GGUF file itself, or a folder's safetensors in order of name; raises InputError when one is missing."""
    if path.is_file():
        return [path]
    index = read_json(path / "model.safetensors.index.json").get("weight_map", {})
    for shard in sorted(set(index.values())):
        if not (path / shard).is_file():
            raise InputError(
                f"The checkpoint folder {path.name} lacks the shard {shard} that its index names; fetch it again."
            )
    found = sorted({path / shard for shard in index.values()} or path.glob("*.safetensors"))
    if not found:
        raise InputError(
            f"The checkpoint folder {path.name} holds no .safetensors file; name a folder with weights."
        )
    return found


def hash_weights(path: Path) -> str:
    """SHA-256 over the weight files, one after the other."""
    digest = hashlib.sha256()
    for file in find_weight_files(path):
        with file.open("rb") as data:
            while chunk := data.read(1 << 22):
                digest.update(chunk)
    return digest.hexdigest()


def check_weights(path: Path) -> None:
    """Raise InputError for a cut safetensors file, before a loader meets it."""
    for file in find_weight_files(path):
        ends = [int(entry["data_offsets"][1]) for _, entry in read_tensor_entries(file)]
        with file.open("rb") as data:
            start = 8 + int.from_bytes(data.read(8), "little")
        if start + max(ends, default=0) > file.stat().st_size:
            raise InputError(
                f"The weight file {file.name} is shorter than its header says; it is truncated, fetch it again."
            )


def read_tensor_entries(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, header entry) of each tensor in a safetensors file."""
    with file.open("rb") as data:
        length = int.from_bytes(data.read(8), "little")
        raw = data.read(length) if length < 1 << 30 else b""
    if len(raw) != length or not length:
        raise InputError(
            f"The weight file {file.name} ends inside its header; it is truncated, fetch it again."
        )
    try:
        entries = json.loads(raw)
    except ValueError:
        raise InputError(f"The weight file {file.name} has an unreadable header; fetch it again.") from None
    yield from ((name, entry) for name, entry in entries.items() if name != "__metadata__")


def read_tensor_shapes(folder: Path) -> dict[str, list[int]]:
    """Name -> shape of each tensor of a folder, from the heads of its files."""
    return {
        name: entry["shape"]
        for file in find_weight_files(folder)
        for name, entry in read_tensor_entries(file)
    }


def read_dtype(path: Path) -> str:
    """'GGUF', or the number types of a folder's weights as safetensors names them (F32, BF16), joined by "+"."""
    if path.is_file():
        return "GGUF"
    files = find_weight_files(path)
    return "+".join(sorted({str(entry["dtype"]) for file in files for _, entry in read_tensor_entries(file)}))


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; empty when there is no such file or it is none."""
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return loaded if isinstance(loaded, dict) else {}
