"""Write new nodes into a graph, one after the other, before an existing node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from specc.exporter.graph.graph import add_initializer, insert_before

FLOAT, INT64 = ir.DataType.FLOAT, ir.DataType.INT64


@dataclass(frozen=True)
class Emitter:
    """Where new nodes go (before `before`) and the stem of their names."""

    graph: ir.Graph
    before: ir.Node
    stem: str

    def op(self, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        """Add a node of a standard operator with one result; returns the result."""
        return self.ops(op_type, 1, *inputs, **attributes)[0]

    def ops(
        self, op_type: str, count: int, *inputs: ir.Value | None, **attributes: Any
    ) -> Sequence[ir.Value]:
        """Add a node of a standard operator with `count` results; returns them."""
        node = ir.node(op_type, list(inputs), attributes=attributes, num_outputs=count)
        insert_before(self.before, node)
        node.name = f"{self.stem}/{op_type}_{node.outputs[0].name}"
        return node.outputs

    def cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """The value cast to `dtype`; the value itself when it has that type."""
        if value.dtype == dtype:
            return value
        result = self.op("Cast", value, to=int(dtype))
        result.type, result.shape = ir.TensorType(dtype), value.shape
        return result

    def constant(self, name: str, array: np.ndarray) -> ir.Value:
        """Add an initializer."""
        return add_initializer(self.graph, name, array)

    def ints(self, *values: int) -> ir.Value:
        """int64 [n]; uses of the same numbers share one initializer."""
        return self.constant(
            "ints_" + "_".join(map(str, values)).replace("-", "m"), np.array(values, np.int64)
        )

    def number(self, value: int) -> ir.Value:
        """int64 []; uses of the same number share one initializer."""
        return self.constant(f"int_{value}".replace("-", "m"), np.array(value, np.int64))

    def reshape(self, value: ir.Value, *sizes: int) -> ir.Value:
        """Reshape; 0 keeps an axis, -1 is inferred."""
        return self.op("Reshape", value, self.ints(*sizes))
