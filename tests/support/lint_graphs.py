"""Small ONNX graphs for the lint tests: ids through an embedding of 16 features into `x` [1, R, 16], then the
nodes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT32, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL
Nodes = list[Any]


def node(op: str, ins: str, outs: str, domain: str = "", **attributes: Any) -> Any:
    """A node with space-separated inputs and outputs; "-" is a missing input."""
    names = ["" if name == "-" else name for name in ins.split()]
    return helper.make_node(op, names, outs.split(), domain=domain, name=f"n_{outs.split()[0]}", **attributes)


def weight(name: str, *shape: int) -> Any:
    return numpy_helper.from_array(np.ones(shape, np.float32), name)


def number(name: str, value: float) -> Any:
    return numpy_helper.from_array(np.float32(value), name)


def ints(name: str, *values: int) -> Any:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def model(
    nodes: Nodes,
    weights: Nodes,
    output: str = "y",
    rows: str | int = "R",
    opset: int = 20,
    functions: Nodes | None = None,
    batch: str | int = 1,
) -> Any:
    """input_ids [batch, rows] through an embedding of 16 features into `x`, then the nodes."""
    inputs = [
        helper.make_tensor_value_info("input_ids", INT64, [batch, rows]),
        helper.make_tensor_value_info("past_len", INT32, [1]),
        helper.make_tensor_value_info("position", INT64, [batch, rows]),
        helper.make_tensor_value_info("logit_rows", INT64, ["m"]),
        helper.make_tensor_value_info("past_k", FLOAT, [batch, 2, 64, 8]),
        helper.make_tensor_value_info("past_v", FLOAT, [batch, 2, 64, 8]),
    ]
    outputs = [helper.make_tensor_value_info(output, FLOAT, None)]
    embed = node("Gather", "table input_ids", "x")
    graph = helper.make_graph([embed, *nodes], "g", inputs, outputs, [weight("table", 32, 16), *weights])
    opsets = [
        helper.make_opsetid("", opset),
        *(helper.make_opsetid(n, 1) for n in ("com.microsoft", "specc", "mine")),
    ]
    return helper.make_model(graph, opset_imports=opsets, functions=functions or [])


def rename_values(model: Any) -> Any:
    """The same graph with every value and node under a name that says nothing; inputs and outputs keep
    theirs.
    """
    keep = {value.name for value in [*model.graph.input, *model.graph.output]}
    names: dict[str, str] = {}
    rename_graph(model.graph, names, keep)
    return model


def rename_graph(graph: Any, names: dict[str, str], keep: set[str]) -> None:
    def of(name: str) -> str:
        return name if not name or name in keep else names.setdefault(name, f"v{len(names)}")

    for tensor in graph.initializer:
        tensor.name = of(tensor.name)
    for values in (graph.input, graph.output, graph.value_info):
        for value in values:
            value.name = of(value.name)
    for i, node in enumerate(graph.node):
        node.name = f"k{i}"
        for side in (node.input, node.output):
            for j, name in enumerate(side):
                side[j] = of(name)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                rename_graph(attribute.g, names, keep)


def body(name: str, nodes: Nodes, inputs: Nodes, outputs: str, weights: Nodes | None = None) -> Any:
    """A graph for If, Loop or Scan; inputs are value infos."""
    outs = [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs.split()]
    return helper.make_graph(nodes, name, inputs, outs, weights or [])


def value(name: str, kind: int = FLOAT, shape: Any = None) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)
