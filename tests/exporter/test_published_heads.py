"""Heads in Medusa's and EAGLE's published layouts: they draft what their own formulas say, or are refused
by name.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from support import tiny
from torch.nn.functional import linear, silu

from specc.contracts.draft_head import read_draft_head
from specc.contracts.engine_plan import EnginePlan
from specc.contracts.recipe import load_recipe
from specc.contracts.scheme import Scheme
from specc.errors import InputError
from specc.exporter.checkpoint.checkpoint import open_checkpoint
from specc.exporter.draft_heads.build import build_draft_head
from specc.exporter.draft_heads.export import export_draft_head
from specc.exporter.draft_heads.file import load_draft_head
from specc.exporter.draft_heads.published import convert_published
from specc.pipeline.build import build
from specc.pipeline.plan import plan_recipe
from specc.runtime import Model

HIDDEN, HEADS = 64, 5
Tensors = dict[str, torch.Tensor]


def drawn(*shape: int, scale: float = 0.3) -> torch.Tensor:
    """Random weights that half precision holds exactly."""
    return (scale * torch.randn(*shape)).half().float()


def medusa_tensors() -> Tensors:
    """Five heads of two blocks, each with output rows of its own."""
    torch.manual_seed(11)
    out: Tensors = {}
    for i in range(HEADS):
        for j in range(2):
            out[f"{i}.{j}.linear.weight"], out[f"{i}.{j}.linear.bias"] = drawn(HIDDEN, HIDDEN), drawn(HIDDEN)
        out[f"{i}.2.weight"] = drawn(tiny.VOCAB, HIDDEN)
    return out


def eagle_tensors(model: Any) -> Tensors:
    """One layer without a norm in front, fc with a bias, a copy of the target's embedding."""
    torch.manual_seed(12)
    layer = {
        f"layers.0.{name}": drawn(*t.shape, scale=0.1)
        for name, t in model.model.layers[1].state_dict().items()
    }
    del layer["layers.0.input_layernorm.weight"]
    embedding = model.get_input_embeddings().weight.detach().clone()
    return {
        "fc.weight": drawn(HIDDEN, 2 * HIDDEN),
        "fc.bias": drawn(HIDDEN),
        "embed_tokens.weight": embedding,
        **layer,
    }


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint and its heads: Medusa as safetensors and as .pt, EAGLE as pytorch_model.bin."""
    folder = tmp_path_factory.mktemp("published")
    tiny.tiny_folder(folder / "tiny")
    write(folder / "medusa", medusa_tensors(), "medusa_lm_head.safetensors", MEDUSA)
    write(folder / "pickled", medusa_tensors(), "medusa_lm_head.pt", MEDUSA)
    write(folder / "eagle", eagle_tensors(tiny.tiny_model()), "pytorch_model.bin", EAGLE)
    return folder


MEDUSA: dict[str, Any] = {
    "medusa_num_heads": HEADS,
    "medusa_num_layers": 2,
    "base_model_name_or_path": "tiny",
}
EAGLE: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "intermediate_size": 160,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_hidden_layers": 1,
    "vocab_size": tiny.VOCAB,
    "rope_theta": 10000.0,
}


def write(folder: Path, tensors: Tensors, name: str, config: dict[str, Any]) -> Path:
    """A published head's folder."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    kept = {key: tensor.contiguous() for key, tensor in tensors.items()}
    save_file(kept, folder / name) if name.endswith("safetensors") else torch.save(kept, folder / name)
    return folder


def recipe(place: Path, kind: str, head: str, scheme: str = "fp32") -> Path:
    """A recipe beside the checkpoint."""
    parts = {
        "name": "published",
        "target": {"checkpoint": "tiny"},
        "draft": {"kind": kind, "head": head},
        "k": 4,
    }
    path = place / "recipe.yaml"
    path.write_text(json.dumps(parts | {"context": 96, "scheme": scheme, "prompt_template": "none"}))
    return path


def speculating(bundle: Path) -> Model:
    """The bundle with a certificate of our own."""
    model = Model.open(bundle)
    have = model.info.certificate
    model.apply(replace(have, kind="bit-exact", width_class=(0,) * len(have.widths), reasons=()))
    return model


def first_drafts(bundle: Path) -> list[tuple[list[int], list[int]]]:
    """(text, proposed) of each round that proposed four tokens, greedy.

    The text is as without speculation.
    """
    prompt, rounds = tiny.some_ids(20).tolist(), []
    with speculating(bundle) as model, model.session() as session:
        text = list(prompt)
        for event in session.generate(prompt, temperature=0, max_new_tokens=40, ignore_eos=True):
            rounds += [(list(text), list(event.drafted))] if event.proposed == 4 else []
            text += event.tokens
        plain = session.run(prompt, temperature=0, max_new_tokens=40, ignore_eos=True, speculation=False)
    assert [*prompt, *plain.tokens] == text
    assert len(rounds) > 5
    return rounds


