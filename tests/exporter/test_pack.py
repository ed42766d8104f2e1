"""The layout of the CPU kernels: packing and its inverse, and tensors of a GGUF file taken over bit for
bit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gguf")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from specc.contracts.scheme import Scheme  # noqa: E402
from specc.errors import InputError  # noqa: E402
from specc.exporter.checkpoint.codes import KINDS, Codes, dequantize_codes, join_outputs
from specc.exporter.checkpoint.gguf_codes import GgufCodes  # noqa: E402
from specc.exporter.checkpoint.gguf_header import check_complete, read_gguf_header  # noqa: E402
from specc.exporter.lower.blocks import dequantize_blocks, quantize_blocks  # noqa: E402
from specc.exporter.lower.cpu_layout import count_group_bytes, count_inputs, interleave, pack, unpack
from specc.exporter.lower.cpu_weights import CpuWeights, convert_blocks  # noqa: E402


def some_codes(kind: str, n: int, k: int, seed: int = 0) -> Codes:
    """Random codes of a kind, every bit pattern among their scales but no NaN."""
    rng = np.random.default_rng(seed)
    scales, minima = rng.integers(0, 2**16, (2, n, k // 32)).astype(np.uint16) & 0xFBFF
    codes = (
        rng.integers(-128, 128, (n, k)).astype(np.int8)
        if kind == "w8"
        else rng.integers(0, 16, (n, k), np.uint8)
    )
    return Codes(kind, codes, scales.view(np.float16), minima.view(np.float16) if kind == "w4m" else None)


def same(a: Codes, b: Codes) -> bool:
    """Whether two weights have the same codes, scales and minima, types included."""
    return a.kind == b.kind and all(
        map(same_array, (a.codes, a.scales, a.minima), (b.codes, b.scales, b.minima))
    )


def same_array(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    """Whether two arrays have one type, one shape and the same bytes, or are both missing."""
    if a is None or b is None:
        return a is b
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


# ---------------------------------------------------------------------- pack and unpack


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(KINDS), st.integers(1, 41), st.integers(1, 9), st.integers(0, 2**31))
def test_unpack_undoes_pack(kind: str, n: int, blocks: int, seed: int) -> None:
    """For any number of outputs, multiples of 16 or not."""
    weight = some_codes(kind, n, 32 * blocks, seed)
    packed = pack(weight)
    assert packed.dtype == np.uint8 and packed.shape == (-(-n // 16) * count_group_bytes(kind, blocks),)
    assert count_inputs(packed.size, kind, n) == 32 * blocks and packed.size % 64 == 0
    assert same(unpack(packed, kind, n, 32 * blocks), weight)


@pytest.mark.parametrize("kind", KINDS)
def test_a_byte_lies_where_the_kernels_look(kind: str) -> None:
    """Input 21 of output 26, block 1 of 3: the place that runtime/ops/kernels.h states."""
    weight = some_codes(kind, 32, 96, 4)
    group = pack(weight).reshape(2, -1)[1]
    head = 320 if kind == "w4m" else 32
    codes = group[{"w4": 64 + 256, "w4m": 320 + 64, "w8": 64 + 512}[kind] :]
    assert group[head : head + 32].view(np.float16)[10].tobytes() == weight.scales[26, 1].tobytes()
    if kind == "w4m":
        assert weight.minima is not None
        assert group[head + 32 : head + 64].view(np.float16)[10].tobytes() == weight.minima[26, 1].tobytes()
    if kind == "w8":
        assert codes[64 * 5 + 4 * 10 + 1].view(np.int8) == weight.codes[26, 32 + 21]
    else:
        assert codes[64 * 2 + 4 * 10 + 1] == weight.codes[26, 32 + 17] | weight.codes[26, 32 + 21] << 4


def test_filled_up_outputs_are_zero() -> None:
    """Outputs that the packing adds stand for weights of zero."""
    for kind in KINDS:
        whole = unpack(pack(some_codes(kind, 3, 64)), kind, 16, 64)
        assert not dequantize_codes(whole)[3:].any()


def test_wrong_sizes_are_refused() -> None:
    """Bytes that are no such weight, and inputs that are no multiple of 32."""
    packed = pack(some_codes("w4", 8, 64))
    with pytest.raises(ValueError, match="576 bytes are no w8 weight of 8 outputs and 64 inputs"):
        unpack(packed, "w8", 8, 64)
    with pytest.raises(ValueError, match="48 inputs are no multiple of 32"):
        pack(Codes("w4", np.zeros((8, 48), np.uint8), np.zeros((8, 1), np.float16)))


def test_gate_and_up_stand_in_turns_of_eight() -> None:
    """What the gated product reads."""
    gate, up = some_codes("w4m", 16, 32, 1), some_codes("w4m", 16, 32, 2)
    both = interleave(gate, up)
    order = [*range(8), *range(16, 24), *range(8, 16), *range(24, 32)]
    assert same(both, join_outputs([gate, up]).take_outputs(np.array(order)))


@pytest.mark.parametrize("bits", [4, 8])
def test_floats_become_codes_of_the_same_weight(bits: int) -> None:
    """Blocks with integer zeros as kernel codes: equal up to the half precision of scales and minima."""
    weight = np.random.default_rng(1).standard_normal((24, 96)).astype(np.float32)
    blocks = quantize_blocks(weight, bits, 32)
    np.testing.assert_allclose(
        dequantize_codes(convert_blocks(blocks)), dequantize_blocks(blocks), atol=2e-3 * np.abs(weight).max()
    )


# ---------------------------------------------------------------------- GGUF

TYPES = {"Q4_0": "w4", "Q4_1": "w4m", "Q8_0": "w8"}
SIZES = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}  # bytes of a block
MIXED = {"q": "Q4_0", "k": "Q4_1", "v": "Q4_0"}
NAME = "model.layers.0.mlp.up_proj.weight"


def write_gguf(path: Path, **tensors: tuple[str, np.ndarray]) -> Path:
    """A GGUF of quantized tensors: name -> (type, fp32 [n, k])."""
    from gguf import GGMLQuantizationType, GGUFWriter
    from gguf.quants import quantize

    writer = GGUFWriter(path, "llama")
    for name, (kind, array) in tensors.items():
        dtype = GGMLQuantizationType[kind]
        writer.add_tensor(name.replace("__", "."), quantize(array, dtype), raw_dtype=dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def floats(n: int = 24, k: int = 96, seed: int = 0) -> np.ndarray:
    """Random fp32 [n, k]."""
    return np.random.default_rng(seed).standard_normal((n, k)).astype(np.float32)


def loaded(path: Path, name: str) -> np.ndarray:
    """The tensor's floats and, for comparison, as the gguf package reads them: fp32 [n, k]."""
    from gguf import GGUFReader
    from gguf.quants import dequantize as by_gguf

    tensor = next(t for t in GGUFReader(path).tensors if t.name == name)
    return np.asarray(by_gguf(tensor.data, tensor.tensor_type), np.float32)


