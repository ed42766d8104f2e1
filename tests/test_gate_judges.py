"""Certificate, equality and speed judges on table engines, with engines that are wrong in known ways."""
from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specc.errors import InputError
from specc.gate import Check, equality, run_gate, speed
from specc.gate import certificate as certify_judge
from specc.gate.judge import Opened, judge_opened, read_calibration, reasons_of
from specc.runtime import Certificate, Io, Model, ModelDraft, Ngram, Table, Wrapped, controls, library

WIDTHS = (1, 2, 3, 4, 5, 32)
LOGITS = np.random.default_rng(3).normal(0, 1.5, (64, 8)).astype(np.float32)
TOKENS = tuple(np.random.default_rng(1).integers(0, 8, 600).tolist())


def table(logits: Any = LOGITS) -> Table:
    return Table(logits, 2, 256 + 32, WIDTHS)


def exact_model(drafter: Any = None) -> Model:
    return Model.from_parts(table(), drafter, n_ids=8, context=256, k_max=4, assume_exact=True)


class Disturbed(Wrapped):
    """`disturb(logits, io, rows)` may write into the rows of a call."""

    def __init__(self, disturb: Any) -> None:
        super().__init__(table(), library())
        self.disturb, self.rng = disturb, np.random.default_rng(0)

    def run(self, cache: Any, rows: int, n_logits: int) -> None:
        super().run(cache, rows, n_logits)
        self.disturb(self, cache[2].logits[:n_logits], cache[2], rows)


def noise_in_a_row(size: float) -> Any:
    def disturb(self: Disturbed, logits: Any, io: Io, rows: int) -> None:
        if len(logits) > 2:
            logits[2] += np.float32(size) * self.rng.normal(size=8).astype(np.float32)

    return disturb


def shifted(self: Disturbed, logits: Any, io: Io, rows: int) -> None:
    if len(logits) > 2:
        logits[1] = logits[0]


def other_kernel(self: Disturbed, logits: Any, io: Io, rows: int) -> None:
    if 2 <= rows <= 5:
        logits += np.spacing(logits)


def by_neighbour(self: Disturbed, logits: Any, io: Io, rows: int) -> None:
    logits += np.float32(1e-6) * np.float32(io.input_ids[rows - 1])


def flaky(self: Disturbed, logits: Any, io: Io, rows: int) -> None:
    if self.rng.random() < 0.002:
        logits[0, 0] += np.float32(1e-3)


def not_a_number(self: Disturbed, logits: Any, io: Io, rows: int) -> None:
    if io.past_len[0] > 20:
        logits[0, 0] = np.nan


# ---------------------------------------------------------------------- certificate


def test_exact_engine_passes() -> None:
    with exact_model() as model:
        found = certify_judge.certify(model, TOKENS, 0)
    assert found.exact
    assert all(check.passed for check in found.checks)
    assert found.certificate.reasons == ()
    assert found.certificate.rows_compared > 1000


@pytest.mark.parametrize("disturb", [noise_in_a_row(1e-6), noise_in_a_row(1e-2), shifted, by_neighbour, not_a_number])
def test_wrong_engine_is_numerics(disturb: Any) -> None:
    """R01, R13, R44: rows that depend on slot, neighbours or luck end as numerics."""
    with Model.from_parts(Disturbed(disturb), Ngram(), n_ids=8, context=256, k_max=4) as model:
        found = certify_judge.certify(model, TOKENS, 0)
        assert not found.exact
        assert found.certificate.reasons == ("numerics",)
        assert not all(check.passed for check in found.checks)
        model.apply(found.certificate)
        assert not model.info.enabled
        assert "numerics" in model.info.reasons
        with model.session() as session:
            if disturb is not not_a_number:
                assert len(session.run([0, 1], seed=1, max_new_tokens=5).tokens) == 5


def test_other_kernel_is_another_class() -> None:
    """Widths 2 to 5 agree with each other and not with 1: the law is at width 2, 1 is never used."""
    with Model.from_parts(Disturbed(other_kernel), Ngram(), n_ids=8, context=256, k_max=4) as model:
        found = certify_judge.certify(model, TOKENS, 0)
        assert [2, 3, 4, 5] in found.certificate.classes
        assert found.certificate.law_width in (2, 3, 4, 5)


