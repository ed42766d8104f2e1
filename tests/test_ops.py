"""specc's own ONNX Runtime operators in the installed library: against numpy, and bit for bit against themselves."""

from __future__ import annotations

import ctypes
import functools
import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnxruntime as ort  # noqa: E402
from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from onnx import TensorProto, helper  # noqa: E402

from specc.exporter.pack import KINDS, LAYOUT, Codes, interleaved, pack, unpack, unpacked  # noqa: E402
from specc.runtime import library  # noqa: E402

TYPES = {"f": TensorProto.FLOAT, "u": TensorProto.UINT8, "i": TensorProto.INT32, "l": TensorProto.INT64}
SIGNATURES = {
    "MatMul": {"x": "f", "weights": "u", "norm": "f", "bias": "f", "residual": "f"},
    "Embedding": {"ids": "l", "weights": "u"},
    "Attention": {"qkv": "f", "past_k": "f", "past_v": "f", "past_len": "i", "position": "l", "cos": "f", "sin": "f"}
    | {"bias": "f"},
}
OUTPUTS = {"MatMul": ["y"], "Embedding": ["y"], "Attention": ["y", "present_k", "present_v"]}
FAILS = Exception  # onnxruntime raises classes of its own
ROWS = 40

Arrays = dict[str, np.ndarray]
Case = tuple[str, dict[str, Any], Arrays]


# ---------------------------------------------------------------------- one operator by itself


@functools.cache
def session(op: str, given: tuple[str, ...], attributes: tuple[tuple[str, Any], ...], threads: int) -> Any:
    """A session over one node whose inputs are all fed."""
    names = [name if name in given else "" for name in SIGNATURES[op]]
    node = helper.make_node(op, names, OUTPUTS[op], domain="specc")
    node.attribute.extend(helper.make_attribute(name, value) for name, value in attributes)
    inputs = [helper.make_tensor_value_info(name, TYPES[SIGNATURES[op][name]], None) for name in given]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in OUTPUTS[op]]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("specc", 1)]
    model = helper.make_model(helper.make_graph([node], "one", inputs, outputs), opset_imports=opsets, ir_version=10)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    options.register_custom_ops_library(str(library().path))
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run(case: Case, threads: int = 1) -> list[np.ndarray]:
    """The operator's outputs."""
    op, attributes, feeds = case
    made = session(op, tuple(n for n in SIGNATURES[op] if n in feeds), tuple(sorted(attributes.items())), threads)
    outputs: list[np.ndarray] = made.run(None, feeds)
    return outputs


def bits(array: np.ndarray) -> bytes:
    """The numbers as they lie in memory, every NaN the same one."""
    return np.where(np.isnan(array), np.float32(np.nan), array).tobytes()


