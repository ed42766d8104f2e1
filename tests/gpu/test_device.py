"""What needs an NVIDIA GPU: collected everywhere, skipped with the reason where there is none.

SPECC_GPU_BUNDLES: bundles (os.pathsep between them) of this GPU to gate and to run; SPECC_KERNELS: the folder
of a build's test_gpu_judge and specc_judge.fatbin.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from specc.errors import SpeccError
from specc.runtime import Model, device, gpu

pytestmark = pytest.mark.gpu
BUNDLES = [Path(path) for path in os.environ.get("SPECC_GPU_BUNDLES", "").split(os.pathsep) if path]


@pytest.fixture(autouse=True)
def here() -> None:
    """Skips where no GPU is, with the runtime's own sentence."""
    try:
        gpu()
    except SpeccError as error:
        pytest.skip(f"no NVIDIA GPU: {error}")


@pytest.fixture(params=BUNDLES or [None], ids=lambda path: path.name if path else "none")
def bundle(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a named bundle."""
    if request.param is None:
        pytest.skip("SPECC_GPU_BUNDLES names no bundle of this GPU")
    return Path(shutil.copytree(request.param, tmp_path / "bundle"))


def test_the_gpu_describes_itself() -> None:
    """A name, a compute capability, memory that adds up."""
    found = gpu()
    assert found.name and found.sm >= 75 and found.cuda >= 12000
    assert 0 <= found.available <= found.memory


def test_row_kernels_give_the_bits_of_the_cpu() -> None:
    """The compiled kernels on the device against their host path, a vocabulary of 151,936 ids."""
    folder = os.environ.get("SPECC_KERNELS")
    if not folder:
        pytest.skip("SPECC_KERNELS names no build with specc_judge.fatbin")
    program = [f"{folder}/tests/test_gpu_judge", f"{folder}/specc_judge.fatbin", "151936", "20"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_engines_of_another_gpu_are_refused(bundle: Path) -> None:
    """R42 on a device: the manifest's SM is compared before the engine is loaded."""
    from specc.contracts.bundle.manifest import format_manifest

    manifest = json.loads((bundle / "manifest.json").read_text())
    engine = manifest["engines"]["target"]
    if "sm" not in engine:
        pytest.skip(f"backend {engine['backend']} is not bound to a compute capability")
    engine["sm"] += 1
    (bundle / "manifest.json").write_text(format_manifest(manifest)[0])
    with pytest.raises(SpeccError, match=r"was built for SM \d+ and this GPU .* is SM \d+"):
        Model.open(bundle)


def test_gate_then_the_same_text_on_and_off(bundle: Path) -> None:
    """The gate's verdict is bound to the GPU; coupled text is one, speculation on or off (R43, R44, R48)."""
    from specc.gate.run import judge_bundle

    with Model.open(bundle) as model:
        assert model.info.reasons != ()
    judge_bundle(bundle, trials=2000, seed=1, threads=0, certificates=None)
    with Model.open(bundle) as model, model.session() as session:
        kind = model.info.certificate.kind
        texts = [
            session.run(
                [1, 2, 3, 4, 1, 2, 3], rule="coupled", seed=seed, max_new_tokens=48, speculation=on
            ).tokens
            for seed in range(4)
            for on in (True, False)
        ]
    assert kind != "none"
    assert kind != "bit-exact" or texts[0::2] == texts[1::2]
    saved = [json.loads(path.read_text()) for path in (bundle / "certificates").glob("*.json")]
    assert {one["device"] for one in saved} == {gpu().name} and device()[0] != gpu().name


def test_an_engine_says_what_its_graph_says(bundle: Path) -> None:
    """R49: rows of the engine against those of its source graph, which ONNX Runtime's CPU computes."""
    pytest.importorskip("onnx_ir")
    import onnxruntime as ort

    from specc.exporter.check.logits import mean_divergence
    from specc.exporter.graph.session import make_session_options, wrap_session

    graph = bundle / "target.onnx"
    if not graph.is_file() or "CUDA" in (bundle / "manifest.json").read_text():
        pytest.skip("the bundle holds no standard graph beside its engine")
    ids = np.arange(1, 65)
    run = wrap_session(ort.InferenceSession(str(graph), make_session_options(4)))
    wanted = run.call(ids[:5], 0)
    with Model.open(bundle) as model, model.session() as session:
        got = session.rows(ids[:5], 0, 5)
    assert np.isfinite(got).all() and mean_divergence(got, wanted) < 0.05
    types = json.loads((bundle / "manifest.json").read_text())["engines"]["target"].get("types", {})
    assert types.get("source") in (None, "engine") and not types.get("strays")


@pytest.mark.slow
def test_a_rebuilt_engine_has_no_certificate(bundle: Path) -> None:
    """R43: whatever the builder chooses the second time, the first engine's verdict is not the second's."""
    from specc.gate.run import judge_bundle
    from specc.pipeline.finalize import finalize

    if not (bundle / "target.onnx").is_file() or "CUDA" in (bundle / "manifest.json").read_text():
        pytest.skip("the bundle holds no graphs for TensorRT")
    judge_bundle(bundle, trials=500, seed=1, threads=0, certificates=None)
    finalize(bundle)
    with Model.open(bundle) as model:
        assert model.info.certificate.kind == "none" and "uncertified-device" in model.info.reasons


def hardware_here(dialect: str) -> str:
    """The hardware target that this GPU is; skips where there is none, or nothing that runs the dialect."""
    import onnxruntime as ort
    from support.tensorrt_library import is_installed

    from specc import targets
    from specc.inspection.machine import is_here

    found = next(
        (name for name in targets.list_names() if targets.load(name).gpu and is_here(targets.load(name))),
        None,
    )
    if found is None:
        pytest.skip(f"no hardware target is this GPU ({gpu().name}, SM {gpu().sm})")
    if dialect == "ort" and "CUDAExecutionProvider" not in ort.get_available_providers():
        pytest.skip("this onnxruntime has no CUDA provider: pip install onnxruntime-gpu")
    if dialect == "onnx24" and not is_installed(targets.load(found).backend):
        pytest.skip(f"{targets.load(found).backend} is not installed")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("dialect", ["ort", "onnx24"])
def test_from_recipe_to_text(dialect: str, tmp_path: Path, write_recipe: Callable[..., Path]) -> None:
    """Build, finalize, gate and run a tiny model for this GPU, by each of its two ways."""
    pytest.importorskip("torch")
    from support import tiny

    from specc.gate.run import judge_bundle
    from specc.pipeline.build import build
    from specc.pipeline.finalize import finalize

    hardware, model = hardware_here(dialect), tiny.tiny_folder(tmp_path / "model")
    recipe = write_recipe(
        target={"checkpoint": str(model)}, scheme="fp16", dialect=dialect, prompt_template="none"
    )
    place = build(recipe, hardware, tmp_path / "out").bundle.folder
    if json.loads((place / "manifest.json").read_text())["engines"]["target"].get("finalize"):
        finalize(place)
    judge_bundle(place, trials=500, seed=1, threads=0, certificates=None)
    with Model.open(place) as opened, opened.session() as session:
        assert opened.info.certificate.kind != "none" and opened.info.device == gpu().name
        assert len(session.run([1, 2, 3], temperature=0, max_new_tokens=16, ignore_eos=True).tokens) == 16