def test_flaky_engine_is_not_exact_at_its_widths() -> None:
    """An engine that answers differently on repeat loses at least a width."""
    with Model.from_parts(Disturbed(flaky), Ngram(), n_ids=8, context=256, k_max=4) as model:
        assert -1 in certify_judge.certify(model, TOKENS, 0).certificate.width_class


def test_bounded_needs_a_limit() -> None:
    """allow_bounded holds the mean total variation against the recipe's limit."""
    with Model.from_parts(Disturbed(noise_in_a_row(1e-3)), n_ids=8, context=256, k_max=4) as model:
        assert certify_judge.certify(model, TOKENS, 0, allow_bounded=0.05).certificate.reasons == ()
        assert certify_judge.certify(model, TOKENS, 0, allow_bounded=1e-9).certificate.reasons == ("numerics",)


def test_sharpness() -> None:
    """One flipped bit is found at any place; a judge that sees nothing fails its own proof."""
    assert certify_judge.sharpness(0).passed
    for at in (40, 333, 1111):
        assert -1 in certify_judge.flipped(1, at, library())[0].width_class
    with controls().fault("numerics_unchecked"):
        assert not certify_judge.sharpness(0, controls()).passed


# ---------------------------------------------------------------------- equality


def judged(drafter: Any, engine: Any = None) -> list[Check]:
    work = equality.make_work(TOKENS, 256, 5)
    engine = engine or table()
    with Model.from_parts(engine, drafter, n_ids=8, context=256, k_max=4, assume_exact=True) as model:
        script = drafter if isinstance(drafter, equality.Scripted) else None
        with model.session() as session:
            return list(equality.judge(session, work, "x", script, 4 if script else 0))


@pytest.mark.parametrize("make", [equality.Scripted, equality.Random, Ngram, lambda: ModelDraft(table())])
def test_equal_text(make: Any) -> None:
    """Greedy and coupled ids are equal; the scripted drafter reaches every accepted length."""
    checks = judged(make())
    assert [check for check in checks if not check.passed] == []
    assert len(checks) == (3 if make is equality.Scripted else 2)


def test_unequal_text_is_found() -> None:
    """An engine whose verify rows come from another kernel, claimed to be exact."""
    def rough(self: Disturbed, logits: Any, io: Io, rows: int) -> None:
        if rows > 1:
            logits[:] = np.round(logits)

    checks = judged(equality.Scripted(), Disturbed(rough))
    assert any(not check.passed and check.value > 0 for check in checks)


# ---------------------------------------------------------------------- speed


def costs(model: Model, *call_ms: float) -> Certificate:
    return replace(model.info.certificate, call_ms=call_ms)


def test_best_k_follows_costs() -> None:
    """Free rows: the largest K; rows that cost in full: no gain."""
    classes = speed.prompt_classes(TOKENS, 256, 0)
    with exact_model(ModelDraft(table())) as model:
        free = speed.judge(model, costs(model, 9.0, 9.0, 9.0, 9.0, 9.0, 30.0), classes)
        assert free.k == 4
        assert free.check.passed
        assert 4.0 < free.best <= 5.0
        dear = speed.judge(model, costs(model, 9.0, 18.0, 27.0, 36.0, 45.0, 300.0), classes)
        assert not dear.check.passed
        middle = speed.judge(model, costs(model, 9.0, 10.0, 11.0, 40.0, 60.0, 300.0), classes)
        assert middle.k == 2
        assert speed.break_even(costs(model, 9.0, 9.0, 9.0, 9.0, 18.0, 30.0), 4, 0.0) == 2.0


def test_useless_drafter_does_not_gain() -> None:
    """Proposals that are never right cost more than they bring."""
    classes = speed.prompt_classes(TOKENS, 256, 0)
    with exact_model(equality.Random()) as model:
        found = speed.judge(model, costs(model, 9.0, 9.5, 10.0, 10.5, 11.0, 60.0), classes)
    assert all(row.acceptance < 0.5 for row in found.rows)
    assert {row.prompt_class for row in found.rows} == {"prose", "copy"}
    assert {row.k for row in found.rows} == {1, 2, 3, 4}


