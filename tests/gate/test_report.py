"""The gate's report: numbers on the page are those of the JSON, the page needs nothing else, both are written
whole.
"""

from __future__ import annotations

import json
import re
import struct
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from support.table_models import LOGITS, TOKENS, ByWidth, exact_model, table

from specc.errors import EnvironmentFault
from specc.gate import Check, run_gate
from specc.gate.engine import slot_map
from specc.gate.report import GateRequest, compose_report, report_paths, write_report
from specc.gate.report.page import format_number, render_page
from specc.report.plots import CellRow, Line, choose_ticks, draw_cell_map, draw_lines
from specc.report.values import replace_non_finite
from specc.runtime import Model, ModelDraft, library

MANIFEST: dict[str, Any] = {
    "name": "tiny <&> \u00e9",
    "lint": {"passed": True, "findings": []},
    "plan": {"threads": 1, "k": 4},
    "engines": {"target": {"backend": "table"}},
    "gate": {"kl_max": 0.25, "allow_bounded": None},
    "quality": {
        "target": {
            "quality": {"kl": 0.125, "top1": 0.9, "perplexity_ratio": 1.01},
            "sensitivity": [{"group": f"layer {i}", "kl": 0.01 * i} for i in range(50)],
        }
    },
    "provenance": {"recipe": {"name": "r.yaml", "sha256": "a" * 64, "text": "<script>"}},
}


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    """A report of a table engine, after judges of our own."""
    checks = [
        Check("lint: findings at build", 0.0, 0.0, True),
        Check("law: case <b>", 1e-7, 0.25, True, 5),
        *(Check(f"law: case {i}", 1e-7, 0.3 + i / 100, True, i) for i in range(20)),
        Check("law: broken", 1e-7, 1e-12, False, 77),
        Check("speed: best", 1.05, float("nan"), False),
    ]
    row = {
        "prompt_class": "copy",
        "temperature": 0.0,
        "k": 4,
        "speed_up": 1.5,
        "acceptance": 0.5,
        "tokens_per_call": 2.0,
        "proposing": 0.5,
        "by_position": [0.9, 0.8, 0.5, 0.25],
    }
    found = {
        "certify": {"listed": ["top_k"], "not_certified": ["min_p"]},
        "law": {"trials": 100, "tests": 22},
        "speed": {"k": 4, "limit": 1.05, "rows": [row, {**row, "k": 1}]},
    }
    with exact_model(ModelDraft(table())) as model:
        certificate = model.certify(TOKENS, seed=0)
        made = compose_report(
            Path("b"), MANIFEST, TOKENS, model, certificate, checks, found, "failed", GateRequest(3, None, 1)
        )
    return dict(replace_non_finite(made))


def test_what_was_not_certified_is_said(report: dict[str, Any]) -> None:
    assert report["certify"] == {"listed": ["top_k"], "not_certified": ["min_p"]}


class Page(HTMLParser):
    """Everything that a test asks of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.numbers: dict[str, tuple[str, str]] = {}
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self._key: tuple[str, str] | None = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append((tag, found))
        if tag not in ("meta", "br"):
            self.open.append(tag)
        if "data-key" in found:
            self._key = str(found["data-key"]), str(found["title"])

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self._key = None

    def handle_data(self, data: str) -> None:
        if self._key is not None:
            self.numbers[self._key[0]] = self._key[1], data
        self.words.append(data)


def at(report: dict[str, Any], key: str) -> Any:
    value: Any = report
    for part in key.split("."):
        value = value[int(part)] if isinstance(value, list) else value[part]
    return value


def test_every_number_of_the_verdict_is_the_jsons(report: dict[str, Any]) -> None:
    found = Page(render_page(report))
    assert found.open == []
    shown = {key: at(report, key) for key in found.numbers}
    assert len(shown) == 15 and any(key.startswith("checks.") for key in shown)
    for key, (full, text) in found.numbers.items():
        value = shown[key]
        assert full == str(value) and text == format_number(value), key
    listed = {key.split(".")[1] for key in shown if key.startswith("checks.")}
    names = [check["name"] for check in report["checks"]]
    wanted = [i for i, name in enumerate(names) if not name.startswith("law: case")]
    assert listed == {str(i) for i in wanted}, "a judge with many checks lists those that failed"
    assert [judge["failed"] for judge in report["judges"]] == [0, 1, 1]


def test_the_page_needs_nothing_else(report: dict[str, Any]) -> None:
    """No script, no file, no address, nothing to load; what comes from outside is text, never markup."""
    text = render_page(report)
    found = Page(text)
    kinds = {tag for tag, _ in found.tags}
    assert not kinds & {"script", "link", "img", "iframe", "object", "embed", "base", "form"}
    names = {name for _, attrs in found.tags for name in attrs}
    assert not [
        name for name in names if name.startswith("on") or name in ("src", "href", "srcset", "action")
    ]
    assert "url(" not in text and "@import" not in text and "//" not in text.replace("specc gate", "")
    assert "<b>" not in text and "tiny <&>" not in text and "tiny &lt;&amp;&gt; \u00e9" in text
    assert ("meta", {"name": "viewport", "content": "width=device-width,initial-scale=1"}) in found.tags
    assert "prefers-color-scheme:dark" in text


def test_all_pictures_are_there(report: dict[str, Any]) -> None:
    words = " ".join(Page(render_page(report)).words)
    for head in ("Bit equality", "Cost against rows", "Acceptance by position, K = 4", "KL by layer group"):
        assert head in words
    assert render_page(report).count("<svg") == 4 and "40 worst of 50 groups" in words
    bare = {**report, "speed": None, "quality": {}, "slots": None}
    assert render_page(bare).count("<svg") == 1
    assert all(word in words for word in (report["bundle"]["digest"], report["machine"]["python"], "r.yaml"))


def test_the_map_is_what_was_measured() -> None:
    """Equal everywhere on a table; a width with another bit is other in each of its slots and nowhere
    else.
    """
    with exact_model() as model:
        whole = slot_map.measure_slots(model, model.info.certificate, TOKENS)
    assert [row.width for row in whole.rows] == [1, 2, 3, 4, 5, 32]
    assert all(set(row.different) == {0} and row.compared == (3,) * row.width for row in whole.rows)
    with Model.from_parts(
        ByWidth(table(), library()), n_ids=8, context=256, k_max=4, assume_exact=True
    ) as model:
        broken = slot_map.measure_slots(model, model.info.certificate, TOKENS)
    assert [row.different for row in broken.rows if row.width == 5] == [(3, 3, 3, 3, 3)]
    assert all(set(row.different) == {0} for row in broken.rows if row.width != 5)
    assert [row.largest > 0 for row in broken.rows] == [row.width == 5 for row in broken.rows]


def test_files_are_whole_or_not_there(
    report: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that cannot be written leaves the old one and nothing else."""
    certificate = tmp_path / "cpu-2.json"
    paths = write_report(report, certificate)
    assert paths == report_paths(certificate) and json.loads(paths[0].read_text()) == report
    assert [path.name for path in paths] == ["cpu-2.report.json", "cpu-2.report.html"]
    old = paths[1].read_text()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(EnvironmentFault, match="writing the report .* failed: No space left"):
        write_report({**report, "verdict": "passed"}, certificate)
    assert paths[1].read_text() == old and sorted(path.name for path in tmp_path.iterdir()) == sorted(
        path.name for path in paths
    )
    monkeypatch.undo()
    assert (
        write_report(report, certificate, tmp_path / "else" / "where")[0].parent
        == tmp_path / "else" / "where"
    )


