"""Whose answers a folder holds: one folder an identity of the target."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import tiny

from specc.calib.shards import DataSettings, claim_folder, data_folder
from specc.contracts.recipe import Source
from specc.errors import InputError
from specc.pipeline.checkpoint import describe


def test_answers_belong_to_one_identity(tmp_path: Path) -> None:
    """A stopped distillation goes on in the same folder, and in another one once the template changed."""
    tiny.tiny_folder(tmp_path / "m")
    source, base = Source("m", None), tmp_path

    def folder() -> Path:
        return data_folder(tmp_path, describe(source, base).identity.sha256, DataSettings())

    first = folder()
    assert folder() == first
    (tmp_path / "m" / "chat_template.jinja").write_text("{{ messages }}")
    assert folder() != first


def test_a_named_folder_of_answers_is_not_shared(tmp_path: Path) -> None:
    claim_folder(tmp_path / "d", "a" * 64)
    (tmp_path / "d" / "shard-00000.npz").write_bytes(b"")
    claim_folder(tmp_path / "d", "a" * 64)
    with pytest.raises(InputError, match="holds answers of another target"):
        claim_folder(tmp_path / "d", "b" * 64)
    (tmp_path / "d" / "target.json").write_text("[]")
    with pytest.raises(InputError, match="cannot be read"):
        claim_folder(tmp_path / "d", "a" * 64)
    (tmp_path / "d" / "target.json").unlink()
    with pytest.raises(InputError, match="does not say which target's answers") as caught:
        claim_folder(tmp_path / "d", "a" * 64)
    assert '{"identity": "' + "a" * 64 in str(caught.value)
