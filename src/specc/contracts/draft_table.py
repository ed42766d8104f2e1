"""The header of a static n-gram table, as runtime/core/draft reads it: checked without its slots."""

from __future__ import annotations

import struct
from pathlib import Path

from specc.contracts.model_spec import ModelSpec
from specc.errors import InputError

HEADER_BYTES = 48
"""char[4] magic, u32 version, u32 orders, u32 ids, u8[32] SHA-256 of the map from ids to strings; little
endian.
"""
MAGIC, VERSION = b"SPCN", 1
AGAIN = "make it again with `specc distill`"


def check_ngram_table(path: Path, target: ModelSpec) -> None:
    """Raise InputError for a file that is no n-gram table, or one of another tokenizer."""
    try:
        with path.open("rb") as file:
            header = file.read(HEADER_BYTES)
    except OSError as error:
        why = error.strerror or error
        raise InputError(f"the n-gram table {path} cannot be read: {why}; check the path") from error
    if len(header) < HEADER_BYTES or struct.unpack_from("<4sI", header) != (MAGIC, VERSION):
        raise InputError(f"{path} is no n-gram table of this version; {AGAIN}")
    (ids,), map_sha256 = struct.unpack_from("<I", header, 12), header[16:48].hex()
    if ids != target.token_ids or map_sha256 != target.id_map_sha256:
        raise InputError(
            f"the n-gram table {path} is of another tokenizer than the target; {AGAIN} for this target"
        )
