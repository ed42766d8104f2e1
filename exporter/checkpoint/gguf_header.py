"""The header of a GGUF file, read without its weights: metadata, and the place of each tensor."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from specc.errors import InputError

MAGIC = b"GGUF"
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9


@dataclass(frozen=True)
class TensorInfo:
    """One tensor: name, dimensions (fastest first), GGML type number, byte offset in the data."""

    name: str
    dims: tuple[int, ...]
    kind: int
    offset: int

    @property
    def elements(self) -> int:
        """Numbers in the tensor."""
        count = 1
        for dim in self.dims:
            count *= dim
        return count


@dataclass(frozen=True)
class GgufHeader:
    """Metadata by key, tensors in file order, and the byte offset of the data."""

    metadata: dict[str, Any]
    tensors: tuple[TensorInfo, ...]
    data_start: int


def read_gguf_header(path: Path) -> GgufHeader:
    """Read the header of a GGUF file (version 2 or 3, little endian).

    Raises InputError for any other file.
    """
    try:
        with path.open("rb") as file:
            return parse_header(file, path)
    except (struct.error, EOFError, UnicodeDecodeError, KeyError, MemoryError, OverflowError):
        raise InputError(
            f"The GGUF file {path.name} ends inside its header; it is truncated, fetch it again."
        ) from None


def parse_header(file: BinaryIO, path: Path) -> GgufHeader:
    """The header of an open file."""
    if file.read(4) != MAGIC:
        raise InputError(f"The file {path.name} does not start as a GGUF file; name a GGUF checkpoint.")
    (version,) = struct.unpack("<I", file.read(4))
    if version not in (2, 3):
        raise InputError(f"The GGUF file {path.name} has format {version}; formats 2 and 3 can be read.")
    count, pairs = struct.unpack("<QQ", file.read(16))
    metadata = {}
    for _ in range(pairs):
        key = read_string(file)
        (kind,) = struct.unpack("<I", file.read(4))
        metadata[key] = read_value(file, kind)
    tensors = tuple(read_tensor(file) for _ in range(count))
    align = int(metadata.get("general.alignment", 32))
    return GgufHeader(metadata, tensors, -(-file.tell() // align) * align)


def read_string(file: BinaryIO) -> str:
    """A length and that many bytes of UTF-8; raises EOFError when the file ends first."""
    (length,) = struct.unpack("<Q", file.read(8))
    if length > 1 << 26:
        raise EOFError
    raw = file.read(length)
    if len(raw) != length:
        raise EOFError
    return raw.decode("utf-8", errors="replace")


def read_value(file: BinaryIO, kind: int) -> Any:
    """One metadata value: a string, an array as a list, or a number."""
    if kind == STRING:
        return read_string(file)
    if kind == ARRAY:
        inner, length = struct.unpack("<IQ", file.read(12))
        if inner in SCALARS:
            form = f"<{length}{SCALARS[inner]}"
            return list(struct.unpack(form, file.read(struct.calcsize(form))))
        return [read_value(file, inner) for _ in range(length)]
    form = "<" + SCALARS[kind]
    return struct.unpack(form, file.read(struct.calcsize(form)))[0]


def read_tensor(file: BinaryIO) -> TensorInfo:
    """One entry of the tensor table."""
    name = read_string(file)
    (rank,) = struct.unpack("<I", file.read(4))
    dims = struct.unpack(f"<{rank}Q", file.read(8 * rank))
    kind, offset = struct.unpack("<IQ", file.read(12))
    return TensorInfo(name, dims, kind, offset)


def check_complete(header: GgufHeader, path: Path) -> None:
    """Raise InputError for a tensor of an unknown type, or one that would end behind the file's last byte."""
    from gguf import GGML_QUANT_SIZES

    size = path.stat().st_size
    known = {int(kind): layout for kind, layout in GGML_QUANT_SIZES.items()}
    for tensor in header.tensors:
        if tensor.kind not in known:
            raise InputError(
                f"The tensor {tensor.name} of {path.name} has the GGML type {tensor.kind}, which is "
                "not known; "
                "requantize the file to a type of llama.cpp's list."
            )
        block, bytes_each = known[tensor.kind]
        end = header.data_start + tensor.offset + tensor.elements // block * bytes_each
        if end > size:
            raise InputError(
                f"The GGUF file {path.name} has {size} bytes but its tensor {tensor.name} ends at byte {end};"
                " it is truncated, fetch it again."
            )