# ---------------------------------------------------------------------- the same operator with other instructions


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Answer cases from another process until it closes; the first answer is the name of the instructions."""
    name = ctypes.CDLL(str(library().path)).specc_kernels
    name.restype = ctypes.c_char_p
    send(sink, name().decode())
    while (case := receive(source)) is not None:
        send(sink, run(case))


def send(sink: Any, value: Any) -> None:
    """Length, then the pickled value."""
    raw = pickle.dumps(value)
    sink.write(struct.pack("<Q", len(raw)) + raw)
    sink.flush()


def receive(source: Any) -> Any:
    """The next value, None at the end."""
    head = source.read(8)
    return pickle.loads(source.read(struct.unpack("<Q", head)[0])) if len(head) == 8 else None


class Other:
    """A process that runs the operators with the instructions it is told to."""

    def __init__(self, kernels: str) -> None:
        environment = {**os.environ, "SPECC_KERNELS": kernels}
        self.process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
        self.name = receive(self.process.stdout)

    def run(self, case: Case) -> list[np.ndarray]:
        """As `run`, in the other process."""
        send(self.process.stdin, case)
        outputs: list[np.ndarray] = receive(self.process.stdout)
        return outputs

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(timeout=20)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def others() -> Iterator[list[Other]]:
    """The scalar code, which defines the bits, and AVX2 where this CPU has it."""
    started = [Other("scalar"), Other("avx2")]
    assert started[0].name == "scalar"
    yield [other for i, other in enumerate(started) if i == 0 or other.name != "scalar"]
    for other in started:
        other.close()


# ---------------------------------------------------------------------- products


def some_codes(rng: np.random.Generator, kind: str, n: int, k: int, scale: float = 0.02) -> Codes:
    """Random codes of every value, scales of both signs."""
    scales = (rng.uniform(-1, 1, (n, k // 32)) * scale).astype(np.float16)
    if kind == "w8":
        return Codes(kind, rng.integers(-128, 128, (n, k)).astype(np.int8), scales)
    minima = (rng.uniform(-1, 1, scales.shape) * scale).astype(np.float16) if kind == "w4m" else None
    return Codes(kind, rng.integers(0, 16, (n, k)).astype(np.uint8), scales, minima)


def some_rows(rng: np.random.Generator, rows: int, k: int, hard: bool = True) -> np.ndarray:
    """fp32 [rows, k]; hard ones hold blocks of huge and tiny numbers, zeros and denormals."""
    x = rng.standard_normal((rows, k)).astype(np.float32)
    if hard:
        sizes = np.array([1, 1, 1, 1e4, 1e-4, 1e30, 1e-28, 1e-33, 1e-40, 0], np.float32)
        x *= np.repeat(rng.choice(sizes, (rows, k // 32)), 32, axis=1)
    return x


def product(
    rng: np.random.Generator,
    kind: str,
    n: int,
    k: int,
    around: frozenset[str],
    hard: bool = True,
    scale: float = 0.02,
) -> Case:
    """A product of ROWS rows with what `around` names: norm, bias, gate, residual."""
    gate = "gate" in around
    n = n // 8 * 8 or 8 if gate else n
    codes = some_codes(rng, kind, n, k, scale)
    packed = pack(interleaved(codes, some_codes(rng, kind, n, k, scale)) if gate else codes)
    feeds: Arrays = {"x": some_rows(rng, ROWS, k, hard), "weights": packed}
    feeds |= {"norm": rng.uniform(0.5, 2, k).astype(np.float32)} if "norm" in around else {}
    feeds |= {"bias": rng.standard_normal(n).astype(np.float32)} if "bias" in around else {}
    feeds |= {"residual": rng.standard_normal((ROWS, n)).astype(np.float32)} if "residual" in around else {}
    outputs = 2 * n if gate else n
    attributes = {"layout": LAYOUT, "kind": KINDS.index(kind), "outputs": outputs, "kept": n, "gate": int(gate)}
    return "MatMul", {**attributes, "epsilon": 1e-5}, feeds


def first_rows(case: Case, rows: int) -> Case:
    """The same call with its first rows only."""
    op, attributes, feeds = case
    return op, attributes, {n: a[:rows] if n in ("x", "residual") else a for n, a in feeds.items()}


def wanted_product(case: Case) -> np.ndarray:
    """The same in float64 from the unpacked weight; activations are not rounded."""
    _, a, feeds = case
    x = feeds["x"].astype(np.float64)
    if "norm" in feeds:
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + a["epsilon"]) * feeds["norm"]
    y = x @ unpacked(unpack(feeds["weights"], KINDS[a["kind"]], a["outputs"], x.shape[1])).T.astype(np.float64)
    if a["gate"]:
        gate, up = (y.reshape(len(y), -1, 2, 8)[:, :, i].reshape(len(y), -1) for i in range(2))
        y = gate / (1 + np.exp(-gate)) * up
    return np.asarray(y + feeds.get("bias", 0) + feeds.get("residual", 0))


AROUND = [
    frozenset(names)
    for names in ((), ("norm",), ("bias",), ("residual",), ("norm", "bias", "residual"), ("norm", "gate", "residual"))
]
SHAPES = {"n": st.integers(1, 70), "blocks": st.integers(1, 128), "kind": st.sampled_from(KINDS)}
SHAPES |= {"scale": st.sampled_from([0.02, 1.0, 60000.0, 1e-6]), "around": st.sampled_from(AROUND)}
QUICK = settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("around", AROUND, ids=lambda names: "+".join(sorted(names)) or "alone")
@pytest.mark.parametrize("kind", KINDS)
def test_product_against_numpy(kind: str, around: frozenset[str]) -> None:
    """Every kind with everything that may stand around it; activations in int8 cost about half a percent."""
    case = product(np.random.default_rng(3), kind, 83, 576, around, hard=False)
    got, wanted = run(case)[0], wanted_product(case)
    assert np.linalg.norm(got - wanted) < 0.02 * np.linalg.norm(wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_product_is_exact_where_nothing_is_rounded(kind: str) -> None:
    """R37, R39: whole activations up to 127 and extreme codes give the exact sum: nothing saturates."""
    rng = np.random.default_rng(5)
    for code in (-128, 127, 0) if kind == "w8" else (0, 15, 8):
        codes = some_codes(rng, kind, 16, 1536)
        codes.codes[:] = code
        x = np.where(rng.random((3, 1536)) < 0.5, -127, 127).astype(np.float32)
        x[0] = 127
        attributes = {"layout": LAYOUT, "kind": KINDS.index(kind), "outputs": 16, "kept": 16, "gate": 0, "epsilon": 0.0}
        case: Case = ("MatMul", attributes, {"x": x, "weights": pack(codes)})
        wanted = wanted_product(case)
        size = np.abs(x).astype(np.float64) @ np.abs(unpacked(codes)).T.astype(np.float64)
        assert (np.abs(run(case)[0] - wanted) <= 1e-5 * size + 1e-6).all()


@QUICK
@given(seed=st.integers(0, 2**31), **SHAPES)
def test_a_row_does_not_depend_on_how_many_there_are(
    seed: int, around: frozenset[str], n: int, blocks: int, kind: str, scale: float
) -> None:
    """1 to 40 rows, one and two threads: equal bits."""
    case = product(np.random.default_rng(seed), kind, n, 32 * blocks, around, scale=scale)
    whole = run(case)[0]
    for rows in range(1, ROWS + 1):
        for threads in (1, 2):
            assert bits(run(first_rows(case, rows), threads)[0]) == bits(whole[:rows])


@QUICK
@given(seed=st.integers(0, 2**31), rows=st.integers(1, ROWS), **SHAPES)
def test_instructions_do_not_matter(
    others: list[Other],
    seed: int,
    around: frozenset[str],
    rows: int,
    n: int,
    blocks: int,
    kind: str,
    scale: float,
) -> None:
    """The fastest code of this CPU, AVX2 and the scalar reference: equal bits."""
    case = first_rows(product(np.random.default_rng(seed), kind, n, 32 * blocks, around, scale=scale), rows)
    ours = bits(run(case)[0])
    for other in others:
        assert bits(other.run(case)[0]) == ours, other.name


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("around", [AROUND[0], AROUND[5]], ids=["alone", "norm+gate"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_number_that_is_none_spoils_its_row_only(kind: str, around: frozenset[str], bad: float) -> None:
    """R13: NaN or infinity in one activation gives NaN in all of its row, and the bits of the others stay."""
    case = product(np.random.default_rng(8), kind, 24, 96, around, hard=False)
    clean = run(case)[0]
    case[2]["x"][7, 40] = bad
    got = run(case)[0]
    assert np.isnan(got[7]).all()
    assert bits(np.delete(got, 7, 0)) == bits(np.delete(clean, 7, 0)) and np.isfinite(np.delete(got, 7, 0)).all()


def test_no_rows_give_no_rows() -> None:
    """An empty call is no error."""
    case = product(np.random.default_rng(1), "w4", 8, 32, frozenset())
    assert run(first_rows(case, 0))[0].shape == (0, 8)


def test_embedding_reads_the_rows_of_a_product() -> None:
    """Rows of every kind, the last one of a vocabulary that is no multiple of 8 among them."""
    rng = np.random.default_rng(2)
    for kind in KINDS:
        codes = some_codes(rng, kind, 259, 64)
        ids = np.array([[0, 258, 7, 8, 130]], np.int64)
        attributes = {"layout": LAYOUT, "kind": KINDS.index(kind), "outputs": 259, "inputs": 64}
        got = run(("Embedding", attributes, {"ids": ids, "weights": pack(codes)}))[0]
        np.testing.assert_allclose(got, unpacked(codes)[ids], rtol=1e-6, atol=1e-7)


def wrong(case: Case, **arrays: np.ndarray) -> Case:
    """The case with other arrays."""
    return case[0], case[1], {**case[2], **arrays}


def test_wrong_products_are_refused() -> None:
    """Each a sentence that names the operator and both sizes."""
    case = product(np.random.default_rng(1), "w4", 16, 64, frozenset(("norm", "bias", "residual")))
    floats: Callable[..., np.ndarray] = functools.partial(np.zeros, dtype=np.float32)
    for message, arrays in {
        "x has 65 columns; a multiple of 32": {"x": floats((2, 65))},
        "288 bytes of weights for 16 outputs of 64 inputs; 576": {"weights": np.zeros(288, np.uint8)},
        "576 bytes of weights for 16 outputs of 96 inputs; 896": {"x": floats((2, 96))},
        "the norm has 63 values for 64": {"norm": floats(63)},
        "the bias has 17 values for 16": {"bias": floats(17)},
        "the residual has 640 values for 39 rows of 16": {"x": floats((39, 64))},
    }.items():
        with pytest.raises(FAILS, match=f"specc::MatMul: {message}"):
            run(wrong(case, **arrays))
    for message, changed in {
        "attribute kind is 3; 0 to 2 is allowed": {"kind": 3},
        "attribute kept is 17; 1 to 16 is allowed": {"kept": 17},
        "a gate needs outputs in pairs of 8": {"gate": 1},
        "packed in layout 1 and this library reads layout 2; build the bundle again": {"layout": 1},
    }.items():
        with pytest.raises(FAILS, match=message):
            run((case[0], {**case[1], **changed}, case[2]))


@pytest.mark.parametrize("bad", [-1, 16])
def test_an_id_out_of_range_is_refused(bad: int) -> None:
    """No row of another model's memory is read."""
    packed = pack(some_codes(np.random.default_rng(1), "w8", 16, 32))
    attributes = {"layout": LAYOUT, "kind": 2, "outputs": 16, "inputs": 32}
    with pytest.raises(FAILS, match=f"specc::Embedding: id {bad} is out of range; ids are 0 to 15"):
        run(("Embedding", attributes, {"ids": np.array([3, bad], np.int64), "weights": packed}))


