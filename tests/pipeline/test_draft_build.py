"""From a recipe with stages to a bundle that drafts: a tiny model, a head without
training, an n-gram table.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import tiny
from support.draft_files import table_bytes

from specc.contracts.draft_head import read_draft_head
from specc.errors import SpeccError
from specc.exporter.checkpoint.checkpoint import open_checkpoint
from specc.pipeline.build import build
from specc.runtime import Library, Model, controls

IDS = list(range(0, 250, 2))
CONTEXT = 96


def write_head(path: Path, target: Any, kind: str = "feature", **changes: str) -> Path:
    """A head that passes the target's features on, and its metadata."""
    import torch

    from specc.exporter.draft_heads.file import save_draft_head
    from specc.exporter.draft_heads.modules import MedusaHead, build_feature_head

    torch.manual_seed(1)
    model, ids = target.load(), torch.tensor(IDS)
    if kind == "feature":
        tensors = build_feature_head(model, ids).parts.state_dict()
    else:
        tensors = MedusaHead(model.get_output_embeddings().weight.detach()[ids], 4).blocks.state_dict(
            prefix="blocks."
        )
    shape = {"layers": "1", "heads": "4", "kv_heads": "2", "head_dim": "16", "intermediate": "160", "k": "4"}
    spec = target.spec
    about = {
        "weights_sha256": spec.weights_sha256,
        "hidden": "64",
        "vocab": str(spec.token_ids),
        **shape,
        **changes,
    }
    save_draft_head(path, kind, tensors, ids, about)
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint, its heads and its table."""
    folder = tmp_path_factory.mktemp("drafts")
    target = open_checkpoint(str(tiny.tiny_folder(folder / "tiny")))
    for kind in ("feature", "medusa"):
        write_head(folder / f"{kind}.safetensors", target, kind)
    table = bytearray(table_bytes([1, 2, 3, 4] * 8, tiny.VOCAB))
    table[16:48] = bytes.fromhex(target.spec.id_map_sha256)
    (folder / "table.bin").write_bytes(bytes(table))
    return folder


def write_recipe(place: Path, draft: dict[str, Any]) -> Path:
    """A recipe beside the checkpoint."""
    parts = {"name": "drafts", "target": {"checkpoint": "tiny"}, "draft": draft, "k": 4, "context": CONTEXT}
    path = place / "recipe.yaml"
    path.write_text(json.dumps(parts | {"scheme": "w8", "prompt_template": "none"}))
    return path


def speculating(bundle: Path, loaded: Library | None = None) -> Model:
    """The bundle with a certificate of our own: specc-cpu rows are the same at every width."""
    model = Model.open(bundle, loaded=loaded)
    certificate = model.info.certificate
    exact = replace(certificate, kind="bit-exact", width_class=(0,) * len(certificate.widths), reasons=())
    model.apply(exact)
    return model


STAGED = {
    "kind": "staged",
    "stages": [
        {"kind": "ngram", "max_match": 8},
        {"kind": "table", "file": "table.bin"},
        {"kind": "feature", "head": "feature.safetensors"},
    ],
}


@pytest.fixture(scope="module")
def staged(place: Path) -> Path:
    """The bundle of a chain of three stages."""
    return build(write_recipe(place, STAGED), out=place / "staged").bundle.folder


def test_staged_bundle_keeps_the_text(staged: Path) -> None:
    """Lookup, table and head from one manifest; the same text with and without, and the
    head is really asked.
    """
    with speculating(staged) as model, model.session() as session:
        for rule, temperature in (("coupled", 1.0), ("rejection", 0.0)):
            options: dict[str, Any] = {
                "rule": rule,
                "temperature": temperature,
                "seed": 5,
                "ignore_eos": True,
            }
            prompt = tiny.some_ids(30).tolist()
            texts = [
                session.run(prompt, speculation=on, max_new_tokens=40, **options) for on in (False, True)
            ]
            assert texts[0].tokens == texts[1].tokens
            assert texts[1].stats["draft_calls"] > 0 and texts[1].stats["reasons"] == []


@pytest.mark.parametrize("kind", ["feature", "medusa"])
def test_single_heads(place: Path, kind: str) -> None:
    """A head alone, and what the manifest says of it."""
    draft = {"kind": kind, "head": f"{kind}.safetensors", "stop": 0.01}
    bundle = build(write_recipe(place, draft), out=place / kind).bundle
    part = bundle.manifest["engines"]["draft"]
    assert bundle.manifest["draft"] == {"kind": kind, "engine": "draft", "stop": 0.01, "ids": "draft_ids.bin"}
    assert part["vocab"] == len(IDS) and part["hidden_in"] == 64 and part["layers"] == (kind == "feature")
    with speculating(bundle.folder) as model, model.session() as session:
        options: dict[str, Any] = {"rule": "coupled", "seed": 2, "ignore_eos": True, "max_new_tokens": 30}
        texts = [session.run([5, 6, 7], speculation=on, **options) for on in (False, True)]
        assert texts[0].tokens == texts[1].tokens and texts[1].stats["proposed"] > 0


def drafts_of_fresh_sessions(model: Model, text: list[int], at: int) -> list[int]:
    """What a session that knows nothing but this text proposes first."""
    with model.session() as session:
        for event in session.generate(text[:at], temperature=0, max_new_tokens=8, ignore_eos=True):
            if not event.prefill:
                return list(event.drafted)
    return []


def check_cache_in_step(bundle: Path, loaded: Library | None) -> None:
    """R16: each round's chain is the one that a fresh session draws from the same text."""
    with speculating(bundle, loaded) as model, model.session() as session:
        prompt = tiny.some_ids(20).tolist()
        text, rounds = list(prompt), []
        for event in session.generate(prompt, temperature=0, max_new_tokens=40, ignore_eos=True):
            if not event.prefill and event.proposed == 4:
                rounds.append((len(text), list(event.drafted)))
            text += event.tokens
        assert len(rounds) > 5
        assert [drafted for _, drafted in rounds] == [
            drafts_of_fresh_sessions(model, text, at) for at, _ in rounds
        ]


