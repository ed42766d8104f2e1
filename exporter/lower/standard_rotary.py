"""Rotary position before the attention: the standard operator, or its parts."""

from __future__ import annotations

import onnx_ir as ir

from specc.exporter.graph.emitter import Emitter


def rotate(
    emit: Emitter, x: ir.Value, cos: ir.Value, sin: ir.Value, position: ir.Value, has_operator: bool
) -> ir.Value:
    """Rotate x fp32 [1, heads, R, dim] by tables fp32 [capacity, dim / 2] at position int64 [1, R]."""
    if has_operator:
        return emit.op("RotaryEmbedding", x, cos, sin, position, interleaved=0)
    low, high = emit.ops("Split", 2, x, axis=3, num_outputs=2)
    c, s = (
        emit.op("Unsqueeze", emit.op("Gather", table, position, axis=0), emit.ints(1)) for table in (cos, sin)
    )
    first = emit.op("Sub", emit.op("Mul", low, c), emit.op("Mul", high, s))
    second = emit.op("Add", emit.op("Mul", high, c), emit.op("Mul", low, s))
    return emit.op("Concat", first, second, axis=3)
