"""Files that a draft brings along, read without their weights: trained heads (safetensors) and static n-gram tables."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specc.errors import InputError

if TYPE_CHECKING:
    from specc.contracts.plan import ModelSpec

LONGEST_HEADER = 16 << 20
ID_TYPES = {"I32": "i", "I64": "q"}
TABLE_HEADER = 48
AGAIN = "make it again with `specc distill`"


@dataclass(frozen=True)
class Head:
    """What a head file says of itself, and the ids behind its columns."""

    kind: str
    """"feature" or "medusa"."""
    sha256: str
    weights_sha256: str
    """Of the target that it was trained for."""
    hidden: int
    vocab: int
    """Ids of the target's tokenizer."""
    numbers: Mapping[str, int]
    """feature: layers, heads, kv_heads, head_dim, intermediate; medusa: k."""
    ids: tuple[int, ...] | None
    """Target id of each column, strictly rising; None: a column for each id."""
    published: str = ""
    """"Medusa" or "EAGLE" for a head that was read in that layout."""
    file: str = ""
    """Where it lies; of a published head, where its converted form does."""

    @property
    def columns(self) -> int:
        """Logits of a row."""
        return self.vocab if self.ids is None else len(self.ids)

    @property
    def note(self) -> str:
        """What nobody checked, in words; empty for a head that says which weights it was trained for."""
        if not self.published:
            return ""
        return f"{self.published} layout, no hash of its target: fits by hidden size and ids; the gate proves the rest"


NUMBERS = {
    "feature": ("layers", "heads", "kv_heads", "head_dim", "intermediate"),
    "medusa": ("k",),
    "early-exit": ("layers",),
}


def is_published(path: Path) -> bool:
    """Whether a head's path names somebody else's layout: a folder, a pickle, or tensors without our metadata."""
    if path.is_dir() or path.suffix in (".pt", ".bin", ".pth"):
        return True
    try:
        with path.open("rb") as file:
            size = struct.unpack("<Q", file.read(8).ljust(8, b"\0"))[0]
            header = json.loads(file.read(size)) if 2 <= size <= LONGEST_HEADER else None
    except (OSError, ValueError, RecursionError):
        return False
    about = header.get("__metadata__") if isinstance(header, dict) else None
    return isinstance(header, dict) and not (isinstance(about, dict) and about.get("format") == "specc-head")


def read_head(path: Path) -> Head:
    """Header and ids of a head file. Raises InputError for what is no head."""
    try:
        with path.open("rb") as file:
            header, start = read_header(file.read(8 + LONGEST_HEADER), path)
            file.seek(0)
            digest = hashlib.file_digest(file, "sha256") if hasattr(hashlib, "file_digest") else None
            file.seek(0)
            sha256 = digest.hexdigest() if digest else hashlib.sha256(file.read()).hexdigest()
            about = header.get("__metadata__")
            if (
                not isinstance(about, dict)
                or about.get("format") != "specc-head"
                or about.get("version") != "1"
            ):
                raise InputError(f"{path} is no draft head of this version (its metadata say none); {AGAIN}")
            ids = read_ids(header.get("draft_ids"), file, start, path)
    except OSError as error:
        raise InputError(
            f"the draft head {path} cannot be read: {error.strerror or error}; check the path"
        ) from error
    return checked(make_head(about, sha256, ids, path), path)


def read_header(data: bytes, path: Path) -> tuple[dict[str, Any], int]:
    """The JSON header of a safetensors file, and where its tensors start."""
    size = struct.unpack("<Q", data[:8])[0] if len(data) >= 8 else 0
    try:
        header = json.loads(data[8 : 8 + size]) if 2 <= size <= len(data) - 8 else None
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise InputError(f"{path} is no safetensors file; {AGAIN}")
    return header, 8 + size


def read_ids(entry: Any, file: Any, start: int, path: Path) -> tuple[int, ...] | None:
    """The tensor `draft_ids`, None where the head has none."""
    if entry is None:
        return None
    try:
        letter, (count,), (begin, end) = ID_TYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
        file.seek(start + begin)
        return struct.unpack(f"<{count}{letter}", file.read(end - begin))
    except (KeyError, TypeError, ValueError, struct.error, OverflowError) as error:
        raise InputError(f"{path} has no usable draft_ids (one axis of i32 or i64); {AGAIN}") from error


def make_head(about: Mapping[str, Any], sha256: str, ids: tuple[int, ...] | None, path: Path) -> Head:
    """From metadata to a Head."""
    kind = str(about.get("kind"))
    if kind not in NUMBERS:
        raise InputError(f"{path} is a head of kind {kind!r}; known are {', '.join(NUMBERS)}")
    try:
        numbers = {name: int(about[name]) for name in ("hidden", "vocab", *NUMBERS[kind])}
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"the metadata of {path} lack a number ({error}); {AGAIN}") from error
    hidden, vocab = numbers.pop("hidden"), numbers.pop("vocab")
    weights, published = str(about.get("weights_sha256")), str(about.get("published", ""))
    return Head(kind, sha256, weights, hidden, vocab, numbers, ids, published, str(path))


def checked(head: Head, path: Path) -> Head:
    """The head, its numbers positive and its ids absolute, within the vocabulary and strictly rising (R62)."""
    if min(head.hidden, head.vocab, *head.numbers.values()) < 1:
        raise InputError(f"the metadata of {path} hold a number below 1; {AGAIN}")
    if head.ids is not None:
        check_ids(head.ids, head.vocab, path)
    return head


def check_ids(ids: Sequence[int], vocab: int, path: Path) -> None:
    """Refuse a map of offsets, of repeated or unsorted ids, or of ids that the target has not."""
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


def check_head(head: Head, kind: str, target: ModelSpec, path: Path) -> None:
    """Refuse a head that was made for another kind or another target."""
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


def check_exit(path: Path, layers: int | None, target: ModelSpec) -> None:
    """Refuse what is no norm of an early exit, or one of another target or layer."""
    norm = read_head(path)
    check_head(norm, "early-exit", target, path)
    if layers != norm.numbers["layers"]:
        found = f"{norm.numbers['layers']} layers, draft.layers is {layers or 'not given'}"
        raise InputError(f"{path} was trained behind {found}; write layers: {norm.numbers['layers']}")


def check_table(path: Path, target: ModelSpec) -> None:
    """Refuse what is no n-gram table, or one of another tokenizer."""
    try:
        with path.open("rb") as file:
            head = file.read(TABLE_HEADER)
    except OSError as error:
        why = error.strerror or error
        raise InputError(f"the n-gram table {path} cannot be read: {why}; check the path") from error
    if len(head) < TABLE_HEADER or head[:8] != b"SPCN\x01\x00\x00\x00":
        raise InputError(f"{path} is no n-gram table of this version; {AGAIN}")
    ids, map_sha256 = struct.unpack("<I", head[12:16])[0], head[16:48].hex()
    if ids != target.token_ids or map_sha256 != target.id_map_sha256:
        raise InputError(
            f"the n-gram table {path} is of another tokenizer than the target; {AGAIN} for this target"
        )


def ids_table(ids: Sequence[int]) -> bytes:
    """draft_ids.bin, little endian: "SPCI", u32 version 1, u32 n, i32 ids[n]."""
    return struct.pack(f"<4sII{len(ids)}i", b"SPCI", 1, len(ids), *ids)
