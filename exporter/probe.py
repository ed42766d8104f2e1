"""What a Hugging Face module asks of attention, found by calling it rather than by reading its configuration.

Two short forward passes with an attention function of our own. The first records every keyword and
every mask that a layer hands over; what the exporter does not carry over is refused by name. The
second lets each row see its own value only: if a later row still changes with the first token, the
model keeps a state outside keys and values (convolution, recurrence, token shift), which rollback
would not restore.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers.masking_utils import eager_mask

from specc.contracts.engine_plan import EnginePlan
from specc.errors import InputError
from specc.exporter.module_view import AttentionFunction, swap_attention

PROBE = "specc_probe"
ROWS = 24
HARMLESS = frozenset(
    {
        "cache_position",
        "cu_seq_lens_k",
        "cu_seq_lens_q",
        "dropout",
        "implementation",
        "max_length_k",
        "max_length_q",
        "output_attentions",
        "output_router_logits",
        "past_key_values",
        "position_embeddings",
        "position_ids",
        "target_dtype",
        "use_cache",
    }
)
"""Keywords that say nothing about what attention computes for one sequence at inference."""


@dataclass(frozen=True)
class LayerAttention:
    """What one layer asks for: heads, widths of a head, scale, window (0: none), soft cap (0.0: none)."""

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    scale: float
    window: int
    soft_cap: float


@dataclass
class Recorder:
    """Layers in the order of their calls, and the window of each mask that was made."""

    layers: dict[int, LayerAttention] = field(default_factory=dict)
    windows: dict[int, int] = field(default_factory=dict)
    masks: list[Any] = field(default_factory=list)


def probe_attention(model: Any) -> tuple[LayerAttention, ...]:
    """Attention of every layer in order; the module is left as it was.

    model: a causal LM of transformers, fp32, eval. Raises InputError for a layer that asks for no
    attention, a keyword or a mask that is not carried over, and a state outside keys and values.
    """
    recorder = Recorder()
    name = type(model).__name__
    attend, make_mask = make_recording_attention(recorder, name), make_recording_mask(recorder)
    with swap_attention(model.config, PROBE, attend, make_mask=make_mask):
        compute_logits(model, torch.arange(ROWS))
    count = int(model.config.get_text_config().num_hidden_layers)
    check_layers(model, recorder.layers, count)
    check_state(model)
    return tuple(recorder.layers[layer] for layer in range(count))


def check_attention(model: Any, plan: EnginePlan) -> int:
    """The largest window of a layer that is smaller than the cache of `plan`, 0 without one.

    Raises InputError for a module whose attention asks for what a graph does not carry over.
    """
    layers = probe_attention(model)
    spec, first = plan.spec, layers[0]
    found, planned = (first.heads, first.kv_heads, first.key_dim), (spec.heads, spec.kv_heads, spec.head_dim)
    if found != planned:
        raise InputError(
            f"{type(model).__name__} attends with (heads, KV heads, head width) {found} and its "
            f"configuration says {planned}; it is not supported."
        )
    return max((layer.window for layer in layers if layer.window < plan.capacity), default=0)


def compute_logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Logits fp32 [rows, vocab] of one pass without a cache."""
    with torch.no_grad():
        out = model(input_ids=ids[None], position_ids=torch.arange(len(ids))[None], use_cache=False)
    logits: torch.Tensor = out.logits[0]
    return logits


def make_recording_attention(recorder: Recorder, name: str) -> AttentionFunction:
    """An attention function that notes what it is asked for and attends causally."""

    def attend(
        module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: Any = None, **keywords: Any
    ) -> Any:
        layer = read_layer_index(module, name)
        if layer in recorder.layers:
            raise InputError(f"layer {layer} of {name} attends twice in one call, which is not supported.")
        window = read_keywords(name, layer, keywords)
        check_mask(name, layer, mask, window, recorder.windows)
        recorder.layers[layer] = LayerAttention(
            query.shape[1],
            key.shape[1],
            key.shape[3],
            value.shape[3],
            float(scaling if scaling is not None else query.shape[3] ** -0.5),
            window,
            float(keywords.get("softcap") or 0.0),
        )
        groups = query.shape[1] // key.shape[1]
        out = torch.nn.functional.scaled_dot_product_attention(
            query,
            key.repeat_interleave(groups, 1),
            value.repeat_interleave(groups, 1),
            is_causal=True,
            scale=scaling,
        )
        return out.transpose(1, 2).contiguous(), None

    return attend


