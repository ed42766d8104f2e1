"""Building engines: profiles, memory, the child process, preflight.

And real builds where TensorRT-RTX is installed.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.mini_graph import CAPACITY, mini_graph

pytest.importorskip("onnx")

from support.tensorrt_library import is_installed  # noqa: E402

from specc.errors import EnvironmentFault, InputError  # noqa: E402
from specc.exporter.tensorrt import engine, memory  # noqa: E402
from specc.exporter.tensorrt.engine import EngineJob, build_engine  # noqa: E402
from specc.exporter.tensorrt.library import open_library  # noqa: E402
from specc.exporter.tensorrt.preflight import list_refusals  # noqa: E402
from specc.exporter.tensorrt.profiles import make_profiles  # noqa: E402
from specc.targets.tensorrt import Builder  # noqa: E402

WIDTHS, CONTEXT = (1, 2, 5, 64), 128
RTX = pytest.mark.skipif(
    not is_installed("tensorrt-rtx"), reason="needs TensorRT-RTX: pip install 'specc[tensorrt-rtx]'"
)
MADE = {
    "library": "tensorrt-rtx",
    "tensorrt": "1.7.1",
    "sm": 86,
    "platform": "linux-x86_64",
    "stripped": False,
    "seconds": 1.0,
    "peak_bytes": 1,
}


@pytest.fixture
def job(tmp_path: Path) -> EngineJob:
    """A job over the mini graph."""
    graph, plan = mini_graph(tmp_path / "target.onnx"), tmp_path / "target.plan"
    return EngineJob("target", str(graph), str(plan), "tensorrt-rtx", 86, WIDTHS, CONTEXT, CAPACITY)


def child(script: str) -> tuple[str, ...]:
    """A stand-in for the builder's process."""
    return sys.executable, "-c", f"import json, os, sys; job = json.load(sys.stdin)\n{script}"


# ---------------------------------------------------------------------- profiles


def test_one_fixed_profile_a_width() -> None:
    """Least, best and most rows are one number; profile j takes widths[j] rows."""
    made = make_profiles(WIDTHS, CONTEXT, CAPACITY)
    assert [one.rows for one in made] == list(WIDTHS)
    assert made[2].shapes() == {"input_ids": (1, 5), "position": (1, 5), "logit_rows": (5,)}


@pytest.mark.parametrize(
    ("widths", "context", "capacity", "said"),
    [
        ((), 128, 192, "whole number from 1 on"),
        ((0, 1), 128, 192, "whole number from 1 on"),
        ((1, 5, 2), 128, 192, "must rise"),
        ((1, 1, 2), 128, 192, "must rise"),
        ((1, 2, 65), 128, 192, "needs 193 slots"),
        ((1, 1000), 1200, 1500, "needs 2200 slots"),
        ((1,), 0, 192, "slots"),
        (tuple(range(1, 40)), 128, 192, "more than 32"),
    ],
)
def test_impossible_profiles_never_reach_a_builder(
    job: EngineJob, widths: tuple[int, ...], context: int, capacity: int, said: str
) -> None:
    """R46: wrong arithmetic is named before anything starts."""
    with pytest.raises(InputError, match=said):
        build_engine(replace(job, widths=widths, context=context, capacity=capacity), child=("/nowhere",))


# ---------------------------------------------------------------------- memory


def meminfo(folder: Path, available_mb: int, free_mb: int) -> Path:
    """A /proc/meminfo."""
    path = folder / "meminfo"
    path.write_text(
        f"MemTotal: 8000000 kB\nMemFree: {free_mb << 10} kB\nMemAvailable: {available_mb << 10} kB\n"
    )
    return path


def test_the_page_cache_counts_as_free(tmp_path: Path) -> None:
    """R50: 1 GB free and 6 GB available is room; 1 GB available is none, and the message has both numbers."""
    need = memory.estimate_build_bytes(300 << 20, integrated=True)
    roomy = memory.read_available(meminfo(tmp_path, 6144, 1024), ())
    memory.check_memory("target", need, 512 << 20, roomy)
    tight = memory.read_available(meminfo(tmp_path, 1024, 900), ())
    with pytest.raises(
        EnvironmentFault, match=r"needs about 2700 MB .* 1024 MB are available .*MemFree is 900 MB"
    ):
        memory.check_memory("target", need, 512 << 20, tight)


def test_a_container_has_its_own_limit(tmp_path: Path) -> None:
    """The smaller of machine and container counts; a limit of "max" is none."""
    (tmp_path / "limit").write_text(str(512 << 20))
    (tmp_path / "none").write_text("max")
    here = memory.read_available(meminfo(tmp_path, 6144, 1024), (tmp_path / "none", tmp_path / "limit"))
    assert here.available == here.free == 512 << 20


