"""int8 and fp8 products by QuantizeLinear and DequantizeLinear: one scale per weight column, one for
activations.

The activation scale is static, so a row's bits do not depend on the other rows of a call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx_ir as ir

from specc.errors import InputError
from specc.exporter.lower.half_products import Product, clip_to_type
from specc.exporter.lower.qdq_weights import module_name, quantize_columns

LARGEST = {"int8": 127.0, "fp8": 448.0}
KINDS = {"int8": np.dtype(np.int8), "fp8": np.dtype(ml_dtypes.float8_e4m3fn)}


@dataclass(frozen=True)
class StaticProducts:
    """Writes products whose weight and input are both in 8 bits (`kind`: "int8" or "fp8")."""

    kind: str
    ranges: Mapping[str, float]
    """Activation range of each product's input, by the name of the product's module."""

    def __call__(self, product: Product) -> ir.Value:
        """Quantize and dequantize x, dequantize the weight, multiply in `dtype`."""
        emit, stem, kind = product.emit, module_name(product), KINDS[self.kind]
        x_scale = np.array(max(self.find_range(stem) / LARGEST[self.kind], 1e-6))
        scale = clip_to_type(x_scale, product.dtype).reshape(())
        by = emit.constant(f"{stem}.x_scale", scale)
        zero = emit.constant(f"zero_{self.kind}", np.zeros((), kind))
        x = emit.op("DequantizeLinear", emit.op("QuantizeLinear", product.half_x(), by, zero), by, zero)
        codes, scales = (
            quantize_columns(product.array())
            if self.kind == "int8"
            else quantize_columns_fp8(product.array())
        )
        stored = emit.constant(f"{stem}.{self.kind}", codes)
        scale_of = emit.constant(f"{stem}.scales", clip_to_type(scales, product.dtype))
        return emit.op("MatMul", x, emit.op("DequantizeLinear", stored, scale_of, axis=1))

    def find_range(self, stem: str) -> float:
        """The range of one product. Raises InputError where it was not measured."""
        if stem not in self.ranges:
            raise InputError(
                f"no activation range was measured for {stem}; {self.kind} needs one for each product"
            )
        return self.ranges[stem]


def quantize_columns_fp8(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """float8 codes [K, N] and fp32 scales [N].

    Scales are rounded to half precision before the codes are computed.
    """
    scales = np.abs(weight).max(0) / LARGEST["fp8"]
    scales = np.where(scales == 0, 1, scales).astype(np.float16).astype(np.float32)
    scales = np.maximum(scales, np.float32(6e-8))
    codes = np.clip(weight / scales, -LARGEST["fp8"], LARGEST["fp8"]).astype(KINDS["fp8"])
    return codes, scales