def make_recording_mask(recorder: Recorder) -> Callable[..., Any]:
    """A mask function that makes the mask of eager attention and notes its window."""

    def make(*arguments: Any, **keywords: Any) -> Any:
        mask = eager_mask(*arguments, **keywords)
        recorder.masks.append(mask)  # kept, so that no other mask gets its id
        recorder.windows[id(mask)] = int(keywords.get("local_size") or 0)
        return mask

    return make


def read_layer_index(module: Any, name: str) -> int:
    """The layer that an attention module belongs to."""
    index = getattr(module, "layer_idx", None)
    if index is None:
        raise InputError(f"{type(module).__name__} of {name} does not say which layer it is; not supported.")
    return int(index)


def read_keywords(name: str, layer: int, keywords: dict[str, Any]) -> int:
    """The window of a call; raises InputError for a keyword that would be lost."""
    for key, value in keywords.items():
        if key in HARMLESS or key in ("sliding_window", "softcap") or value is None:
            continue
        if key == "is_causal" and value is True:
            continue
        raise InputError(
            f"layer {layer} of {name} hands {key} to attention, which is not carried over into the graph; "
            "take a model without it."
        )
    return int(keywords.get("sliding_window") or 0)


def check_mask(name: str, layer: int, mask: Any, window: int, windows: dict[int, int]) -> None:
    """The mask must say what position and window say, and nothing else (no ALiBi, no prefix, no chunks)."""
    if mask is None:
        return
    if windows.get(id(mask), window) != window:
        raise InputError(
            f"layer {layer} of {name} has a mask of window {windows[id(mask)]} and attention of window "
            f"{window}; chunked and other masks are not carried over."
        )
    rows = mask.shape[-2]
    row, slot = torch.arange(rows)[:, None], torch.arange(mask.shape[-1])[None, :]
    visible = (slot <= row) & ((slot > row - window) if window else torch.ones((), dtype=torch.bool))
    plain = torch.where(visible, 0.0, torch.finfo(torch.float32).min)
    if not bool((mask.expand(1, 1, *mask.shape[-2:])[0, 0] == plain).all()):
        raise InputError(
            f"layer {layer} of {name} adds a mask to attention that is more than causal (ALiBi, a prefix "
            "or chunks), which is not carried over into the graph."
        )


def check_layers(model: Any, layers: dict[int, LayerAttention], count: int) -> None:
    """Every layer must have asked, and all caches must have one shape."""
    silent = [layer for layer in range(count) if layer not in layers]
    if silent:
        raise InputError(
            f"layers {', '.join(map(str, silent[:4]))} of {type(model).__name__} keep a state that is no "
            "key and value cache (convolution, recurrence or an attention of their own); only attention "
            "with a KV cache is supported."
        )
    shapes = {(a.kv_heads, a.key_dim, a.value_dim) for a in layers.values()}
    if len(shapes) > 1 or any(key != value for _, key, value in shapes):
        raise InputError(
            f"{type(model).__name__} has caches of several shapes (heads, key width, value width): "
            f"{', '.join(map(str, sorted(shapes)))}; all layers must have one."
        )


def check_state(model: Any) -> None:
    """Refuse a state outside keys and values: with rows that see only their own value, token 0 must not
    reach row 1.
    """

    def attend(module: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Any:
        own = value.repeat_interleave(query.shape[1] // value.shape[1], 1)
        return own.transpose(1, 2).contiguous(), None

    ids = torch.arange(1, ROWS + 1)
    changed = ids.clone()
    changed[0] = ROWS + 2
    with swap_attention(model.config, PROBE, attend):
        same = torch.equal(compute_logits(model, ids)[1:], compute_logits(model, changed)[1:])
    if not same:
        raise InputError(
            f"{type(model).__name__} carries something from row to row besides keys and values "
            "(convolution or recurrence), which a rollback of the KV cache would not restore; it is not "
            "supported."
        )
