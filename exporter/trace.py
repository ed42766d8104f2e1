"""Trace the Hugging Face module itself into the `ort` dialect: one graph, symbolic rows, caches in place.

Attention is swapped at the door: transformers lets us register an attention function, and ours emits
`com.microsoft::GroupQueryAttention` over a cache of fixed capacity. Rotary angles become a table that the model's own
rotary module fills, so every kind of scaling that does not depend on the length of the call is kept as it is.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface

from specc.contracts.engine_plan import EnginePlan
from specc.errors import EnvironmentFault, InputError
from specc.exporter.checkpoint.spec import ROPE_TYPES
from specc.exporter.graph.graph import OPSETS, Graph
from specc.exporter.graph.silence import silence_libraries

ATTENTION = "specc_ort"
SAMPLE_ROWS, SAMPLE_WANTED = 5, 3


def trace_graph(model: torch.nn.Module, plan: EnginePlan) -> Graph:
    """Trace `model` (fp32, eval, on CPU) for one engine; the model is left as it was.

    Inputs, outputs and their shapes are those of the graph signature; rows R and wanted rows m are symbolic. With
    `plan.layers` below the model's count only the first layers, the final norm and the head are traced.
    Raises InputError for a rotary kind whose table would depend on the call, EnvironmentFault when an axis that must be
    symbolic came out fixed.
    """
    check_rope(model.config)
    step = CacheStep(keeps_hidden=plan.hidden)
    engine = TracedCall(take_layers(model, plan, step), step).eval()
    with swap_attention(model.config, plan.layers, step), torch.no_grad(), silence_libraries():
        program = torch.onnx.export(
            engine,
            make_sample_inputs(model.config, plan),
            dynamo=True,
            opset_version=OPSETS[""],
            optimize=True,
            verbose=False,
            input_names=[
                "input_ids",
                "past_len",
                "position",
                "logit_rows",
                *list_cache_names("past", plan.layers),
            ],
            output_names=["logits", *["hidden"] * plan.hidden, *list_cache_names("present", plan.layers)],
            dynamic_shapes=make_dynamic_shapes(plan.layers),
        )
    if program is None:
        raise EnvironmentFault(
            f"torch {torch.__version__} returned no ONNX program for the {plan.name} model."
        )
    graph = Graph(program.model, plan.name)
    check_symbolic(graph)
    return graph


@dataclass
class CacheStep:
    """What the attention function and the final norm read and write while one call is traced."""

    past_k: tuple[torch.Tensor, ...] = ()
    past_v: tuple[torch.Tensor, ...] = ()
    present_k: dict[int, torch.Tensor] = field(default_factory=dict)
    present_v: dict[int, torch.Tensor] = field(default_factory=dict)
    last: torch.Tensor | None = None  # int32 [1]: index of the last valid slot after the call
    total: torch.Tensor | None = None  # int32 []: valid slots after the call
    logit_rows: torch.Tensor | None = None  # int64 [m]
    keeps_hidden: bool = False
    hidden: torch.Tensor | None = None  # fp32 [1, R, hidden]: what the head would multiply, of every row


class TracedCall(torch.nn.Module):
    """The traced call: rows of one sequence in, logits of the wanted rows and the caches out."""

    def __init__(self, model: torch.nn.Module, step: CacheStep) -> None:
        super().__init__()
        self.model, self.step = model, step

    def forward(
        self,
        input_ids: torch.Tensor,
        past_len: torch.Tensor,
        position: torch.Tensor,
        logit_rows: torch.Tensor,
        past_k: tuple[torch.Tensor, ...],
        past_v: tuple[torch.Tensor, ...],
    ) -> tuple[Any, ...]:
        step, rows = self.step, input_ids.shape[1]
        step.past_k, step.past_v, step.logit_rows = past_k, past_v, logit_rows
        total = past_len + rows
        step.last, step.total = total - 1, total.reshape(())
        logits = self.model(input_ids=input_ids, position_ids=position, use_cache=False).logits
        order = range(len(past_k))
        hidden = () if step.hidden is None else (step.hidden[0],)
        return (
            logits[0],
            *hidden,
            tuple(step.present_k[i] for i in order),
            tuple(step.present_v[i] for i in order),
        )


class RotaryTable(torch.nn.Module):
    """Cos and sin of positions 0..capacity-1, computed once by the model's own rotary module; fp32 [capacity, dim]."""

    def __init__(self, rotary: torch.nn.Module, capacity: int) -> None:
        super().__init__()
        with torch.no_grad():
            cos, sin = rotary(torch.zeros(1, 1, 1), position_ids=torch.arange(capacity)[None])
        self.register_buffer("cos_cache", cos[0].float().contiguous())
        self.register_buffer("sin_cache", sin[0].float().contiguous())

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        cos, sin = self.get_buffer("cos_cache"), self.get_buffer("sin_cache")
        return cos[position_ids], sin[position_ids]


class WantedRows(torch.nn.Module):
    """The final norm over the rows whose logits are wanted, [1, R, hidden] -> [1, m, hidden]."""

    def __init__(self, norm: torch.nn.Module, step: CacheStep) -> None:
        super().__init__()
        self.norm, self.step = norm, step

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        assert self.step.logit_rows is not None
        if self.step.keeps_hidden:
            self.step.hidden = self.norm(hidden)
            return torch.index_select(self.step.hidden, 1, self.step.logit_rows)
        wanted: torch.Tensor = self.norm(torch.index_select(hidden, 1, self.step.logit_rows))
        return wanted


