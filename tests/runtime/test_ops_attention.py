"""specc's attention in the installed library: against numpy, and bit for bit against itself."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from support.ops_alone import (
    FAILS,
    QUICK,
    ROWS,
    SIGNATURES,
    Arrays,
    Case,
    Other,
    bits,
    other_instructions,
    run,
    session,
    wrong,
)

HEADS, KV_HEADS, DIM, CAPACITY = 6, 2, 16, 300


@pytest.fixture(scope="module")
def others() -> Iterator[list[Other]]:
    """Processes with the scalar code, which defines the bits, and with AVX2 where this CPU has it."""
    yield from other_instructions()


def attention(
    lengths: tuple[int, ...],
    rows: int,
    seed: int = 0,
    rotary: int = DIM,
    bias: bool = False,
    **attributes: Any,
) -> Case:
    """Sequences with `lengths` slots of random cache each, NaN behind them, and `rows` new rows each."""
    rng, batch = np.random.default_rng(seed), len(lengths)

    def floats(shape: tuple[int, ...]) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    caches = {name: floats((batch, KV_HEADS, CAPACITY, DIM)) for name in ("past_k", "past_v")}
    for cache in caches.values():
        for b, length in enumerate(lengths):
            cache[b, :, length:] = np.nan
    angles = np.outer(np.arange(CAPACITY), 0.7 ** np.arange(rotary // 2))
    feeds: Arrays = {
        "qkv": floats((batch, rows, (HEADS + 2 * KV_HEADS) * DIM)),
        **caches,
        "past_len": np.array(lengths, np.int32),
        "position": np.array(lengths, np.int64)[:, None] + np.arange(rows),
        "cos": np.cos(angles).astype(np.float32),
        "sin": np.sin(angles).astype(np.float32),
        **({"bias": floats((batch, rows, CAPACITY))} if bias else {}),
    }
    given = {
        "heads": HEADS,
        "kv_heads": KV_HEADS,
        "scale": DIM**-0.5,
        "window": 0,
        "soft_cap": 0.0,
        **attributes,
    }
    return "Attention", given, feeds


def turned(x: np.ndarray, feeds: Arrays, b: int) -> np.ndarray:
    """[rows, heads, dim] with the first 2 * columns(cos) dimensions turned to their positions."""
    at, half = feeds["position"][b], feeds["cos"].shape[1]
    cos, sin = feeds["cos"][at][:, None].astype(np.float64), feeds["sin"][at][:, None].astype(np.float64)
    a, c = x[..., :half], x[..., half : 2 * half]
    return np.concatenate([a * cos - c * sin, c * cos + a * sin, x[..., 2 * half :]], axis=-1)


def wanted_attention(case: Case) -> np.ndarray:
    """The same in float64, sequence by sequence and row by row: fp64 [batch, rows, heads * dim]."""
    _, a, feeds = case
    batch, rows, _ = feeds["qkv"].shape
    out = np.zeros((batch, rows, HEADS * DIM))
    for b in range(batch):
        length = int(feeds["past_len"][b])
        parts = feeds["qkv"][b].astype(np.float64).reshape(rows, -1, DIM)
        q, k, v = turned(parts[:, :HEADS], feeds, b), parts[:, HEADS:-KV_HEADS], parts[:, -KV_HEADS:]
        keys = np.concatenate(
            [feeds["past_k"][b, :, :length], turned(k, feeds, b).transpose(1, 0, 2)], axis=1
        )
        values = np.concatenate([feeds["past_v"][b, :, :length], v.transpose(1, 0, 2)], axis=1)
        for i in range(rows):
            first = max(0, length + i - a["window"] + 1) if a["window"] else 0
            seen = slice(first, length + i + 1)
            added = feeds["bias"][b, i, seen] if "bias" in feeds else 0
            for h in range(HEADS):
                group = h * KV_HEADS // HEADS
                score = keys[group, seen] @ q[i, h] * a["scale"]
                score = (a["soft_cap"] * np.tanh(score / a["soft_cap"]) if a["soft_cap"] else score) + added
                weight = np.exp(score - score.max())
                out[b, i, h * DIM : (h + 1) * DIM] = weight @ values[group, seen] / weight.sum()
    return out


KINDS_OF_ATTENTION: dict[str, dict[str, Any]] = {
    "plain": {},
    "no past": {"lengths": (0,), "rows": 40},
    "one row at a span's edge": {"lengths": (127,), "rows": 1},
    "batch of two lengths": {"lengths": (131, 5), "rows": 7},
    "window": {"lengths": (200, 3), "rows": 9, "window": 20},
    "window over a span's edge": {"lengths": (130,), "rows": 5, "window": 4},
    "soft cap": {"soft_cap": 2.0},
    "bias": {"lengths": (130, 0), "rows": 6, "bias": True},
    "half rotary": {"rotary": DIM // 2},
    "no rotary": {"rotary": 0},
    "all of it": {"lengths": (250, 1), "rows": 17, "window": 90, "soft_cap": 3.0, "bias": True, "rotary": 8},
}


@pytest.mark.parametrize("name", KINDS_OF_ATTENTION)
def test_attention_against_numpy(name: str) -> None:
    """Results and the cache that is written; NaN behind the lengths is never read."""
    given_here: dict[str, Any] = {"lengths": (140,), "rows": 5, **KINDS_OF_ATTENTION[name]}
    case = attention(**given_here)
    got, keys, values = run(case)
    np.testing.assert_allclose(got, wanted_attention(case), rtol=2e-5, atol=2e-5)
    feeds, rows = case[2], case[2]["qkv"].shape[1]
    for b, length in enumerate(feeds["past_len"]):
        parts = feeds["qkv"][b].reshape(rows, -1, DIM)
        new = slice(length, length + rows)
        new_keys = turned(parts[:, HEADS:-KV_HEADS], feeds, b)
        np.testing.assert_allclose(keys[b, :, new].transpose(1, 0, 2), new_keys, atol=1e-5)
        assert np.array_equal(values[b, :, new].transpose(1, 0, 2), parts[:, -KV_HEADS:])
        for cache, before in ((keys, feeds["past_k"]), (values, feeds["past_v"])):
            assert bits(np.delete(cache[b], new, 1)) == bits(np.delete(before[b], new, 1))


def in_parts(case: Case, width: int, threads: int) -> np.ndarray:
    """The rows of a call, `width` at a time, each call over the cache that the one before it left."""
    op, attributes, feeds = case
    rows, out, now = feeds["qkv"].shape[1], [], dict(feeds)
    for at in range(0, rows, width):
        part = slice(at, at + width)
        now |= {n: np.ascontiguousarray(feeds[n][:, part]) for n in ("qkv", "position", "bias") if n in feeds}
        now["past_len"] = feeds["past_len"] + np.int32(at)
        y, now["past_k"], now["past_v"] = run((op, attributes, now), threads)
        out.append(y)
    return np.concatenate(out, axis=1)


@QUICK
@given(
    seed=st.integers(0, 2**31),
    lengths=st.lists(st.integers(0, 250), min_size=1, max_size=2),
    window=st.sampled_from([0, 0, 1, 50, 129]),
    soft_cap=st.sampled_from([0.0, 2.0]),
    bias=st.booleans(),
)
def test_an_attention_row_does_not_depend_on_how_many_there_are(
    seed: int, lengths: list[int], window: int, soft_cap: float, bias: bool
) -> None:
    """1 to 40 rows a call, one and two threads, each sequence alone or with another: equal bits."""
    case = attention(tuple(lengths), ROWS, seed, bias=bias, window=window, soft_cap=soft_cap)
    whole = bits(run(case)[0])
    for width in (1, 2, 3, 5, 7, 17, 33, 40):
        for threads in (1, 2):
            assert bits(in_parts(case, width, threads)) == whole
    alone = [attention_of(case, b) for b in range(len(lengths))]
    assert bits(np.concatenate([run(one)[0] for one in alone])) == whole


def attention_of(case: Case, b: int) -> Case:
    """One sequence of a batch."""
    shared = ("cos", "sin")
    return case[0], case[1], {n: a if n in shared else a[b : b + 1] for n, a in case[2].items()}


@QUICK
@given(
    seed=st.integers(0, 2**31),
    lengths=st.lists(st.integers(0, 250), min_size=1, max_size=2),
    rows=st.integers(1, ROWS),
    window=st.sampled_from([0, 60]),
    soft_cap=st.sampled_from([0.0, 2.0]),
)
def test_instructions_do_not_matter_to_attention(
    others: list[Other], seed: int, lengths: list[int], rows: int, window: int, soft_cap: float
) -> None:
    """Results and caches: equal bits."""
    case = attention(tuple(lengths), rows, seed, window=window, soft_cap=soft_cap)
    ours = [bits(array) for array in run(case)]
    for other in others:
        assert [bits(array) for array in other.run(case)] == ours, other.name


def test_a_bad_query_spoils_its_row_only() -> None:
    """R13: NaN in one row's queries gives NaN in that head of that row alone."""
    case = attention((50,), 6)
    clean = run(case)[0].reshape(6, HEADS, DIM)
    case[2]["qkv"].reshape(6, -1, DIM)[3, 1] = np.nan
    got = run(case)[0].reshape(6, HEADS, DIM)
    assert np.isnan(got[3, 1]).all()
    got[3, 1] = clean[3, 1]
    assert bits(got) == bits(clean)


