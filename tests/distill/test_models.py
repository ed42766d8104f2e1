"""`specc distill --kind small` and `--kind early-exit`: from a recipe to files that a build drafts with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support import tiny

from specc.calib import answers, prompts
from specc.calib.samples import Sample
from specc.contracts.draft_head import read_draft_head
from specc.contracts.files import hash_file
from specc.contracts.recipe import load_recipe
from specc.distill.job import distill
from specc.distill.models import exit_model, small_model
from specc.distill.request import DistillRequest
from specc.distill.train import TrainingSettings, train
from specc.errors import InputError
from specc.exporter.checkpoint.checkpoint import open_checkpoint
from specc.pipeline.build import build
from specc.pipeline.plan import compare_tokenizers, plan_recipe
from specc.runtime import Model


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A tiny target of four layers, and both drafts of it, distilled twice."""
    folder, patch = tmp_path_factory.mktemp("models"), pytest.MonkeyPatch()
    patch.setenv("SPECC_CACHE", str(folder / "cache"))
    patch.setattr(answers, "LIMIT", 8)
    patch.setattr(prompts, "CLASSES", ("chat",))
    tiny.tiny_folder(folder / "target", num_hidden_layers=4)
    (folder / "mine.txt").write_text("One prompt.\nAnother one.\nA third, longer prompt.\n", encoding="utf-8")
    (folder / "plain.yaml").write_text("target: {checkpoint: target}\ncontext: 96\nk: 2\n", encoding="utf-8")
    for kind in ("small", "early-exit"):
        for turn in ("one", "two"):
            mine = folder / "mine.txt"
            distill(
                DistillRequest(
                    folder / "plain.yaml",
                    kind,
                    folder / f"{kind}-{turn}",
                    prompts=mine,
                    tokens=30,
                    epochs=2,
                    table=False,
                )
            )
    yield folder
    patch.undo()


def hash_files(folder: Path) -> dict[str, str]:
    """Path -> hash of every file below."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hash_file(path) for path in files}


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("small", ["small/config.json", "small/model.safetensors", "small/tokenizer.json"]),
        ("early-exit", ["exit.safetensors"]),
    ],
)
def test_equal_runs_give_equal_bytes(place: Path, kind: str, names: list[str]) -> None:
    """And a card and provenance with every file's hash, and the acceptance by class."""
    first = hash_files(place / f"{kind}-one")
    assert first == hash_files(place / f"{kind}-two")
    assert {*names, "README.md", "provenance.json"} <= first.keys()
    provenance = json.loads((place / f"{kind}-one" / "provenance.json").read_text())
    assert {file["path"]: file["sha256"] for file in provenance["files"]}.items() <= first.items()
    assert (
        len(provenance["accepted_on_tuning_prompts"]["chat"]) == 4 and provenance["settings"]["layers"] == 2
    )


def recipe(place: Path, draft: dict[str, Any]) -> Path:
    parts = {"name": "m", "target": {"checkpoint": "target"}, "draft": draft, "k": 2, "context": 96}
    path = place / "recipe.yaml"
    path.write_text(json.dumps(parts | {"scheme": "w8", "prompt_template": "none"}))
    return path


def test_a_small_model_is_a_draft_of_the_same_tokenizer(place: Path) -> None:
    """What a build looks at before it exports: the plan, and that ids mean the same strings."""
    planned = plan_recipe(
        load_recipe(recipe(place, {"kind": "model", "checkpoint": "small-one/small"})), None
    )
    assert planned.draft is not None and planned.draft.spec.layers == 2
    assert compare_tokenizers(planned.target, planned.draft) == []


