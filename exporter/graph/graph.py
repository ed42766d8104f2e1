"""One ONNX graph on its way through the exporter, and the few graph helpers that the rewrites share."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

MICROSOFT = "com.microsoft"
OPSETS = {"": 21, MICROSOFT: 1}


@dataclass(frozen=True)
class Graph:
    """An ONNX model, its name ("target" or "draft") and notes for the report.

    A stage never changes the model that it is given: it works on a copy (`copy_graph`) and returns a new
    Graph.
    """

    model: ir.Model
    name: str
    notes: tuple[str, ...] = ()

    @property
    def node_count(self) -> int:
        """Nodes of the main graph; a decoder has no subgraphs and no functions."""
        return len(self.model.graph)

    def layers(self) -> int:
        """Decoder layers, counted by the KV cache inputs."""
        return sum(1 for value in self.model.graph.inputs if (value.name or "").startswith("past_k."))

    def cache_shape(self, layer: int) -> tuple[int, int, int, int]:
        """(1, kv_heads, capacity, head_dim) of one layer's key cache, as the traced graph has it."""
        value = next(v for v in self.model.graph.inputs if v.name == f"past_k.{layer}")
        one, heads, capacity, dim = (int(d) for d in read_shape(value))
        return one, heads, capacity, dim

    def noting(self, *notes: str) -> Graph:
        """The same graph with these notes added."""
        return replace(self, notes=self.notes + notes)


def copy_graph(graph: Graph) -> Graph:
    """A copy whose nodes may be changed; it shares the weights."""
    return replace(graph, model=graph.model.clone())


def read_shape(value: ir.Value) -> tuple[int, ...]:
    """The dimensions of a value; symbolic and unknown ones are -1."""
    if value.shape is None:
        return ()
    return tuple(d if isinstance(d, int) else -1 for d in value.shape)


def read_constant(value: ir.Value | None) -> np.ndarray | None:
    """The array of an initializer or of a Constant node; None for a computed value."""
    if value is None:
        return None
    tensor = value.const_value
    if tensor is None:
        node = value.producer()
        if node is None or node.op_type != "Constant":
            return None
        attr = node.attributes.get("value")
        if attr is None:
            return None
        tensor = attr.as_tensor()
    return np.asarray(tensor.numpy())


def find_producer(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    """The node that computes `value`, when its operator is one of `op_types`; else None."""
    node = None if value is None else value.producer()
    return node if node is not None and node.op_type in op_types else None


def find_sole_reader(value: ir.Value | None) -> ir.Node | None:
    """The only node that reads `value`; None when there are several or when it is a graph output."""
    if value is None or value.is_graph_output():
        return None
    users = {use.node for use in value.uses()}
    return users.pop() if len(users) == 1 else None


def add_initializer(graph: ir.Graph, name: str, array: np.ndarray) -> ir.Value:
    """Store `array` as the initializer `name`: an equal one of that name is reused, an unequal one gets a
    number.
    """
    existing = graph.initializers.get(name)
    if existing is not None:
        tensor = existing.const_value
        is_same = tensor is not None and has_same_bits(np.asarray(tensor.numpy()), array)
        return existing if is_same else add_initializer(graph, next_name(name), array)
    tensor = ir.tensor(array, name=name)
    value = ir.Value(
        name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor
    )
    graph.register_initializer(value)
    return value


def has_same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays have the same type, shape and bytes (NaN equals itself)."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    bytes_a, bytes_b = (np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in (a, b))
    return a is b or np.array_equal(bytes_a, bytes_b)


def next_name(name: str) -> str:
    """`name#2`, or the next number for a name that has one."""
    stem, _, number = name.partition("#")
    return f"{stem}#{int(number or 1) + 1}"


def insert_before(before: ir.Node, *nodes: ir.Node) -> None:
    """Put new nodes just before one of the graph."""
    graph = before.graph
    assert isinstance(graph, ir.Graph)
    graph.insert_before(before, list(nodes))


def replace_uses(old: ir.Value, new: ir.Value) -> None:
    """Every reader of `old` reads `new` instead; graph outputs keep their name."""
    if old.is_graph_output():
        old.name, new.name = None, old.name
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)


def remove_unused(graph: Graph) -> Graph:
    """Drop nodes and weights that nothing reads, and sort the nodes (in place: the caller owns the copy)."""
    from onnx_ir.passes.common import RemoveUnusedNodesPass, TopologicalSortPass

    RemoveUnusedNodesPass()(graph.model)
    TopologicalSortPass()(graph.model)
    graph.model.graph.opset_imports.update(OPSETS)
    return graph


def copy_type(old: ir.Value, new: ir.Value) -> None:
    """Give `new` the shape and the type of `old`."""
    new.shape, new.type = old.shape, old.type


def drop_unused_weights(graph: Graph) -> Graph:
    """Drop weights that no node reads (in place: the caller owns the copy)."""
    inner = graph.model.graph
    for name, value in list(inner.initializers.items()):
        if not value.uses() and not value.is_graph_output():
            del inner.initializers[name]
    return graph


def is_transposed(node: ir.Node) -> bool:
    """Whether a MatMul or Gemm reads its weight as [outputs, inputs]."""
    flag = node.attributes.get("transB")
    return flag is not None and flag.as_int() == 1
