"""specc's products and embedding in the installed library: against numpy, and bit for bit against
themselves.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from support.ops_alone import FAILS, QUICK, ROWS, Arrays, Case, Other, bits, other_instructions, run, wrong  # noqa: E402

from specc.exporter.checkpoint.codes import KINDS, Codes, dequantize_codes  # noqa: E402
from specc.exporter.lower.cpu_layout import LAYOUT, interleave, pack, unpack  # noqa: E402


@pytest.fixture(scope="module")
def others() -> Iterator[list[Other]]:
    """Processes with the scalar code, which defines the bits, and with AVX2 where this CPU has it."""
    yield from other_instructions()


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
    packed = pack(interleave(codes, some_codes(rng, kind, n, k, scale)) if gate else codes)
    feeds: Arrays = {"x": some_rows(rng, ROWS, k, hard), "weights": packed}
    feeds |= {"norm": rng.uniform(0.5, 2, k).astype(np.float32)} if "norm" in around else {}
    feeds |= {"bias": rng.standard_normal(n).astype(np.float32)} if "bias" in around else {}
    feeds |= {"residual": rng.standard_normal((ROWS, n)).astype(np.float32)} if "residual" in around else {}
    outputs = 2 * n if gate else n
    attributes = {
        "layout": LAYOUT,
        "kind": KINDS.index(kind),
        "outputs": outputs,
        "kept": n,
        "gate": int(gate),
    }
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
    y = x @ dequantize_codes(unpack(feeds["weights"], KINDS[a["kind"]], a["outputs"], x.shape[1])).T.astype(
        np.float64
    )
    if a["gate"]:
        gate, up = (y.reshape(len(y), -1, 2, 8)[:, :, i].reshape(len(y), -1) for i in range(2))
        y = gate / (1 + np.exp(-gate)) * up
    return np.asarray(y + feeds.get("bias", 0) + feeds.get("residual", 0))


AROUND = [
    frozenset(names)
    for names in (
        (),
        ("norm",),
        ("bias",),
        ("residual",),
        ("norm", "bias", "residual"),
        ("norm", "gate", "residual"),
    )
]
SHAPES = {"n": st.integers(1, 70), "blocks": st.integers(1, 128), "kind": st.sampled_from(KINDS)}
SHAPES |= {"scale": st.sampled_from([0.02, 1.0, 60000.0, 1e-6]), "around": st.sampled_from(AROUND)}


Run = Callable[[Case], list[np.ndarray]]


def check_against_numpy(run: Run, kind: str, around: frozenset[str]) -> None:
    """Activations in int8 cost about half a percent."""
    case = product(np.random.default_rng(3), kind, 83, 576, around, hard=False)
    got, wanted = run(case)[0], wanted_product(case)
    assert np.linalg.norm(got - wanted) < 0.02 * np.linalg.norm(wanted)


def check_exact(run: Run, kind: str) -> None:
    """Whole activations up to 127 and extreme codes give the exact sum: nothing saturates."""
    rng = np.random.default_rng(5)
    for code in (-128, 127, 0) if kind == "w8" else (0, 15, 8):
        codes = some_codes(rng, kind, 16, 1536)
        codes.codes[:] = code
        x = np.where(rng.random((3, 1536)) < 0.5, -127, 127).astype(np.float32)
        x[0] = 127
        attributes = {
            "layout": LAYOUT,
            "kind": KINDS.index(kind),
            "outputs": 16,
            "kept": 16,
            "gate": 0,
            "epsilon": 0.0,
        }
        case: Case = ("MatMul", attributes, {"x": x, "weights": pack(codes)})
        wanted = wanted_product(case)
        size = np.abs(x).astype(np.float64) @ np.abs(dequantize_codes(codes)).T.astype(np.float64)
        assert (np.abs(run(case)[0] - wanted) <= 1e-5 * size + 1e-6).all()


def check_spoilt_row(run: Run, kind: str, around: frozenset[str], bad: float) -> None:
    """NaN or infinity in one activation gives NaN in all of its row, and the bits of the others stay."""
    case = product(np.random.default_rng(8), kind, 24, 96, around, hard=False)
    clean = run(case)[0]
    case[2]["x"][7, 40] = bad
    got = run(case)[0]
    assert np.isnan(got[7]).all()
    assert (
        bits(np.delete(got, 7, 0)) == bits(np.delete(clean, 7, 0)) and np.isfinite(np.delete(got, 7, 0)).all()
    )


@pytest.mark.parametrize("around", AROUND, ids=lambda names: "+".join(sorted(names)) or "alone")
@pytest.mark.parametrize("kind", KINDS)
def test_product_against_numpy(kind: str, around: frozenset[str]) -> None:
    """R37: every kind with everything that may stand around it."""
    check_against_numpy(run, kind, around)


@pytest.mark.parametrize("kind", KINDS)
def test_product_is_exact_where_nothing_is_rounded(kind: str) -> None:
    """R39: no sum of products saturates, with whatever instructions."""
    check_exact(run, kind)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("around", [AROUND[0], AROUND[5]], ids=["alone", "norm+gate"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_number_that_is_none_spoils_its_row_only(kind: str, around: frozenset[str], bad: float) -> None:
    """R13: a numerics failure stays one."""
    check_spoilt_row(run, kind, around, bad)


FAULTS: dict[str, Callable[[Run], None]] = {
    "swallowed_nan": lambda run: check_spoilt_row(run, "w4m", frozenset(), np.nan),
    "block_left_out": lambda run: check_against_numpy(run, "w4", frozenset()),
    "pairs_saturate": lambda run: check_exact(run, "w8"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fails_with_fault(fault: str) -> None:
    """R13, R37, R39: the checks above fail on the faults that they are for, and on nothing else of the
    controls.
    """
    for name, holds in (("none", True), (fault, False)):
        other = Other(fault=name)
        try:
            if holds:
                FAULTS[fault](other.run)
            else:
                with pytest.raises(AssertionError):
                    FAULTS[fault](other.run)
        finally:
            other.close()


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
        np.testing.assert_allclose(got, dequantize_codes(codes)[ids], rtol=1e-6, atol=1e-7)


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
