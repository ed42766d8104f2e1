"""The command line: one sentence and the right exit code for every mistake, JSON that
other programs rely on.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specc.errors import InputError, JudgeError, RuntimeFault
from specc.runtime import Certificate

Write = Callable[..., Path]
Run = Callable[..., tuple[int, str, str]]


class FakeSession:
    """Answers with three events; keeps what it was asked."""

    def __init__(self, log: dict[str, Any]) -> None:
        self.log, self.seed, self.tokens = log, 17, [5, 6, 7]
        self.stats = {
            "target_calls": 2,
            "draft_calls": 0,
            "proposed": 8,
            "accepted": 1,
            "emitted": 3,
            "seconds": 0.5,
            "rounds": 2,
            "enabled": True,
            "reasons": [],
        }

    def __enter__(self) -> FakeSession:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def generate(self, ids: list[int], **request: Any) -> Iterator[SimpleNamespace]:
        self.log.update(ids=ids, request=request)
        if request.get("stop") == ("interrupt",):
            yield SimpleNamespace(text="half", finished=None)
            raise KeyboardInterrupt
        for text, finished in (("", None), ("Hé", None), ("llo", "stop")):
            yield SimpleNamespace(text=text, finished=finished)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Replaces the runtime; holds what was asked of it."""
    log: dict[str, Any] = {}
    certificate = Certificate(
        kind="bit-exact",
        law_width=2,
        widths=(1, 2, 3, 4, 5, 64),
        width_class=(0, 1, 1, 1, 1, 2),
        threads=2,
        k=4,
        reasons=(),
        rows_compared=9,
        rows_different=(9, 0, 0, 0, 0, 9),
        max_abs_diff=(0.5, 0, 0, 0, 0, 0.25),
    )
    info = SimpleNamespace(enabled=True, reasons=(), certificate=certificate, device="cpu")

    class FakeModel:
        def __init__(self) -> None:
            self.info = info

        @staticmethod
        def open(folder: Path, **options: Any) -> FakeModel:
            log.update(folder=folder, options=options)
            return FakeModel()

        def session(self) -> FakeSession:
            return FakeSession(log)

        def __enter__(self) -> FakeModel:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr("specc.runtime.Model", FakeModel)
    monkeypatch.setattr("specc.runtime.device", lambda: ("cpu", "f" * 64))
    return log


def test_build_prints_a_verdict_or_json(
    specc: Run, tmp_path: Path, write_recipe: Write, fake_model: object
) -> None:
    code, out, _ = specc("build", write_recipe(), "-o", tmp_path / "b")
    assert code == 0 and "uncertified-device" in out and "specc gate" in out
    code, out, err = specc("build", write_recipe(), "-o", tmp_path / "b", "--json")
    found = json.loads(out)
    assert code == 0 and not found["written"] and len(found["digest"]) == 64
    assert found["speculation"] == {"enabled": False, "reasons": ["uncertified-device"]}
    assert "export target" in err and "cached" in err


def test_plan(specc: Run, write_recipe: Write, fake_model: object) -> None:
    code, out, _ = specc("plan", write_recipe(), "-t", "cpu-arm64", "--json")
    found = json.loads(out)
    assert code == 0 and found["hardware"] == "cpu-arm64" and found["rows"] == 5 and found["fits"]
    assert "fits" in specc("plan", write_recipe())[1]


def test_run_streams(specc: Run, bundle: Path, asked: dict[str, Any]) -> None:
    code, out, err = specc("run", bundle, "-p", "hi", "--stats")
    assert (code, out) == (0, "Héllo\n") and "1 of 8 proposed tokens accepted" in err and "seed 17" in err
    text = bytes(i - 2 for i in asked["ids"] if i > 1)
    assert asked["ids"][0] == 0 and len(text) == len("<|user|>hi<|assistant|>")
    assert asked["request"]["temperature"] == 0.5 and asked["request"]["speculation"] is True


def test_run_json(specc: Run, bundle: Path, asked: dict[str, Any]) -> None:
    flags: list[object] = [
        "--temperature",
        0,
        "--top-p",
        0.9,
        "--top-k",
        5,
        "--min-p",
        0.1,
        "--seed",
        3,
        "--k",
        2,
    ]
    flags += ["--rule", "coupled", "--raw", "--spec", "off", "--stop", "a", "--stop", "b"]
    code, out, _ = specc("run", bundle, "-p", "hi", *flags, "--json")
    found = json.loads(out)
    assert (
        code == 0
        and found["text"] == "Héllo"
        and found["token_ids"] == [5, 6, 7]
        and found["rule"] == "coupled"
    )
    assert found["finish_reason"] == "stop" and found["seed"] == 17
    assert found["speculation"] == {"enabled": True, "reasons": [], "law": "exact, bit for bit"}
    stats = {"target_calls": 2, "draft_calls": 0, "proposed": 8, "accepted": 1, "emitted": 3, "seconds": 0.5}
    assert {name: found["stats"][name] for name in stats} == stats
    request = asked["request"]
    assert request["temperature"] == 0 and request["stop"] == ("a", "b") and request["speculation"] is False
    assert (request["top_k"], request["min_p"], request["seed"], request["k"]) == (5, 0.1, 3, 2)
    assert len(asked["ids"]) == 2


