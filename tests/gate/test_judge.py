"""The whole gate: every judge has its say, one verdict, one certificate for each thread count."""

from __future__ import annotations

import json
import struct
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.table_models import LOGITS, TOKENS, Disturbed, by_neighbour, exact_model, table

from specc.errors import EnvironmentFault, InputError
from specc.gate import Check, run_gate
from specc.gate.engine import equality
from specc.gate.run import (
    LawVerdict,
    OpenBundle,
    check_writable,
    derive_reasons,
    describe_options,
    judge_engine,
    judge_laws,
    read_calibration_ids,
    read_manifest,
)
from specc.progress import no_progress
from specc.runtime import Model, ModelDraft, Ngram


def opened(model: Model, lint: bool = True) -> OpenBundle:
    findings = [] if lint else [{"node": "n", "op": "TopK", "why": "", "fix": ""}]
    manifest = {
        "lint": {"passed": lint, "findings": findings},
        "engines": {"target": {"backend": "table"}},
        "plan": {"threads": 1},
        "gate": {},
    }
    return OpenBundle(Path(), manifest, TOKENS, model, 1)


def test_gate_passes_on_an_exact_engine() -> None:
    """Every judge has its say, progress is told, the best K goes into the certificate."""
    stages: list[str] = []
    with Model.from_parts(table(), ModelDraft(table()), n_ids=8, context=256, k_max=4) as model:
        progress = lambda step, done: stages.append(step)  # noqa: E731
        result = judge_engine(opened(model), judge_laws(3000, 0, progress), 0, progress)
    wrong = [check for check in result.checks if not check.passed]
    assert [check.name.split(":")[0] for check in wrong] in ([], ["speed"])
    assert {"certificate", "law", "equality", "two-sample", "speed"} == set(stages)
    assert {check.name.split(":")[0] for check in result.checks} == {*stages, "lint"}
    assert result.report["law"]["negative_controls"] == 13
    assert result.certificate.kind == "bit-exact"
    assert result.certificate.k in (1, 2, 3, 4)
    assert json.dumps(result.as_dict())


def test_gate_refuses() -> None:
    """R35: lint alone and numerics alone are enough."""
    laws = LawVerdict((), {})
    with Model.from_parts(table(), Ngram(), n_ids=8, context=256, k_max=4) as model:
        result = judge_engine(opened(model, lint=False), laws, 0, no_progress)
        assert (result.verdict, result.reasons) == ("failed", ("lint",))
    with Model.from_parts(Disturbed(by_neighbour), Ngram(), n_ids=8, context=256, k_max=4) as model:
        result = judge_engine(opened(model), laws, 0, no_progress)
        assert (result.verdict, result.reasons) == ("failed", ("numerics",))
        assert result.certificate.reasons == ("numerics",)


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that opens as a table engine, with an old certificate in it."""
    (tmp_path / "manifest.json").write_text(json.dumps(opened(exact_model()).manifest))
    (tmp_path / "calibration.bin").write_bytes(
        struct.pack(f"<4sII{len(TOKENS)}i", b"SPCT", 1, len(TOKENS), *TOKENS)
    )
    (tmp_path / "certificates").mkdir()
    (tmp_path / "certificates" / "old.json").write_text("{}")
    monkeypatch.setattr(Model, "open", classmethod(lambda cls, *_, **__: exact_model(ModelDraft(table()))))
    return tmp_path


@pytest.mark.parametrize("when", ["law", "certificate", "equality", "two-sample", "speed"])
def test_killed_gate_leaves_the_old_certificate(when: str, bundle: Path) -> None:
    """Nothing is written before the end."""

    def interrupt(step: str, done: float) -> None:
        if step == when:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_gate(bundle, trials=100, progress=interrupt)
    assert [path.name for path in (bundle / "certificates").iterdir()] == ["old.json"]


def test_a_certificate_for_each_thread_count(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each count is opened, judged and saved; whether their bits agree is told and is no fault."""
    asked: list[int] = []

    def open_model(cls: Any, *_: Any, threads: int) -> Model:
        asked.append(threads)
        return exact_model(ModelDraft(table() if threads < 4 else table(LOGITS + np.float32(1))))

    monkeypatch.setattr(Model, "open", classmethod(open_model))
    monkeypatch.setattr(Model, "save_certificate", lambda self, c, out, report: out / f"{len(asked)}.json")
    found = run_gate(bundle, trials=3000, threads=[1, 2])
    assert asked == [1, 2]
    assert found.report["threads_agree"] is True
    assert [Path(path).name for path in found.report["certificates"]] == ["1.json", "2.json"]
    hashes = [row["law_hash"] for row in found.report["threads"]]
    assert hashes[0] == hashes[1]
    assert sum(check.name.startswith("law:") for check in found.checks) == sum(
        check.name.startswith("law:") for check in run_gate(bundle, trials=3000).checks
    )


