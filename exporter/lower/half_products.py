"""Products and the embedding in half precision; everything between them is fp32."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
import onnx_ir as ir

from specc.exporter.graph.emitter import FLOAT, Emitter
from specc.exporter.graph.graph import (
    Graph,
    copy_graph,
    copy_type,
    find_producer,
    is_transposed,
    remove_unused,
    replace_uses,
)

NUMPY = {
    ir.DataType.FLOAT: np.dtype(np.float32),
    ir.DataType.FLOAT16: np.dtype(np.float16),
    ir.DataType.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
}


@dataclass(frozen=True)
class Product:
    """One product to replace: x fp32 [.., K] times a constant weight fp32 [K, N]."""

    emit: Emitter
    x: ir.Value
    weight: ir.Value
    is_transposed: bool
    """Whether the weight is stored as [N, K]."""
    is_lm_head: bool
    dtype: ir.DataType
    halves: dict[ir.Value, ir.Value]
    """x -> x in `dtype`, shared by all products that read it."""

    def array(self) -> np.ndarray:
        """The weight, fp32 [K, N]."""
        stored = np.asarray(self.weight.const_value.numpy())  # type: ignore[union-attr]
        return stored.T if self.is_transposed else stored

    def half_x(self) -> ir.Value:
        """x in `dtype`; a value that was cast from `dtype` is not cast again."""
        if self.x not in self.halves:
            self.halves[self.x] = cast_input(self.emit, self.x, self.dtype)
        return self.halves[self.x]


Spelling = Callable[[Product], "ir.Value | None"]
"""Writes the result of a product, in `dtype` or fp32 [.., N]; None where `multiply` has to write it."""


@dataclass
class Spellings:
    """How the products of the layers and of the lm_head are written."""

    layers: Spelling
    lm_head: Spelling
    halves: dict[ir.Value, ir.Value] = field(default_factory=dict)


def multiply(product: Product) -> ir.Value:
    """x times the weight, both in `dtype`; a weight [N, K] (a tied lm_head) keeps its layout."""
    emit, weight = product.emit, cast_weight(product.emit, product.weight, product.dtype)
    if product.is_transposed:
        return emit.op("Gemm", product.half_x(), weight, transB=1)
    return emit.op("MatMul", product.half_x(), weight)


def lower_half_products(graph: Graph, dtype: ir.DataType, spellings: Spellings) -> Graph:
    """Graph -> Graph: replace every product with a constant weight, then the embedding."""
    out = copy_graph(graph)
    inner = out.model.graph
    for node in list(inner):
        if node.op_type in ("MatMul", "Gemm") and is_float_weight(node.inputs[1]):
            replace_product(inner, node, dtype, spellings)
    for node in list(inner):
        if node.op_type == "Gather" and is_float_weight(node.inputs[0]):
            replace_embedding(inner, node, dtype)
    return remove_unused(out)


def is_float_weight(value: ir.Value | None) -> bool:
    """Whether a value is a constant fp32 matrix."""
    tensor = None if value is None else value.const_value
    return tensor is not None and tensor.dtype == FLOAT and len(tensor.shape) == 2


def replace_product(graph: ir.Graph, node: ir.Node, dtype: ir.DataType, spellings: Spellings) -> None:
    """Replace one product; its result is cast to fp32."""
    x, weight = node.inputs[:2]
    assert x is not None and weight is not None
    is_lm_head = node.op_type == "Gemm"
    emit = Emitter(graph, node, str(node.name))
    product = Product(emit, x, weight, is_transposed(node), is_lm_head, dtype, spellings.halves)
    spelling = spellings.lm_head if is_lm_head else spellings.layers
    y = spelling(product)
    if y is None:
        y = multiply(product)
    if y.dtype is None:
        y.type = ir.TensorType(dtype)
    y.producer().metadata_props["specc.weight"] = str(weight.name)  # type: ignore[union-attr]
    result = emit.cast(y, FLOAT)
    copy_type(node.outputs[0], result)
    result.type = ir.TensorType(FLOAT)
    replace_uses(node.outputs[0], result)


def cast_input(emit: Emitter, x: ir.Value, dtype: ir.DataType) -> ir.Value:
    """x in `dtype`: the input of the cast that computes x where that has the type, else a new cast."""
    cast = find_producer(x, "Cast")
    if cast is not None and cast.inputs[0] is not None and cast.inputs[0].dtype == dtype:
        return cast.inputs[0]
    if x.dtype is None:
        x.type = ir.TensorType(FLOAT)
    return emit.cast(x, dtype)


def cast_weight(emit: Emitter, weight: ir.Value, dtype: ir.DataType) -> ir.Value:
    """The weight in `dtype`, in its stored layout."""
    if dtype == FLOAT:
        return weight
    array = np.asarray(weight.const_value.numpy())  # type: ignore[union-attr]
    return emit.constant(f"{weight.name}.half", clip_to_type(array, dtype))


def clip_to_type(array: np.ndarray, dtype: ir.DataType) -> np.ndarray:
    """The array in another type; a number beyond its range becomes the largest finite one."""
    kind = NUMPY[dtype]
    largest = float(ml_dtypes.finfo(kind).max)  # type: ignore[no-untyped-call]
    return np.ascontiguousarray(np.clip(array, -largest, largest).astype(kind))


def replace_embedding(graph: ir.Graph, node: ir.Node, dtype: ir.DataType) -> None:
    """Replace the embedding: a table in `dtype`, its rows cast to fp32."""
    table = node.inputs[0]
    assert table is not None
    if dtype == FLOAT:
        return
    emit = Emitter(graph, node, str(node.name))
    rows = emit.op("Gather", cast_weight(emit, table, dtype), node.inputs[1], axis=0)
    rows.type = ir.TensorType(dtype)
    result = emit.cast(rows, FLOAT)
    copy_type(node.outputs[0], result)
    replace_uses(node.outputs[0], result)
