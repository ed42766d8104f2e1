"""Trace a draft head into the `ort` dialect, in the same way as the target."""

from __future__ import annotations

from typing import Any

import torch

from specc.contracts.engine_plan import EnginePlan
from specc.errors import EnvironmentFault
from specc.exporter.checkpoint.spec import check_rope
from specc.exporter.draft_heads.modules import FeatureHead, FeatureInput, MedusaHead
from specc.exporter.graph.graph import OPSETS, Graph
from specc.exporter.graph.silence import silence_libraries
from specc.exporter.module_view import swap_attention
from specc.exporter.trace import (
    ATTENTION,
    SAMPLE_ROWS,
    CacheStep,
    TracedCall,
    check_symbolic,
    list_cache_names,
    make_attention,
    make_dynamic_shapes,
    make_sample_inputs,
    take_layers,
)


class FeatureCall(TracedCall):
    """The traced call of a feature head: the feature before each token is one more input, the next one an
    output.
    """

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
    """Trace a feature head (fp32, eval); inputs and outputs are those of the contract of feature drafts."""
    config = head.model.config
    check_rope(config.to_dict(), plan.name)
    step = CacheStep(keeps_hidden=True, slots=plan.capacity)
    call = FeatureCall(take_layers(head.model, plan, step), step, head.enter).eval()
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
    with (
        swap_attention(config, ATTENTION, make_attention(step), plan.layers),
        torch.no_grad(),
        silence_libraries(),
    ):
        program = torch.onnx.export(
            call,
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
    graph = wrap_program(program, plan.name)
    check_symbolic(graph)
    return graph


def trace_medusa(head: MedusaHead, plan: EnginePlan) -> Graph:
    """Trace a medusa head: hidden state [1, H] -> logits of every block [k, Vd]."""
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
    return wrap_program(program, plan.name)


class MedusaCall(torch.nn.Module):
    """The traced call of a medusa head."""

    def __init__(self, head: MedusaHead) -> None:
        super().__init__()
        self.head = head

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(hidden)
        return out[0]


def wrap_program(program: Any, name: str) -> Graph:
    """The tracer's program as a graph. Raises EnvironmentFault where it returned none."""
    if program is None:
        raise EnvironmentFault(f"torch {torch.__version__} returned no ONNX program for the {name} model.")
    return Graph(program.model, name)
