"""Trace a draft head into the `ort` dialect, by the same means as the target."""

from __future__ import annotations

from typing import Any

import torch

from specc.contracts.engine_plan import EnginePlan
from specc.errors import EnvironmentFault
from specc.exporter.draft_heads.modules import FeatureHead, FeatureInput, MedusaHead
from specc.exporter.graph.graph import OPSETS, Graph
from specc.exporter.graph.silence import silence_libraries
from specc.exporter.trace import (
    SAMPLE_ROWS,
    CacheStep,
    TracedCall,
    check_rope,
    check_symbolic,
    list_cache_names,
    make_dynamic_shapes,
    make_sample_inputs,
    swap_attention,
    take_layers,
)


class FeatureEngine(TracedCall):
    """The traced call of a feature head: one more input, the feature before each token, and one more output."""

    def __init__(self, model: torch.nn.Module, step: CacheStep, enter: FeatureInput) -> None:
        super().__init__(model, step)
        self.enter = enter

    def forward(  # type: ignore[override]
        self,
        input_ids: torch.Tensor,
        hidden: torch.Tensor,
        past_len: torch.Tensor,
        position: torch.Tensor,
        logit_rows: torch.Tensor,
        past_k: tuple[torch.Tensor, ...],
        past_v: tuple[torch.Tensor, ...],
    ) -> tuple[Any, ...]:
        self.enter.feature = hidden[None]
        return super().forward(input_ids, past_len, position, logit_rows, past_k, past_v)


def trace_feature(head: FeatureHead, plan: EnginePlan) -> Graph:
    """The head of `plan` (fp32, eval): inputs and outputs as the contract of feature drafts says."""
    config = head.model.config
    check_rope(config)
    step = CacheStep(keeps_hidden=True)
    engine = FeatureEngine(take_layers(head.model, plan, step), step, head.enter).eval()
    ids, past_len, position, wanted, past_k, past_v = make_sample_inputs(config, plan)
    feature = torch.zeros(SAMPLE_ROWS, config.hidden_size)
    first, *others = make_dynamic_shapes(plan.layers)
    names = [
        "input_ids",
        "hidden",
        "past_len",
        "position",
        "logit_rows",
        *list_cache_names("past", plan.layers),
    ]
    with swap_attention(config, plan.layers, step), torch.no_grad(), silence_libraries():
        program = torch.onnx.export(
            engine,
            (ids, feature, past_len, position, wanted, past_k, past_v),
            dynamo=True,
            opset_version=OPSETS[""],
            optimize=True,
            verbose=False,
            input_names=names,
            output_names=["logits", "hidden_next", *list_cache_names("present", plan.layers)],
            dynamic_shapes=(first, {0: first[1]}, *others),
        )
    head.enter.feature = None
    graph = graph_of(program, plan.name)
    check_symbolic(graph)
    return graph


def trace_medusa(head: MedusaHead, name: str) -> Graph:
    """One hidden state in, [1, H]; logits of every block out, [k, Vd]."""
    hidden = torch.zeros(1, head.width)
    with torch.no_grad(), silence_libraries():
        program = torch.onnx.export(
            MedusaCall(head).eval(),
            (hidden,),
            dynamo=True,
            opset_version=OPSETS[""],
            optimize=True,
            verbose=False,
            input_names=["hidden"],
            output_names=["logits"],
        )
    return graph_of(program, name)


class MedusaCall(torch.nn.Module):
    """The traced call of a medusa head."""

    def __init__(self, head: MedusaHead) -> None:
        super().__init__()
        self.head = head

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(hidden)
        return out[0]


def graph_of(program: Any, name: str) -> Graph:
    """The tracer's program as a graph."""
    if program is None:
        raise EnvironmentFault(f"torch {torch.__version__} returned no ONNX program for the {name} model.")
    return Graph(program.model, name)