def test_useful_k_is_the_largest_of_a_width() -> None:
    """K = 1 and 2 both pay for three rows: only 2 is tried."""
    certificate = Certificate("bit-exact", 1, (1, 3, 5, 8), (0, 0, 0, 1), 1, 0, ())
    assert speed.useful_k(certificate, 4) == [2, 4]
    assert speed.verify_width(certificate, 5) == 0


# ---------------------------------------------------------------------- the whole gate


def opened(model: Model, lint: bool = True) -> Opened:
    findings = [] if lint else [{"node": "n", "op": "TopK", "why": "", "fix": ""}]
    manifest = {"lint": {"passed": lint, "findings": findings},
                "engines": {"target": {"backend": "table"}}, "plan": {"threads": 1}, "gate": {}}
    return Opened(Path(), manifest, TOKENS, model, 1)


def test_gate_passes_on_an_exact_engine() -> None:
    """Every judge has its say, progress is told, the best K goes into the certificate."""
    stages: list[str] = []
    with Model.from_parts(table(), ModelDraft(table()), n_ids=8, context=256, k_max=4) as model:
        result = judge_opened(opened(model), 3000, 0, lambda stage, done, total: stages.append(stage))
    wrong = [check for check in result.checks if not check.passed]
    assert [check.name.split(":")[0] for check in wrong] in ([], ["speed"])
    assert {"certificate", "law", "equality", "speed"} <= set(stages)
    assert {check.name.split(":")[0] for check in result.checks} == {"lint", "certificate", "law", "equality", "speed"}
    assert result.certificate.kind == "bit-exact"
    assert result.certificate.k in (1, 2, 3, 4)
    assert json.dumps(result.as_dict())


def test_gate_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """R35: lint alone and numerics alone are enough."""
    monkeypatch.setattr("specc.gate.law.short_grid", list)
    with Model.from_parts(table(), Ngram(), n_ids=8, context=256, k_max=4) as model:
        result = judge_opened(opened(model, lint=False), 1000, 0, lambda *_: None)
        assert (result.verdict, result.reasons) == ("failed", ("lint",))
    with Model.from_parts(Disturbed(by_neighbour), Ngram(), n_ids=8, context=256, k_max=4) as model:
        result = judge_opened(opened(model), 1000, 0, lambda *_: None)
        assert (result.verdict, result.reasons) == ("failed", ("numerics",))
        assert result.certificate.reasons == ("numerics",)


def test_killed_gate_leaves_the_old_certificate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is written before the end."""
    (tmp_path / "manifest.json").write_text(json.dumps(opened(exact_model()).manifest))
    (tmp_path / "calibration.bin").write_bytes(struct.pack(f"<4sII{len(TOKENS)}i", b"SPCT", 1, len(TOKENS), *TOKENS))
    (tmp_path / "certificates").mkdir()
    (tmp_path / "certificates" / "old.json").write_text("{}")
    monkeypatch.setattr(Model, "open", classmethod(lambda cls, *_, **__: exact_model(Ngram())))

    def interrupt(stage: str, done: int, total: int) -> None:
        if stage == "law":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_gate(tmp_path, trials=100, progress=interrupt)
    assert [path.name for path in (tmp_path / "certificates").iterdir()] == ["old.json"]


def test_reasons_follow_judges() -> None:
    """Each judge's code; several at once."""
    def failed(*names: str) -> list[Check]:
        return [Check(f"{name}: x", 0, 1, False) for name in names]

    assert reasons_of(failed("law")) == ("numerics",)
    assert reasons_of(failed("equality", "lint", "speed")) == ("numerics", "lint", "no-gain")
    assert reasons_of([Check("law: x", 0, 1, True)]) == ()


@pytest.mark.parametrize("data", [b"", b"SPCT", b"XXXX" + bytes(8), struct.pack("<4sIIi", b"SPCT", 1, 2, 5)])
def test_damaged_calibration(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "calibration.bin").write_bytes(data)
    with pytest.raises(InputError, match=r"calibration\.bin"):
        read_calibration(tmp_path)