def stored(path: Path) -> GgufCodes:
    """The codes of a GGUF file."""
    return GgufCodes(path, read_gguf_header(path))


@pytest.mark.parametrize("kind", TYPES)
def test_a_tensor_is_taken_over_bit_for_bit(kind: str, tmp_path: Path) -> None:
    """The codes are the file's own: they give exactly its floats, and its blocks can be written again from
    them.
    """
    path = write_gguf(tmp_path / "x.gguf", blk__0__ffn_up__weight=(kind, floats()))
    weight = loaded(path, "blk.0.ffn_up.weight")
    codes = stored(path).find(NAME, weight)
    assert codes is not None and codes.kind == TYPES[kind]
    assert np.array_equal(dequantize_codes(codes), weight)
    header = read_gguf_header(path)
    start = header.data_start + header.tensors[0].offset
    raw = path.read_bytes()[start : start + 24 * 3 * SIZES[kind]]
    assert as_gguf(codes) == raw


def as_gguf(codes: Codes) -> bytes:
    """The blocks of a GGUF tensor that these codes were read from."""
    n, k = codes.shape
    blocks = codes.codes.reshape(n, k // 32, 32).view(np.uint8)
    body = blocks if codes.kind == "w8" else blocks[..., :16] | blocks[..., 16:] << 4
    heads = [h[..., None].view(np.uint8) for h in (codes.scales, codes.minima) if h is not None]
    return np.concatenate([*heads, body], axis=-1).tobytes()


def test_packed_query_key_and_value_come_from_three_tensors(tmp_path: Path) -> None:
    """In the order of the module, although llama.cpp stores the halves of query and key heads in turns."""
    heads, dim = 4, 16
    turns = np.arange(heads * dim).reshape(heads, 2, dim // 2).transpose(0, 2, 1).reshape(-1)
    parts = {
        f"attn_{p}": ("Q4_1", floats(n, 64, i)) for i, (p, n) in enumerate((("q", 64), ("k", 32), ("v", 32)))
    }
    path = write_gguf(
        tmp_path / "x.gguf", **{f"blk__0__{name}__weight": part for name, part in parts.items()}
    )
    q, k, v = (loaded(path, f"blk.0.attn_{p}.weight") for p in "qkv")
    weight = np.concatenate([q[np.argsort(turns)], k[np.argsort(turns[:32])], v])
    codes = stored(path).find("model.layers.0.self_attn.qkv_proj.weight", weight)
    assert codes is not None and np.array_equal(dequantize_codes(codes), weight)


def test_a_tied_head_reads_the_embedding(tmp_path: Path) -> None:
    """A file without output.weight."""
    path = write_gguf(tmp_path / "x.gguf", token_embd__weight=("Q8_0", floats(50, 64)))
    weight = loaded(path, "token_embd.weight")
    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        codes = stored(path).find(name, weight)
        assert codes is not None and np.array_equal(dequantize_codes(codes), weight)


def test_another_weight_is_not_taken_over(tmp_path: Path) -> None:
    """One changed number, another shape, another name, mixed types, a type that the kernels do not have."""
    tensors = {f"blk__0__attn_{p}__weight": (kind, floats(32, 64)) for p, kind in MIXED.items()}
    tensors |= {"blk__0__ffn_up__weight": ("Q4_1", floats()), "blk__0__ffn_down__weight": ("Q5_0", floats())}
    path = write_gguf(tmp_path / "x.gguf", **tensors)
    weight, file = loaded(path, "blk.0.ffn_up.weight"), stored(path)
    changed = weight.copy()
    changed[3, 5] += 0.5
    assert file.find(NAME, weight) is not None and file.find(NAME, changed) is None
    assert file.find(NAME, weight[:8]) is None and file.find(NAME.replace("0", "1"), weight) is None
    assert file.find(NAME.replace("up", "down"), loaded(path, "blk.0.ffn_down.weight")) is None
    mixed = np.concatenate([loaded(path, f"blk.0.attn_{p}.weight") for p in "qkv"])
    assert file.find("model.layers.0.self_attn.qkv_proj.weight", mixed) is None


def test_bits_of_the_scheme_decide(tmp_path: Path) -> None:
    """4-bit blocks serve a w4 scheme only.

    A w8 scheme quantizes their floats anew, and the report counts both.
    """
    path = write_gguf(tmp_path / "x.gguf", blk__0__ffn_up__weight=("Q4_1", floats()))
    weight = loaded(path, "blk.0.ffn_up.weight")
    four, eight = (CpuWeights(Scheme(layers, "w8", 32), stored(path)) for layers in ("w4", "w8"))
    found = four.codes(NAME, weight, is_lm_head=False), eight.codes(NAME, weight, is_lm_head=False)
    assert [codes.kind for codes in found if codes is not None] == ["w4m", "w8"]
    assert (four.taken, four.quantized, eight.taken, eight.quantized) == (1, 0, 0, 1)
    assert four.note() == "weights: 1 taken over from the checkpoint's own blocks, 0 quantized from floats"


@pytest.mark.parametrize("missing", [1, 17, 500])
def test_a_cut_tensor_is_refused(missing: int, tmp_path: Path) -> None:
    """One sentence, before a single block is read."""
    path = write_gguf(tmp_path / "x.gguf", blk__0__ffn_up__weight=("Q4_1", floats()))
    header: Any = read_gguf_header(path)
    end = header.data_start + 24 * 3 * 20
    path.write_bytes(path.read_bytes()[: end - missing])
    with pytest.raises(InputError, match=rf"ends at byte {end}; it is truncated, fetch it again"):
        check_complete(read_gguf_header(path), path)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(
    ("factor", "found"), [(1, None), (100, None), (1e-3, None), (1e6, "too small"), (1e-9, "too large")]
)
def test_scales_without_a_half_precision_number(bits: int, factor: float, found: str | None) -> None:
    """Weights that are small or large throughout are refused by name, not flushed to zero or infinity."""
    weight = np.random.default_rng(3).standard_normal((16, 64)).astype(np.float32) * np.float32(0.1 / factor)
    weights = CpuWeights(Scheme(f"w{bits}", "fp32", 32), None)
    if found is not None:
        with pytest.raises(InputError, match=f"weight a.weight .*{found} for half precision"):
            weights.codes("a.weight", weight, is_lm_head=False)
        return
    codes = weights.codes("a.weight", weight, is_lm_head=False)
    assert codes is not None
    error = np.linalg.norm(dequantize_codes(codes) - weight) / np.linalg.norm(weight)
    assert error < (0.15 if bits == 4 else 0.02)


def test_weights_that_stay_floats_are_named() -> None:
    """Inputs that are no multiple of 32: the note names the weights and their share."""
    weights = CpuWeights(Scheme("w4", "w8", 32), None)
    assert weights.codes("a.weight", np.ones((16, 64), np.float32), is_lm_head=False) is not None
    assert "stay fp32" not in weights.note()
    assert weights.codes("b.weight", np.ones((64, 48), np.float32), is_lm_head=False) is None
    assert "1 stay fp32, 75% of the parameters of all" in weights.note() and "b.weight" in weights.note()
