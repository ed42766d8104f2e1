"""Trace the Hugging Face module itself into the `ort` dialect: one graph, symbolic rows, KV caches in place.

transformers lets a program register an attention function; the one registered here emits
`com.microsoft::GroupQueryAttention` over a KV cache of fixed capacity. Rotary angles become a table that the
model's own rotary module fills, so every kind of scaling that does not depend on the length of a call is
kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from specc.contracts.engine_plan import EnginePlan
from specc.errors import EnvironmentFault
from specc.exporter.checkpoint.spec import check_rope
from specc.exporter.graph.graph import OPSETS, Graph
from specc.exporter.graph.silence import silence_libraries
from specc.exporter.module_view import AttentionFunction, copy_shallow, swap_attention

ATTENTION = "specc_ort"
SAMPLE_ROWS, SAMPLE_WANTED = 5, 3


def trace_graph(model: Any, plan: EnginePlan) -> Graph:
    """Trace `model`, a Hugging Face module (fp32, eval, on CPU), for one engine; the model is left as it was.

    Inputs, outputs and their shapes are those of the graph signature; rows R and wanted rows m are symbolic.
    With `plan.layers` below the model's count only the first layers, the final norm and the lm_head are
    traced. Raises InputError for a rotary kind whose table would depend on the call, EnvironmentFault when an
    axis that must be symbolic came out fixed.
    """
    check_rope(model.config.to_dict(), plan.name)
    step = CacheStep(keeps_hidden=plan.hidden)
    call = TracedCall(take_layers(model, plan, step), step).eval()
    attend = make_attention(step)
    with (
        swap_attention(model.config, ATTENTION, attend, plan.layers),
        torch.no_grad(),
        silence_libraries(),
    ):
        program = torch.onnx.export(
            call,
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
    """What the attention function and the final norm read and write while one call is traced.

    last: int32 [1], index of the last valid slot after the call; total: int32 [], valid slots after the call;
    logit_rows: int64 [m]; hidden: fp32 [1, R, hidden], the input of the lm_head for every row.
    """

    past_k: tuple[torch.Tensor, ...] = ()
    past_v: tuple[torch.Tensor, ...] = ()
    present_k: dict[int, torch.Tensor] = field(default_factory=dict)
    present_v: dict[int, torch.Tensor] = field(default_factory=dict)
    last: torch.Tensor | None = None
    total: torch.Tensor | None = None
    logit_rows: torch.Tensor | None = None
    keeps_hidden: bool = False
    hidden: torch.Tensor | None = None


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
    """Cos and sin, fp32 [capacity, dim], computed once by the model's own rotary module.

    Looked up by position.
    """

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
    """The final norm over the rows whose logits are asked for, [1, R, hidden] -> [1, m, hidden]."""

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


def take_layers(model: Any, plan: EnginePlan, step: CacheStep) -> torch.nn.Module:
    """A view of `model` with its first layers, a rotary table and a final norm that gathers the wanted
    rows.
    """
    base = copy_shallow(model.base_model)
    base._modules["layers"] = torch.nn.ModuleList(list(base.layers)[: plan.layers])
    base._modules["rotary_emb"] = RotaryTable(base.rotary_emb, plan.capacity)
    base._modules["norm"] = WantedRows(base.norm, step)
    view: torch.nn.Module = copy_shallow(model)
    view._modules[model.base_model_prefix] = base
    return view


def make_attention(step: CacheStep) -> AttentionFunction:
    """The attention function of every layer: the operator that updates the KV cache."""

    def attend(
        module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: Any = None, **_: Any
    ) -> Any:
        return emit_attention(step, module.layer_idx, query, key, value, scaling), None

    return attend


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
    """Inputs to trace with; their sizes are unusual, so that no axis is taken for a constant."""
    spec = plan.spec
    shape = (1, spec.kv_heads, plan.capacity, spec.head_dim)
    past_k, past_v = (tuple(torch.zeros(shape) for _ in range(plan.layers)) for _ in range(2))
    ids = torch.zeros(1, SAMPLE_ROWS, dtype=torch.int64)
    wanted = torch.arange(SAMPLE_WANTED)
    return ids, torch.zeros(1, dtype=torch.int32), torch.arange(SAMPLE_ROWS)[None], wanted, past_k, past_v


def make_dynamic_shapes(layers: int) -> tuple[Any, ...]:
    """Rows and wanted rows are symbolic, every other axis is fixed."""
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
                f"torch {torch.__version__} fixed axis {axis} of {name!r} in the {graph.name} graph although "
                "it was asked to stay symbolic; install the torch version that the lock file names."
            )