# ---------------------------------------------------------------------- attention

HEADS, KV_HEADS, DIM, CAPACITY = 6, 2, 16, 300


def attention(
    lengths: tuple[int, ...], rows: int, seed: int = 0, rotary: int = DIM, bias: bool = False, **attributes: Any
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
    given = {"heads": HEADS, "kv_heads": KV_HEADS, "scale": DIM**-0.5, "window": 0, "soft_cap": 0.0, **attributes}
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
        keys = np.concatenate([feeds["past_k"][b, :, :length], turned(k, feeds, b).transpose(1, 0, 2)], axis=1)
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
    """R41: past and present in one buffer, as the runtime binds them, and as copies: the same results and caches."""
    case = attention((length,), 5)
    copied = run(case)
    feeds = {name: array.copy() for name, array in case[2].items()}
    made = session(
        "Attention", tuple(n for n in SIGNATURES["Attention"] if n in feeds), tuple(sorted(case[1].items())), 1
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
        "the bias has 600 values; 1800 are needed": {"bias": floats((2, 1, 300))},
    }.items():
        with pytest.raises(FAILS, match=f"specc::Attention: {message}"):
            run(wrong(case, **arrays))
    with pytest.raises(FAILS, match="6 heads cannot share 4 key heads evenly"):
        run((case[0], {**case[1], "kv_heads": 4}, case[2]))


def test_a_position_behind_the_table_is_the_last_one() -> None:
    """Padding rows of a full cache may stand there; no memory behind the table is read."""
    case = attention((10,), 2)
    far, last = (np.array([[10, at]]) for at in (10**9, CAPACITY - 1))
    assert bits(run(wrong(case, position=far))[0]) == bits(run(wrong(case, position=last))[0])


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
