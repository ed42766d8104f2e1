"""specc diff: numbers worked out by hand, table engines in bundles, checkpoints; limits and exit codes for
CI.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specc.cli import main
from specc.diff import Limits, diff, numbers
from specc.diff.compare import check_limits, check_tokenizers, cut_windows
from specc.diff.sides import BundleSide, open_side
from specc.errors import EnvironmentFault, InputError
from specc.pipeline.build import build
from specc.report.values import replace_non_finite
from specc.runtime import Certificate, Model

IDS = 258
RNG = np.random.default_rng(7)
TABLE = RNG.normal(0, 2, (IDS, IDS)).astype(np.float32)
NEAR = TABLE + RNG.normal(0, 0.2, TABLE.shape).astype(np.float32)
TEXT = "the quick brown fox jumps over the lazy dog, " * 12


def test_numbers_worked_out_by_hand() -> None:
    """p = (1/2, 1/2), q = (3/4, 1/4), then the second token follows; the last row has none behind it."""
    a, b = (
        np.log(np.array([[0.5, 0.5], [0.25, 0.75]], np.float32)),
        np.log(np.array([[0.75, 0.25]] * 2, np.float32)),
    )
    found = numbers.compare_rows(a, b, np.array([1]))
    assert found.kl_ab[0] == pytest.approx(0.5 * math.log(2 / 3) + 0.5 * math.log(2), abs=1e-6)
    assert found.kl_ba[0] == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5), abs=1e-6)
    assert found.tv == pytest.approx([0.25, 0.5], abs=1e-6)
    assert (found.top_a.tolist(), found.top_b.tolist()) == ([0, 1], [0, 0])
    assert [found.p_aa[1], found.p_ab[1], found.p_ba[1], found.p_bb[1]] == pytest.approx(
        [0.75, 0.25, 0.25, 0.75]
    )
    assert (found.nats_a[0], found.nats_b[0]) == (pytest.approx(math.log(2)), pytest.approx(math.log(4)))
    whole = numbers.summarize_comparison(found)
    assert whole["perplexity"]["ratio"] == pytest.approx(2) and whole["top1"] == {
        "agreement": 0.5,
        "flips": 1,
    }
    assert numbers.find_worst_flips(found, 5) == [1] and whole["same_bits"] == 0


def test_intervals_hold() -> None:
    """The 95 % interval of the mean covers the truth about that often although neighbours are alike; few rows
    have none, and a longer text a narrower one.
    """
    rng, covered = np.random.default_rng(3), 0
    for _ in range(300):
        values = np.repeat(rng.gamma(2.0, 1.0, 120), 4)
        found = numbers.describe_spread(values)
        covered += found["low"] <= 2.0 <= found["high"]
    assert 270 <= covered <= 297
    assert numbers.half_interval(np.ones(20)) == math.inf and numbers.half_interval(np.ones(64)) == 0
    assert numbers.describe_spread(np.arange(100.0))["max"] == 99


def test_no_number_passes_no_limit() -> None:
    """R13: one NaN in the logits of either side."""
    for side in (0, 1):
        rows = [np.ones((40, 4), np.float32), np.ones((40, 4), np.float32)]
        rows[side][7, 1] = np.nan
        found = numbers.summarize_comparison(numbers.compare_rows(*rows, np.zeros(40, np.int64)))
        checks = check_limits(found, False, Limits(1e9, 1e9, 0.0, 1e9, True))
        assert [check["passed"] for check in checks] == [False] * 5
        assert json.dumps(replace_non_finite(found), allow_nan=False)


# ---------------------------------------------------------------------- bundles


@pytest.fixture
def bundles(
    tmp_path: Path, write_recipe: Callable[..., Path], fake_model: object, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Path]:
    """Three bundles of a few bytes that open as table engines; the runtime and no torch reads them."""
    tables = {"a": TABLE, "b": NEAR, "c": TABLE.copy()}
    folders = {name: build(write_recipe(k=2), out=tmp_path / name).bundle.folder for name in tables}

    def open_table(cls: object, folder: Path, **_: object) -> Model:
        return Model.table(tables[Path(folder).name], k_max=2, context=300)

    monkeypatch.setattr(Model, "open", classmethod(open_table))
    for name in ("torch", "transformers", "onnx_ir", "onnx"):
        monkeypatch.setitem(sys.modules, name, None)
    (tmp_path / "text").write_text(TEXT)
    return {**folders, "text": tmp_path / "text"}


def compared(bundles: dict[str, Path], a: str, b: str, **limits: Any) -> dict[str, Any]:
    return diff(str(bundles[a]), str(bundles[b]), Limits(**limits), bundles["text"])


def test_the_same_law(bundles: dict[str, Path]) -> None:
    """Other files, the same bits: nothing differs, every limit is kept."""
    found = compared(
        bundles, "a", "c", same_law=True, kl_max=0.0, tv_max=0.0, top1_min=1.0, perplexity_max=1.0
    )
    assert found["same_law"] and found["verdict"] == "passed" and len(found["checks"]) == 5
    assert found["examples"] == [] and found["rows"] > 400
    assert found["speed"]["steps"] == 24 and found["size"]["a"]["target"] > 0


def test_another_law_is_measured(bundles: dict[str, Path]) -> None:
    """Every number is that of the tables over the text's ids, whatever the calls were."""
    found = compared(bundles, "a", "b", same_law=True)
    with Model.open(bundles["a"]) as model:
        side = BundleSide(
            SimpleNamespace(
                folder=bundles["a"],
                manifest=json.loads(  # type: ignore[arg-type]
                    (bundles["a"] / "manifest.json").read_text()
                ),
                files=(),
            ),
            model,
        )
        text = cut_windows(side, side, bundles["text"], 512)
    places = np.array([i for window in text.windows for i in window[:-1]])
    after = np.array([i for window in text.windows for i in window[1:]])
    p, q = (numbers.log_softmax(table[places]) for table in (TABLE, NEAR))
    assert found["kl"]["a_b"]["mean"] == pytest.approx(numbers.kl_divergence(p, q).mean())
    assert found["kl"]["b_a"]["max"] == pytest.approx(numbers.kl_divergence(q, p).max())
    assert found["tv"]["mean"] == pytest.approx(0.5 * np.abs(np.exp(p) - np.exp(q)).sum(1).mean())
    rows = np.arange(len(after))
    assert found["perplexity"]["a"] == pytest.approx(math.exp(-p[rows, after].mean()))
    assert found["top1"]["flips"] == int((p.argmax(1) != q.argmax(1)).sum())
    assert not found["same_law"] and found["verdict"] == "failed" and found["same_bits"] == 0
    assert len(text.windows) == 2 and all(window[0] == 0 for window in text.windows)
    assert 0 < len(found["examples"]) <= 5 and all(e["context"] in "..." + TEXT for e in found["examples"])


