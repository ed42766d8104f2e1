"""`specc gate`: certificates, replays, and what the table shows of many checks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Write = Callable[..., Path]
Run = Callable[..., tuple[int, str, str]]


def test_gate(specc: Run, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    check = {"name": "rows", "limit": 0, "value": 0, "passed": True, "seed": 5}
    report = {"verdict": "passed", "checks": [check]}

    def judge(folder: Path, **options: Any) -> dict[str, Any]:
        asked.update(options)
        return report

    monkeypatch.setattr("specc.gate.run.judge_bundle", judge)
    code, out, _ = specc("gate", bundle, "--trials", 100, "--seed", 5, "--json")
    assert code == 0 and json.loads(out) == report and (asked["trials"], asked["seed"]) == (100, 5)
    report["verdict"] = "failed"
    assert specc("gate", bundle)[0] == 1


@pytest.mark.parametrize(("verdict", "code"), [("passed", 0), ("failed", 1), ("cut-off", 2)])
def test_replay(specc: Run, bundle: Path, monkeypatch: pytest.MonkeyPatch, verdict: str, code: int) -> None:
    found = {
        "round": 3,
        "slot": 1,
        "position": 9,
        "token": 4,
        "emitted": 5,
        "what": "u differs",
        "p": 0.5,
        "q": 1.0,
        "u": None,
        "p_emitted": 0.25,
    }
    report = {
        "verdict": verdict,
        "rounds": 4,
        "decisions": 7,
        "seed": 1,
        "rule": "coupled",
        "notes": ["a note"],
        "difference": found if code == 1 else None,
    }
    monkeypatch.setattr("specc.gate.replay.judge_record", lambda *_: report)
    ended, out, _ = specc("gate", bundle, "--replay", "r.jsonl")
    assert (
        ended == code
        and f"replay: {verdict}" in out
        and "a note" in out
        and ("u differs" in out) == (code == 1)
    )
    assert json.loads(specc("gate", bundle, "--replay", "r.jsonl", "--json")[1]) == report


def test_replay_of_no_record(specc: Run, bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "r").write_text("{}")
    code, _, err = specc("gate", bundle, "--replay", tmp_path / "r")
    assert code == 2 and "line 1, is not of a record" in err
    assert "cannot read the record" in specc("gate", bundle, "--replay", tmp_path / "none")[2]


def test_gate_shows_failures_and_counts(capsys: pytest.CaptureFixture[str]) -> None:
    from specc.cli import tables

    checks = [{"name": f"law: case {i}", "limit": 1e-7, "value": 0.5, "passed": i != 3} for i in range(600)]
    checks.append({"name": "speed: best K", "limit": 1.05, "value": 1.6, "passed": True})
    tables.print_gate({"verdict": "failed", "reasons": ["numerics"], "checks": checks})
    out = capsys.readouterr().out
    assert "600 checks" in out and "1 failed" in out and "case 3" in out and "case 4" not in out
    assert "speed: best K" in out and "speculation off: numerics" in out
