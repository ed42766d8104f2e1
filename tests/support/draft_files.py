"""Writers of the small files that drafters read, in numpy, as the C sources describe their formats."""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

MASK = (1 << 64) - 1


def context_hash(ids: Sequence[int]) -> int:
    """The stated hash of a context, oldest id first."""
    h = 0x9E3779B97F4A7C15 * len(ids) & MASK
    for token in ids:
        h = (h ^ token) * 0xBF58476D1CE4E5B9 & MASK
        h ^= h >> 32
    return h


def order_bytes(order: int, text: Sequence[int], slots: int) -> bytes:
    """One order's part: the likeliest next id of every context of `text`."""
    seen: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    for i in range(len(text) - order):
        seen[tuple(text[i : i + order])][text[i + order]] += 1
    table = [(0, 0, 0, 0)] * slots
    for context, counts in seen.items():
        h = context_hash(context)
        at = next(i % slots for i in range(h % slots, h % slots + 32) if not table[i % slots][0])
        following, count = counts.most_common(1)[0]
        table[at] = (h >> 32 or 1, following, count, counts.total())
    return struct.pack("<II", order, slots) + b"".join(struct.pack("<IiHH", *slot) for slot in table)


def table_bytes(text: Sequence[int], n_ids: int, orders: Sequence[int] = (3, 2), slots: int = 256) -> bytes:
    """draft_table.bin over one text."""
    header = struct.pack("<4sIII32s", b"SPCN", 1, len(orders), n_ids, bytes(32))
    return header + b"".join(order_bytes(order, text, slots) for order in orders)


def write_table(path: Path, text: Sequence[int], n_ids: int, orders: Sequence[int] = (3, 2)) -> Path:
    """Write such a table; returns the path."""
    path.write_bytes(table_bytes(text, n_ids, orders))
    return path


def ids_bytes(ids: Sequence[int]) -> bytes:
    """draft_ids.bin."""
    return struct.pack(f"<4sII{len(ids)}i", b"SPCI", 1, len(ids), *ids)