def hidden_states(text: list[int]) -> torch.Tensor:
    """The target's final normalised hidden states [n, H]."""
    with torch.no_grad():
        states: torch.Tensor = tiny.tiny_model().model(torch.tensor([text])).last_hidden_state[0]
    return states


def medusa_says(text: list[int]) -> list[int]:
    """Greedy proposals of the first four heads, from the paper's formula: W (x + silu(V x + b))."""
    tensors, out = medusa_tensors(), []
    for i in range(4):
        x = hidden_states(text)[-2]
        for j in range(2):
            x = x + silu(linear(x, tensors[f"{i}.{j}.linear.weight"], tensors[f"{i}.{j}.linear.bias"]))
        out.append(int(linear(x, tensors[f"{i}.2.weight"]).argmax()))
    return out


def eagle_says(text: list[int]) -> list[int]:
    """Four greedy steps of an EAGLE layer over (token, feature before it), its features fed back."""
    target, tensors = tiny.tiny_model(), eagle_tensors(tiny.tiny_model())
    model = tiny.tiny_model(num_hidden_layers=1)
    layer = {name.removeprefix("layers.0."): t for name, t in tensors.items() if name.startswith("layers.0.")}
    model.model.layers[0].load_state_dict(layer, strict=False)
    model.model.layers[0].input_layernorm = model.model.norm = torch.nn.Identity()
    features, tokens = list(hidden_states(text)[:-1]), list(text)
    with torch.no_grad():
        for _ in range(4):
            embedded = target.get_input_embeddings()(torch.tensor(tokens[1:]))
            joined = linear(
                torch.cat((embedded, torch.stack(features)), -1), tensors["fc.weight"], tensors["fc.bias"]
            )
            last = model.model(inputs_embeds=joined[None]).last_hidden_state[0, -1]
            features.append(last)
            tokens.append(int(target.get_output_embeddings()(last).argmax()))
    return tokens[-4:]


@pytest.mark.parametrize(
    ("kind", "head", "says"),
    [("medusa", "medusa", medusa_says), ("feature", "eagle", eagle_says)],
)
def test_drafts_what_its_formula_says(
    place: Path, kind: str, head: str, says: Callable[[list[int]], list[int]]
) -> None:
    bundle = build(recipe(place, kind, head), out=place / f"{kind}-{Path(head).name}").bundle
    for text, drafted in first_drafts(bundle.folder)[:6]:
        assert drafted == says(text)
    origin = bundle.manifest["provenance"]["draft"]
    assert (origin["head"], origin["weights_sha256"]) == (Path(head).name, None)
    assert "no hash of its target" in origin["note"]


@pytest.mark.parametrize("head", ["medusa/medusa_lm_head.safetensors", "eagle/pytorch_model.bin"])
def test_quantized_on_our_own_operators(place: Path, tmp_path: Path, head: str) -> None:
    """Scheme w4 with a w8 head, dialect specc-cpu: the graph keeps within the bounds of its scheme."""
    target, out = open_checkpoint(str(place / "tiny")), tmp_path / "head.safetensors"
    convert_published(place / head, target.spec, out)
    widths, layers = ((4,), 0) if "medusa" in head else (tiny.WIDTHS, 1)
    spec, scheme = replace(target.spec, layers=layers), Scheme("w4", "w8")
    plan = EnginePlan(
        "draft", spec, scheme, layers, 96, 112, widths, widths[-1], "specc-cpu", None, hidden=True
    )
    made = export_draft_head(out, plan, target, tmp_path)
    assert made.stage_errors["fuse"] < 1e-5 and made.stage_errors["quantize"] < 0.2
    assert not any("left as they are" in note for note in made.notes)


def test_a_pickle_is_the_same_head(place: Path, tmp_path: Path) -> None:
    spec = open_checkpoint(str(place / "tiny")).spec
    for i, head in enumerate(("medusa/medusa_lm_head.safetensors", "pickled/medusa_lm_head.pt")):
        convert_published(place / head, spec, tmp_path / str(i))
    assert (tmp_path / "0").read_bytes() == (tmp_path / "1").read_bytes()


def test_offsets_are_added_to_columns(place: Path) -> None:
    """R62: d2t holds offsets from the column; the ids behind the columns are absolute."""
    ids = torch.arange(0, 250, 5)
    tensors = eagle_tensors(tiny.tiny_model()) | mapped(ids)
    write(place / "mapped", tensors, "model.safetensors", EAGLE)
    head = plan_recipe(load_recipe(recipe(place, "feature", "mapped")), None).plan.head
    assert head is not None and head.ids == tuple(ids.tolist())
    assert read_draft_head(Path(head.file)).columns == 50


def mapped(ids: torch.Tensor) -> Tensors:
    """A reduced vocabulary in the published form."""
    known = torch.zeros(tiny.VOCAB, dtype=torch.bool)
    known[ids] = True
    return {"d2t": ids - torch.arange(len(ids)), "t2d": known, "lm_head.weight": drawn(len(ids), HIDDEN)}


