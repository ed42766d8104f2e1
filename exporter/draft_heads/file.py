"""Draft head files: one safetensors file with a draft head's own weights, its draft ids and its metadata."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save

from specc.contracts.draft_head import read_safetensors_header
from specc.contracts.draft_kinds import KINDS
from specc.errors import InputError

FORMAT, VERSION = "specc-head", "1"
KINDS_WITH_HEAD = tuple(name for name, kind in KINDS.items() if kind.build_head)
PROBE_IDS = "probe.ids"
"""Ids whose embedding rows a published draft head holds as `probe.rows`."""


def save_draft_head(
    path: Path,
    kind: str,
    tensors: Mapping[str, torch.Tensor],
    ids: torch.Tensor | None,
    metadata: Mapping[str, str],
) -> None:
    """Write a draft head: float tensors as fp16, integers as int32, `ids` [Vd] as int32 `draft_ids`."""
    types = {name: torch.float16 if t.is_floating_point() else torch.int32 for name, t in tensors.items()}
    half = {name: tensor.detach().to("cpu", types[name]).contiguous() for name, tensor in tensors.items()}
    if ids is not None:
        half["draft_ids"] = ids.to(torch.int32)
    path.write_bytes(
        sort_metadata(save(half, {"format": FORMAT, "version": VERSION, "kind": kind, **metadata}))
    )


def sort_metadata(data: bytes) -> bytes:
    """The same file with its metadata in alphabetical order, so that equal draft heads are equal bytes."""
    header, start = read_safetensors_header(io.BytesIO(data))
    text = json.dumps({"__metadata__": dict(sorted(header.pop("__metadata__").items())), **header}).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[start:]


@dataclass(frozen=True)
class DraftHeadFile:
    """The contents of a draft head file."""

    metadata: dict[str, str]
    tensors: dict[str, torch.Tensor]

    @property
    def kind(self) -> str:
        """A name of KINDS_WITH_HEAD."""
        return self.metadata["kind"]

    @property
    def ids(self) -> torch.Tensor:
        """Draft ids, int64 [Vd], strictly rising."""
        return self.tensors["draft_ids"].long()


def load_draft_head(path: Path) -> DraftHeadFile:
    """Read a draft head file. Raises InputError for any other file."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except Exception as error:  # safetensors raises its own exception types
        raise InputError(
            f"cannot read the head {path}: {error}; name a file that `specc distill` wrote"
        ) from error
    if (
        metadata.get("format") != FORMAT
        or metadata.get("kind") not in KINDS_WITH_HEAD
        or "draft_ids" not in tensors
    ):
        raise InputError(f"{path} is no draft head; name a file that `specc distill` wrote")
    return DraftHeadFile(metadata, tensors)


def load_exit_norm(path: Path) -> Callable[[Any], None]:
    """A function that replaces a model's final norm by the one of a file, trained behind an inner layer."""
    norm = load_file(path)["norm.weight"].float()

    def prepare(model: Any) -> None:
        model.base_model.norm.weight = torch.nn.Parameter(norm, requires_grad=False)

    return prepare