def test_numbers_that_json_does_not_have(report: dict[str, Any]) -> None:
    assert report["checks"][-1]["value"] is None and format_number(None) == "not a number"
    assert not re.search(r"\bnan\b|\binf\b", json.dumps(report))


# ---------------------------------------------------------------------- the whole gate


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that opens as a table engine; its certificate is written by hand."""
    folder = tmp_path / "b"
    (folder / "certificates").mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps(MANIFEST))
    (folder / "calibration.bin").write_bytes(
        struct.pack(f"<4sII{len(TOKENS)}i", b"SPCT", 1, len(TOKENS), *TOKENS)
    )
    monkeypatch.setattr(
        Model, "open", classmethod(lambda cls, *_, **__: exact_model(ModelDraft(table(LOGITS))))
    )
    monkeypatch.setattr("specc.gate.run.judge_laws", laws)

    def save(self: Model, certificate: object, out: Path, report: object) -> Path:
        (out / "cpu-1.json").write_text("{}")
        return out / "cpu-1.json"

    monkeypatch.setattr(Model, "save_certificate", save)
    return folder


def laws(*_: object) -> Any:
    from specc.gate.run import LawVerdict

    return LawVerdict((), {})


def test_the_gate_writes_it_beside_its_certificate(bundle: Path, tmp_path: Path) -> None:
    result = run_gate(bundle)
    assert sorted(path.name for path in (bundle / "certificates").iterdir()) == [
        "cpu-1.json",
        "cpu-1.report.html",
        "cpu-1.report.json",
    ]
    found = json.loads((bundle / "certificates" / "cpu-1.report.json").read_text())
    assert found["verdict"] == result.verdict and len(found["checks"]) == len(result.checks)
    assert result.as_dict()["reports"] == [
        str(bundle / "certificates" / f"cpu-1.report.{x}") for x in ("json", "html")
    ]
    run_gate(bundle, report_out=tmp_path / "audit")
    assert sorted(path.name for path in (tmp_path / "audit").iterdir()) == [
        "cpu-1.report.html",
        "cpu-1.report.json",
    ]


def test_a_cancelled_gate_leaves_the_old_report(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even one that is cancelled while its report is being made: certificate and report go together."""
    place = bundle / "certificates"
    for name in ("cpu-1.json", "cpu-1.report.json", "cpu-1.report.html"):
        (place / name).write_text("old")

    def cancelled(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("specc.gate.engine.slot_map.measure_slots", cancelled)
    with pytest.raises(KeyboardInterrupt):
        run_gate(bundle)
    assert {path.read_text() for path in place.iterdir()} == {"old"} and len(list(place.iterdir())) == 3


# ---------------------------------------------------------------------- pictures


def test_ticks_are_round() -> None:
    assert (
        choose_ticks(1.0) == [0, 0.25, 0.5, 0.75, 1.0]
        and choose_ticks(0) == [0, 1]
        and choose_ticks(float("nan")) == [0, 1]
    )
    assert choose_ticks(37)[-1] >= 37 and len(choose_ticks(37)) <= 6


def test_pictures_hold_their_numbers() -> None:
    drawn = draw_lines(
        "t<", [Line("a&b", ((1.0, 0.5), (2.0, 0.25))), Line("g", ((1.0, 0.0), (2.0, 1.0)), True)], "x", 1.0
    )
    assert drawn.count("<circle") == 2 and "a&amp;b, 2: 0.25" in drawn and "t&lt;" in drawn
    found = draw_cell_map("m", [CellRow("2", (0.0, 0.5)), CellRow("64", (None,) * 64)], "slot")
    assert [found.count(f'class="cell {kind}"') for kind in ("good", "bad", "none")] == [1, 1, 64]
    assert "\u2260" in found and found.count('class="sign ') == 2
