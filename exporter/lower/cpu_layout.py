"""Weights in the layout of specc's CPU kernels (runtime/ops/kernels.h).

A weight is groups of 16 outputs by blocks of 32 inputs. A header of 64 bytes (scales, and minima of w4m)
comes before the codes of its one or two blocks.
"""

from __future__ import annotations

import numpy as np

from specc.exporter.checkpoint.codes import BLOCK, Codes, join_outputs

GROUP, GATED, LAYOUT = 16, 8, 2
HEADER_BYTES = 64  # a cache line, so that codes start at one


def count_code_bytes(kind: str) -> int:
    """Bytes of the codes of 16 outputs x 32 inputs."""
    return 512 if kind == "w8" else 256


def blocks_per_header(kind: str) -> int:
    """Blocks behind one header: it holds the scales of two blocks, or the scales and minima of one (w4m)."""
    return 1 if kind == "w4m" else 2


def count_group_bytes(kind: str, blocks: int) -> int:
    """Bytes of a group of 16 outputs: headers and codes."""
    return -(-blocks // blocks_per_header(kind)) * HEADER_BYTES + count_code_bytes(kind) * blocks


def count_inputs(size: int, kind: str, outputs: int) -> int:
    """Inputs of a packed weight of `size` bytes."""
    group = size // -(-outputs // GROUP)
    return (
        group
        * blocks_per_header(kind)
        // (HEADER_BYTES + blocks_per_header(kind) * count_code_bytes(kind))
        * BLOCK
    )


def interleave(gate: Codes, up: Codes) -> Codes:
    """Gate and up in alternating runs of 8 outputs, as the gated product reads them; n is a multiple of 8."""
    order = np.arange(2 * gate.shape[0]).reshape(2, -1, GATED).transpose(1, 0, 2).reshape(-1)
    return join_outputs([gate, up]).take_outputs(order)


def pack(weight: Codes) -> np.ndarray:
    """uint8 [bytes] that the kernels read; outputs are padded to a multiple of 16 with zeros.

    Raises ValueError when the inputs are no multiple of 32.
    """
    n, k = weight.shape
    groups, blocks = -(-n // GROUP), k // BLOCK
    if k % BLOCK:
        raise ValueError(f"{k} inputs are no multiple of {BLOCK}")
    fill = 8 if weight.kind == "w4" else 0
    padded = np.full((groups * GROUP, k), fill, np.uint8)
    padded[:n] = weight.codes.astype(np.int16).astype(np.uint8)
    body = arrange_codes(padded.reshape(groups, GROUP, blocks, BLOCK), weight.kind)
    headers = make_headers(weight, groups, blocks)
    size = HEADER_BYTES + blocks_per_header(weight.kind) * body.shape[-1]
    together = np.zeros((groups, len(headers[0]), size), np.uint8)
    together[..., :HEADER_BYTES] = headers
    whole = np.zeros((groups, together.shape[1] * blocks_per_header(weight.kind), body.shape[-1]), np.uint8)
    whole[:, :blocks] = body
    together[..., HEADER_BYTES:] = whole.reshape(groups, together.shape[1], -1)
    return np.ascontiguousarray(
        together.reshape(groups, -1)[:, : count_group_bytes(weight.kind, blocks)]
    ).reshape(-1)


def make_headers(weight: Codes, groups: int, blocks: int) -> np.ndarray:
    """uint8 [groups, headers, 64]: two blocks' scales, or one block's scales and minima."""
    scales = arrange_halves(weight.scales, groups, blocks)
    if weight.minima is not None:
        return np.concatenate([scales, arrange_halves(weight.minima, groups, blocks)], axis=-1)
    out = np.zeros((groups, blocks + blocks % 2, HEADER_BYTES // 2), np.uint8)
    out[:, :blocks] = scales
    return out.reshape(groups, -1, HEADER_BYTES)


def arrange_halves(values: np.ndarray, groups: int, blocks: int) -> np.ndarray:
    """float16 [n, blocks] -> uint8 [groups, blocks, 32]."""
    padded = np.zeros((groups * GROUP, blocks), np.float16)
    padded[: values.shape[0]] = values
    return np.ascontiguousarray(padded.reshape(groups, GROUP, blocks).transpose(0, 2, 1)).view(np.uint8)


def arrange_codes(codes: np.ndarray, kind: str) -> np.ndarray:
    """uint8 [groups, 16, blocks, 32] -> [groups, blocks, 256 or 512] in the kernels' order."""
    groups, _, blocks, _ = codes.shape
    fours = codes.reshape(groups, GROUP, blocks, 8, 4).transpose(
        0, 2, 3, 1, 4
    )  # [groups, blocks, 8 fours, outputs, 4]
    if kind == "w8":
        return np.ascontiguousarray(fours).reshape(groups, blocks, -1)
    return np.ascontiguousarray(fours[:, :, 0::2] | (fours[:, :, 1::2] << 4)).reshape(groups, blocks, -1)


def unpack(packed: np.ndarray, kind: str, n: int, k: int) -> Codes:
    """The inverse of `pack`: uint8 [bytes] -> codes of [n, k].

    Raises ValueError for a wrong number of bytes.
    """
    groups, blocks = -(-n // GROUP), k // BLOCK
    if k % BLOCK or packed.size != groups * count_group_bytes(kind, blocks):
        raise ValueError(f"{packed.size} bytes are no {kind} weight of {n} outputs and {k} inputs")
    size = HEADER_BYTES + blocks_per_header(kind) * count_code_bytes(kind)
    group = np.zeros((groups, -(-blocks // blocks_per_header(kind)) * size), np.uint8)
    group[:, : count_group_bytes(kind, blocks)] = packed.reshape(groups, -1)
    together = group.reshape(groups, -1, size)
    codes = restore_codes(
        together[..., HEADER_BYTES:].reshape(groups, -1, count_code_bytes(kind))[:, :blocks], kind
    )[:n]
    if kind == "w4m":
        scales, minima = (restore_halves(together[..., at : at + 32])[:n] for at in (0, 32))
        return Codes(kind, codes, scales, minima)
    return Codes(
        kind, codes, restore_halves(together[..., :HEADER_BYTES].reshape(groups, -1, 32)[:, :blocks])[:n]
    )


def restore_halves(raw: np.ndarray) -> np.ndarray:
    """uint8 [groups, blocks, 32] -> float16 [groups * 16, blocks]."""
    values = np.ascontiguousarray(raw).view(np.float16)
    return np.ascontiguousarray(values.transpose(0, 2, 1)).reshape(-1, raw.shape[1])


def restore_codes(raw: np.ndarray, kind: str) -> np.ndarray:
    """uint8 [groups, blocks, 256 or 512] -> uint8 or int8 [groups * 16, blocks * 32].

    Inverts `arrange_codes`.
    """
    groups, blocks, _ = raw.shape
    if kind != "w8":
        nibbles = raw.reshape(groups, blocks, 4, 1, GROUP, 4)
        raw = np.concatenate([nibbles & 15, nibbles >> 4], axis=3)
    fours = raw.reshape(groups, blocks, 8, GROUP, 4).transpose(0, 3, 1, 2, 4)
    codes = np.ascontiguousarray(fours).reshape(groups * GROUP, blocks * BLOCK)
    return codes.view(np.int8) if kind == "w8" else codes