def test_too_little_memory_is_said_before_the_builder_starts(
    job: EngineJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R51: the estimate is made first."""
    monkeypatch.setattr(memory, "read_available", lambda: memory.AvailableMemory(100 << 20, 50 << 20))
    with pytest.raises(EnvironmentFault, match="100 MB are available"):
        build_engine(job, child=("/nowhere",))


# ---------------------------------------------------------------------- the child


def test_a_good_child_leaves_a_plan(job: EngineJob) -> None:
    """Stages are told in their order."""
    stages: list[str] = []
    said = f"print('stage load'); print('stage build'); print('made', {json.dumps(MADE)!r})"
    script = f"open(job['plan'], 'wb').write(b'plan'); {said}"
    made = build_engine(job, lambda stage, _: stages.append(stage), child(script))
    assert (made.sm, stages, Path(job.plan).read_bytes()) == (86, ["load", "build"], b"plan")


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            "print('stage build', flush=True); os.kill(os.getpid(), 9)",
            r"killed \(signal 9\) at stage 'build': it needs about",
        ),
        ("os._exit(3)", "code 3 at stage 'start'"),
        ("print('stage parse'); print('error no kernel'); sys.exit(1)", "failed at stage 'parse': no kernel"),
        ("print('made {}')", "code 1|code 0"),
        ("sys.stderr.write('half a message'); sys.exit(1)", "half a message"),
    ],
)
def test_a_child_that_ends_badly_leaves_nothing(job: EngineJob, script: str, said: str) -> None:
    """R51: the stage is named, and neither a plan nor a part of one stays."""
    torn = f"open(job['plan'] + '.part', 'wb').write(b'half')\n{script}"
    if "made" in script:
        torn = torn.replace("print('made {}')", f"print('made', {json.dumps(MADE)!r})")  # and no plan
    with pytest.raises(EnvironmentFault, match=said):
        build_engine(job, child=child(torn))
    assert sorted(path.name for path in Path(job.plan).parent.iterdir()) == ["target.onnx"]


def test_a_refused_graph_is_an_input_error(job: EngineJob) -> None:
    """The parser's words come through."""
    with pytest.raises(InputError, match="tensorrt-rtx refuses the graph of target: Attention"):
        build_engine(job, child=child("print('refused Attention'); sys.exit(1)"))


def test_a_missing_library_names_its_extra() -> None:
    """What to install."""
    if is_installed("tensorrt"):
        pytest.skip("TensorRT is installed")
    with pytest.raises(EnvironmentFault, match=r"pip install 'specc\[tensorrt\]'"):
        open_library("tensorrt")


# ---------------------------------------------------------------------- preflight

ORIN = Builder((10, 3), 87)
H100 = Builder((10, 16), 90)


def node(
    op: str, *outputs: str, domain: str = "", inputs: tuple[str, ...] = ("x",), **attributes: Any
) -> Any:
    """An ONNX node."""
    from onnx import helper

    return helper.make_node(op, list(inputs), list(outputs or ("z",)), domain=domain, **attributes)


def test_each_spelling_passes_where_it_is_for(tmp_path: Path) -> None:
    """R47: TensorRT 10.3 lacks what opset 24 brought, and takes the older spelling."""
    new, old = mini_graph(tmp_path / "new.onnx"), mini_graph(tmp_path / "old.onnx", opset24=False)
    assert list_refusals(new, H100) == [] == list_refusals(old, ORIN) == list_refusals(old, H100)
    wrong = list_refusals(new, ORIN)
    assert any("TensorScatter (TensorRT 10.15)" in text for text in wrong)
    assert any("Attention (TensorRT 10.14)" in text for text in wrong)
    assert any("opset 24" in text for text in wrong)


@pytest.mark.parametrize(
    ("extra", "opset", "said"),
    [
        (node("MatMulNBits", domain="com.microsoft"), None, "MatMulNBits (no standard operator"),
        (node("GroupQueryAttention", domain="com.microsoft"), None, "GroupQueryAttention"),
        (node("DequantizeLinear", block_size=64), 20, "blocks of DequantizeLinear at opset 20"),
        (node("Attention", "y2", "k2", "v2"), None, "Attention with 3 results"),
        (node("Attention", inputs=("x", "x", "x", "mask", "past_k.0")), None, "a past of its own"),
        (node("Attention", softcap=3.0), None, "Attention with softcap"),
        (node("DynamicQuantizeLinear"), None, "DynamicQuantizeLinear (no TensorRT)"),
    ],
)
def test_offenders_are_listed(extra: Any, opset: int | None, said: str, tmp_path: Path) -> None:
    """R47: a graph for another runtime is refused with what is wrong in it."""
    wrong = list_refusals(mini_graph(tmp_path / "x.onnx", opset=opset, extra=extra), H100)
    assert any(said in text for text in wrong), wrong


def test_what_is_no_graph(tmp_path: Path) -> None:
    """A sentence, no traceback."""
    (tmp_path / "x.onnx").write_bytes(b"text")
    with pytest.raises(InputError, match="no ONNX graph"):
        list_refusals(tmp_path / "x.onnx", H100)


# ---------------------------------------------------------------------- real builds


@RTX
def test_a_real_engine_of_several_widths(job: EngineJob) -> None:
    """The builder's own process, for a GPU that is not here."""
    stages: list[str] = []
    made = build_engine(job, lambda stage, _: stages.append(stage))
    assert stages == ["load", "parse", "build", "write"]
    assert (made.library, made.sm, Path(job.plan).stat().st_size > 10000) == ("tensorrt-rtx", 86, True)
    assert made.peak_bytes < memory.estimate_build_bytes(engine.count_weight_bytes(Path(job.graph)), False)


@RTX
def test_what_the_real_builder_refuses(job: EngineJob, tmp_path: Path) -> None:
    """R42, R47: an SM that it does not know, and a graph of ONNX Runtime's own operators."""
    with pytest.raises(InputError, match="builds no engine for SM 87; it knows .*SM86"):
        build_engine(replace(job, sm=87))
    graph = mini_graph(
        tmp_path / "other.onnx", extra=node("BiasGelu", domain="com.microsoft", inputs=("x", "x"))
    )
    with pytest.raises(InputError, match="refuses the graph"):
        build_engine(replace(job, graph=str(graph)))
    assert not Path(job.plan).exists()
