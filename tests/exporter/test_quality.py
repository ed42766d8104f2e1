"""The quality judge: numbers that can be worked out by hand, and tiny models quantized well and badly."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from support import tiny

torch = pytest.importorskip("torch")

from specc.contracts.scheme import Scheme  # noqa: E402
from specc.exporter.check import quality  # noqa: E402
from specc.exporter.check.held_out_text import COUNT, encode_held_out  # noqa: E402
from specc.exporter.check.logits import compute_logits  # noqa: E402
from specc.exporter.check.sample_text import TEXT  # noqa: E402
from specc.exporter.checkpoint.checkpoint import open_checkpoint  # noqa: E402
from specc.exporter.checkpoint.tokenizer import TokenizerJson  # noqa: E402
from specc.exporter.lower.ort import lower_ort  # noqa: E402
from specc.gate.quality import list_missed_limits  # noqa: E402


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(graph, float logits, ids) of a tiny model over the held-out text."""
    folder = tiny.tiny_folder(tmp_path_factory.mktemp("llama"))
    checkpoint, plan = open_checkpoint(str(folder)), tiny.plan_of(folder)
    ids = encode_held_out(checkpoint.tokens, plan.context, plan.spec.vocab)
    return tiny.float_graph(folder), compute_logits(checkpoint.load(), ids), ids


def test_numbers_worked_out_by_hand() -> None:
    """Two tokens, p = (1/2, 1/2) and q = (3/4, 1/4); then the token 1 follows."""
    p, q = np.log([[0.5, 0.5]]), np.log([[0.75, 0.25]])
    kl, same, float_nats, nats = quality.compare_rows(p, q, np.array([1]))
    assert kl[0] == pytest.approx(0.5 * math.log(2 / 3) + 0.5 * math.log(2))
    assert same[0] and (float_nats[0], nats[0]) == (pytest.approx(math.log(2)), pytest.approx(math.log(4)))
    numbers = quality.summarize_quality([kl, same, float_nats, nats], 2)
    assert numbers["perplexity"] == pytest.approx(4) and numbers["float_perplexity"] == pytest.approx(2)
    assert numbers["perplexity_ratio"] == pytest.approx(2) and (numbers["top1"], numbers["tokens"]) == (
        1.0,
        2,
    )


def test_an_id_that_is_never_given_adds_nothing() -> None:
    """A logit of minus infinity in the float module is no NaN."""
    p, q = np.array([[0.0, -np.inf]]), np.log([[0.5, 0.5]])
    assert quality.row_divergences(p, q)[0] == pytest.approx(math.log(2))


def test_the_float_graph_is_perfect(judged: Any) -> None:
    """No distance, same tokens, same perplexity."""
    found = quality.measure_quality(*judged)
    assert found["kl"] < 1e-9 and found["top1"] == 1.0 and abs(found["perplexity_ratio"] - 1) < 1e-6
    assert found["tokens"] == len(judged[2]) == tiny.CONTEXT
    assert list_missed_limits(found, kl_max=1e-6, top1_min=1.0, perplexity_max=1.001) == []


@pytest.mark.parametrize("chunk", [1, 7, 96])
def test_the_chunk_does_not_matter(chunk: int, judged: Any) -> None:
    """A text cut in calls of any size gives the same numbers."""
    graph, logits, ids = judged
    found, whole = (
        quality.measure_quality(graph, logits, ids, chunk),
        quality.measure_quality(graph, logits, ids),
    )
    assert found == pytest.approx(whole, rel=1e-5, abs=1e-9)


def test_fewer_bits_are_farther_away(judged: Any) -> None:
    """R40: a head at 4 bits alone costs more than the whole model at 8, and a limit between them tells them
    apart.
    """
    graph, *text = judged
    schemes = [("w8", "w8"), ("fp32", "w4"), ("w4", "w4")]
    found = [quality.measure_quality(lower_ort(graph, Scheme(*scheme, 32)), *text) for scheme in schemes]
    assert found[0]["kl"] < 0.5 * found[1]["kl"] and found[1]["kl"] < found[2]["kl"]
    limit = math.sqrt(found[0]["kl"] * found[1]["kl"])
    assert [bool(list_missed_limits(numbers, kl_max=limit)) for numbers in found] == [False, True, True]


def test_a_logit_that_is_no_number_passes_no_limit(judged: Any) -> None:
    """R13: one NaN among the graph's logits makes every number NaN."""
    graph, logits, ids = judged
    spoiled = logits.copy()
    spoiled[5, 3] = np.nan
    found = quality.measure_quality(graph, spoiled, ids)
    assert len(list_missed_limits(found, 1e9, 0.0, 1e9)) == 3


def test_the_text_is_held_out() -> None:
    """It shares no line with the text that the stages are checked on, and is cut to the context."""
    from specc.exporter.check import held_out_text

    assert not set(held_out_text.TEXT.splitlines()) - {""} & set(TEXT.splitlines())
    tokens = TokenizerJson(json.dumps(tiny.tokenizer_json()))
    ids = encode_held_out(tokens, 10_000, 256)
    assert len(ids) == COUNT and encode_held_out(tokens, 40, 256).tolist() == ids[:40].tolist()
    assert encode_held_out(tokens, 40, 256, bos=tiny.END).tolist() == [tiny.END, *ids[:39]]
    assert encode_held_out(tokens, 40, 100).max() < 100


def test_a_miss_is_a_sentence() -> None:
    """Which number, how much, which limit; NaN misses every limit, and no limit misses nothing."""
    found = {"kl": 0.3, "top1": 0.7, "perplexity_ratio": 1.01}
    assert list_missed_limits(found, 0.25, 0.75, 1.005) == [
        "kl is 0.3, above the limit 0.25",
        "top1 is 0.7, below the limit 0.75",
        "perplexity_ratio is 1.01, above the limit 1.005",
    ]
    nothing = dict.fromkeys(found, float("nan"))
    assert len(list_missed_limits(nothing, 0.25, 0.75, 1.005)) == 3 and list_missed_limits(nothing) == []
