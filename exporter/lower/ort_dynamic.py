"""The scheme `dynamic-int8`: ONNX Runtime's own `quantize_dynamic`, whose activation scale is one per call.

Rows of a call share that scale, so a row depends on its neighbours: this scheme exists to be refused for speculation.
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
    remove_unused,
    replace_uses,
)
from specc.exporter.graph.silence import silence_libraries


def lower_ort_dynamic(graph: Graph) -> Graph:
    """Graph -> Graph: every product and the embedding with int8 weights, activations scaled per tensor at run time."""
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
    inner = Graph(model, graph.name, graph.notes)
    return remove_unused(inner).noting(
        "weights: int8 per tensor, activations per tensor at run time (rows depend on each other)"
    )


@contextlib.contextmanager
def skip_reloading() -> Iterator[None]:
    """Spare the converter a second copy of the weights, which it makes to infer the shapes of Gemms: none are left."""
    from onnxruntime.quantization import onnx_quantizer as inside

    before = inside.save_and_reload_model_with_shape_infer
    inside.save_and_reload_model_with_shape_infer = lambda model: model
    try:
        yield
    finally:
        inside.save_and_reload_model_with_shape_infer = before


def convert_lm_head(graph: Graph) -> Graph:
    """A Gemm over a transposed weight as MatMul over a weight of its own, which is what the converter quantizes."""
    out = copy_graph(graph)
    for node in list(out.model.graph):
        weight = node.inputs[1] if node.op_type == "Gemm" else None
        if weight is None or weight.const_value is None:
            continue
        flip = "transB" in node.attributes and node.attributes["transB"].as_int() == 1
        array = np.asarray(weight.const_value.numpy())
        turned = add_initializer(
            out.model.graph, "lm_head.turned", np.ascontiguousarray(array.T if flip else array)
        )
        product = ir.node("MatMul", [node.inputs[0], turned], name=node.name)
        insert_before(node, product)
        copy_type(node.outputs[0], product.outputs[0])
        replace_uses(node.outputs[0], product.outputs[0])
    return remove_unused(out)
