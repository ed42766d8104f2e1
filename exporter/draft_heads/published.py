"""Convert draft heads in the layouts in which Medusa and EAGLE are published into draft head files.

Medusa: `{i}.{j}.linear.weight` and `.bias` (residual blocks of head i), `{i}.{layers}.weight` (its lm_head
rows), and config.json with medusa_num_heads and medusa_num_layers. EAGLE and EAGLE-2: `fc.weight` [H, 2H]
over (embedding, feature), `layers.0.*` without an input norm, `embed_tokens.weight`; the lm_head is the
target's, and there is no final norm. A reduced vocabulary is `d2t` [Vd], offsets from the column, and `t2d`
[V], true where an id has a column (R62). Pickles are read as tensors only. Anything that cannot be converted
is refused by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from specc.contracts.model_spec import ModelSpec
from specc.errors import InputError
from specc.exporter.draft_heads.file import PROBE_IDS, save_draft_head

NAMES = ("medusa_lm_head.safetensors", "model.safetensors", "medusa_lm_head.pt", "pytorch_model.bin")
LAYER = "layers.0."
TRAIN = "train one with `specc distill`"
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class PublishedHead:
    """A published draft head under the names of a draft head file."""

    kind: str
    tensors: Tensors
    ids: torch.Tensor
    metadata: dict[str, str]


def find_weights(path: Path) -> Path:
    """The weight file of a published draft head, given as a folder or as the file. Raises InputError."""
    file = path if path.is_file() else next((path / name for name in NAMES if (path / name).is_file()), None)
    if file is None:
        raise InputError(
            f"{path} holds none of {', '.join(NAMES)}; name the folder or the file of a published head"
        )
    return file


def convert_published(path: Path, target: ModelSpec, out: Path) -> None:
    """Write the published draft head at `path` as the draft head file `out`. Raises InputError."""
    tensors, config = read_tensors(path), read_config(path)
    if any(re.match(r"\d+\.0\.linear\.weight$", name) for name in tensors):
        head = convert_medusa(tensors, config, target, path)
    elif "fc.weight" in tensors:
        head = convert_eagle(tensors, config, target, path)
    else:
        some = ", ".join(sorted(tensors)[:3]) or "no tensors"
        raise InputError(f"{path} is neither Medusa's layout nor EAGLE's (it holds {some}); {TRAIN}")
    save_draft_head(out, head.kind, head.tensors, head.ids, head.metadata)


def read_tensors(path: Path) -> Tensors:
    """All tensors: floats as fp32, integers as int64.

    A pickle is read as tensors only: none of its code runs.
    """
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            loaded: Any = load_file(path)
        else:
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # both packages raise their own exception types
        advice = "only plain tensors are read, since anything else could run code; save them as safetensors"
        raise InputError(f"{path} cannot be read as tensors ({type(error).__name__}); {advice}") from error
    if not isinstance(loaded, dict) or not all(isinstance(t, torch.Tensor) for t in loaded.values()):
        raise InputError(f"{path} holds no table of tensors; name the weight file of a published head")
    return {str(name): t.float() if t.is_floating_point() else t.long() for name, t in loaded.items()}


def read_config(path: Path) -> dict[str, Any]:
    """config.json beside the weights. Raises InputError."""
    place = path.parent / "config.json"
    try:
        config = json.loads(place.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"{place} cannot be read; a published head needs the config.json that came with it"
        ) from error
    if not isinstance(config, dict):
        raise InputError(
            f"{place} is no configuration; a published head needs the config.json that came with it"
        )
    return config


# ---------------------------------------------------------------------- Medusa


def convert_medusa(
    tensors: Tensors, config: Mapping[str, Any], target: ModelSpec, path: Path
) -> PublishedHead:
    """Convert every head of the file: its blocks and its lm_head rows. Raises InputError."""
    heads = 1 + max(int(name.partition(".")[0]) for name in tensors if name[0].isdigit())
    layers = sum(name.startswith("0.") and name.endswith(".linear.weight") for name in tensors)
    check_numbers(config, heads, layers, path)
    rows, hidden = read_matrix_shape(tensors, f"0.{layers}.weight", path)
    out: Tensors = {}
    for i in range(heads):
        for j in range(layers):
            out[f"blocks.{i}.{j}.weight"] = take_tensor(
                tensors, f"{i}.{j}.linear.weight", (hidden, hidden), path
            )
            out[f"blocks.{i}.{j}.bias"] = take_tensor(tensors, f"{i}.{j}.linear.bias", (hidden,), path)
        out[f"outputs.{i}.weight"] = take_tensor(tensors, f"{i}.{layers}.weight", (rows, hidden), path)
    check_nothing_left(tensors, "Medusa", path)
    vocab = count_known_rows(rows, target)
    cut = {name: t[:vocab] if name.startswith("outputs") else t for name, t in out.items()}
    metadata = to_metadata({"k": heads, "depth": layers, "hidden": hidden, "vocab": vocab})
    return PublishedHead("medusa", cut, torch.arange(vocab), {**metadata, "published": "Medusa"})


def check_numbers(config: Mapping[str, Any], heads: int, layers: int, path: Path) -> None:
    """Compare heads and blocks with config.json. Raises InputError.

    A file may hold more heads than its config.json says, as the first published ones do, but not fewer.
    """
    config_heads, config_layers = (
        config.get("medusa_num_heads", heads),
        config.get("medusa_num_layers", layers),
    )
    if not isinstance(config_heads, int) or config_heads > heads or config_layers != layers:
        numbers = f"{heads} heads of {layers} blocks, its config.json says {config_heads} of {config_layers}"
        raise InputError(f"{path} holds {numbers}; get both files again")


# ---------------------------------------------------------------------- EAGLE


def convert_eagle(
    tensors: Tensors, config: Mapping[str, Any], target: ModelSpec, path: Path
) -> PublishedHead:
    """Convert fc, the one layer, and the ids of the columns. Raises InputError."""
    hidden, inputs = read_matrix_shape(tensors, "fc.weight", path)
    if inputs == 3 * hidden or any(name.startswith("midlayer.") for name in tensors):
        raise InputError(
            f"{path} is an EAGLE-3 head, which reads three inner layers; the target's graph gives the last "
            f"hidden state alone: use an EAGLE, EAGLE-2 or Medusa head, or {TRAIN}"
        )
    if inputs != 2 * hidden or any(re.match(r"layers\.[1-9]", name) for name in tensors):
        raise InputError(f"{path} is no EAGLE head of one layer over (embedding, feature); {TRAIN}")
    out: Tensors = {
        name: tensors.pop(name) for name in ("fc.weight", "fc.bias", "norm.weight") if name in tensors
    }
    layer = [name for name in tensors if name.startswith(LAYER)]
    out |= {
        f"layer.{name.removeprefix(LAYER)}": tensors.pop(name) for name in layer if "rotary_emb" not in name
    }
    numbers = check_layer(out, config, target, path)
    vocab = count_known_rows(int(config.get("vocab_size") or target.token_ids), target)
    out |= sample_embedding(tensors.pop("embed_tokens.weight", None), target)
    ids, rows = read_draft_ids(tensors, vocab, path), tensors.pop("lm_head.weight", None)
    if rows is not None:
        out["output.weight"] = rows[: len(ids)]
    check_nothing_left({name: t for name, t in tensors.items() if "rotary_emb" not in name}, "EAGLE", path)
    about = {**numbers, "layers": 1, "hidden": hidden, "vocab": vocab}
    return PublishedHead(
        "feature", out, ids, {**to_metadata(about), **read_rope_theta(config), "published": "EAGLE"}
    )


def check_layer(out: Tensors, config: Mapping[str, Any], target: ModelSpec, path: Path) -> dict[str, int]:
    """The layer's sizes; they must be the target's, of whose kind the layer is. Raises InputError."""
    heads = int(config.get("num_attention_heads", target.heads))
    hidden = int(config.get("hidden_size", target.hidden))
    sizes = {
        "heads": heads,
        "kv_heads": int(config.get("num_key_value_heads") or heads),
        "head_dim": int(config.get("head_dim") or hidden // heads),
        "intermediate": int(config.get("intermediate_size", target.intermediate)),
    }
    target_sizes = {name: getattr(target, name) for name in sizes}
    queries = read_matrix_shape(out, "layer.self_attn.q_proj.weight", path)[0]
    if hidden == target.hidden and (sizes != target_sizes or queries != sizes["heads"] * sizes["head_dim"]):
        pair = f"{join_numbers(sizes)}, the target's {join_numbers(target_sizes)}"
        raise InputError(f"the layer of {path} has {pair}; use a head made for this target")
    return sizes


def read_draft_ids(tensors: Tensors, vocab: int, path: Path) -> torch.Tensor:
    """Target id of each column, int64 [Vd]; d2t holds offsets from the column, t2d must agree.

    Raises InputError.
    """
    offsets, has_column = tensors.pop("d2t", None), tensors.pop("t2d", None)
    rows = tensors.get("lm_head.weight")
    columns = len(rows) if rows is not None else vocab if offsets is None else len(offsets)
    if offsets is None:
        if columns < vocab:
            raise InputError(
                f"{path} has {columns} columns for {vocab} ids and no d2t that says which; get it whole"
            )
        return torch.arange(vocab)
    ids = torch.arange(len(offsets)) + offsets
    if len(ids) != columns or not (has_column is None or torch.equal(has_column.nonzero().flatten(), ids)):
        why = (
            "d2t must hold the offset of each column's id from the column, and t2d be true at those ids alone"
        )
        raise InputError(f"the d2t of {path} does not fit its t2d or its columns; {why}")
    return ids


def sample_embedding(embedding: torch.Tensor | None, target: ModelSpec) -> Tensors:
    """Some rows of the embedding that the draft head was trained with, to compare with the target's."""
    if embedding is None:
        return {}
    at = torch.arange(0, min(len(embedding), target.token_ids), max(1, target.token_ids // 64))
    return {PROBE_IDS: at, "probe.rows": embedding[at]}


def read_rope_theta(config: Mapping[str, Any]) -> dict[str, str]:
    """The base of the rotary angles, to compare with the target's."""
    theta = config.get("rope_theta")
    return {} if theta is None else {"rope_theta": repr(float(theta))}


# ---------------------------------------------------------------------- small parts


def read_matrix_shape(tensors: Mapping[str, torch.Tensor], name: str, path: Path) -> tuple[int, int]:
    """(rows, columns) of a weight. Raises InputError where it is missing."""
    if name not in tensors or tensors[name].dim() != 2:
        raise InputError(f"{path} has no weight {name}; get the file again")
    rows, columns = tensors[name].shape
    return int(rows), int(columns)


def take_tensor(tensors: Tensors, name: str, wanted: tuple[int, ...], path: Path) -> torch.Tensor:
    """Remove and return a tensor of the shape `wanted`. Raises InputError."""
    if name not in tensors or tuple(tensors[name].shape) != wanted:
        found = f"of shape {list(tensors[name].shape)}" if name in tensors else "missing"
        raise InputError(f"{name} of {path} is {found}, its layout has {list(wanted)}; get the file again")
    return tensors.pop(name)


def check_nothing_left(tensors: Mapping[str, torch.Tensor], layout: str, path: Path) -> None:
    """Refuse tensors that are not in the layout: leaving them out would change the draft head."""
    if tensors:
        raise InputError(f"{path} holds {sorted(tensors)[0]}, which {layout}'s layout has not; {TRAIN}")


def count_known_rows(rows: int, target: ModelSpec) -> int:
    """Rows that stand for ids: the target's vocabulary may have padding rows at its end."""
    return target.token_ids if rows == target.vocab else rows


def to_metadata(numbers: Mapping[str, int]) -> dict[str, str]:
    """Numbers as safetensors metadata, which are strings."""
    return {name: str(number) for name, number in numbers.items()}


def join_numbers(numbers: Mapping[str, int]) -> str:
    """`heads 4, kv_heads 2`."""
    return ", ".join(f"{name} {number}" for name, number in numbers.items())
