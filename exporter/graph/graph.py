"""One ONNX graph on its way through the exporter, and the few graph helpers that the rewrites share."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

MICROSOFT = "com.microsoft"
OPSETS = {"": 21, MICROSOFT: 1}


@dataclass(frozen=True)
class Graph:
    """An ONNX model with its name ("target" or "draft") and what is worth telling about it.

    A stage never changes the model that it is given: it works on `copy_of` and returns a new Graph.
    """

    model: ir.Model
    name: str
    notes: tuple[str, ...] = ()

    @property
    def node_count(self) -> int:
        """Nodes of the main graph; no subgraphs and no functions occur in a decoder."""
        return len(self.model.graph)

    def layers(self) -> int:
        """Decoder layers, counted by the caches that come in."""
        return sum(1 for value in self.model.graph.inputs if (value.name or "").startswith("past_k."))

    def cache_shape(self, layer: int) -> tuple[int, int, int, int]:
        """(1, kv_heads, capacity, head_dim) of one layer's key cache, as the traced graph has it."""
        value = next(v for v in self.model.graph.inputs if v.name == f"past_k.{layer}")
        one, heads, capacity, dim = (int(d) for d in read_shape(value))
        return one, heads, capacity, dim

    def noting(self, *notes: str) -> Graph:
        """The same graph with more notes."""
        return replace(self, notes=self.notes + notes)


def copy_graph(graph: Graph) -> Graph:
    """A copy whose nodes may be changed; weights are shared, not doubled."""
    return replace(graph, model=graph.model.clone())


def read_shape(value: ir.Value) -> tuple[int, ...]:
    """The dimensions of a value; symbolic and unknown ones are -1."""
    if value.shape is None:
        return ()
    return tuple(d if isinstance(d, int) else -1 for d in value.shape)


def read_constant(value: ir.Value | None) -> np.ndarray | None:
    """The number array behind an initializer or a Constant node, None when the value is computed."""
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
    """The node that makes `value`, when it is one of `op_types`."""
    node = None if value is None else value.producer()
    return node if node is not None and node.op_type in op_types else None


def find_sole_reader(value: ir.Value | None) -> ir.Node | None:
    """The one node that reads `value`; None when there are several or when it is a graph output."""
    if value is None or value.is_graph_output():
        return None
    users = {use.node for use in value.uses()}
    return users.pop() if len(users) == 1 else None


def add_initializer(graph: ir.Graph, name: str, array: np.ndarray) -> ir.Value:
    """Put `array` among the graph's weights as `name`; the one that is there when it is equal, else a numbered name."""
    known = graph.initializers.get(name)
    if known is not None:
        same = known.const_value is not None and has_same_bits(np.asarray(known.const_value.numpy()), array)
        return known if same else add_initializer(graph, next_name(name), array)
    tensor = ir.tensor(array, name=name)
    value = ir.Value(
        name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor
    )
    graph.register_initializer(value)
    return value


def has_same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays have one type, one shape and the same bytes (NaN equals itself)."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    ours, theirs = (np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in (a, b))
    return a is b or np.array_equal(ours, theirs)


def next_name(name: str) -> str:
    """`name#2`, or the next number of a name that has one."""
    stem, _, number = name.partition("#")
    return f"{stem}#{int(number or 1) + 1}"


def insert_before(before: ir.Node, *nodes: ir.Node) -> None:
    """Put new nodes just before one that stands in the graph already."""
    graph = before.graph
    assert isinstance(graph, ir.Graph)
    graph.insert_before(before, list(nodes))


def replace_uses(old: ir.Value, new: ir.Value) -> None:
    """Let every reader of `old` read `new`; graph outputs keep their name."""
    if old.is_graph_output():
        old.name, new.name = None, old.name
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)


def remove_unused(graph: Graph) -> Graph:
    """Drop nodes and weights that nothing reads any more (in place, on a copy the caller owns)."""
    from onnx_ir.passes.common import RemoveUnusedNodesPass, TopologicalSortPass

    RemoveUnusedNodesPass()(graph.model)
    TopologicalSortPass()(graph.model)
    graph.model.graph.opset_imports.update(OPSETS)
    return graph


def copy_type(old: ir.Value, new: ir.Value) -> None:
    """The new value has the shape and the type of the one it replaces."""
    new.shape, new.type = old.shape, old.type


def drop_unused_weights(graph: Graph) -> Graph:
    """Forget weights that no node reads (on a copy the caller owns)."""
    inner = graph.model.graph
    for name, value in list(inner.initializers.items()):
        if not value.uses() and not value.is_graph_output():
            del inner.initializers[name]
    return graph


def is_transposed(node: ir.Node) -> bool:
    """Whether a product's weight is stored as [outputs, inputs]."""
    flag = node.attributes.get("transB")
    return flag is not None and flag.as_int() == 1
