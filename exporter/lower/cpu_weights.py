"""Which codes a product of the `specc-cpu` dialect reads: the checkpoint's own blocks, or its floats quantized."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from specc.contracts.scheme import Scheme
from specc.exporter.checkpoint.codes import BLOCK, Codes
from specc.exporter.checkpoint.gguf_codes import GgufCodes
from specc.exporter.lower.blocks import Blocks, quantize_blocks, unpack_nibbles

BITS = {"w4": 4, "w8": 8}
KIND_BITS = {"w4": 4, "w4m": 4, "w8": 8}


@dataclass
class CpuWeights:
    """Codes by weight name; counts what was taken over and what was quantized anew."""

    scheme: Scheme
    stored: GgufCodes | None
    taken: int = 0
    quantized: int = 0
    known: dict[str, Codes] = field(default_factory=dict)

    def codes(self, name: str, weight: np.ndarray, is_head: bool) -> Codes | None:
        """Codes of fp32 [n, k] under the scheme of its group; None for fp32 and where k is no multiple of 32."""
        bits = BITS.get(self.scheme.head if is_head else self.scheme.layers)
        if bits is None or weight.shape[1] % BLOCK:
            return None
        if name not in self.known:
            self.known[name] = self.make(name, weight, bits)
        return self.known[name]

    def make(self, name: str, weight: np.ndarray, bits: int) -> Codes:
        """The file's own codes where they have the wanted bits, else the float weight quantized."""
        found = self.stored.find(name, weight) if self.stored is not None else None
        if found is not None and KIND_BITS[found.kind] == bits:
            self.taken += 1
            return found
        self.quantized += 1
        return convert_blocks(quantize_blocks(weight, bits, BLOCK))

    def note(self) -> str:
        """One line for the report."""
        return f"weights: {self.taken} taken over from the checkpoint's own blocks, {self.quantized} quantized from floats"


def convert_blocks(blocks: Blocks) -> Codes:
    """Blocks with integer zeros as kernel codes: scales and minima in half precision."""
    scales = blocks.scales.astype(np.float16)
    if blocks.bits == 8:
        return Codes(
            "w8", (blocks.codes.reshape(blocks.n, -1).astype(np.int16) - 128).astype(np.int8), scales
        )
    codes = unpack_nibbles(blocks.codes, blocks.block).reshape(blocks.n, -1)
    if blocks.zeros is None:
        return Codes("w4", codes, scales)
    zeros = unpack_nibbles(blocks.zeros, blocks.scales.shape[1]).astype(np.float32)
    return Codes("w4m", codes, scales, (-zeros * scales.astype(np.float32)).astype(np.float16))
