"""Block quantization: float weights to 4 or 8 bits per block of inputs, and back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

SHRINK = (1.0, 0.96, 0.92, 0.88)  # scales that are tried, relative to the one that just covers the block
ROWS_AT_ONCE = 4096  # outputs quantized at a time, to bound memory
Choice = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
"""(squared error [n, blocks, 1], codes [n, blocks, block], scale [n, blocks, 1], zero [n, blocks, 1])."""


@dataclass(frozen=True)
class Blocks:
    """A weight [n, k] in blocks along k: value = scale * (code - zero).

    codes uint8 [n, blocks, block * bits / 8] (two codes a byte at 4 bits, low nibble first), scales fp32 [n,
    blocks], zeros uint8 [n, ceil(blocks * bits / 8)] or None for the middle code (8 or 128).
    """

    codes: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray | None
    bits: int
    block: int
    k: int

    @property
    def n(self) -> int:
        """Outputs."""
        return int(self.codes.shape[0])


def quantize_blocks(weight: np.ndarray, bits: int, block: int) -> Blocks:
    """Quantize fp32 [n, k] with least squared error: 8 bits symmetric, 4 bits with an integer zero per
    block.
    """
    quantize = quantize_symmetric_8 if bits == 8 else quantize_asymmetric_4
    parts = [
        quantize(split_blocks(weight[i : i + ROWS_AT_ONCE], block))
        for i in range(0, weight.shape[0], ROWS_AT_ONCE)
    ]
    codes, scales, zeros = (torch.cat(column) for column in zip(*parts, strict=True))
    packed = (codes, None) if bits == 8 else (pack_nibbles(codes), pack_nibbles(zeros))
    return Blocks(
        packed[0].numpy(),
        scales.numpy(),
        None if packed[1] is None else packed[1].numpy(),
        bits,
        block,
        weight.shape[1],
    )


def split_blocks(weight: np.ndarray, block: int) -> torch.Tensor:
    """fp32 [n, k] -> [n, blocks, block], the last block padded with zeros."""
    rows = torch.from_numpy(np.ascontiguousarray(weight, dtype=np.float32))
    missing = -rows.shape[1] % block
    return torch.nn.functional.pad(rows, (0, missing)).reshape(rows.shape[0], -1, block)


def quantize_symmetric_8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes 1..255 around 128, scale absmax/127; a block of zeros gets scale 0 and code 128."""
    scale = x.abs().amax(-1, keepdim=True) / 127
    codes = (x / replace_zeros(scale)).round_().add_(128).clamp_(0, 255).to(torch.uint8)
    return codes, scale[..., 0], torch.full(x.shape[:2], 128, dtype=torch.uint8)


def quantize_asymmetric_4(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes 0..15: the best of two integer zeros and a few scales, each scale refitted by least squares."""
    low, high = x.amin(-1, keepdim=True).clamp_(max=0), x.amax(-1, keepdim=True).clamp_(min=0)
    step = replace_zeros((high - low) / 15)
    best: Choice | None = None
    for zero in ((-low / step).floor(), (-low / step).ceil()):
        cover = torch.maximum(-low / replace_zeros(zero), high / replace_zeros(15 - zero))
        cover = torch.where(zero == 0, high / 15, torch.where(zero == 15, -low / 15, cover))
        for shrink in SHRINK:
            best = choose_better(best, fit_scale(x, cover * shrink, zero))
    assert best is not None
    _, codes, scale, zero = best
    return codes.to(torch.uint8), scale[..., 0], zero[..., 0].to(torch.uint8)


def fit_scale(x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> Choice:
    """Codes under one scale and zero, then the scale of least squared error for these codes."""
    codes = (x / replace_zeros(scale)).round_().add_(zero).clamp_(0, 15)
    offset = codes - zero
    norm = (offset * offset).sum(-1, keepdim=True)
    dot = (offset * x).sum(-1, keepdim=True)
    refitted = dot / norm.clamp(min=1)
    error = (x * x).sum(-1, keepdim=True) - refitted * dot
    return error, codes, refitted, zero


def choose_better(a: Choice | None, b: Choice) -> Choice:
    """Block by block the choice with the smaller error; `a` on ties."""
    if a is None:
        return b
    take = b[0] < a[0]
    e, c, s, z = (torch.where(take, new, old) for new, old in zip(b, a, strict=True))
    return e, c, s, z


def replace_zeros(scale: torch.Tensor) -> torch.Tensor:
    """The scale with 1 in place of 0, to divide by."""
    return torch.where(scale == 0, torch.ones_like(scale), scale)


def pack_nibbles(codes: torch.Tensor) -> torch.Tensor:
    """uint8 [..., n] of 0..15 -> [..., ceil(n / 2)], low nibble first; an odd end is padded with 0."""
    even = torch.nn.functional.pad(codes, (0, codes.shape[-1] % 2))
    return even[..., 0::2] | (even[..., 1::2] << 4)


def unpack_nibbles(packed: np.ndarray, count: int) -> np.ndarray:
    """uint8 [..., m] -> [..., count] codes 0..15, low nibble first."""
    pairs = np.stack([packed & 15, packed >> 4], axis=-1)
    return pairs.reshape(*packed.shape[:-1], -1)[..., :count]


def dequantize_blocks(blocks: Blocks) -> np.ndarray:
    """The fp32 weight [n, k] that the codes stand for."""
    count = blocks.scales.shape[1]
    if blocks.bits == 8:
        codes, zeros = blocks.codes, np.full(blocks.scales.shape, 128, np.uint8)
    else:
        codes = unpack_nibbles(blocks.codes, blocks.block)
        zeros = np.full(blocks.scales.shape, 8, np.uint8)
    if blocks.zeros is not None:
        zeros = blocks.zeros if blocks.bits == 8 else unpack_nibbles(blocks.zeros, count)
    offset = codes.astype(np.float32) - zeros[..., None].astype(np.float32)
    weight: np.ndarray = (offset * blocks.scales[..., None]).reshape(blocks.n, -1)[:, : blocks.k]
    return weight
