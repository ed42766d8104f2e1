"""The binary tables of a bundle. All are little endian: four letters, u32 version 1, u32 count, content."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from specc.errors import InputError

VERSION = 1
ID_BYTES, CALIBRATION = "id_bytes.bin", "calibration.bin"


def encode_id_bytes(texts: Sequence[bytes]) -> bytes:
    """id_bytes.bin: "SPCB", u32 version, u32 n, u32 offsets[n + 1], bytes."""
    offsets = [0]
    for text in texts:
        offsets.append(offsets[-1] + len(text))
    header = struct.pack(f"<4sII{len(offsets)}I", b"SPCB", VERSION, len(texts), *offsets)
    return header + b"".join(texts)


def encode_draft_ids(ids: Sequence[int]) -> bytes:
    """draft_ids.bin: "SPCI", u32 version, u32 n, i32 ids[n]."""
    return struct.pack(f"<4sII{len(ids)}i", b"SPCI", VERSION, len(ids), *ids)


def encode_calibration(ids: Sequence[int]) -> bytes:
    """calibration.bin: "SPCT", u32 version, u32 n, i32 ids[n]."""
    return struct.pack(f"<4sII{len(ids)}i", b"SPCT", VERSION, len(ids), *ids)


def decode_calibration(data: bytes) -> list[int]:
    """The ids of calibration.bin. Raises InputError for other bytes."""
    if len(data) < 12 or data[:4] != b"SPCT":
        raise InputError(f"{CALIBRATION} is no table of token ids; build the bundle again")
    _, version, n = struct.unpack_from("<4sII", data)
    if version != VERSION or len(data) != 12 + 4 * n:
        raise InputError(
            f"{CALIBRATION} of version {version} with {n} ids is cut short; build the bundle again"
        )
    return list(struct.unpack_from(f"<{n}i", data, 12))
