"""Files of trained draft heads, read without their weights: the safetensors header, its metadata and the
draft ids.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from specc.contracts.draft_kinds import KINDS
from specc.contracts.files import hash_file
from specc.contracts.model_spec import ModelSpec
from specc.errors import InputError

FORMAT, VERSION = "specc-head", "1"
LONGEST_HEADER = 16 << 20
ID_TYPES = {"I32": "i", "I64": "q"}
AGAIN = "make it again with `specc distill`"


@dataclass(frozen=True)
class DraftHead:
    """What the file of a draft head says of itself, and the ids behind its columns."""

    kind: str
    """A name of KINDS."""
    sha256: str
    weights_sha256: str
    """Of the target that it was trained for."""
    hidden: int
    vocab: int
    """Ids of the target's tokenizer."""
    numbers: Mapping[str, int]
    """The kind's `head_numbers`."""
    ids: tuple[int, ...] | None
    """Target id of each column, strictly rising; None: a column for each id."""
    published: str = ""
    """"Medusa" or "EAGLE" for a head that was read in that layout."""
    file: str = ""
    """Path of the file; of a published head, of its converted form."""

    @property
    def columns(self) -> int:
        """Logits of a row."""
        return self.vocab if self.ids is None else len(self.ids)

    @property
    def note(self) -> str:
        """What nobody checked; empty for a head that names the weights that it was trained for."""
        if not self.published:
            return ""
        proof = "fits by hidden size and ids; the gate proves the rest"
        return f"{self.published} layout, no hash of its target: {proof}"


def is_published(path: Path) -> bool:
    """Whether a head's path names another project's layout: a folder, a pickle, or tensors without our
    metadata.
    """
    if path.is_dir() or path.suffix in (".pt", ".bin", ".pth"):
        return True
    try:
        with path.open("rb") as file:
            header, _ = read_safetensors_header(file)
    except (OSError, ValueError):
        return False
    about = header.get("__metadata__")
    return not (isinstance(about, dict) and about.get("format") == FORMAT)


def read_draft_head(path: Path) -> DraftHead:
    """Metadata and ids of a head file, checked. Raises InputError for a file that is no draft head."""
    try:
        with path.open("rb") as file:
            header, start = read_safetensors_header(file)
            about = header.get("__metadata__")
            if not isinstance(about, dict) or (about.get("format"), about.get("version")) != (
                FORMAT,
                VERSION,
            ):
                raise InputError(f"{path} is no draft head of this version (its metadata say none); {AGAIN}")
            ids = read_draft_ids(header.get("draft_ids"), file, start, path)
        sha256 = hash_file(path)
    except OSError as error:
        why = error.strerror or error
        raise InputError(f"the draft head {path} cannot be read: {why}; check the path") from error
    except ValueError as error:
        raise InputError(f"{path} is no safetensors file; {AGAIN}") from error
    head = build_draft_head(about, sha256, ids, path)
    check_numbers(head, path)
    return head


def read_safetensors_header(file: BinaryIO) -> tuple[dict[str, Any], int]:
    """The JSON header of an open safetensors file, and the offset at which its tensors start.

    Raises ValueError for a file that has none. Layout: u64 bytes of the header, little endian, header,
    tensors.
    """
    size = struct.unpack("<Q", file.read(8).ljust(8, b"\0"))[0]
    text = file.read(size) if 2 <= size <= LONGEST_HEADER else b""
    try:
        header = json.loads(text) if len(text) == size else None
    except RecursionError:
        header = None
    if not isinstance(header, dict):
        raise ValueError("no safetensors header")
    return header, 8 + size


def read_draft_ids(entry: Any, file: BinaryIO, start: int, path: Path) -> tuple[int, ...] | None:
    """The tensor `draft_ids`, None where the head has none."""
    if entry is None:
        return None
    try:
        letter, (count,), (begin, end) = ID_TYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
        file.seek(start + begin)
        return struct.unpack(f"<{count}{letter}", file.read(end - begin))
    except (KeyError, TypeError, ValueError, struct.error, OverflowError) as error:
        raise InputError(f"{path} has no usable draft_ids (one axis of i32 or i64); {AGAIN}") from error


def build_draft_head(
    about: Mapping[str, Any], sha256: str, ids: tuple[int, ...] | None, path: Path
) -> DraftHead:
    """A DraftHead from metadata. Raises InputError for an unknown kind or a missing number."""
    kind = str(about.get("kind"))
    known = {name: record.head_numbers for name, record in KINDS.items() if record.head_numbers}
    if kind not in known:
        raise InputError(f"{path} is a head of kind {kind!r}; known are {', '.join(known)}")
    try:
        numbers = {name: int(about[name]) for name in ("hidden", "vocab", *known[kind])}
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"the metadata of {path} lack a number ({error}); {AGAIN}") from error
    hidden, vocab = numbers.pop("hidden"), numbers.pop("vocab")
    weights, published = str(about.get("weights_sha256")), str(about.get("published", ""))
    return DraftHead(kind, sha256, weights, hidden, vocab, numbers, ids, published, str(path))


def check_numbers(head: DraftHead, path: Path) -> None:
    """Raise InputError unless numbers are positive and ids absolute, in the vocabulary and strictly rising
    (R62).
    """
    if min(head.hidden, head.vocab, *head.numbers.values()) < 1:
        raise InputError(f"the metadata of {path} hold a number below 1; {AGAIN}")
    if head.ids is not None:
        check_ids(head.ids, head.vocab, path)


def check_ids(ids: Sequence[int], vocab: int, path: Path) -> None:
    """Raise InputError for a map of offsets, of repeated or unsorted ids, or of ids that the target lacks."""
    if not ids:
        raise InputError(f"{path} maps no columns to ids; {AGAIN}")
    for column, token in enumerate(ids):
        if not 0 <= token < vocab:
            raise InputError(
                f"{path} maps column {column} to id {token}, but the target's ids are 0 to {vocab - 1}"
            )
        if column and token <= ids[column - 1]:
            advice = "draft_ids must be the target's own ids, strictly rising, not offsets from the column"
            raise InputError(
                f"{path} maps column {column} to id {token} after id {ids[column - 1]}; {advice}"
            )


def check_head(head: DraftHead, kind: str, target: ModelSpec, path: Path) -> None:
    """Raise InputError for a head that was made for another kind or another target."""
    if head.kind != kind:
        raise InputError(
            f"{path} is a head of kind {head.kind}, but the recipe asks for {kind}; correct draft.kind"
        )
    if head.hidden != target.hidden:
        found = f"hidden states of {head.hidden} numbers, the target gives {target.hidden}"
        raise InputError(f"{path} reads {found}; use a head that was trained for this target")
    if head.vocab != target.token_ids:
        found = f"a tokenizer of {head.vocab} ids, the target has {target.token_ids}"
        raise InputError(f"{path} is for {found}; use a head that was trained for this target")
    if head.weights_sha256 != target.weights_sha256 and not head.published:
        found = f"weights {head.weights_sha256[:12]}..., the target's are {target.weights_sha256[:12]}..."
        raise InputError(f"{path} was trained for {found}; train a head for this target with `specc distill`")


def check_exit_norm(path: Path, layers: int | None, target: ModelSpec) -> None:
    """Raise InputError for a file that is no norm of an early exit, or one of another target or layer."""
    norm = read_draft_head(path)
    check_head(norm, "early-exit", target, path)
    if layers != norm.numbers["layers"]:
        found = f"{norm.numbers['layers']} layers, draft.layers is {layers or 'not given'}"
        raise InputError(f"{path} was trained behind {found}; write layers: {norm.numbers['layers']}")
