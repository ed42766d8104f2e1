"""Which layers quantizing hurts: groups by themselves, and an outlier channel that is found where it was
put (R38).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specc.errors import JudgeError
from specc.exporter.check.sensitivity import (
    EMBEDDING_AND_LM_HEAD,
    group_layers,
    measure_sensitivity,
    parse_layer,
)
from specc.gate.quality import describe_worst_groups
from specc.pipeline.build import build

Write = Callable[..., Path]


def test_groups() -> None:
    """Every layer is in one group; many layers share groups with their neighbours."""
    for layers in (1, 2, 16, 17, 30, 80):
        groups = group_layers(layers)
        assert sorted(i for group in groups.values() for i in group if i is not None) == list(range(layers))
        assert groups[EMBEDDING_AND_LM_HEAD] == {None} and len(groups) <= 17
    assert list(group_layers(2)) == [
        EMBEDDING_AND_LM_HEAD,
        "layer 0",
        "layer 1",
    ] and "layers 28-29" in group_layers(30)
    assert parse_layer("model.layers.12.mlp.up_proj.weight") == 12 and parse_layer("lm_head.weight") is None


def test_the_worst_are_named() -> None:
    """The largest first, NaN before all."""
    groups = [{"group": "a", "kl": 0.1}, {"group": "b", "kl": 0.3}, {"group": "c", "kl": float("nan")}]
    assert describe_worst_groups(groups, 2) == "c (kl nan), b (kl 0.3)"


def test_a_failed_limit_names_the_worst_layers(
    write_recipe: Write, fake_model: object, tmp_path: Path
) -> None:
    found = "kl is 0.1, above the limit 0.01; worst alone are layer 4 .kl 0.04., layer 3 .kl 0.03., layer 2"
    with pytest.raises(JudgeError, match=found):
        build(write_recipe(gate={"kl_max": 0.01}), out=tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_on_request_it_goes_into_the_bundle(
    write_recipe: Write, fake_model: SimpleNamespace, tmp_path: Path
) -> None:
    built = build(write_recipe(), out=tmp_path / "b", sensitivity=True)
    groups = built.bundle.manifest["quality"]["target"]["sensitivity"]
    assert [group["group"] for group in groups] == [f"layer {i}" for i in range(5)]
    assert "sensitivity" in [row["stage"] for row in built.as_dict()["stages"]]
    again = build(write_recipe(), out=tmp_path / "b", sensitivity=True)
    assert not again.written and all(time.cached for time in again.times)
    assert "sensitivity" not in build(write_recipe(), out=tmp_path / "c").bundle.manifest["quality"]["target"]


def outlier(folder: Path, layer: int) -> Path:
    """A tiny model whose MLP of one layer reads one channel 300 times larger than before.

    Its function is the same.
    """
    import torch
    from support import tiny

    tiny.tiny_folder(folder)
    model = tiny.tiny_model()
    block = model.model.layers[layer]
    with torch.no_grad():
        block.post_attention_layernorm.weight[5] *= 300
        for product in (block.mlp.gate_proj, block.mlp.up_proj):
            product.weight[:, 5] /= 300
    model.save_pretrained(folder)
    return folder


def measured(folder: Path, layers: str, head: str, dialect: str = "ort") -> dict[str, float]:
    from support import tiny

    from specc.contracts.scheme import Scheme
    from specc.exporter.checkpoint.checkpoint import open_checkpoint

    plan = tiny.plan_of(folder, scheme=Scheme(layers, head, 32), dialect=dialect)
    groups = measure_sensitivity(open_checkpoint(str(folder)), plan)
    assert [group["group"] for group in groups] == [EMBEDDING_AND_LM_HEAD, "layer 0", "layer 1"]
    return {group["group"]: group["kl"] for group in groups}


def test_an_outlier_channel_is_found(tmp_path: Path) -> None:
    """R38: naive dynamic int8 over an outlier channel; the layer with it costs far more than the other."""
    pytest.importorskip("torch")
    found: Any = measured(outlier(tmp_path / "m", 1), "dynamic-int8", "dynamic-int8")
    assert found["layer 1"] > 10 * found["layer 0"] and found["layer 1"] > found[EMBEDDING_AND_LM_HEAD]
    assert describe_worst_groups([{"group": g, "kl": kl} for g, kl in found.items()], 1).startswith(
        "layer 1 (kl"
    )


@pytest.mark.parametrize("dialect", ["ort", "specc-cpu"])
def test_only_the_group_is_quantized(tmp_path: Path, dialect: str) -> None:
    """A scheme that leaves the head as it is costs nothing there, and something in each layer."""
    pytest.importorskip("torch")
    from support import tiny

    folder = tiny.tiny_folder(tmp_path / "m")
    found = measured(folder, "w4", "fp32", dialect)
    assert (
        found[EMBEDDING_AND_LM_HEAD] < 1e-6 < 1e-4 < min(found["layer 0"], found["layer 1"])
        and np.isfinite([*found.values()]).all()
    )