def test_head_cache_is_never_behind(place: Path) -> None:
    """R16, and the same with entries kept that the head drafted itself."""
    bundle = build(
        write_recipe(place, {"kind": "feature", "head": "feature.safetensors"}), out=place / "r16"
    ).bundle
    check_cache_in_step(bundle.folder, None)
    with pytest.raises(AssertionError), controls().fault("draft_cache_behind"):
        check_cache_in_step(bundle.folder, controls())


def spoiled_ids(path: Path, out: Path, change: Callable[[list[int]], list[int]]) -> Path:
    """The head with another draft_ids of the same length."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    begin, end = json.loads(data[8 : 8 + size])["draft_ids"]["data_offsets"]
    ids = struct.pack(f"<{len(IDS)}i", *change(list(IDS)))
    out.write_bytes(data[: 8 + size + begin] + ids + data[8 + size + end :])
    return out


MAPS: dict[str, tuple[Callable[[list[int]], list[int]], str]] = {
    "offsets": (lambda ids: [token // 4 for token in ids], "not offsets"),
    "all zero": (lambda ids: [0] * len(ids), "strictly rising"),
    "unsorted": (lambda ids: ids[::-1], "strictly rising"),
    "out of range": (lambda ids: [*ids[:-1], 256], "ids are 0 to 255"),
    "negative": (lambda ids: [-1, *ids[1:]], "ids are 0 to 255"),
}


@pytest.mark.parametrize("name", MAPS)
def test_wrong_maps_are_refused_at_build(place: Path, name: str) -> None:
    """R62: one sentence before anything is built."""
    change, words = MAPS[name]
    spoiled_ids(place / "feature.safetensors", place / "wrong.safetensors", change)
    with pytest.raises(SpeccError, match=words):
        build(write_recipe(place, {"kind": "feature", "head": "wrong.safetensors"}), out=place / "never")
    assert not (place / "never").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden": "96"}, "hidden states of 96 numbers"),
        ({"weights_sha256": "0" * 64}, "was trained for weights"),
        ({"vocab": "300"}, "tokenizer of 300 ids"),
        ({"version": "2"}, "of this version"),
    ],
)
def test_heads_of_another_target_are_refused(place: Path, changes: dict[str, str], words: str) -> None:
    """Hidden size, weights, tokenizer, version: one sentence each."""
    target = open_checkpoint(str(place / "tiny"))
    write_head(place / "other.safetensors", target, **changes)
    with pytest.raises(SpeccError, match=words):
        build(write_recipe(place, {"kind": "feature", "head": "other.safetensors"}), out=place / "never")


def test_table_of_another_tokenizer_is_refused(place: Path) -> None:
    """By its id map's hash."""
    (place / "other.bin").write_bytes(table_bytes([1, 2, 3] * 8, tiny.VOCAB))
    with pytest.raises(SpeccError, match="another tokenizer"):
        build(write_recipe(place, {"kind": "table", "file": "other.bin"}), out=place / "never")


