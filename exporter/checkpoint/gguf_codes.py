"""Quantized tensors of a GGUF file as stored: Q4_0, Q4_1 and Q8_0 blocks, used without requantizing."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from specc.exporter.checkpoint.codes import BLOCK, Codes, dequantize_codes, join_outputs
from specc.exporter.checkpoint.gguf_header import GgufHeader, TensorInfo

Q4_0, Q4_1, Q8_0 = 2, 3, 8  # GGML type numbers
LAYER_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
PACKED = {"self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")}


class GgufCodes:
    """The quantized weights of one GGUF file, by the names of the Hugging Face module."""

    def __init__(self, path: Path, header: GgufHeader) -> None:
        self.data = np.memmap(path, np.uint8, mode="r", offset=header.data_start)
        self.tensors = {tensor.name: tensor for tensor in header.tensors}

    def find(self, name: str, weight: np.ndarray) -> Codes | None:
        """The stored codes of `name` if they stand for exactly `weight`, fp32 [n, k]; None otherwise."""
        match = re.fullmatch(r"(.*?)([a-z_]+\.[a-z_]+)\.weight", name)
        parts = PACKED.get(match[2], (match[2],)) if match else ()
        names = [f"{match[1]}{part}.weight" for part in parts] if match and match[2] in PACKED else [name]
        tensors, row = [], 0
        for part in names:
            codes = self.find_tensor(part, weight[row:])
            if codes is None:
                return None
            tensors.append(codes)
            row += codes.shape[0]
        kinds = {codes.kind for codes in tensors}
        return join_outputs(tensors) if len(kinds) == 1 and row == weight.shape[0] else None

    def find_tensor(self, name: str, weight: np.ndarray) -> Codes | None:
        """The stored tensor whose rows are the first rows of `weight`, in file order or reordered.

        None otherwise.
        """
        tensor = self.tensors.get(translate_name(name)) or self.tensors.get(
            "token_embd.weight" if name == "lm_head.weight" else ""
        )
        if (
            tensor is None
            or len(tensor.dims) != 2
            or tensor.dims[0] != weight.shape[1]
            or tensor.dims[1] > weight.shape[0]
        ):
            return None
        codes = self.read(tensor)
        return None if codes is None else reorder_rows(codes, weight[: tensor.dims[1]])

    def read(self, tensor: TensorInfo) -> Codes | None:
        """The codes of one tensor; None for a kind that the kernels do not have."""
        readers = {Q4_0: (18, read_q4_0), Q4_1: (20, read_q4_1), Q8_0: (34, read_q8_0)}
        if tensor.kind not in readers or tensor.dims[0] % BLOCK:
            return None
        size, reader = readers[tensor.kind]
        n, blocks = tensor.dims[1], tensor.dims[0] // BLOCK
        raw = self.data[tensor.offset : tensor.offset + n * blocks * size].reshape(n, blocks, size)
        return reader(np.asarray(raw))


def translate_name(name: str) -> str:
    """`model.layers.3.mlp.up_proj.weight` -> `blk.3.ffn_up.weight`."""
    match = re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.weight", name)
    if match and match[2] in LAYER_NAMES:
        return f"blk.{match[1]}.{LAYER_NAMES[match[2]]}.weight"
    return {"lm_head.weight": "output.weight", "model.embed_tokens.weight": "token_embd.weight"}.get(
        name, name
    )


def reorder_rows(codes: Codes, weight: np.ndarray) -> Codes | None:
    """The codes in the row order of `weight`: llama.cpp interleaves the two halves of query and key heads."""
    floats = dequantize_codes(codes)
    if np.array_equal(floats, weight):
        return codes
    rows = {row.tobytes(): i for i, row in enumerate(floats)}
    order = np.array([rows.get(row.tobytes(), -1) for row in np.ascontiguousarray(weight)])
    return None if (order < 0).any() else codes.take_outputs(order)


def read_halves(raw: np.ndarray, at: int) -> np.ndarray:
    """float16 [n, blocks] at byte `at` of each block."""
    return np.ascontiguousarray(raw[..., at : at + 2]).view(np.float16)[..., 0]


def unpack_block_nibbles(raw: np.ndarray) -> np.ndarray:
    """uint8 [n, blocks, 16] -> [n, blocks * 32]; the low nibbles are the first half of a block."""
    return np.concatenate([raw & 15, raw >> 4], axis=-1).reshape(raw.shape[0], -1)


def read_q4_0(raw: np.ndarray) -> Codes:
    """f16 scale, 16 bytes; weight = scale * (code - 8)."""
    return Codes("w4", unpack_block_nibbles(raw[..., 2:]), read_halves(raw, 0))


def read_q4_1(raw: np.ndarray) -> Codes:
    """f16 scale, f16 minimum, 16 bytes; weight = scale * code + minimum."""
    return Codes("w4m", unpack_block_nibbles(raw[..., 4:]), read_halves(raw, 0), read_halves(raw, 2))


def read_q8_0(raw: np.ndarray) -> Codes:
    """f16 scale, 32 signed bytes; weight = scale * code."""
    return Codes(
        "w8", np.ascontiguousarray(raw[..., 2:]).view(np.int8).reshape(raw.shape[0], -1), read_halves(raw, 0)
    )
