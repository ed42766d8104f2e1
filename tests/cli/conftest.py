"""A bundle of the fake model, for tests of verbs that read one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from specc.pipeline.build import build

Write = Callable[..., Path]


@pytest.fixture
def bundle(tmp_path: Path, write_recipe: Write, fake_model: SimpleNamespace) -> Path:
    """A bundle of a few bytes."""
    return build(write_recipe(sampling={"temperature": 0.5}), out=tmp_path / "b").bundle.folder
