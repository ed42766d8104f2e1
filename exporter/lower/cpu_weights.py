"""The codes that products read: the checkpoint's own quantized blocks, or its floats quantized."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from specc.contracts.scheme import Scheme
from specc.errors import InputError
from specc.exporter.checkpoint.codes import BLOCK, Codes
from specc.exporter.checkpoint.gguf_codes import GgufCodes
from specc.exporter.lower.blocks import Blocks, quantize_blocks, unpack_nibbles

BITS = {"w4": 4, "w8": 8}
SCALE_BOUND = 0.02  # what rounding a weight's scales may change, norm over norm; ordinary ones lose 0.0003
KIND_BITS = {"w4": 4, "w4m": 4, "w8": 8}


@dataclass
class CpuWeights:
    """Codes by weight name; `taken` counts weights used as stored, `quantized` the others."""

    scheme: Scheme
    stored: GgufCodes | None
    taken: int = 0
    quantized: int = 0
    by_name: dict[str, Codes] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    """Elements of every weight that a scheme asks to quantize."""
    left: set[str] = field(default_factory=set)
    """Names of those that stay fp32."""

    def codes(self, name: str, weight: np.ndarray, is_lm_head: bool) -> Codes | None:
        """Codes of `weight` fp32 [n, k] under its scheme; None for fp32 and where k is no multiple of 32.

        `is_lm_head`: the scheme is that of lm_head and embedding, not that of the layers.
        """
        bits = BITS.get(self.scheme.head if is_lm_head else self.scheme.layers)
        if bits is None:
            return None
        self.sizes[name] = weight.size
        if weight.shape[1] % BLOCK:
            self.left.add(name)
            return None
        if name not in self.by_name:
            self.by_name[name] = self.find_or_quantize(name, weight, bits)
        return self.by_name[name]

    def find_or_quantize(self, name: str, weight: np.ndarray, bits: int) -> Codes:
        """The file's own codes where they have the wanted number of bits, else the float weight quantized."""
        codes = self.stored.find(name, weight) if self.stored is not None else None
        if codes is not None and KIND_BITS[codes.kind] == bits:
            self.taken += 1
            return codes
        self.quantized += 1
        blocks = quantize_blocks(weight, bits, BLOCK)
        check_scales(blocks, name)
        return convert_blocks(blocks)

    def note(self) -> str:
        """One line for the report."""
        taken = f"{self.taken} taken over from the checkpoint's own blocks"
        note = f"weights: {taken}, {self.quantized} quantized from floats"
        if not self.left:
            return note
        share = sum(self.sizes[name] for name in self.left) / sum(self.sizes.values())
        return (
            f"{note}; {len(self.left)} stay fp32, {share:.0%} of the parameters of all, since their inputs "
            f"are no multiple of {BLOCK}: {', '.join(sorted(self.left))}"
        )


def check_scales(blocks: Blocks, name: str) -> None:
    """Raise InputError where the scales of a weight, as a whole, have no half precision number near them."""
    wanted = blocks.scales.astype(np.float64)
    largest = np.abs(wanted).max(initial=0) * (15 if blocks.bits == 4 else 1)  # a minimum is up to 15 scales
    if largest > np.finfo(np.float16).max:
        found, why = largest, "too large for"
    elif np.linalg.norm(wanted.astype(np.float16) - wanted) > SCALE_BOUND * np.linalg.norm(wanted):
        found, why = float(np.abs(wanted).max()), "too small for"
    else:
        return
    raise InputError(
        f"the weight {name} of the checkpoint cannot be quantized to {blocks.bits} bits: its block scales, "
        f"up to {found:.3g}, are {why} half precision; move a factor from the norm or product beside it into "
        "the weight, or use the scheme fp32"
    )


def convert_blocks(blocks: Blocks) -> Codes:
    """Blocks with integer zeros as kernel codes, with scales and minima in half precision."""
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