def test_gate_needs_no_torch(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The judges of the device run where torch, transformers and onnx cannot be imported."""
    for name in ("torch", "transformers", "onnx", "onnx_ir", "onnxscript", "specc.exporter"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(Model, "save_certificate", lambda self, c, out, report: out / "1.json")
    found = run_gate(bundle, trials=300)
    assert found.report["certify"]["not_certified"]
    assert {row["prompt_class"] for row in found.report["speed"]["best"]} == {"prose", "copy"}


def test_certify_list_is_acted_on() -> None:
    """Penalties and logit bias are judged on the engine where the recipe lists them, and told where it does
    not.
    """
    assert list(equality.select_modes(["temperature", "top_p"])) == list(equality.MODES)
    modes = equality.select_modes(["repetition_penalty", "logit_bias"])
    assert modes["greedy with penalties"]["repetition_penalty"] != 1
    assert modes["coupled with bias"]["logit_bias"]
    part = describe_options(["temperature", "logit_bias"])
    assert part["listed"] == ["temperature", "logit_bias"]
    assert "frequency_penalty" in part["not_certified"]
    with Model.from_parts(
        table(), ModelDraft(table()), n_ids=8, context=256, k_max=4, assume_exact=True
    ) as model:
        work = replace(equality.make_work(TOKENS, 256, 5), modes=modes)
        with model.session() as session:
            plain = equality.generate_plain(session, work)
            checks = list(equality.judge_drafter(session, work, "x", plain))
    assert len(checks) == 4
    assert all(check.passed for check in checks)


def test_a_place_that_takes_no_certificate(bundle: Path, tmp_path: Path) -> None:
    """It is found before the judges start; a folder that is not there yet is made."""

    def start(*_: object) -> None:
        raise AssertionError("a judge has started")

    (tmp_path / "file").write_text("")
    with pytest.raises(
        EnvironmentFault, match="writing a certificate into .*file/deep failed: .*; check the path"
    ):
        run_gate(bundle, trials=100, certificates_out=tmp_path / "file" / "deep", progress=start)
    check_writable(tmp_path / "new" / "deep")
    assert list((tmp_path / "new" / "deep").iterdir()) == []


@pytest.mark.parametrize("text", ["[" * 100000, "[]", "{}", '{"lint": 3}', '{"plan": {"threads": "2"}}'])
def test_damaged_manifest(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(InputError, match=r"manifest\.json"):
        read_manifest(tmp_path)


def test_reasons_follow_judges() -> None:
    """Each judge's code; several at once."""

    def failed(*names: str) -> list[Check]:
        return [Check(f"{name}: x", 0, 1, False) for name in names]

    assert derive_reasons(failed("law")) == ("numerics",)
    assert derive_reasons(failed("equality", "lint", "speed")) == ("numerics", "lint", "no-gain")
    assert derive_reasons([Check("law: x", 0, 1, True)]) == ()


@pytest.mark.parametrize("data", [b"", b"SPCT", b"XXXX" + bytes(8), struct.pack("<4sIIi", b"SPCT", 1, 2, 5)])
def test_damaged_calibration(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "calibration.bin").write_bytes(data)
    with pytest.raises(InputError, match=r"calibration\.bin"):
        read_calibration_ids(tmp_path)
