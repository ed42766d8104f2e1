"""Records: kept whole, read when cut off, judged again by the references; whatever is changed in one is
found.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.table_models import Ahead, draft, noise_table

from specc.errors import EnvironmentFault, InputError
from specc.gate.replay import record as judge
from specc.generate.record import make_header, read_record, unpack_row
from specc.generate.run import record_events
from specc.progress import no_progress
from specc.runtime import Model, Table

N = 8
TABLE = noise_table(N, 2)
Line = dict[str, Any]
REQUESTS: dict[str, dict[str, Any]] = {
    "rejection": {"temperature": 0.9},
    "filters": {
        "temperature": 0.8,
        "top_k": 6,
        "top_p": 0.95,
        "repetition_penalty": 1.2,
        "logit_bias": {3: -np.inf},
    },
    "coupled": {"temperature": 0.9, "rule": "coupled"},
    "greedy": {"temperature": 0.0, "presence_penalty": 0.5},
    "short": {"temperature": 1.0, "min_new_tokens": 4},
}


def model(drafter: Any = None, table: Any = TABLE, k: int = 4) -> Model:
    engine = Table(table, 2, 128 + 32, (1, 2, 3, 4, 5, 32))
    drafter = drafter or draft(TABLE + noise_table(N, 2, seed=8), 2)
    return Model.from_parts(engine, drafter, n_ids=N, context=128, k_max=k, eos=[7], assume_exact=True)


def record(path: Path, request: dict[str, Any], drafter: Any = None, n: int = 60) -> list[Line]:
    """Writes the record of a generation; returns its lines."""
    options = {"seed": 11, "max_new_tokens": n, "ignore_eos": "min_new_tokens" not in request, **request}
    ids = [int(i) for i in np.random.default_rng(0).integers(0, N, 40)]
    with model(drafter) as opened, opened.session() as session:
        session.trace()
        events = session.generate(ids, **options)
        list(record_events(events, path, make_header("tiny", opened.info, session, options, ids)))
    return [json.loads(line) for line in path.read_text().splitlines()]


def judged(path: Path, table: Any = TABLE) -> tuple[judge.Difference | None, int]:
    with model(table=table) as opened:
        return judge.judge_rounds(read_record(path), opened, no_progress)


@pytest.mark.parametrize("drafter", [None, Ahead()])
@pytest.mark.parametrize("name", REQUESTS)
def test_what_was_recorded_is_right(name: str, drafter: Any, tmp_path: Path) -> None:
    lines = record(tmp_path / "r", REQUESTS[name], drafter)
    found, decisions = judged(tmp_path / "r")
    assert found is None and decisions == sum(len(line["slots"]) for line in lines[1:-1])
    slots = [slot for line in lines[1:-1] for slot in line["slots"]]
    if name != "short":
        assert {slot["accepted"] for slot in slots} == {True, False}
        assert lines[-1]["tokens"] == 60
    assert lines[-1]["end"] in ("length", "stop")
    assert any("q_row" in slot for slot in slots) == (
        drafter is None and name in ("rejection", "filters", "short")
    )


def change(lines: list[Line], where: Callable[[Line], bool], **values: Any) -> tuple[int, int]:
    """Changes the first slot for which `where` holds; tells its round and number."""
    for line in lines[1:-1]:
        for i, slot in enumerate(line["slots"]):
            if where(slot):
                slot.update(
                    {name: value(slot[name]) if callable(value) else value for name, value in values.items()}
                )
                return line["round"], i
    raise AssertionError("no such slot")


def accepted(slot: Line) -> bool:
    return bool(slot["accepted"])


def rejected(slot: Line) -> bool:
    return slot["drafted"] is not None and not slot["accepted"]


def bonus(slot: Line) -> bool:
    return slot["drafted"] is None


TAMPERED: list[tuple[str, Callable[[Line], bool], dict[str, Any], str]] = [
    ("rejection", accepted, {"p": lambda p: p * (1 + 1e-6)}, "p of the drafted id is .*, plainly it is"),
    ("rejection", rejected, {"p": lambda p: p + 0.1}, "p of the drafted id"),
    ("rejection", bonus, {"p_emitted": lambda p: p - 1e-6}, "p of the emitted id"),
    ("rejection", accepted, {"u": lambda u: u / 2}, "u is .*, the seed gives"),
    ("rejection", rejected, {"draw": 0.5}, "draw is 0.5, the seed gives"),
    ("rejection", rejected, {"q": lambda q: q / 2}, "q is .*, its row says"),
    ("rejection", rejected, {"q": 0.0}, "q of the drafted id is 0"),
    ("rejection", accepted, {"drafted": lambda x: (x + 1) % N}, "accepted and another one emitted"),
    ("rejection", accepted, {"accepted": False}, "goes on behind a rejection"),
    ("rejection", lambda s: s["emitted"] > 0 and not s["accepted"], {"emitted": 10**6}, "ids are below 8"),
    ("coupled", rejected, {"emitted": lambda x: (x + 1) % N}, "p of the emitted id|the race gives"),
    ("greedy", bonus, {"emitted": lambda x: (x + 1) % N}, "p of the emitted id"),
]


@pytest.mark.parametrize(("name", "where", "values", "what"), TAMPERED)
def test_what_was_changed_is_found(name: str, where: Any, values: Line, what: str, tmp_path: Path) -> None:
    path = tmp_path / "r"
    lines = record(path, REQUESTS[name])
    place = change(lines, where, **values)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found, _ = judged(path)
    assert found is not None and (found.round, found.slot) == place
    import re

    assert re.search(what, found.what), found.what


def test_a_decision_turned_around_is_found(tmp_path: Path) -> None:
    """A rejected draft written down as accepted with all its numbers, and the other way round."""
    path = tmp_path / "r"
    for turn in ("accept", "reject"):
        lines = record(path, {"temperature": 1.0}, Ahead())
        for line in lines[1:-1]:
            if turn == "accept" and rejected(line["slots"][-1]):
                slot = line["slots"][-1]
                slot.update(accepted=True, emitted=slot["drafted"], p_emitted=slot["p"], draw=None)
                line["slots"].append(
                    {**slot, "drafted": None, "accepted": False, "p": None, "q": None, "u": None}
                )
                break
            if turn == "reject" and line["slots"][0]["accepted"]:
                slot = line["slots"][0]
                other = next(s for s in line["slots"][1:])
                line["slots"] = [{**slot, "accepted": False, "draw": other["draw"] or 0.5}]
                line["tokens"] = [slot["emitted"]]
                break
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        found, _ = judged(path)
        assert found is not None and found.slot in (0, len(line["slots"]) - 2)
        if turn == "accept":
            assert "u * q is" in found.what and "was accepted" in found.what


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("tokens", lambda tokens: tokens[:-1], "was committed"),
        ("tokens", lambda tokens: [*tokens, 1], "was committed"),
        ("at", lambda at: at + 1, "the round begins behind 41 tokens, 40 were"),
    ],
)
def test_rounds_that_do_not_fit(key: str, value: Any, what: str, tmp_path: Path) -> None:
    lines = record(tmp_path / "r", {})
    lines[1][key] = value(lines[1][key])
    (tmp_path / "r").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found, _ = judged(tmp_path / "r")
    assert found is not None and what in found.what and found.round == 0


def test_another_target_is_found(tmp_path: Path) -> None:
    """The record is right in itself, and the logits are not those of this target."""
    record(tmp_path / "r", {})
    other = TABLE.copy()
    other[TABLE.shape[0] // 3 :, 2] += 0.01
    found, _ = judged(tmp_path / "r", other)
    assert found is not None and "plainly it is" in found.what


def test_another_seed_is_found(tmp_path: Path) -> None:
    lines = record(tmp_path / "r", {"rule": "coupled"})
    lines[0]["seed"] += 1
    (tmp_path / "r").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found, _ = judged(tmp_path / "r")
    assert found is not None and "the race gives id" in found.what


def test_a_cut_off_record_is_read(tmp_path: Path) -> None:
    """Whatever byte a crash ends it at: whole rounds are judged, and the verdict says so."""
    lines = record(tmp_path / "r", {}, n=12)
    text = (tmp_path / "r").read_text()
    head = len(text.splitlines()[0])
    for cut in range(head, len(text) - 1, 97):
        (tmp_path / "r").write_text(text[:cut])
        found = read_record(tmp_path / "r")
        assert found.finish is None and len(found.rounds) < len(lines) - 1
        assert judged(tmp_path / "r")[0] is None
        with model() as opened:
            told = judge.compose_answer(found, None, 0, opened.info)
        assert told["verdict"] == "cut-off" and "is cut off behind" in told["notes"][0]
    (tmp_path / "r").write_text(text[: head - 1])
    with pytest.raises(InputError, match="no whole line"):
        read_record(tmp_path / "r")


@pytest.mark.parametrize(
    ("number", "line"),
    [
        (1, "[]"),
        (1, '{"record": 2}'),
        (1, "3"),
        (2, "{}"),
        (2, "nothing"),
        (2, '{"round": 0, "at": -1, "slots": []}'),
        (2, '{"round": 0, "at": 40, "slots": [{"drafted": 1.5}], "tokens": []}'),
        (2, "[" * 100000),
    ],
)
def test_damaged_records(number: int, line: str, tmp_path: Path) -> None:
    lines = [json.dumps(found) for found in record(tmp_path / "r", {}, n=8)]
    lines[number - 1] = line
    (tmp_path / "r").write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError, match=f"line {number}, is not of a record"):
        read_record(tmp_path / "r")


def test_a_record_of_another_bundle(tmp_path: Path) -> None:
    lines = record(tmp_path / "r", {}, n=4)
    lines[0]["bundle"]["digest"] = "f" * 64
    (tmp_path / "r").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with (
        model() as opened,
        pytest.raises(InputError, match="was recorded with the bundle of digest ffffffffffffffff"),
    ):
        judge.check_bundle(read_record(tmp_path / "r"), opened, tmp_path)


def test_a_generation_that_is_left_has_an_end(tmp_path: Path) -> None:
    """Cancelled by the caller, or a folder that is none."""
    with model() as opened, opened.session() as session:
        session.trace()
        events = record_events(
            session.generate([0], max_new_tokens=50, seed=1, ignore_eos=True),
            tmp_path / "r",
            make_header("tiny", opened.info, session, {}, [0]),
        )
        next(events), next(events)
        events.close()
        assert read_record(tmp_path / "r").finish == "cancelled"
        events = record_events(
            session.generate([0]), tmp_path / "no" / "r", make_header("tiny", opened.info, session, {}, [0])
        )
        with pytest.raises(EnvironmentFault, match="writing the record .*no/r failed"):
            next(events)


def test_rows_of_q_survive() -> None:
    row = np.random.default_rng(1).random(1000)
    from specc.generate.record import pack_row

    assert np.array_equal(unpack_row(pack_row(row)), row)
