"""From a fused float graph to the operators and weights of its plan's dialect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specc.contracts.engine_plan import EnginePlan

if TYPE_CHECKING:
    from specc.exporter.checkpoint.checkpoint import Checkpoint
    from specc.exporter.graph.graph import Graph

Ranges = dict[str, float]
"""Name of a product's module -> activation range of its input; larger magnitudes are clipped."""


def lower_graph(
    graph: Graph, plan: EnginePlan, checkpoint: Checkpoint, ranges: Ranges | None = None
) -> Graph:
    """Put the weights into the plan's scheme, read by the operators of its dialect.

    `ranges` are needed by schemes with static activation scales (int8, fp8). Raises InputError for a scheme
    that the dialect cannot write.
    """
    if plan.dialect == "ort":
        from specc.exporter.lower.ort import lower_ort
        from specc.exporter.lower.ort_half import lower_ort_half

        return lower_ort_half(graph, plan.scheme) if plan.dtype == "fp16" else lower_ort(graph, plan.scheme)
    from specc.exporter.checkpoint.gguf_codes import GgufCodes
    from specc.exporter.lower.cpu import lower_cpu
    from specc.exporter.lower.onnx24 import lower_onnx24

    stored = GgufCodes(checkpoint.source.path, checkpoint.header) if checkpoint.header is not None else None
    if plan.dialect == "onnx24":
        return lower_onnx24(graph, plan.scheme, plan.dtype, plan.opset24, stored, ranges, plan.cache)
    return lower_cpu(graph, plan.scheme, stored)
