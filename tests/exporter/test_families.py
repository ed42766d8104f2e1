"""Decoder families through the whole exporter: windows, soft caps, norms of heads and other names of the
parts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from support import tiny

from specc.contracts.scheme import Scheme
from specc.errors import InputError
from specc.exporter.check.logits import make_cases
from specc.exporter.checkpoint.checkpoint import open_checkpoint
from specc.exporter.export import export_graph
from specc.exporter.probe import probe_attention

WINDOW = 24
"""Smaller than the context of the tiny plans (96), so that every check reaches past it."""
GEMMA = {"sliding_window": WINDOW, "query_pre_attn_scalar": 16}
NO_HEAD_DIM = {"head_dim": None}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral": ("mistral", {"sliding_window": WINDOW}),
    "qwen2 with windows": (
        "qwen2",
        {"sliding_window": WINDOW, "use_sliding_window": True, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", {}),
    "gemma2": ("gemma2", GEMMA),
    "gemma3": ("gemma3_text", {**GEMMA, "num_hidden_layers": 6}),
    "phi3": ("phi3", {}),
    "smollm3": ("smollm3", {"num_hidden_layers": 4, **NO_HEAD_DIM}),
    "cohere2": ("cohere2", {"sliding_window": WINDOW, "num_hidden_layers": 4}),
}
OWN_NAMES: dict[str, dict[str, Any]] = {
    "gpt2": {"vocab_size": 256, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512}
}


def family_model(family: str, **changes: Any) -> Any:
    """A module of random weights of one model type of transformers."""
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = {**(OWN_NAMES.get(family) or tiny.SHAPE), **changes}
    ids = {"bos_token_id": None, "eos_token_id": tiny.END, "pad_token_id": None}
    values = {key: value for key, value in shape.items() if value is not None}
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **{**values, **ids})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                weight.add_(0.1 * torch.randn_like(weight))
    return model


def family_folder(folder: Path, name: str) -> Path:
    """A checkpoint of that family with the tiny tokenizer."""
    family, changes = FAMILIES[name]
    family_model(family, **changes).save_pretrained(folder)
    tiny.write_tokenizer(folder)
    return folder


def export(folder: Path, out: Path) -> Any:
    """The w4 graph of our operators; the float stages before it are compared with transformers."""
    out.mkdir(exist_ok=True)
    plan = tiny.plan_of(folder, scheme=Scheme("w4", "w8", 32), dialect="specc-cpu")
    return export_graph(open_checkpoint(str(folder)), plan, out)


@pytest.mark.parametrize("name", FAMILIES)
def test_family_is_exported_to_our_operators(name: str, tmp_path: Path) -> None:
    """R15: float stages agree with transformers past every window, and each layer's attention is
    specc::Attention, where rows cannot see each other.
    """
    import onnx

    done = export(family_folder(tmp_path / "hf", name), tmp_path / "out")
    assert max(done.stage_errors["trace"], done.stage_errors["fuse"]) < 2e-4
    nodes = onnx.load(str(tmp_path / "out" / "target.onnx"), load_external_data=False).graph.node
    kinds = [node.op_type for node in nodes if node.domain == "specc"]
    layers = FAMILIES[name][1].get("num_hidden_layers", 2)
    assert kinds.count("Attention") == layers
    assert "GroupQueryAttention" not in {node.op_type for node in nodes}
    assert kinds.count("MatMul") >= 4 * layers


def test_windows_and_caps_are_in_the_graph(tmp_path: Path) -> None:
    """Alternating layers of Gemma 2: a window on the even ones, the soft cap on all."""
    import onnx

    export(family_folder(tmp_path / "hf", "gemma2"), tmp_path / "out")
    graph = onnx.load(str(tmp_path / "out" / "target.onnx"), load_external_data=False).graph
    layers = [
        {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        for node in graph.node
        if node.op_type == "Attention"
    ]
    assert [a["window"] for a in layers] == [WINDOW, 0]
    assert all(a["soft_cap"] == pytest.approx(50.0) for a in layers)


def test_a_window_that_is_lost_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R15 put back: attention over the whole cache instead of the window stops the build."""
    from specc.exporter import trace
    from specc.exporter.check.logits import StageError

    right = trace.emit_attention

    def forget(step: Any, layer: int, query: Any, key: Any, value: Any, attributes: Any) -> Any:
        return right(step, layer, query, key, value, {"scale": attributes["scale"]})

    folder = family_folder(tmp_path / "hf", "mistral")
    monkeypatch.setattr(trace, "emit_attention", forget)
    with pytest.raises(StageError, match="stage 'trace'"):
        export(folder, tmp_path / "out")