def test_an_interrupt_keeps_what_is_there(specc: Run, bundle: Path, asked: dict[str, Any]) -> None:
    code, out, _ = specc("run", bundle, "-p", "hi", "--stop", "interrupt", "--json")
    assert (
        code == 130 and json.loads(out)["finish_reason"] == "cancelled" and json.loads(out)["text"] == "half"
    )


def test_inspect(specc: Run, bundle: Path, asked: dict[str, Any]) -> None:
    code, out, _ = specc("inspect", bundle, "--json")
    found = json.loads(out)
    assert (
        code == 0
        and found["format"] == 1
        and found["speculation"]
        == {
            "enabled": True,
            "reasons": [],
            "why": "on: rows are bit-identical at widths 2, 3, 4, 5 on cpu, at most 4 tokens a round",
        }
    )
    certificate = found["certificate"]
    assert certificate["kind"] == "bit-exact" and certificate["widths"] == [[1], [2, 3, 4, 5], [64]]
    assert certificate["tv_bound"] == 0 and certificate["device"] == "cpu"
    assert set(found["plan"]) >= {"k", "rows", "context", "schemes", "draft"}
    assert all(set(file) == {"path", "bytes", "sha256"} for file in found["files"]) and found["provenance"]
    out = specc("inspect", bundle)[1]
    assert "on: rows are bit-identical" in out and "width 1: 0.5" in out


def test_inspect_shows_the_tokens(specc: Run, bundle: Path, asked: dict[str, Any]) -> None:
    found = json.loads(specc("inspect", bundle, "--json")[1])["tokenizer"]
    assert found["eos"] == [{"id": 1, "token": "</s>"}] and found["bos"] == {"id": 0, "token": "<s>"}
    assert found["template"] is True and found["stop_ids"] == []
    assert found["special_tokens"] == {"bos_token": "<s>", "eos_token": "</s>"}
    rows = [
        line.split("\u2502")[1:3] for line in specc("inspect", bundle)[1].splitlines() if "\u2502" in line
    ]
    shown = {name.strip(): value.strip() for name, value in rows}
    assert shown["end tokens"] == "1 </s>" and shown["begin token"] == "0 <s>"
    assert shown["chat template"] == "yes" and "stop tokens" not in shown


@pytest.mark.parametrize(("flags", "ends"), [((), 0), (("--special-tokens",), 1)])
def test_special_tokens_in_the_prompt(
    specc: Run, bundle: Path, asked: dict[str, Any], flags: tuple[str, ...], ends: int
) -> None:
    """Text unless asked for; the template's own begin token is a token either way."""
    code, _, err = specc("run", bundle, "-p", "</s> hello", *flags)
    assert code == 0 and not err and asked["ids"].count(1) == ends and asked["ids"].count(0) == 1


def test_inspect_finds_a_changed_byte(specc: Run, bundle: Path, asked: dict[str, Any]) -> None:
    (bundle / "target.onnx").write_bytes(b"graph of targeT")
    code, out, err = specc("inspect", bundle)
    assert (code, out) == (2, "") and "target.onnx has been changed" in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["-p", ""], "the prompt is empty; give some text with -p"),
        (["-p", "a\udcffb"], "the prompt is not valid UTF-8"),
        ([], "Missing option '-p'"),
        (["-p", "x", "--temperature", "-1"], "'-1' is not a number from 0"),
        (["-p", "x", "--temperature", "nan"], "'nan' is not a number from 0"),
        (["-p", "x", "--temperature", "inf"], "'inf' is not a number from 0"),
        (["-p", "x", "--top-p", "0"], "'0' is not a number above 0 to 1"),
        (["-p", "x", "--top-p", "2"], "'2' is not a number above 0 to 1"),
        (["-p", "x", "--min-p", "1.1"], "'1.1' is not a number from 0 to 1"),
        (["-p", "x", "--top-k", "-1"], "'-1' is not a whole number from 0"),
        (["-p", "x", "--k", "0"], "'0' is not a whole number from 1 to 16"),
        (["-p", "x", "--k", "17"], "'17' is not a whole number from 1 to 16"),
        (["-p", "x", "--k", "four"], "'four' is not a whole number from 1 to 16"),
        (["-p", "x", "--seed", "18446744073709551616"], "is not a whole number from 0"),
        (["-p", "x", "--repetition-penalty", "0"], "'0' is not a number above 0"),
        (["-p", "x", "--rule", "lossy"], "'lossy' is not one of 'rejection', 'coupled'"),
        (["-p", "x", "--temprature", "1"], "No such option"),
    ],
)
def test_usage_errors_are_one_sentence(
    specc: Run, bundle: Path, asked: dict[str, Any], arguments: list[str], found: str
) -> None:
    code, out, err = specc("run", bundle, *arguments)
    assert (code, out) == (2, "") and found in err and err.count("\n") == 1 and "Traceback" not in err


