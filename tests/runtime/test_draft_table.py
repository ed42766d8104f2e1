"""The static n-gram table: what it proposes, that it never changes a text, and that no file breaks it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.draft_files import table_bytes, write_table
from support.table_models import chain, noise_table

from specc.errors import SpeccError
from specc.runtime import Model, StaticNgram

TEXT = [0, 1, 2, 3, 4, 5, 6, 7] * 3


def test_table_proposes_what_followed(tmp_path: Path) -> None:
    """A table of the target's own text is accepted whole; one of another text is rejected."""
    table = write_table(tmp_path / "t.bin", TEXT, 8)
    with Model.table(chain(8), drafter=StaticNgram(table, 8)) as model, model.session() as session:
        result = session.run([6, 7], temperature=0, max_new_tokens=20)
        assert result.tokens == [i % 8 for i in range(20)]
        assert result.stats["accepted"] == result.stats["proposed"] == 16
    wrong = write_table(tmp_path / "w.bin", [i * 3 % 8 for i in range(40)], 8)
    with Model.table(chain(8), drafter=StaticNgram(wrong, 8)) as model, model.session() as session:
        result = session.run([3, 6], temperature=0, max_new_tokens=20)
        assert result.tokens == [(7 + i) % 8 for i in range(20)]
        assert result.stats["accepted"] == 0


def test_min_count(tmp_path: Path) -> None:
    """A continuation seen less often than min_count is not proposed."""
    table = write_table(tmp_path / "t.bin", TEXT, 8)
    for least, proposing in ((3, True), (4, False)):
        with Model.table(chain(8), drafter=StaticNgram(table, 8, least)) as model, model.session() as session:
            result = session.run([0, 1], temperature=0, max_new_tokens=8)
            assert (result.stats["proposed"] > 0) == proposing


@pytest.mark.parametrize(
    "spoil",
    [
        lambda b: b"",
        lambda b: b[:47],
        lambda b: b[:-1],
        lambda b: b + bytes(12),
        lambda b: b"SPCX" + b[4:],
        lambda b: b[:4] + b"\x02" + b[5:],
        lambda b: b[:8] + b"\x09" + b[9:],
        lambda b: b[:12] + b"\x09" + b[13:],
        lambda b: b[:48] + b"\xff" + b[49:],
        lambda b: b[:52] + b"\x03" + b[53:],
        lambda b: b[:52] + b"\xff\xff\xff\x7f" + b[56:],
    ],
)
def test_foreign_files_are_refused(tmp_path: Path, spoil: object) -> None:
    """Cut, longer, of another version, tokenizer or shape: one sentence, no crash."""
    path = tmp_path / "t.bin"
    path.write_bytes(spoil(table_bytes(TEXT, 8)))  # type: ignore[operator]
    with pytest.raises(SpeccError, match="table"):
        Model.table(chain(8), drafter=StaticNgram(path, 8))


def test_random_slots_never_crash(tmp_path: Path) -> None:
    """Slots of random bytes: every id that comes out is in range and the text is the plain one."""
    rng = np.random.default_rng(2)
    table = noise_table(8, 1)
    with Model.table(table) as model, model.session() as session:
        plain = session.run([0, 1], rule="coupled", seed=4, max_new_tokens=150).tokens
    for seed in range(5):
        whole = bytearray(table_bytes(TEXT, 8))
        for start in (56, 56 + 256 * 12 + 8):
            entries = rng.integers(0, 256, (256, 12), dtype=np.uint8)
            entries[:, 4:8] = np.array([seed % 3, 0, 0, 0 if seed else 255], np.uint8)
            whole[start : start + 256 * 12] = entries.tobytes()
        path = tmp_path / f"{seed}.bin"
        path.write_bytes(bytes(whole))
        with Model.table(table, drafter=StaticNgram(path, 8)) as model, model.session() as session:
            assert session.run([0, 1], rule="coupled", seed=4, max_new_tokens=150).tokens == plain