def check_rope(config: Any) -> None:
    """Refuse a rotary kind that is unknown or whose angles depend on the length of a call."""
    parameters = getattr(config, "rope_parameters", None) or {}
    kind = parameters.get("rope_type", "default")
    if kind not in ROPE_TYPES:
        raise InputError(
            f"The checkpoint's rope_type is {kind!r}, which this exporter does not know how to fix into a table; "
            f"use a checkpoint with one of {', '.join(ROPE_TYPES)}."
        )


def take_layers(model: Any, plan: EnginePlan, step: CacheStep) -> torch.nn.Module:
    """The same modules seen with fewer layers, table rotary and row-gathering norm; nothing is copied or changed."""
    base = copy_shallow(model.base_model)
    base._modules["layers"] = torch.nn.ModuleList(list(base.layers)[: plan.layers])
    base._modules["rotary_emb"] = RotaryTable(base.rotary_emb, plan.capacity)
    base._modules["norm"] = WantedRows(base.norm, step)
    view: torch.nn.Module = copy_shallow(model)
    view._modules[model.base_model_prefix] = base
    return view


def copy_shallow(module: Any) -> Any:
    """A module object of its own over the very same parameters and children."""
    twin = copy.copy(module)
    twin.__dict__["_modules"] = dict(module._modules)
    return twin


@contextlib.contextmanager
def swap_attention(config: Any, layers: int, step: CacheStep) -> Iterator[None]:
    """Route the attention of every layer to the cache-updating operator while the block runs."""

    def attend(
        module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: Any = None, **_: Any
    ) -> Any:
        return emit_attention(step, module.layer_idx, query, key, value, scaling), None

    AttentionInterface.register(ATTENTION, attend)
    AttentionMaskInterface.register(ATTENTION, lambda *_, **__: None)
    before = config._attn_implementation, config.num_hidden_layers
    config._attn_implementation, config.num_hidden_layers = ATTENTION, layers
    try:
        yield
    finally:
        config._attn_implementation, config.num_hidden_layers = before


def emit_attention(
    step: CacheStep,
    layer: int,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float | None,
) -> torch.Tensor:
    """Append key and value at slot past_len and attend; query [1, heads, R, dim] -> [1, R, heads, dim]."""
    batch, heads, rows, dim = query.shape
    kv_heads = key.shape[1]
    flat = [flatten_heads(query, heads), flatten_heads(key, kv_heads), flatten_heads(value, kv_heads)]
    past_k, past_v = step.past_k[layer], step.past_v[layer]
    out, step.present_k[layer], step.present_v[layer] = torch.onnx.ops.symbolic_multi_out(
        "com.microsoft::GroupQueryAttention",
        [*flat, past_k, past_v, step.last, step.total],
        attrs={
            "num_heads": heads,
            "kv_num_heads": kv_heads,
            "scale": float(scaling if scaling is not None else dim**-0.5),
        },
        dtypes=[query.dtype] * 3,
        shapes=[(batch, rows, heads * dim), past_k.shape, past_v.shape],
        version=1,
    )
    return out.reshape(batch, rows, heads, dim)


def flatten_heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    """[1, heads, R, dim] -> [1, R, heads * dim], the layout GroupQueryAttention reads."""
    batch, _, rows, dim = x.shape
    return x.transpose(1, 2).reshape(batch, rows, heads * dim)


def make_sample_inputs(config: Any, plan: EnginePlan) -> tuple[Any, ...]:
    """Inputs to trace with; odd sizes, so that no axis is taken for a constant."""
    spec = plan.spec
    shape = (1, spec.kv_heads, plan.capacity, spec.head_dim)
    past_k, past_v = (tuple(torch.zeros(shape) for _ in range(plan.layers)) for _ in range(2))
    ids = torch.zeros(1, SAMPLE_ROWS, dtype=torch.int64)
    wanted = torch.arange(SAMPLE_WANTED)
    return ids, torch.zeros(1, dtype=torch.int32), torch.arange(SAMPLE_ROWS)[None], wanted, past_k, past_v


def make_dynamic_shapes(layers: int) -> tuple[Any, ...]:
    """Rows and wanted rows are symbolic, everything else is fixed."""
    rows, wanted = torch.export.Dim("rows", min=1, max=4096), torch.export.Dim("wanted", min=1, max=4096)
    fixed: tuple[dict[int, Any], ...] = ({},) * layers
    return {1: rows}, {}, {1: rows}, {0: wanted}, fixed, fixed


def list_cache_names(kind: str, layers: int) -> list[str]:
    """past_k.0.., past_v.0.. (or present_...), keys first."""
    return [f"{kind}_{part}.{i}" for part in "kv" for i in range(layers)]


def check_symbolic(graph: Graph) -> None:
    """Raise EnvironmentFault when rows or wanted rows came out as a number."""
    values = {v.name: v for v in (*graph.model.graph.inputs, *graph.model.graph.outputs)}
    for name, axis in (("input_ids", 1), ("position", 1), ("logit_rows", 0), ("logits", 0), ("hidden", 0)):
        if name == "hidden" and name not in values:
            continue
        shape = values[name].shape
        if shape is None or isinstance(shape[axis], int):
            raise EnvironmentFault(
                f"torch {torch.__version__} fixed axis {axis} of {name!r} in the {graph.name} graph although it was "
                "asked to stay symbolic; install the torch version that the lock file names."
            )
