"""Weights as integer codes in blocks of 32 inputs, with half precision scales (and minima) per block."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

BLOCK = 32
KINDS = ("w4", "w4m", "w8")


@dataclass(frozen=True)
class Codes:
    """A weight [n, k] in blocks of 32 inputs.

    A weight is, by `kind`, "w4": scale * (code - 8), codes 0..15; "w4m": scale * code + minimum, codes 0..15;
    "w8": scale * code, codes -128..127. codes: uint8 or int8 [n, k]; scales and minima: float16 [n, k / 32],
    minima only for w4m.
    """

    kind: str
    codes: np.ndarray
    scales: np.ndarray
    minima: np.ndarray | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(outputs, inputs)."""
        n, k = self.codes.shape
        return int(n), int(k)

    def take_outputs(self, order: np.ndarray) -> Codes:
        """The outputs at the indices `order`, int [m], in that order."""
        return Codes(
            self.kind,
            self.codes[order],
            self.scales[order],
            None if self.minima is None else self.minima[order],
        )


def join_outputs(parts: list[Codes]) -> Codes:
    """Several weights over the same inputs as one weight, their outputs one after the other."""
    codes, scales = (
        np.concatenate(arrays) for arrays in zip(*((p.codes, p.scales) for p in parts), strict=True)
    )
    minima = None if parts[0].minima is None else np.concatenate([np.asarray(p.minima) for p in parts])
    return Codes(parts[0].kind, codes, scales, minima)


def dequantize_codes(weight: Codes) -> np.ndarray:
    """The fp32 weight [n, k] that the codes stand for."""
    n, k = weight.shape
    codes = weight.codes.astype(np.float32).reshape(n, -1, BLOCK)
    scales = weight.scales.astype(np.float32)[..., None]
    if weight.kind == "w4":
        codes = codes - 8
    minima = 0 if weight.minima is None else weight.minima.astype(np.float32)[..., None]
    return np.asarray(codes * scales + minima, np.float32).reshape(n, k)
