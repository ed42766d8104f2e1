"""Hardware profiles."""

from __future__ import annotations

from pathlib import Path

import pytest

from specc import targets
from specc.errors import InputError, RecipeError


def test_every_profile_is_whole() -> None:
    assert set(targets.names()) >= {"cpu-x86", "cpu-arm64"}
    for name in targets.names():
        profile = targets.load(name)
        assert profile.name == name and profile.machines and profile.bandwidth_gb_s > 0


def test_unknown_profiles_name_the_nearest() -> None:
    with pytest.raises(InputError, match="no hardware target is called 'cpu-x68'; did you mean 'cpu-x86'?"):
        targets.load("cpu-x68")


def test_a_profile_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "board.yaml"
    path.write_text("title: a board\nmachines: [AArch64]\nthreads: 4\nmemory_mb: 2048\nbandwidth_gb_s: 8\n")
    profile = targets.load(str(path))
    assert (profile.name, profile.machines, profile.dialect) == ("board", ("aarch64",), "specc-cpu")


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("threads: 0", "threads is 0"),
        ("bandwith_gb_s: 3", "did you mean 'bandwidth_gb_s'"),
        ("machines: x", "machines is"),
    ],
)
def test_profiles_that_cannot_be(tmp_path: Path, line: str, found: str) -> None:
    key = line.partition(":")[0]
    good = ["title: t", "machines: [x]", "threads: 4", "memory_mb: 2048", "bandwidth_gb_s: 8"]
    path = tmp_path / "board.yaml"
    path.write_text("\n".join([item for item in good if not item.startswith(key)] + [line]))
    with pytest.raises(RecipeError, match=found):
        targets.load(str(path))
