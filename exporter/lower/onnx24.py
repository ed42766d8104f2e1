"""The `onnx24` dialect: standard operators only, so that TensorRT needs no plugin.

Products, KV caches and attention are in half precision; residual stream, norms, softmax, rotary and logits in
fp32.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from specc.contracts.scheme import Scheme
from specc.errors import InputError
from specc.exporter.checkpoint.gguf_codes import GgufCodes
from specc.exporter.graph.graph import MICROSOFT, Graph, drop_unused_weights
from specc.exporter.lower.cpu_weights import CpuWeights
from specc.exporter.lower.half_products import Spelling, Spellings, lower_half_products, multiply
from specc.exporter.lower.qdq_activations import StaticProducts
from specc.exporter.lower.qdq_weights import Int4Blocks, multiply_int8
from specc.exporter.lower.standard_attention import lower_attention
from specc.exporter.lower.standard_norm import lower_norms

OPSET, OLDER_OPSET = 24, 21
LATER = ("SimplifiedLayerNormalization", "GroupQueryAttention")
TYPES = {
    "fp32": ir.DataType.FLOAT,
    "fp16": ir.DataType.FLOAT16,
    "bf16": ir.DataType.BFLOAT16,
    "fp8": ir.DataType.FLOAT8E4M3FN,
}


def lower_onnx24(
    graph: Graph,
    scheme: Scheme,
    dtype: str,
    opset24: bool,
    stored: GgufCodes | None,
    ranges: Mapping[str, float] | None = None,
    cache: str = "",
) -> Graph:
    """Fused float graph -> standard operators. `dtype`: "fp16", "bf16" or, for checks, "fp32".

    `opset24`: caches by TensorScatter and Attention; False: the older spelling without both, which returns
    new rows. `ranges`: activation ranges of the products' inputs, needed by int8 and fp8. `cache`: "fp8" for
    float8 keys and values, which only the older spelling writes. Raises InputError for a scheme that this
    dialect cannot write.
    """
    half = TYPES[dtype]
    weights = CpuWeights(scheme, stored)
    kinds: dict[str, Spelling] = {kind: StaticProducts(kind, ranges or {}) for kind in ("int8", "fp8")}
    kinds["w4"] = Int4Blocks(weights, scheme.block)
    layers, lm_head = (choose_spelling(kind, kinds) for kind in (scheme.layers, scheme.head))
    out = lower_norms(lower_attention(graph, half, opset24, TYPES.get(cache)), opset24)
    out = lower_half_products(out, half, Spellings(layers, lm_head))
    check_standard(out)
    imports = out.model.graph.opset_imports
    imports.clear()
    imports[""] = OPSET if opset24 else OLDER_OPSET
    types = f"products in {dtype}, caches in {cache or dtype}"
    notes = [f"{types}; residual stream, norms, softmax, rotary and logits in fp32"]
    notes += [weights.note()] * bool(weights.taken or weights.quantized)
    return drop_unused_weights(out).noting(*notes)


def choose_spelling(kind: str, kinds: Mapping[str, Spelling]) -> Spelling:
    """How products of a scheme are written. Raises InputError for a scheme that this dialect cannot write."""
    floats: dict[str, Spelling] = {"fp32": multiply, "fp16": multiply, "bf16": multiply}
    spellings = {**floats, "w8": multiply_int8, **kinds}
    if kind not in spellings:
        raise InputError(
            f"the dialect onnx24 has no spelling for the scheme {kind!r}; use one of {', '.join(spellings)}"
        )
    return spellings[kind]


def check_standard(graph: Graph) -> None:
    """Raise InputError where an operator of ONNX Runtime alone is left, which TensorRT does not have."""
    left = sorted(
        {node.op_type for node in graph.model.graph if node.domain == MICROSOFT or node.op_type in LATER}
    )
    if left:
        raise InputError(
            f"the model has parts that standard operators do not spell: {', '.join(left)}; use dialect ort"
        )