def test_a_bundle_drafts_with_its_own_norm(place: Path) -> None:
    """The text stays; an early exit with a norm of its own is another engine over the target's weights."""
    draft: dict[str, Any] = {"kind": "early-exit", "layers": 2, "norm": "early-exit-one/exit.safetensors"}
    bundle = build(recipe(place, draft), out=place / "bundle").bundle
    with Model.open(bundle.folder) as model:
        have = model.info.certificate
        model.apply(replace(have, kind="bit-exact", width_class=(0,) * len(have.widths), reasons=()))
        with model.session() as session:
            ask: dict[str, Any] = {"temperature": 0, "max_new_tokens": 30, "ignore_eos": True}
            texts = [session.run([1, 2, 3], speculation=on, **ask) for on in (False, True)]
    assert texts[0].tokens == texts[1].tokens and texts[1].stats["draft_calls"] > 0
    norm = load_file(place / draft["norm"])["norm.weight"].float().numpy().tobytes()
    assert bundle.manifest["engines"]["draft"]["layers"] == 2
    assert any(norm in path.read_bytes() for path in bundle.folder.glob("draft.onnx*"))


def samples(target: Any) -> list[Sample]:
    """Random texts with the target's own features."""
    out = []
    for seed in range(6):
        ids = tiny.some_ids(24, seed)
        with torch.no_grad():
            hidden = target.base_model(torch.from_numpy(ids)[None]).last_hidden_state[0, :-1]
        out.append(Sample("chat", 0.0, ids.astype(np.int32), 4, 0, hidden.half().numpy()))
    return out


@pytest.mark.parametrize("make", [small_model, exit_model])
def test_resumed_training_gives_the_same_weights(make: Any, tmp_path: Path) -> None:
    """Bit for bit; and it learns: the loss falls."""
    target = tiny.tiny_model(num_hidden_layers=4).requires_grad_(False)
    data, settings = (
        samples(target),
        TrainingSettings(epochs=4, batch_tokens=48, learning_rate=3e-3, warmup_steps=2, checkpoint_steps=2),
    )
    weights, losses = [], list[float]()
    for name, stops in (("whole", [99]), ("killed", [3, 99])):
        for stop in stops:
            draft = make(target, 2)
            train(
                draft.parameters,
                draft.loss,
                data,
                settings,
                tmp_path / name,
                on_step=lambda step, loss, stop=stop: losses.append(loss) or step == stop,
            )
        weights.append([p.detach().clone() for p in draft.parameters])
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))
    steps = len(losses) // 2
    assert np.mean(losses[steps - 3 : steps]) < np.mean(losses[:3])


def test_what_does_not_fit_is_refused(place: Path) -> None:
    """Another number of layers, another target, a head of another kind, too many layers to train."""
    norm = "early-exit-one/exit.safetensors"
    with pytest.raises(InputError, match="trained behind 2 layers, draft.layers is 3; write layers: 2"):
        plan_recipe(load_recipe(recipe(place, {"kind": "early-exit", "layers": 3, "norm": norm})), None)
    assert read_draft_head(place / norm).numbers == {"layers": 2}
    path = recipe(place, {"kind": "early-exit", "layers": 2, "norm": norm})
    tiny.tiny_folder(place / "other", seed=5, num_hidden_layers=4)
    path.write_text(path.read_text().replace('"checkpoint": "target"', '"checkpoint": "other"'))
    with pytest.raises(InputError, match="was trained for weights"):
        plan_recipe(load_recipe(path), None)
    with pytest.raises(InputError, match="is a head of kind early-exit, but the recipe asks for feature"):
        plan_recipe(load_recipe(recipe(place, {"kind": "feature", "head": norm})), None)
    with pytest.raises(InputError, match="--layers is 4; allowed are 1 to 3"):
        distill(
            DistillRequest(
                place / "plain.yaml",
                "small",
                place / "never",
                prompts=place / "mine.txt",
                tokens=30,
                layers=4,
            )
        )


def test_small_model_starts_from_the_targets_layers(place: Path) -> None:
    """The first and the last, its embedding and output rows frozen."""
    target: Any = open_checkpoint(str(place / "target")).load()
    draft = small_model(target, 2)
    for new, old in ((0, 0), (1, 3)):
        own = draft.model.base_model.layers[new].state_dict()
        assert all(
            torch.equal(own[name], t) for name, t in target.base_model.layers[old].state_dict().items()
        )
    frozen = {name for name, p in draft.model.named_parameters() if not p.requires_grad}
    assert frozen == {"model.embed_tokens.weight"}