def spoiled(**changes: torch.Tensor | None) -> Tensors:
    """An EAGLE head with tensors changed or left out."""
    tensors: dict[str, Any] = {**eagle_tensors(tiny.tiny_model()), **mapped(torch.arange(0, 250, 5))}
    tensors |= {name.replace("__", "."): tensor for name, tensor in changes.items()}
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


IDS = torch.arange(0, 250, 5)
WRONG: dict[str, tuple[Tensors, dict[str, Any], str]] = {
    "EAGLE-3": (
        spoiled(fc__weight=drawn(HIDDEN, 3 * HIDDEN)),
        {},
        "an EAGLE-3 head, which reads three inner",
    ),
    "absolute d2t": (spoiled(d2t=IDS), {}, "offset of each column's id from the column"),
    "no d2t": (spoiled(d2t=None, t2d=None), {}, "50 columns for 256 ids and no d2t"),
    "d2t out of range": (spoiled(d2t=IDS + 60, t2d=None), {}, "ids are 0 to 255"),
    "d2t all zero": (spoiled(d2t=0 * IDS), {}, "does not fit its t2d"),
    "another hidden size": (
        spoiled(fc__weight=drawn(32, 64)),
        {"hidden_size": 32},
        "hidden states of 32 numbers",
    ),
    "another vocabulary": (
        spoiled(d2t=None, t2d=None, lm_head__weight=None),
        {"vocab_size": 300},
        "tokenizer of 300",
    ),
    "another layer": (spoiled(), {"num_key_value_heads": 4}, "the layer of .* has heads 4, kv_heads 4"),
    "two layers": (spoiled(layers__1__mlp__up_proj__weight=drawn(4, 4)), {}, "no EAGLE head of one layer"),
    "something more": (
        spoiled(adapter__weight=drawn(4, 4)),
        {},
        "holds adapter.weight, which EAGLE's layout has not",
    ),
    "nothing known": ({"a": drawn(2, 2)}, {}, "neither Medusa's layout nor EAGLE's"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_honoured_is_refused_by_name(place: Path, name: str) -> None:
    tensors, changes, words = WRONG[name]
    write(place / "wrong", tensors, "model.safetensors", EAGLE | changes)
    with pytest.raises(InputError, match=words):
        plan_recipe(load_recipe(recipe(place, "feature", "wrong")), None)


def test_heads_of_another_model_are_refused(place: Path, tmp_path: Path) -> None:
    """By the embedding that they bring along, and by the base of their rotary angles."""
    target, out = open_checkpoint(str(place / "tiny")), tmp_path / "head.safetensors"
    for name, tensors, changes, words in (
        ("embedding", spoiled(embed_tokens__weight=drawn(256, HIDDEN)), {}, "made for another target"),
        ("rotary", spoiled(), {"rope_theta": 5e5}, "rope_theta 500000"),
    ):
        write(tmp_path / name, tensors, "model.safetensors", EAGLE | changes)
        convert_published(tmp_path / name / "model.safetensors", target.spec, out)
        with pytest.raises(InputError, match=words):
            build_draft_head(load_draft_head(out), target.load())


def test_medusa_files_that_are_not_whole(place: Path) -> None:
    """Fewer heads than config.json says, a missing bias, another kind than the recipe's, no folder of a
    head.
    """
    tensors = medusa_tensors()
    write(place / "short", tensors, "medusa_lm_head.safetensors", MEDUSA | {"medusa_num_heads": 6})
    del tensors["3.1.linear.bias"]
    write(place / "holed", tensors, "medusa_lm_head.safetensors", MEDUSA)
    for kind, head, words in (
        ("medusa", "short", "holds 5 heads of 2 blocks, its config.json says 6"),
        ("medusa", "holed", "3.1.linear.bias of .* is missing"),
        ("feature", "medusa", "is a head of kind medusa, but the recipe asks for feature"),
        ("medusa", "tiny", "neither Medusa's layout nor EAGLE's"),
        ("medusa", ".", "holds none of medusa_lm_head.safetensors"),
    ):
        with pytest.raises(InputError, match=words):
            plan_recipe(load_recipe(recipe(place, kind, head)), None)


class Harmful:
    """What a pickle may hide: unpickled, it would make a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return Path.mkdir, (self.folder,)


def test_pickles_run_no_code(place: Path) -> None:
    (place / "harmful").mkdir()
    (place / "harmful" / "config.json").write_text(json.dumps(MEDUSA))
    torch.save({"0.0.linear.weight": Harmful(place / "made")}, place / "harmful" / "medusa_lm_head.pt")
    with pytest.raises(InputError, match="only plain tensors are read, since anything else could run code"):
        plan_recipe(load_recipe(recipe(place, "medusa", "harmful")), None)
    assert not (place / "made").exists()
