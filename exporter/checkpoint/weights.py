"""The weight files of a checkpoint: their paths, their headers, their hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from specc.contracts.draft_head import read_safetensors_header
from specc.errors import InputError


def find_weight_files(path: Path) -> list[Path]:
    """The GGUF file itself, or a folder's safetensors by name; raises InputError when one is missing."""
    if path.is_file():
        return [path]
    index = read_json(path / "model.safetensors.index.json").get("weight_map", {})
    for shard in sorted(set(index.values())):
        if not (path / shard).is_file():
            raise InputError(
                f"The checkpoint folder {path.name} lacks the shard {shard} that its index names; "
                "fetch it again."
            )
    files = sorted({path / shard for shard in index.values()} or path.glob("*.safetensors"))
    if not files:
        raise InputError(
            f"The checkpoint folder {path.name} holds no .safetensors file; name a folder with weights."
        )
    return files


def hash_weights(path: Path) -> str:
    """SHA-256 over the weight files, one after the other."""
    digest = hashlib.sha256()
    for file in find_weight_files(path):
        with file.open("rb") as data:
            while chunk := data.read(1 << 22):
                digest.update(chunk)
    return digest.hexdigest()


def check_weights(path: Path) -> None:
    """Raise InputError for a truncated safetensors file."""
    for file in find_weight_files(path):
        entries, start = read_tensor_entries(file)
        end = start + max((int(entry["data_offsets"][1]) for entry in entries.values()), default=0)
        if end > file.stat().st_size:
            raise InputError(
                f"The weight file {file.name} is shorter than its header says; "
                "it is truncated, fetch it again."
            )


def read_tensor_entries(file: Path) -> tuple[dict[str, dict[str, Any]], int]:
    """The header entry of each tensor of a safetensors file, by name, and where the tensors start."""
    try:
        with file.open("rb") as data:
            header, start = read_safetensors_header(data)
    except ValueError:
        raise InputError(
            f"The weight file {file.name} ends inside its header, or the header cannot be read; "
            "it is truncated, fetch it again."
        ) from None
    return {name: entry for name, entry in header.items() if name != "__metadata__"}, start


def read_tensor_shapes(folder: Path) -> dict[str, list[int]]:
    """Name -> shape of each tensor of a folder, from the headers of its files."""
    headers = (read_tensor_entries(file)[0] for file in find_weight_files(folder))
    return {name: entry["shape"] for header in headers for name, entry in header.items()}


def read_dtype(path: Path) -> str:
    """'GGUF', or the types of a folder's weights as safetensors names them (F32, BF16), joined by "+"."""
    if path.is_file():
        return "GGUF"
    entries = (entry for file in find_weight_files(path) for entry in read_tensor_entries(file)[0].values())
    return "+".join(sorted({str(entry["dtype"]) for entry in entries}))


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object of a file; empty when the file is missing or holds none."""
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return loaded if isinstance(loaded, dict) else {}


def list_tensors(names: Iterable[str]) -> str:
    """`the tensors a, b, c and 4 more`, for a sentence."""
    ordered = sorted(names)
    more = f" and {len(ordered) - 3} more" if len(ordered) > 3 else ""
    return f"the tensor{'s' if len(ordered) > 1 else ''} {', '.join(ordered[:3])}{more}"
