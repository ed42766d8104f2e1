"""Trace the Hugging Face module itself into the `ort` dialect: one graph, symbolic rows, KV caches in place.

transformers lets a program register an attention function; the one registered here emits
`com.microsoft::GroupQueryAttention` over a KV cache of fixed capacity. Rotary angles become a table that the
model's own rotary module fills, so every kind of scaling that does not depend on the length of a call is
kept.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from specc.contracts.engine_plan import EnginePlan
from specc.errors import EnvironmentFault, InputError
from specc.exporter.checkpoint.spec import check_rope
from specc.exporter.decoder import find_decoder
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
    step = CacheStep(keeps_hidden=plan.hidden, slots=plan.capacity)
    call = TracedCall(take_layers(model, plan, step), step).eval()
    attend = make_attention(step)
    with (
        swap_attention(model.config, ATTENTION, attend, plan.layers),
        torch.no_grad(),
        silence_libraries(),
        refuse_untraceable(type(model).__name__),
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


@contextlib.contextmanager
def refuse_untraceable(name: str) -> Iterator[None]:
    """The tracer's error about module `name`, tens of lines, as one sentence."""
    try:
        yield
    except torch.onnx.OnnxExporterError as error:
        raise InputError(
            f"{name} cannot be traced by torch {torch.__version__}: its code depends on the number of "
            "rows of "
            "a call or has an operator without an ONNX counterpart; this family is not supported."
        ) from error


@dataclass
class CacheStep:
    """What the attention function and the final norm read and write while one call is traced.

    last: int32 [1], index of the last valid slot after the call; total: int32 [], valid slots after the call;
    logit_rows: int64 [m]; hidden: fp32 [1, R, hidden], the input of the lm_head for every row; slots:
    capacity of the KV cache, so that a window of as many or more changes nothing.
    """

    past_k: tuple[torch.Tensor, ...] = ()
    past_v: tuple[torch.Tensor, ...] = ()
    present_k: dict[int, torch.Tensor] = field(default_factory=dict)
    present_v: dict[int, torch.Tensor] = field(default_factory=dict)
    last: torch.Tensor | None = None
    total: torch.Tensor | None = None
    logit_rows: torch.Tensor | None = None
    slots: int = 0
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
    """Cos and sin, fp32 [capacity, dim], computed once by the model's own rotary module; looked up by
    position.

    A module that is called with a layer type (Gemma 3: another base for layers with a window) has one table
    a type.
    """

    def __init__(self, rotary: Any, capacity: int) -> None:
        super().__init__()
        has_types = "layer_type" in inspect.signature(rotary.forward).parameters
        for kind in sorted(set(rotary.config.layer_types)) if has_types else [None]:
            keywords = {} if kind is None else {"layer_type": kind}
            with torch.no_grad():
                tables = rotary(torch.zeros(1, 1, 1), position_ids=torch.arange(capacity)[None], **keywords)
            for name, table in zip(("cos", "sin"), tables, strict=True):
                self.register_buffer(name_table(name, kind), table[0].float().contiguous())

    def forward(
        self, x: torch.Tensor, position_ids: torch.Tensor, layer_type: str | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        cos, sin = (self.get_buffer(name_table(name, layer_type)) for name in ("cos", "sin"))
        return cos[position_ids], sin[position_ids]


def name_table(name: str, layer_type: str | None) -> str:
    """`cos_cache`, or `cos_cache_sliding_attention` where a layer type has a table of its own."""
    return f"{name}_cache" if layer_type is None else f"{name}_cache_{layer_type}"


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
    parts = find_decoder(model, plan.layers)
    view: torch.nn.Module = copy_shallow(model)
    decoder: Any = view
    for name in parts.path:
        decoder._modules[name] = copy_shallow(decoder._modules[name])
        decoder = decoder._modules[name]
    modules = decoder._modules
    modules[parts.layers] = torch.nn.ModuleList(list(modules[parts.layers])[: plan.layers])
    if parts.rotary is not None:
        modules[parts.rotary] = RotaryTable(modules[parts.rotary], plan.capacity)
    modules[parts.norm] = WantedRows(modules[parts.norm], step)
    return view


def make_attention(step: CacheStep) -> AttentionFunction:
    """The attention function of every layer: the operator that updates the KV cache.

    Keywords that it does not name were refused, or found to change nothing, by probe.check_attention.
    """

    def attend(
        module: Any,
        query: Any,
        key: Any,
        value: Any,
        mask: Any,
        scaling: float | None = None,
        sliding_window: int | None = None,
        softcap: float | None = None,
        **_: Any,
    ) -> Any:
        scale = float(scaling if scaling is not None else query.shape[3] ** -0.5)
        attributes: dict[str, Any] = {"scale": scale}
        if sliding_window is not None and sliding_window < step.slots:
            attributes["local_window_size"] = int(sliding_window)
        if softcap:
            attributes["softcap"] = float(softcap)
        return emit_attention(step, module.layer_idx, query, key, value, attributes), None

    return attend


def emit_attention(
    step: CacheStep,
    layer: int,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attributes: dict[str, Any],
) -> torch.Tensor:
    """Append key and value at slot past_len and attend; query [1, heads, R, dim] -> [1, R, heads, dim].

    `attributes` of GroupQueryAttention besides the numbers of heads.
    """
    batch, heads, rows, dim = query.shape
    kv_heads = key.shape[1]
    flat = [flatten_heads(query, heads), flatten_heads(key, kv_heads), flatten_heads(value, kv_heads)]
    past_k, past_v = step.past_k[layer], step.past_v[layer]
    out, step.present_k[layer], step.present_v[layer] = torch.onnx.ops.symbolic_multi_out(
        "com.microsoft::GroupQueryAttention",
        [*flat, past_k, past_v, step.last, step.total],
        attrs={"num_heads": heads, "kv_num_heads": kv_heads, **attributes},
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