@pytest.mark.parametrize(
    ("error", "code"), [(InputError("mine"), 2), (JudgeError("no"), 1), (RuntimeFault("engine", 6), 3)]
)
def test_exit_codes(
    specc: Run,
    bundle: Path,
    asked: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    code: int,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("specc.runtime.Model.open", fail)
    assert specc("run", bundle, "-p", "x") == (code, "", f"specc: {error}\n")


@pytest.mark.parametrize("verb", ["run", "inspect", "gate"])
def test_no_bundle(specc: Run, tmp_path: Path, verb: str) -> None:
    code, out, err = specc(verb, tmp_path / "none", *(["-p", "x"] if verb == "run" else []))
    assert (code, out) == (2, "") and "is no bundle: it has no manifest.json" in err


@pytest.mark.parametrize("damage", ["missing", "changed"])
def test_the_same_damage_is_the_same_sentence(
    specc: Run, bundle: Path, asked: dict[str, Any], damage: str
) -> None:
    path = bundle / ("chat_template.jinja" if damage == "missing" else "target.onnx")
    path.unlink() if damage == "missing" else path.write_bytes(path.read_bytes()[:-1] + b"x")
    found = [specc(*verb, bundle)[::2] for verb in (("run", "-p", "x"), ("inspect",), ("gate",))]
    assert {code for code, _ in found} == {2} and len({err.strip() for _, err in found}) == 1
    assert ("missing or a link" if damage == "missing" else "has been changed") in found[0][1]
    if damage == "changed":
        assert specc("run", bundle, "-p", "x", "--trust")[0] == 0


def test_limits_of_the_machine(specc: Run, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specc.cli.options.THREADS.high", 12)
    monkeypatch.setattr("specc.cli.options.THREADS.cores", 3)
    err = specc("inspect", bundle, "--threads", "13")[2]
    assert "'13' is not a whole number from 0 to 12, 4 for each of this machine's 3 cores" in err
    assert "whole number from 1 to 10000000" in specc("gate", bundle, "--trials", 10**7 + 1)[2]
    assert "whole number from 0 to 2147483647" in specc("run", bundle, "-p", "x", "--top-k", "9" * 400)[2]


def test_what_the_file_system_refuses(specc: Run, tmp_path: Path) -> None:
    """A name that is too long for it: one sentence; from Python 3.14 on such a name is one of no file (exit
    2).
    """
    for verb in (("inspect", "a" * 300), ("build", "a" * 300)):
        code, out, err = specc(*verb)
        assert code in (2, 3) and out == "" and "a" * 300 in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("redirect", "code", "found"),
    [
        (">/dev/full", 3, "specc: standard output: No space left on device; check"),
        (">/dev/full 2>&1", 3, ""),
        (">&-", 0, ""),
        ("<&- >&- 2>&-", 0, ""),
        ("| true", 0, ""),
    ],
)
def test_streams_that_take_nothing(redirect: str, code: int, found: str) -> None:
    """The exit code stands, and the exit itself adds nothing to standard error."""
    script = f"set -o pipefail; '{sys.executable}' -m specc targets --json {redirect}"
    ended = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert (
        ended.returncode == code
        and ended.stderr.startswith(found)
        and ended.stderr.count("\n") == bool(found)
    )


def test_catalogues(specc: Run) -> None:
    names = {item["name"] for item in json.loads(specc("recipes", "--json")[1])}
    assert names >= {"smollm2-135m-cpu", "smollm2-135m-cpu-dynamic-int8"}
    assert {item["name"] for item in json.loads(specc("targets", "--json")[1])} >= {"cpu-x86", "cpu-arm64"}
    assert "smollm2-135m-cpu" in specc("recipes")[1] and "cpu-arm64" in specc("targets")[1]


def test_doctor(specc: Run, asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specc.runtime.library", lambda: SimpleNamespace(path="libspecc.so"))
    code, out, _ = specc("doctor", "--json")
    findings = {item["name"]: item for item in json.loads(out)["findings"]}
    assert findings["libspecc"]["ok"] and findings["engine library"]["ok"] and code == 0

    def missing() -> None:
        raise RuntimeFault("cannot load libspecc.so; reinstall specc", 6)

    monkeypatch.setattr("specc.runtime.library", missing)
    code, out, _ = specc("doctor")
    assert code == 3 and "missing" in out


def test_unknown_verb_and_help(specc: Run) -> None:
    code, _, err = specc("bild", "x")
    assert code == 2 and "No such command" in err
    assert specc("--help")[0] == 0 and specc("--version")[1].startswith("specc, version")
