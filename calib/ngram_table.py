"""A static n-gram table of the target's own answers: the likeliest next id after a context.

The format is that of runtime/core/draft/draft_table.c: 12 bytes a slot, open addressing. A wrong entry lowers
the acceptance rate and nothing else.
"""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from specc.errors import InputError

MAGIC, VERSION = b"SPCN", 1
PROBES = 32
"""Slots that are looked at for one context."""
MOST = 65535
"""Largest count that a slot holds."""
MASK = (1 << 64) - 1
SLOT = np.dtype([("tag", "<u4"), ("next", "<i4"), ("count", "<u2"), ("total", "<u2")])
Context = tuple[int, ...]


@dataclass(frozen=True)
class Entry:
    """`next` followed a context `count` of the `total` times that the context was seen."""

    next: int
    count: int
    total: int


Table = dict[int, dict[Context, Entry]]
"""Order -> context -> entry."""


def count_table(
    answers: Iterable[Sequence[int]], orders: Sequence[int], min_count: int, min_share: float = 0.0
) -> Table:
    """Contexts whose likeliest next id was seen at least `min_count` times and in `min_share` of the cases.

    `answers` are the target's ids, each with as much of the prompt before it as a context may read. A longer
    context with the same likeliest id as the next shorter one is left out: the reader falls back to the
    shorter one.
    """
    counts: dict[int, dict[Context, Counter[int]]] = {order: defaultdict(Counter) for order in orders}
    for ids in answers:
        row = tuple(int(id) for id in ids)
        for order in orders:
            for i in range(order, len(row)):
                counts[order][row[i - order : i]][row[i]] += 1
    table: Table = {}
    for order in sorted(orders):
        shorter = table.get(order - 1, {})
        table[order] = {
            context: entry
            for context, nexts in counts[order].items()
            if (entry := choose_entry(nexts)).count >= min_count
            and entry.count >= min_share * entry.total
            and not ((suffix := shorter.get(context[1:])) and suffix.next == entry.next)
        }
    return table


def choose_entry(nexts: Counter[int]) -> Entry:
    """The id seen most often, the lowest on ties."""
    token = min(nexts, key=lambda id: (-nexts[id], id))
    return Entry(token, nexts[token], nexts.total())


def find_entry(table: Table, ids: Sequence[int], min_count: int = 1) -> Entry | None:
    """What the runtime finds after `ids`: the entry of the longest context that the table has."""
    for order in sorted(table, reverse=True):
        entry = table[order].get(tuple(ids[-order:])) if len(ids) >= order else None
        if entry is not None and entry.count >= min_count:
            return entry
    return None


def shrink_table(table: Table, limit: int) -> Table:
    """The table without its rarest entries, so that the file has at most `limit` bytes."""
    least = 1
    while count_file_bytes(table) > limit:
        least += 1
        table = {order: {c: e for c, e in part.items() if e.count >= least} for order, part in table.items()}
    return table


def count_slots(entries: int) -> int:
    """Slots for that many entries: a power of two, at most three quarters full."""
    slots = 1
    while slots * 3 < entries * 4:
        slots *= 2
    return slots


def count_file_bytes(table: Table) -> int:
    """Size of the file, unless `fill_slots` has to double an order."""
    return 48 + sum(8 + SLOT.itemsize * count_slots(len(part)) for part in table.values())


def hash_context(context: Context) -> int:
    """The 64-bit hash that draft_table.c computes."""
    h = 0x9E3779B97F4A7C15 * len(context) & MASK
    for token in context:
        h = (h ^ token) * 0xBF58476D1CE4E5B9 & MASK
        h ^= h >> 32
    return h


def write_table(path: Path, table: Table, n_ids: int, id_map_sha256: str) -> int:
    """Write the file; returns its bytes. Raises InputError for a table without any order."""
    if not table:
        raise InputError("an n-gram table needs at least one order")
    header = struct.pack("<4sIII", MAGIC, VERSION, len(table), n_ids) + bytes.fromhex(id_map_sha256)
    parts = [header]
    for order in sorted(table, reverse=True):
        slots = fill_slots(table[order])
        parts += [struct.pack("<II", order, len(slots)), slots.tobytes()]
    data = b"".join(parts)
    path.write_bytes(data)
    return len(data)


def fill_slots(part: Mapping[Context, Entry]) -> npt.NDArray[np.void]:
    """The slots of one order; their number is doubled until every entry has one within PROBES of its own."""
    size = count_slots(len(part))
    while True:
        slots = np.zeros(size, SLOT)
        if all(
            put_entry(slots, context, entry)
            for context, entry in sorted(part.items(), key=lambda e: -e[1].count)
        ):
            return slots
        size *= 2


def put_entry(slots: npt.NDArray[np.void], context: Context, entry: Entry) -> bool:
    """Put one entry into the first free slot from its hash on; False where none is free within PROBES."""
    h = hash_context(context)
    tag = h >> 32 or 1
    for step in range(PROBES):
        slot = slots[(h + step) & (len(slots) - 1)]
        if slot["tag"] == tag:
            return True  # of a more frequent context
        if slot["tag"] == 0:
            slot["tag"], slot["next"] = tag, entry.next
            slot["count"], slot["total"] = min(entry.count, MOST), min(entry.total, MOST)
            return True
    return False


def read_table(path: Path) -> tuple[int, dict[int, npt.NDArray[np.void]]]:
    """Number of ids and the slots of each order of a file. Raises InputError for another kind of file."""
    data = path.read_bytes()
    if len(data) < 48 or data[:4] != MAGIC:
        raise InputError(f"{path} is no n-gram table; make it with `specc distill`")
    _, version, orders, n_ids = struct.unpack_from("<4sIII", data)
    out, at = {}, 48
    for _ in range(orders if version == VERSION else 0):
        order, slots = struct.unpack_from("<II", data, at)
        out[order] = np.frombuffer(data, SLOT, slots, at + 8)
        at += 8 + slots * SLOT.itemsize
    return n_ids, out