def test_rows_of_an_uncertified_bundle_are_plain_steps() -> None:
    """Where no width is certified every place is the first row of its own call at the law's width."""

    def calls(certificate: Certificate) -> tuple[int, int]:
        side = BundleSide.__new__(BundleSide)
        side.info = SimpleNamespace(certificate=certificate)  # type: ignore[assignment]
        side.law_width = certificate.law_width
        return side.calls()

    base: dict[str, Any] = {"threads": 1, "k": 1, "reasons": ()}
    widths = {"widths": (1, 2, 5, 64, 128)}
    assert calls(Certificate("none", 1, **widths, width_class=(-1,) * 5, **base)) == (1, 1)
    assert calls(Certificate("bounded", 2, **widths, width_class=(1, 0, 2, 3, 3), **base)) == (1, 2)
    assert calls(Certificate("bit-exact", 1, **widths, width_class=(0,) * 5, **base)) == (64, 64)
    assert calls(Certificate("bit-exact", 2, **widths, width_class=(1, 0, 0, 2, 2), **base)) == (5, 5)


@pytest.mark.parametrize(
    ("limit", "code"),
    [
        ([], 0),
        (["--kl-max", "1"], 0),
        (["--kl-max", "1e-4"], 1),
        (["--tv-max", "1e-3"], 1),
        (["--top1-min", "1"], 1),
        (["--perplexity-max", "0.5"], 1),
        (["--same-law"], 1),
        (["--top1-min", "0.2", "--tv-max", "0.9"], 0),
    ],
)
def test_exit_codes(
    limit: list[str], code: int, bundles: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    for form in ([], ["--json"]):
        with pytest.raises(SystemExit) as end:
            main(
                [
                    "diff",
                    str(bundles["a"]),
                    str(bundles["b"]),
                    "--text",
                    str(bundles["text"]),
                    "--tokens",
                    "90",
                    *limit,
                    *form,
                ]
            )
        assert end.value.code == code
    shown = capsys.readouterr().out
    found = json.loads(shown[shown.index("\n{") :])
    assert found["verdict"] == ("failed" if code else "passed") and len(found["checks"]) == len(
        limit
    ) // 2 + (limit == ["--same-law"])
    assert "KL(A || B)" in shown and "FAILED" in shown if code else "FAILED" not in shown


def test_what_cannot_be_compared(bundles: dict[str, Path], tmp_path: Path) -> None:
    """One sentence each: a checkpoint without the packages that read it, no model, no text, another
    tokenizer.
    """
    (tmp_path / "hf").mkdir()
    for name, error, found in (
        (tmp_path / "hf", InputError, "is neither a bundle .* nor a checkpoint"),
        (tmp_path / "none.gguf", (InputError, EnvironmentFault), "none.gguf"),
    ):
        with pytest.raises(error, match=found):  # type: ignore[arg-type]
            diff(str(bundles["a"]), str(name), Limits())
    (tmp_path / "short").write_text("hi")
    with pytest.raises(InputError, match="has 2 tokens; give a text of at least 32"):
        diff(str(bundles["a"]), str(bundles["b"]), Limits(), tmp_path / "short")
    with pytest.raises(InputError, match="cannot read the text .*nowhere"):
        diff(str(bundles["a"]), str(bundles["b"]), Limits(), tmp_path / "nowhere")
    text = (bundles["a"] / "tokenizer.json").read_text()
    other = json.loads(text)
    other["model"]["vocab"].update({"!": other["model"]["vocab"]["#"], "#": other["model"]["vocab"]["!"]})
    sides = [SimpleNamespace(name=n, tokenizer=t) for n, t in (("one", text), ("other", json.dumps(other)))]
    with pytest.raises(
        InputError, match=r"A \(one\) and B \(other\) have different tokenizers: id \d+ is '.'"
    ):
        check_tokenizers(*sides)  # type: ignore[arg-type]


# ---------------------------------------------------------------------- checkpoints


def test_checkpoints(tmp_path: Path) -> None:
    """A Hugging Face folder against itself and against another; the build's packages are needed and named."""
    pytest.importorskip("torch")
    from support import tiny

    folders = [tiny.tiny_folder(tmp_path / str(seed), seed=seed) for seed in (0, 1)]
    same = diff(str(folders[0]), str(folders[0]), Limits(same_law=True), tokens=100)
    assert same["same_law"] and same["speed"] is None and same["a"]["kind"] == "checkpoint"
    other = diff(str(folders[0]), str(folders[1]), Limits(top1_min=0.9), tokens=100)
    assert other["verdict"] == "failed" and other["kl"]["a_b"]["mean"] > 0.1
    with open_side(str(folders[0])) as side, pytest.MonkeyPatch.context() as patch:
        assert side.bytes["target"] > 100_000
        patch.setitem(sys.modules, "torch", None)
        with pytest.raises(
            EnvironmentFault, match=r"reading a checkpoint needs the package 'torch'.*specc\[build\]"
        ):
            diff(str(folders[0]), str(folders[1]), Limits(), tokens=100)