@pytest.mark.parametrize("length", [0, 1, 31, 60, CAPACITY - 5])
def test_cache_in_place_equals_copies(length: int) -> None:
    """R41: past and present in one buffer, as the runtime binds them, and as copies: the same results and
    caches.
    """
    case = attention((length,), 5)
    copied = run(case)
    feeds = {name: array.copy() for name, array in case[2].items()}
    made = session(
        "Attention",
        tuple(n for n in SIGNATURES["Attention"] if n in feeds),
        tuple(sorted(case[1].items())),
        1,
    )
    y = np.zeros_like(copied[0])
    binding = made.io_binding()
    for name, array in feeds.items():
        binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
    for name, array in (("y", y), ("present_k", feeds["past_k"]), ("present_v", feeds["past_v"])):
        binding.bind_output(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
    made.run_with_iobinding(binding)
    for here, there in zip((y, feeds["past_k"], feeds["past_v"]), copied, strict=True):
        assert bits(here) == bits(there)
    assert np.isfinite(y).all()


def test_wrong_attention_is_refused() -> None:
    """Lengths, positions and shapes that do not fit: each a sentence, and nothing is written."""
    case = attention((10, 20), 3)
    feeds, floats = case[2], functools.partial(np.zeros, dtype=np.float32)
    position = feeds["position"].copy()
    position[1, 2] = -4
    cache = feeds["past_k"]
    for message, arrays in {
        "length -1 with 3 rows does not fit a cache of 300": {"past_len": np.array([-1, 20], np.int32)},
        "length 298 with 3 rows does not fit a cache of 300": {"past_len": np.array([10, 298], np.int32)},
        "length 2147483647 with 3 rows does not fit": {"past_len": np.array([2147483647, 20], np.int32)},
        "position -4 is negative": {"position": position},
        "3 lengths and 6 positions for 2 sequences of 3 rows": {"past_len": np.zeros(3, np.int32)},
        "the caches do not fit 2 sequences of 2 key heads": {"past_k": np.concatenate([cache, cache])},
        "qkv has 161 columns for 6 and 2 heads of 16": {"qkv": floats((2, 3, 161))},
        "cos and sin do not fit heads of 16": {"cos": floats((300, 9)), "sin": floats((300, 9))},
        "cos and sin do not fit heads of": {"cos": floats((300, 8)), "sin": floats((600, 4))},
        "cos and sin do not fit heads .*": {"cos": floats((300, 0)), "sin": floats((300, 8))},
        "cos and sin hold no position": {"cos": floats((0, 8)), "sin": floats((0, 8))},
        "qkv has rank 3, the cache 4 and 4, cos 2, sin 1": {"sin": floats((2400,))},
        "the bias has 600 values; 1800 are needed": {"bias": floats((2, 1, 300))},
    }.items():
        with pytest.raises(FAILS, match=f"specc::Attention: {message}"):
            run(wrong(case, **arrays))
    with pytest.raises(FAILS, match="6 heads cannot share 4 key heads evenly"):
        run((case[0], {**case[1], "kv_heads": 4}, case[2]))


@pytest.mark.parametrize("positions", [0, 1, CAPACITY])
def test_without_rotation_no_table_is_read(positions: int) -> None:
    """Attention without rotary positions inside comes with empty tables of any number of positions."""
    case = attention((10,), 3, rotary=0)
    empty = np.zeros((positions, 0), np.float32)
    alone = wrong(case, cos=empty, sin=empty, position=case[2]["position"] + 10**9)
    assert [bits(array) for array in run(alone)] == [bits(array) for array in run(case)]


def test_a_position_behind_the_table_is_the_last_one() -> None:
    """Padding rows of a full cache may stand there; no memory behind the table is read."""
    case = attention((10,), 2)
    far, last = (np.array([[10, at]]) for at in (10**9, CAPACITY - 1))
    assert bits(run(wrong(case, position=far))[0]) == bits(run(wrong(case, position=last))[0])
