"""The writer of n-gram tables against a reader written from the format's text, and against the runtime's."""

import struct
from pathlib import Path

import pytest

from specc.calib import ngram_table as t
from specc.errors import InputError

TEXT = [5, 6, 7, 8, 5, 6, 7, 9, 5, 6, 7, 8, 1, 2, 3]


def look_up(data: bytes, ids: list[int]) -> tuple[int, int, int] | None:
    """(next, count, total) after `ids`: a reader in plain Python, from the header of draft_table.c."""
    orders, at = struct.unpack_from("<I", data, 8)[0], 48
    for _ in range(orders):
        order, slots = struct.unpack_from("<II", data, at)
        h = 0x9E3779B97F4A7C15 * order % 2**64
        for token in ids[-order:]:
            h = (h ^ token) * 0xBF58476D1CE4E5B9 % 2**64
            h ^= h >> 32
        for probe in range(32 if len(ids) >= order else 0):
            tag, follow, count, total = struct.unpack_from("<IiHH", data, at + 8 + 12 * ((h + probe) % slots))
            if tag == 0:
                break
            if tag == (h >> 32 or 1):
                return follow, count, total
        at += 8 + 12 * slots
    assert at == len(data)
    return None


def test_every_entry_is_found_again(tmp_path: Path) -> None:
    table = t.count_table([TEXT] * 3, (2, 3, 4), 1)
    size = t.write_table(tmp_path / "t.bin", table, 100, "ab" * 32)
    data = (tmp_path / "t.bin").read_bytes()
    assert (
        size == len(data) == t.count_file_bytes(table) and data[:4] == b"SPCN" and data[16:48] == b"\xab" * 32
    )
    for order, part in table.items():
        for context in part:
            found = t.find_entry(table, context)
            assert found is not None and look_up(data, list(context)) == (
                found.next,
                found.count,
                found.total,
            ), order
    assert look_up(data, [90, 91, 92, 93]) is None
    assert t.read_table(tmp_path / "t.bin")[0] == 100


def test_longer_context_with_the_same_next_id_is_left_out() -> None:
    table = t.count_table([TEXT], (2, 3), 1)
    assert table[2][(6, 7)] == t.Entry(8, 2, 3)
    assert (5, 6, 7) not in table[3]  # the same next id as after (6, 7)
    assert t.count_table([TEXT], (2,), 2)[2].keys() == {(5, 6), (6, 7)}
    assert t.count_table([TEXT], (2,), 2, 0.9)[2].keys() == {(5, 6)}


def test_minimum_count_leaves_rare_text_out(tmp_path: Path) -> None:
    """The table can leak a text: one occurrence must leave no trace where two are asked for."""
    secret = [41, 42, 43, 44, 45, 46]
    table = t.count_table([TEXT, TEXT, secret], (2, 3, 4), 2)
    t.write_table(tmp_path / "t.bin", table, 100, "00" * 32)
    assert all(look_up((tmp_path / "t.bin").read_bytes(), secret[:n]) is None for n in range(2, 6))
    assert look_up((tmp_path / "t.bin").read_bytes(), [5, 6]) is not None


def test_a_limit_drops_the_least_seen_first() -> None:
    texts = [list(range(i, i + 30)) for i in range(0, 3000, 30)] + [TEXT] * 9
    small = t.shrink_table(t.count_table(texts, (2, 3), 1), 2000)
    assert t.count_file_bytes(small) <= 2000 and (5, 6) in small[2]


def test_crowded_slots_grow_until_all_are_within_reach() -> None:
    texts = [list(range(i, i + 40)) for i in range(0, 40000, 40)]
    table = t.count_table(texts, (2,), 1)
    slots = t.fill_slots(table[2])
    assert len({int(s["next"]) for s in slots if s["tag"]}) == len({e.next for e in table[2].values()})


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"nothing")
    with pytest.raises(InputError, match="no n-gram table"):
        t.read_table(tmp_path / "x")
    with pytest.raises(InputError, match="at least one order"):
        t.write_table(tmp_path / "x", {}, 10, "00" * 32)
