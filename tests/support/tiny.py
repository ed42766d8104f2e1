"""Tiny models with fixed weights as Hugging Face folders, two layers and a byte-level tokenizer; and their
plans.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

VOCAB = 256
END = 255
CONTEXT, WIDTHS = 96, (1, 2, 3, 5, 16)
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
    "eos_token_id": END,
    "bos_token_id": None,
    "initializer_range": 0.1,
}


def tiny_model(family: str = "llama", seed: int = 0, **changes: Any) -> Any:
    """A module of random weights, fp32 eval; `changes` go into its configuration."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    config, module = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen2": (Qwen2Config, Qwen2ForCausalLM)}[
        family
    ]
    torch.manual_seed(seed)
    model = module(config(**{**SHAPE, **changes})).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                weight.add_(0.1 * torch.randn_like(weight))
    return model


def tiny_folder(
    folder: Path, family: str = "llama", seed: int = 0, dtype: str = "float32", **changes: Any
) -> Path:
    """Write such a model with its tokenizer; returns the folder."""
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    tiny_model(family, seed, **changes).to(getattr(torch, dtype)).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    """The byte-level tokenizer and its settings, beside a module that is there."""
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()), encoding="utf-8")
    settings = {"eos_token": "<end>", "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def tokenizer_json(vocab: dict[str, int] | None = None) -> dict[str, Any]:
    """A byte-level tokenizer without merges: 255 bytes (0xFF left out) and `<end>` = 255."""
    end = {"id": END, "content": "<end>", "special": True, "normalized": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{**end, "single_word": False, "lstrip": False, "rstrip": False}],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": byte_vocab() if vocab is None else vocab,
            "merges": [],
        },
    }


def byte_vocab() -> dict[str, int]:
    """GPT-2's byte alphabet: character -> byte, 0..254, and `<end>`."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in plain]
    of_byte = {**{b: chr(b) for b in plain}, **{b: chr(256 + i) for i, b in enumerate(rest)}}
    return {**{of_byte[b]: b for b in range(END)}, "<end>": END}


def plan_of(folder: Path, **changes: Any) -> Any:
    """The target's EnginePlan of a tiny model in fp32; `changes` replace its fields."""
    from specc.contracts.engine_plan import EnginePlan
    from specc.contracts.scheme import Scheme
    from specc.exporter.checkpoint.checkpoint import open_checkpoint

    spec, scheme, chunk = open_checkpoint(str(folder)).spec, Scheme("fp32", "fp32", 32), WIDTHS[-1]
    plan = EnginePlan(
        "target", spec, scheme, spec.layers, CONTEXT, CONTEXT + chunk, WIDTHS, chunk, "ort", None
    )
    return replace(plan, **changes)


def float_graph(folder: Path, **changes: Any) -> Any:
    """The fused float graph of a tiny model, in memory; `changes` replace fields of its plan."""
    from specc.exporter.checkpoint.checkpoint import open_checkpoint
    from specc.exporter.rewrites.fuse import fuse_graph
    from specc.exporter.trace import trace_graph

    return fuse_graph(trace_graph(open_checkpoint(str(folder)).load(), plan_of(folder, **changes)))


def float_rows(folder: Path, ids: np.ndarray, layers: int = 2) -> np.ndarray:
    """Logits fp32 [n, vocab] of every position by transformers, without a cache, from the first layers."""
    import torch

    from specc.exporter.checkpoint.checkpoint import open_checkpoint

    model: Any = open_checkpoint(str(folder)).load()
    model.config.num_hidden_layers = layers
    with torch.no_grad():
        logits: np.ndarray = model(torch.from_numpy(ids)[None], use_cache=False).logits[0].numpy()
    return logits


def some_ids(count: int, seed: int = 3) -> np.ndarray:
    """Random ids of the tiny tokenizer."""
    return np.random.default_rng(seed).integers(0, 250, count)