def test_checks_reach_past_a_wide_window(tmp_path: Path) -> None:
    """A window of 2,300 in a context of 4,096: slots behind the window are filled and compared."""
    plan = tiny.plan_of(tiny.tiny_folder(tmp_path / "hf"), context=4096)
    assert max(case.past + case.rows for case in make_cases(plan, 2300)) > 2300
    assert max(case.past + case.rows for case in make_cases(plan)) <= 2048


def test_a_window_as_wide_as_the_cache_changes_nothing(tmp_path: Path) -> None:
    """The graph of such a model is the graph without a window."""

    def bytes_of(window: int | None, name: str) -> bytes:
        folder = tmp_path / name
        family_model("mistral", sliding_window=window).save_pretrained(folder)
        tiny.write_tokenizer(folder)
        export(folder, tmp_path / f"{name}-out")
        return (tmp_path / f"{name}-out" / "target.onnx").read_bytes()

    assert bytes_of(4096, "wide") == bytes_of(None, "none")


REFUSED = {
    "gpt_oss": ({"num_local_experts": 4, "num_experts_per_tok": 2}, "hands s_aux to attention"),
    "mamba": ({}, "is no decoder with attention|keep a state that is no key and value cache"),
    "bloom": ({}, "keep a state that is no key and value cache"),
}


@pytest.mark.parametrize("family", REFUSED)
def test_what_is_not_carried_over_is_refused_by_name(family: str) -> None:
    changes, words = REFUSED[family]
    with pytest.raises(InputError, match=words):
        probe_attention(family_model(family, **changes))


def test_a_state_outside_keys_and_values_is_refused() -> None:
    """LFM2's short convolution hands rows on beside the KV cache."""
    types = ["conv", "full_attention"]
    with pytest.raises(
        InputError, match="keep a state that is no key and value|carries something from row to row"
    ):
        probe_attention(family_model("lfm2", layer_types=types))


def test_a_module_that_cannot_be_traced_is_refused(tmp_path: Path) -> None:
    """GPT-2 shapes its output by the number of rows that came in; the tracer's pages become one sentence."""
    family_model("gpt2").save_pretrained(tmp_path / "hf")
    tiny.write_tokenizer(tmp_path / "hf")
    with pytest.raises(InputError, match="GPT2LMHeadModel cannot be traced by torch"):
        export(tmp_path / "hf", tmp_path / "out")


def test_a_token_shift_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer that adds the row before to a row, in a model whose attention looks like any other."""
    model = family_model("llama")
    layer = model.model.layers[0].mlp
    forward = layer.forward
    layer.forward = lambda x: forward(x) + torch.nn.functional.pad(x, (0, 0, 1, 0))[:, :-1]
    with pytest.raises(InputError, match="carries something from row to row"):
        probe_attention(model)


def test_the_module_is_left_as_it_was() -> None:
    """The probe swaps attention for a moment only."""
    model = family_model("qwen3")
    before = model(torch.arange(20)[None], use_cache=False).logits.detach().numpy()
    probe_attention(model)
    after = model(torch.arange(20)[None], use_cache=False).logits.detach().numpy()
    assert np.array_equal(before, after)
