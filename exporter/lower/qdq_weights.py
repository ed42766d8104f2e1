"""Weight-only quantization for TensorRT: DequantizeLinear over constant int4 blocks or int8 columns."""

from __future__ import annotations

from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
import onnx_ir as ir

from specc.exporter.checkpoint.codes import BLOCK, Codes
from specc.exporter.graph.emitter import FLOAT
from specc.exporter.lower.cpu_weights import CpuWeights
from specc.exporter.lower.half_products import Product, clip_to_type


@dataclass
class Int4Blocks:
    """w4: signed 4-bit codes, one scale per block of inputs, no zero-point (TensorRT has none).

    Blocks of 32 whose weight is scale * code + minimum (a GGUF's Q4_1, or those of `quantize_blocks`) keep
    their minimum: with s the sums of x over each block, x W = x (scale * (code - 8)) + s (minimum + 8 *
    scale). The second product is 32 times smaller.
    """

    weights: CpuWeights
    block: int
    sums: dict[ir.Value, ir.Value] = field(default_factory=dict)

    def __call__(self, product: Product) -> ir.Value | None:
        """The product's result; None where its inputs are no multiple of a block."""
        weight = np.ascontiguousarray(product.array().T)
        if weight.shape[1] % self.block:
            return None
        if self.block != BLOCK:
            return self.multiply_codes(product, *quantize_symmetric(weight, self.block))
        codes = self.weights.codes(str(product.weight.name), weight, product.is_lm_head)
        if codes is None:
            return None
        y = self.multiply_codes(product, codes.codes.astype(np.int8) - 8, codes.scales.astype(np.float32))
        if codes.minima is None:
            return y
        y.type = ir.TensorType(product.dtype)
        return product.emit.op("Add", y, self.multiply_minima(product, codes))

    def multiply_codes(self, product: Product, codes: np.ndarray, scales: np.ndarray) -> ir.Value:
        """x times the dequantized weight; `codes`: int8 -8..7 [N, K], `scales`: fp32 [N, K / block]."""
        emit, stem = product.emit, module_name(product)
        stored = emit.constant(f"{stem}.int4", np.ascontiguousarray(codes.T).astype(ml_dtypes.int4))
        by = emit.constant(f"{stem}.scales", clip_to_type(np.ascontiguousarray(scales.T), product.dtype))
        weight = emit.op("DequantizeLinear", stored, by, axis=0, block_size=self.block)
        return emit.op("MatMul", product.half_x(), weight)

    def multiply_minima(self, product: Product, codes: Codes) -> ir.Value:
        """Sums of x over blocks times the part that all weights of a block share."""
        assert codes.minima is not None
        emit, common = product.emit, codes.minima.astype(np.float32) + 8 * codes.scales.astype(np.float32)
        table = emit.constant(
            f"{module_name(product)}.offsets", clip_to_type(np.ascontiguousarray(common.T), product.dtype)
        )
        if product.x not in self.sums:
            self.sums[product.x] = self.sum_blocks(product, codes.shape[1])
        return emit.op("MatMul", self.sums[product.x], table)

    def sum_blocks(self, product: Product, k: int) -> ir.Value:
        """[.., K] -> [.., K / block], summed in fp32."""
        emit, x = product.emit, product.emit.cast(product.half_x(), FLOAT)
        lead = (0,) if product.is_lm_head else (0, 0)
        sums = emit.op(
            "ReduceSum", emit.reshape(x, *lead, k // self.block, self.block), emit.ints(-1), keepdims=0
        )
        sums.type = ir.TensorType(FLOAT)
        return emit.cast(sums, product.dtype)


def quantize_symmetric(weight: np.ndarray, block: int) -> tuple[np.ndarray, np.ndarray]:
    """int8 codes -8..7 [N, K] and fp32 scales [N, K / block] of least squared error among a few scales."""
    blocks = weight.reshape(weight.shape[0], -1, block)
    top = np.abs(blocks).max(-1, keepdims=True)
    least = np.full(top.shape, np.inf, np.float32)
    best_codes, best_scale = np.zeros(blocks.shape, np.int8), np.zeros_like(top)
    for part in (1.0, 0.95, 0.9, 0.85, 0.8, 0.75):
        for largest in (7.0, -8.0):  # the code that the largest weight gets
            scale = (
                part * np.where(np.take_along_axis(blocks, find_peaks(blocks), -1) < 0, -top, top) / largest
            )
            codes = np.clip(np.rint(blocks / np.where(scale == 0, 1, scale)), -8, 7)
            error = ((blocks - codes * scale) ** 2).sum(-1, keepdims=True)
            is_better = error < least
            least = np.where(is_better, error, least)
            best_codes = np.where(is_better, codes, best_codes).astype(np.int8)
            best_scale = np.where(is_better, scale, best_scale)
    return best_codes.reshape(weight.shape), best_scale[..., 0].astype(np.float32)


def find_peaks(blocks: np.ndarray) -> np.ndarray:
    """The index of the largest magnitude of each block, int [n, blocks, 1]."""
    peaks: np.ndarray = np.abs(blocks).argmax(-1)[..., None]
    return peaks


def multiply_int8(product: Product) -> ir.Value:
    """w8: x times a weight of signed 8-bit codes with one scale per output."""
    codes, scales = quantize_columns(product.array())
    emit, stem = product.emit, module_name(product)
    stored = emit.constant(f"{stem}.int8", codes)
    weight = emit.op(
        "DequantizeLinear",
        stored,
        emit.constant(f"{stem}.scales", clip_to_type(scales, product.dtype)),
        axis=1,
    )
    return emit.op("MatMul", product.half_x(), weight)


def quantize_columns(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """int8 codes [K, N] and fp32 scales [N].

    Scales are rounded to half precision before the codes are computed.
    """
    scales = np.abs(weight).max(0) / 127
    scales = np.where(scales == 0, 1, scales).astype(np.float16).astype(np.float32)
    scales = np.maximum(scales, np.float32(6e-8))
    return np.clip(np.rint(weight / scales), -127, 127).astype(np.int8), scales


def module_name(product: Product) -> str:
    """The module of a product, such as `model.layers.0.mlp.up_proj`."""
    return str(product.weight.name).removesuffix(".weight")
