"""The scheme `dynamic-int8`: ONNX Runtime's `quantize_dynamic`, with one activation scale per call.

The rows of a call share that scale, so a row depends on the others: the gate refuses speculation with this
scheme.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx_ir as ir

from specc.exporter.graph.files import write_graph
from specc.exporter.graph.graph import (
    Graph,
    add_initializer,
    copy_graph,
    copy_type,
    insert_before,
    is_transposed,
    remove_unused,
    replace_uses,
)
from specc.exporter.graph.silence import silence_libraries


def lower_ort_dynamic(graph: Graph) -> Graph:
    """Graph -> Graph: products and embedding with int8 weights, activations scaled per tensor at run time."""
    from onnxruntime.quantization import QuantType
    from onnxruntime.quantization import quantize_dynamic as convert

    plain = convert_lm_head(graph)
    with tempfile.TemporaryDirectory() as folder:
        source, result = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        write_graph(plain, Path(folder), "float")
        with silence_libraries(), skip_reloading():
            convert(source, result, weight_type=QuantType.QInt8, op_types_to_quantize=["MatMul", "Gather"])
        model = ir.load(result)
        ir.external_data.load_to_model(model)
    quantized = Graph(model, graph.name, graph.notes)
    return remove_unused(quantized).noting(
        "weights: int8 per tensor, activations per tensor at run time (rows depend on each other)"
    )


@contextlib.contextmanager
def skip_reloading() -> Iterator[None]:
    """Keep the converter from loading a second copy of the weights to infer shapes of Gemms.

    The graph has no Gemm.
    """
    from onnxruntime.quantization import onnx_quantizer

    before = onnx_quantizer.save_and_reload_model_with_shape_infer
    onnx_quantizer.save_and_reload_model_with_shape_infer = lambda model: model
    try:
        yield
    finally:
        onnx_quantizer.save_and_reload_model_with_shape_infer = before


def convert_lm_head(graph: Graph) -> Graph:
    """Replace a Gemm by a MatMul over a transposed weight: the converter quantizes only MatMul."""
    out = copy_graph(graph)
    for node in list(out.model.graph):
        weight = node.inputs[1] if node.op_type == "Gemm" else None
        if weight is None or weight.const_value is None:
            continue
        stored = np.asarray(weight.const_value.numpy())
        array = np.ascontiguousarray(stored.T if is_transposed(node) else stored)
        transposed = add_initializer(out.model.graph, "lm_head.turned", array)
        product = ir.node("MatMul", [node.inputs[0], transposed], name=node.name)
        insert_before(node, product)
        copy_type(node.outputs[0], product.outputs[0])
        replace_uses(node.outputs[0], product.outputs[0])
    return remove_unused(out)