@pytest.mark.parametrize("kind", ["feature", "medusa"])
def test_heads_on_tensorrt_are_refused_before_anything_is_exported(place: Path, kind: str) -> None:
    """Its engines have no hidden states yet."""
    recipe = write_recipe(place, {"kind": kind, "head": f"{kind}.safetensors"})
    with pytest.raises(SpeccError, match="a trained head drafts on TensorRT; .*use dialect ort"):
        build(recipe, "rtx-ada", place / "never")


@pytest.mark.parametrize(
    "content", [b"", b"\xff" * 9, struct.pack("<Q", 1 << 60), struct.pack("<Q", 4) + b"null"]
)
def test_no_head_files(tmp_path: Path, content: bytes) -> None:
    """Anything but a head is one sentence."""
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(SpeccError, match="safetensors"):
        read_draft_head(path)


@pytest.mark.parametrize(
    ("draft", "words"),
    [
        ({"kind": "staged"}, "list of mappings"),
        ({"kind": "staged", "stages": [{"kind": "none"}]}, "none of them"),
        (
            {"kind": "staged", "stages": [{"kind": kind, "head": "a"} for kind in ("medusa", "feature")]},
            "one of them",
        ),
        ({"kind": "feature"}, "head"),
        ({"kind": "tree"}, "draft.kind is 'tree'"),
    ],
)
def test_recipes_that_are_refused(place: Path, draft: dict[str, Any], words: str) -> None:
    """Chains within chains, two engines, a head without its file, and R61's tree."""
    with pytest.raises(SpeccError, match=words):
        build(write_recipe(place, draft), out=place / "never")


HIERARCHY = {
    "kind": "model",
    "checkpoint": "middle",
    "draft": {"kind": "staged", "stages": STAGED["stages"][:2]},
}


def test_hierarchy_from_recipe_to_text(place: Path) -> None:
    """A draft model with a draft of its own: the text stays, and its nodes come from fewer of its calls than
    nodes.
    """
    tiny.tiny_folder(place / "middle")
    bundle = build(write_recipe(place, HIERARCHY), out=place / "hierarchy").bundle
    part = bundle.manifest["draft"]
    assert (part["kind"], part["engine"], part["draft"]["kind"]) == ("hierarchy", "draft", "staged")
    assert bundle.manifest["plan"]["draft"] == "hierarchy"
    with speculating(bundle.folder) as model, model.session() as session:
        prompt = [1, 2, 3, 4] * 6
        for rule, temperature in (("coupled", 1.0), ("rejection", 0.0)):
            options: dict[str, Any] = {
                "rule": rule,
                "temperature": temperature,
                "seed": 5,
                "ignore_eos": True,
            }
            texts = [
                session.run(prompt, speculation=on, max_new_tokens=40, **options) for on in (False, True)
            ]
            assert texts[0].tokens == texts[1].tokens
            assert (
                texts[1].stats["accepted"] == texts[1].stats["proposed"] > 0
            )  # the middle model is the target
            assert texts[1].stats["draft_calls"] < texts[1].stats["proposed"] + texts[1].stats["rounds"]


@pytest.mark.parametrize(
    ("draft", "words"),
    [
        (HIERARCHY | {"draft": {"kind": "feature", "head": "feature.safetensors"}}, "own draft is feature"),
        (HIERARCHY | {"draft": {"kind": "none"}}, "allowed are ngram, table and staged of both"),
        ({"kind": "staged", "stages": [{"kind": "ngram"}, HIERARCHY]}, "stands alone, not in a chain"),
        (HIERARCHY | {"draft": {"kind": "table", "file": "feature.safetensors"}}, "no n-gram table"),
    ],
)
def test_hierarchies_that_are_refused(place: Path, draft: dict[str, Any], words: str) -> None:
    """Engines within, nothing within, a hierarchy within a chain, a wrong table within."""
    with pytest.raises(SpeccError, match=words):
        build(write_recipe(place, draft), out=place / "never")
