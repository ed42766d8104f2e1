"""Hardware profiles."""

from __future__ import annotations

from pathlib import Path

import pytest

from specc import targets
from specc.errors import InputError, RecipeError
from specc.inspection.machine import is_here


def test_every_profile_is_complete() -> None:
    assert set(targets.list_names()) >= {"cpu-x86", "cpu-arm64"}
    for name in targets.list_names():
        profile = targets.load(name)
        assert profile.name == name and profile.machines and profile.bandwidth_gb_s > 0


GPUS = (
    "h100",
    "h200",
    "jetson-agx-orin-64gb",
    "jetson-orin-nano-8gb",
    "rtx-ada",
    "rtx-ampere",
    "rtx-blackwell",
)


@pytest.mark.parametrize("name", GPUS)
def test_gpus_have_a_source_for_each_figure_and_claim_nothing(name: str) -> None:
    """Until somebody has run a bundle there, a profile is not verified."""
    profile = targets.load(name)
    assert profile.gpu is not None and not profile.verified and not is_here(profile)
    wanted = {"memory_mb", "bandwidth_gb_s", "sm", *(system.name for system in profile.gpu.systems)}
    wanted |= {"power_modes"} if profile.gpu.power_modes else set()
    assert wanted <= {key for key, where in profile.sources if where.startswith("https://")}
    assert 0 < profile.budget_mb < profile.memory_mb and "fp16" in profile.gpu.precisions


def test_each_tensorrt_takes_what_its_release_notes_say() -> None:
    """R53: JetPack 6 has no opset-24 operators, JetPack 7 has; fp8 needs SM 89; Orin's int8 gap has a
    source.
    """
    six, seven = targets.load("jetson-orin-nano-8gb").gpu, targets.load("jetson-orin-nano-8gb@7.2").gpu
    assert six is not None and seven is not None
    assert (six.builder.takes_opset24, seven.builder.takes_opset24) == (False, True)
    assert (six.builder.opset, seven.builder.opset) == (20, 24)
    assert "SM 8.7" in str(six.builder.explain_lack("int8")) and six.builder.find_nearest("int8") == "w8"
    assert str(six.builder.explain_lack("fp8")) == "fp8 needs SM 89 and this is SM 87"
    assert six.builder.list_refused(["MatMul", "TensorScatter"]) == ["TensorScatter (TensorRT 10.15)"]


def test_unknown_systems_are_refused() -> None:
    """The error names the nearest system, or says that the target has no systems."""
    with pytest.raises(InputError, match="no system '7.1' of this target; did you mean '7.2'?"):
        targets.load("jetson-agx-orin-64gb@7.1")
    with pytest.raises(InputError, match="'cpu-x86' has no choice of systems"):
        targets.load("cpu-x86@1")


def test_a_gpu_profile_needs_its_gpu_part(tmp_path: Path) -> None:
    """A missing and an incomplete GPU part are refused."""
    path = tmp_path / "board.yaml"
    good = "title: t\nmachines: [x]\nthreads: 4\nmemory_mb: 2048\nbandwidth_gb_s: 8\nbackend: tensorrt\n"
    path.write_text(good)
    with pytest.raises(RecipeError, match="'gpu' is missing"):
        targets.load(str(path))
    path.write_text(good + "gpu: {sm: 87, systems: []}\n")
    with pytest.raises(RecipeError, match="a list is needed of mappings"):
        targets.load(str(path))


def test_unknown_profiles_name_the_nearest() -> None:
    with pytest.raises(InputError, match="no hardware target is called 'cpu-x68'; did you mean 'cpu-x86'?"):
        targets.load("cpu-x68")


def test_a_profile_from_a_path(tmp_path: Path) -> None:
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
def test_invalid_profiles_are_refused(tmp_path: Path, line: str, found: str) -> None:
    key = line.partition(":")[0]
    good = ["title: t", "machines: [x]", "threads: 4", "memory_mb: 2048", "bandwidth_gb_s: 8"]
    path = tmp_path / "board.yaml"
    path.write_text("\n".join([item for item in good if not item.startswith(key)] + [line]))
    with pytest.raises(RecipeError, match=found):
        targets.load(str(path))
