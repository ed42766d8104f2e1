"""`specc bench`: its arithmetic, its JSON, its page, and power modes that do not compare."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.table_models import Ahead, ByWidth, chain

from specc.bench import compare, machine, measure, numbers, page, prompts, report
from specc.bench.measure import Setting, Task
from specc.bench.numbers import Round
from specc.errors import InputError
from specc.pipeline.build import build
from specc.report.plots import choose_ticks
from specc.runtime import Model, Table, library

Run = Callable[..., tuple[int, str, str]]
VALUES = st.lists(st.floats(0, 1e6), min_size=1, max_size=50)
ROUNDS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 5), st.floats(1e-6, 1)).map(
        lambda t: Round(t[0], max(t[0], t[1]), t[0], t[2])
    ),
    max_size=30,
)
KEYS = {
    "class",
    "mode",
    "temperature",
    "rule",
    "tokens_per_second",
    "acceptance_rate",
    "tokens_per_target_call",
    "ttft_ms",
    "itl_ms_p50",
    "itl_ms_p99",
    "peak_mb",
}

# ---------------------------------------------------------------------- arithmetic


@given(VALUES, st.floats(0, 1))
def test_percentile_is_numpys(values: list[float], share: float) -> None:
    found = numbers.percentile(values, share)
    assert found is not None and min(values) <= found <= max(values)
    assert found == pytest.approx(float(np.percentile(values, 100 * share)), rel=1e-9, abs=1e-9)


@given(VALUES)
def test_percentiles_rise(values: list[float]) -> None:
    found = [numbers.percentile(values, share) for share in (0, 0.25, 0.5, 0.99, 1)]
    assert found == sorted(found, key=float) and found[2] == pytest.approx(numbers.middle(values))  # type: ignore[arg-type]


def test_nothing_has_no_median() -> None:
    assert numbers.percentile([], 0.5) is None and numbers.middle([]) is None and numbers.mean([]) is None


@given(ROUNDS)
def test_tokens_of_a_round_share_its_time(rounds: list[Round]) -> None:
    """One share a token but the first round's, and together the time of the rounds that had any."""
    found = numbers.shares(rounds)
    assert len(found) == sum(one.tokens for one in rounds[1:])
    assert sum(found) == pytest.approx(sum(one.seconds for one in rounds[1:] if one.tokens))
    assert len(numbers.gaps(rounds)) == sum(one.tokens > 0 for one in rounds[1:])


def test_acceptance_by_position_counts_what_was_reached() -> None:
    rounds = [
        Round(3, 4, 2, 1.0),
        Round(1, 4, 0, 1.0),
        Round(5, 4, 4, 1.0),
        Round(1, 0, 0, 1.0),
        Round(2, 1, 1, 1.0),
    ]
    assert numbers.by_position(rounds) == (3 / 4, 1.0, 1 / 2, 1.0)
    assert numbers.by_position([Round(1, 0, 0, 1.0)]) == ()


def test_speed_ups_are_medians_of_pairs() -> None:
    """A slow minute that hits both of a pair changes nothing; one that hits one run is outvoted."""
    found = numbers.speed_ups({0: [100.0, 50.0, 100.0], 1: [10.0]}, {0: [150.0, 75.0, 20.0], 1: [20.0]})
    assert found == {0: 1.5, 1: 2.0}


def test_prediction_takes_the_certificates_costs() -> None:
    rounds = [Round(5, 4, 4, 9.9), Round(1, 0, 0, 9.9)]
    assert numbers.predicted(rounds, {0: 4.0, 4: 6.0}, 0, 2.0) == pytest.approx(6 * 4 / (6 + 4 + 2))
    assert (
        numbers.predicted(rounds, {0: 4.0}, 0, 2.0) is None
        and numbers.predicted([], {0: 4.0}, 0, 0.0) is None
    )


@given(st.floats(1e-9, 1e9))
def test_ticks_cover_and_are_few(most: float) -> None:
    marks = choose_ticks(most)
    assert marks[0] == 0 and marks[-1] >= most * (1 - 1e-6) and 4 <= len(marks) <= 6


# ---------------------------------------------------------------------- measuring


def table_model(drafter: Any = None, **parts: Any) -> Model:
    """Greedy text is b + 1 after b, over the ids of the fake bundle's tokenizer."""
    return Model.table(chain(258, 14.0), drafter=drafter or Ahead(), context=128, loaded=library(), **parts)


TASK = Task(
    {"chat": [[5, 6, 7], [9, 9]], "copy": [[40, 41]]},
    (Setting(0.0, "rejection"), Setting(0.8, "coupled")),
    repeats=2,
    max_new_tokens=12,
    seed=3,
)


def test_modes_take_turns_and_agree() -> None:
    ticks: list[tuple[str, float]] = []
    with table_model() as model, model.session() as session:
        found = measure.measure_generations(session, TASK, lambda step, done: ticks.append((step, done)))
    assert len(found) == TASK.total == 24 and len(ticks) == 24 and ticks[-1] == ("bench", 1.0)
    firsts = [one.mode for one in found[::2]]
    assert firsts == ["plain", "spec"] * 6
    for a, b in zip(found[::2], found[1::2], strict=True):
        assert a.tokens == b.tokens and {a.mode, b.mode} == {"plain", "spec"} and a.prompt == b.prompt
    assert all(sum(r.tokens for r in one.rounds) == len(one.tokens) == 12 for one in found)
    assert all(not r.proposed for one in found if one.mode == "plain" for r in one.rounds)


def test_every_answer_starts_from_an_empty_cache() -> None:
    """Both modes read the whole prompt, although the one before left it in the cache."""
    task = replace(TASK, prompts={"chat": [list(range(70))]}, settings=TASK.settings[:1])
    with table_model() as model, model.session() as session:
        for mode in ("plain", "spec", "spec"):
            measure.generate(session, task.prompts["chat"][0], mode, task.settings[0], task, "chat", 0, 0)
            assert session.stats["prefill_calls"] == 3
        session.run(task.prompts["chat"][0], text=False, max_new_tokens=1, temperature=0.0)
        assert session.stats["prefill_calls"] == 0


def found_rows(drafter: Any = None) -> list[dict[str, Any]]:
    with table_model(drafter) as model, model.session() as session:
        certificate = replace(model.info.certificate, call_ms=(4.0, 4.5, 5.0, 5.5, 6.0, 20.0))
        return report.rows(measure.measure_generations(session, TASK), certificate)


def test_rows_have_what_others_rely_on() -> None:
    rows = found_rows()
    assert len(rows) == 8 and all(row.keys() >= KEYS for row in rows)
    greedy = [row for row in rows if row["temperature"] == 0 and row["mode"] == "spec"]
    for row in greedy:
        assert row["acceptance_rate"] == 1.0 and row["same_text"] == 1.0 and row["enabled"]
        assert row["acceptance_by_position"] == (1.0,) * 4 and row["proposing_share"] == 1.0
        assert row["tokens_per_target_call"] == pytest.approx(12 / 3) and row["predicted_speed_up"] > 2
        assert (
            0 < row["itl_ms_p50"] <= row["itl_ms_p99"] and row["peak_mb"] > 1 and 0 <= row["draft_share"] < 1
        )
    plain = [row for row in rows if row["mode"] == "plain"]
    assert all(row["acceptance_rate"] is None and row["tokens_per_target_call"] == 1.0 for row in plain)
    assert all("speed_up" not in row for row in plain)
    json.dumps(rows, allow_nan=False)


def test_summary_means_over_classes() -> None:
    rows = found_rows()
    found = report.summary(rows)
    assert [(one["temperature"], one["classes"]) for one in found] == [(0.0, 2), (0.8, 2)]
    spec = [row["speed_up"] for row in rows if row["mode"] == "spec" and row["temperature"] == 0]
    assert found[0]["mean_speed_up"] == pytest.approx(sum(spec) / 2) and found[0]["least_speed_up"] == min(
        spec
    )


def test_break_even_by_k() -> None:
    with table_model() as model:
        certificate = replace(model.info.certificate, call_ms=(4.0, 4.5, 5.0, 5.5, 6.0, 20.0))
        assert report.break_even(certificate, 4) == {1: 1.125, 2: 1.25, 3: 1.375, 4: 1.5}
        assert report.break_even(replace(certificate, call_ms=()), 4) == {}


def test_speculation_that_is_off_says_so() -> None:
    """Without a certificate nothing is proposed; the report names the reason instead of a speed-up out of nothing."""
    engine = ByWidth(Table(chain(258), 1, 160, (1, 2, 3, 4, 5, 32)), library())
    with Model.from_parts(engine, Ahead(), n_ids=258, context=128) as model, model.session() as session:
        rows = report.rows(measure.measure_generations(session, TASK), model.info.certificate)
    spec = [row for row in rows if row["mode"] == "spec"]
    assert all(not row["enabled"] and row["reasons"] and row["acceptance_rate"] is None for row in spec)
    assert all(row["predicted_speed_up"] is None and row["proposing_share"] == 0 for row in spec)


# ---------------------------------------------------------------------- prompts


def test_prompt_files(tmp_path: Path) -> None:
    lines, classes = tmp_path / "a.txt", tmp_path / "b.yaml"
    lines.write_text("one\n\n two \n")
    classes.write_text("chat: [a, b, c, d]\ncode: ['def f():']\n")
    assert prompts.from_file(lines) == {"prompts": ["one", "two"]}
    found = prompts.from_file(classes)
    assert prompts.fewer(found, 2) == {"chat": ["a", "c"], "code": ["def f():"]}


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.txt", "\n\n", "holds no prompt"),
        ("a.yaml", "[a, b]", "holds list"),
        ("a.yaml", "chat: hello", "class 'chat' is not a list"),
        ("a.yaml", "chat: []", "class 'chat' is not a list"),
        ("a.yaml", "3: [a]", "class 3 is not a list"),
        ("a.yaml", "chat: [1]", "class 'chat' is not a list"),
        ("a.yaml", "chat: [", "is no YAML"),
        ("a.yaml", "a: &x [b]\nc: *x", "aliases are not used"),
        ("gone.txt", None, "cannot read the prompts"),
    ],
)
def test_unusable_prompts_are_one_sentence(tmp_path: Path, name: str, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=re.escape(said)) as error:
        prompts.from_file(tmp_path / name)
    assert "\n" not in str(error.value)


def test_prompts_that_come_along() -> None:
    found = prompts.shipped("held-out")
    assert len(found) == 4 and all(len(texts) == 8 for texts in found.values())


# ---------------------------------------------------------------------- power modes (field fault R52)

JETSON = (
    "< POWER_MODEL ID=0 NAME=MAXN >\n< POWER_MODEL ID=1 NAME=MODE_10W >\n< POWER_MODEL ID=2 NAME=MODE_15W >\n"
)


def system(root: Path, **files: str) -> Path:
    """A fake system: what stands in its files."""
    place = {
        "governor": "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
        "status": "var/lib/nvpmodel/status",
        "maximum": "sys/devices/system/cpu/cpu0/cpufreq/scaling_max_freq",
        "configuration": "etc/nvpmodel.conf",
        "now": "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq",
        "zone": "sys/class/thermal/thermal_zone0/temp",
    }
    for name, text in files.items():
        path = root / place[name]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def nvpmodel(folder: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """A tool that answers as nvpmodel does, first in the PATH."""
    folder.mkdir(exist_ok=True)
    tool = folder / "nvpmodel"
    tool.write_text(f"#!/bin/sh\necho 'NV Fan Mode:quiet'\necho 'NV Power Mode: {mode}'\necho 2\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


@pytest.mark.parametrize("mode", ["15W", "30W", "MAXN"])
def test_power_mode_by_the_boards_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    nvpmodel(tmp_path / "bin", monkeypatch, mode)
    found = machine.power(
        system(tmp_path, governor="schedutil\n", now="729600", maximum="1510400", zone="51500")
    )
    assert (found["mode"], found["source"]) == (mode, "nvpmodel") and found["settings"][
        "governor"
    ] == "schedutil"
    assert found["clocks_mhz"] == {"cpu0": {"now": 729.6, "max": 1510.4}}
    assert found["temperature_c"] == {"thermal_zone0": 51.5}


def test_power_mode_without_the_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that the tool leaves, else what caps the clock, else the mode is unknown."""
    monkeypatch.setattr(machine.shutil, "which", lambda name: None)
    board = system(tmp_path / "board", status="pmode:0002 fmode:quiet", configuration=JETSON)
    assert machine.power(board)["mode"] == "MODE_15W"
    laptop = system(tmp_path / "laptop", governor="powersave", maximum="1200000")
    assert machine.power(laptop)["mode"] == "governor powersave, max_khz 1200000"
    nothing = machine.power(tmp_path / "nothing")
    assert (nothing["mode"], nothing["clocks_mhz"], nothing["temperature_c"]) == ("unknown", {}, {})


def saved(path: Path, mode: str, source: str | None = "nvpmodel", rate: float = 20.0) -> Path:
    """A report in small."""
    power = {"mode": mode, "source": source, "settings": {}, "clocks_mhz": {}, "temperature_c": {}}
    row = {
        "class": "chat",
        "mode": "spec",
        "temperature": 0.0,
        "rule": "rejection",
        "tokens_per_second": rate,
    }
    path.write_text(json.dumps({"rows": [row], "summary": [], "environment": {"power": power, "cpu": "c"}}))
    return path


def test_different_power_modes_do_not_compare(tmp_path: Path) -> None:
    runs = (("a", "MAXN", 60), ("b", "15W", 20), ("c", "MAXN", 50))
    one, other, same = (saved(tmp_path / name, mode, rate=rate) for name, mode, rate in runs)
    with pytest.raises(InputError, match=r"a and .*b ran in different power modes \(MAXN against 15W\)"):
        compare.compare(compare.load(one), compare.load(other))
    found = compare.compare(compare.load(one), compare.load(same))
    assert found["rows"][0]["ratio"] == pytest.approx(1.2) and found["notes"] == []


def test_an_unknown_mode_compares_with_itself_only(tmp_path: Path) -> None:
    one, other = saved(tmp_path / "a", "unknown", None), saved(tmp_path / "b", "15W")
    with pytest.raises(InputError, match="unknown against 15W"):
        compare.compare(compare.load(one), compare.load(other))
    assert "unknown" in compare.compare(compare.load(one), compare.load(one))["notes"][-1]


def test_what_is_no_report(tmp_path: Path) -> None:
    for text in ("[]", "{}", "nothing", '{"environment": {"power": 3}, "rows": []}'):
        (tmp_path / "x").write_text(text)
        with pytest.raises(InputError, match="report"):
            compare.load(tmp_path / "x")


# ---------------------------------------------------------------------- the verb


@pytest.fixture
def bundle(
    tmp_path: Path,
    write_recipe: Callable[..., Path],
    fake_model: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """A bundle of a few bytes, opened as a table model; and a fake system in a 15 W mode."""
    monkeypatch.setattr("specc.bench.work.Model.open", lambda folder, **options: table_model())
    monkeypatch.setattr(machine.shutil, "which", lambda name: None)
    root = system(tmp_path / "root", status="pmode:0002", configuration=JETSON)
    real = machine.power
    monkeypatch.setattr(machine, "power", lambda: real(root))
    return build(write_recipe(sampling={"temperature": 0.5, "top_k": 40}), out=tmp_path / "b").bundle.folder


@pytest.fixture
def asked(tmp_path: Path) -> list[object]:
    """Few prompts, few tokens."""
    (tmp_path / "p.yaml").write_text("chat: [hello, good <b>morning</b>]\n'co<py': [again and again]\n")
    return ["--prompts", tmp_path / "p.yaml", "--max-new-tokens", 8, "--repeats", 1]


def test_json(specc: Run, bundle: Path, asked: list[object]) -> None:
    code, out, _ = specc("bench", bundle, *asked, "--json", "--rule", "coupled", "--rule", "rejection")
    found = json.loads(out)
    assert code == 0 and len(found["rows"]) == 2 * 2 * 3 and all(row.keys() >= KEYS for row in found["rows"])
    assert [(s["temperature"], s["rule"]) for s in found["summary"]] == [
        (0.0, "coupled"),
        (0.8, "coupled"),
        (0.8, "rejection"),
    ]
    environment = found["environment"]
    assert environment["power"]["mode"] == "MODE_15W" and environment["bundle"] and environment["start_s"] > 0
    assert environment.keys() >= {"cpu", "threads", "kernels", "versions", "load", "peak_mb", "certificate"}
    assert found["task"]["options"]["top_k"] == 40 and "temperature" not in found["task"]["options"]
    assert found["task"]["classes"] == {"chat": 2, "co<py": 1}


def test_table_and_page(specc: Run, bundle: Path, asked: list[object], tmp_path: Path) -> None:
    code, out, _ = specc("bench", bundle, *asked, "--quick", "--html", tmp_path / "r.html")
    assert code == 0 and "speed-up" in out and "MODE_15W" in out and "greedy" in out
    assert max(map(len, out.splitlines())) <= 80
    text = (tmp_path / "r.html").read_text()
    assert text.count("<svg") == text.count("</svg>") >= 4 and "co&lt;py" in text and "co<py" not in text
    assert 'name="viewport"' in text and not list(tmp_path.glob(".r.html*"))


def test_the_page_needs_nothing_else(specc: Run, bundle: Path, asked: list[object], tmp_path: Path) -> None:
    """No script, no address of any kind, no file beside it; and it is well-formed."""
    from xml.etree import ElementTree

    found = json.loads(specc("bench", bundle, *asked, "--json")[1])
    text = page.render_page(found)
    assert not re.search(r"(?i)<script|<link|<img|<iframe|https?:|url\(|@import|\bsrc=|\bhref=", text)
    for plot in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ElementTree.fromstring(plot)
    assert len(text) < 60_000


def test_a_page_that_cannot_be_written(specc: Run, bundle: Path, asked: list[object], tmp_path: Path) -> None:
    code, _, err = specc("bench", bundle, *asked, "--quick", "--html", tmp_path / "none" / "r.html")
    assert code == 3 and err.count("specc:") == 1 and "Traceback" not in err


def test_against_a_report_of_another_mode(
    specc: Run, bundle: Path, asked: list[object], tmp_path: Path
) -> None:
    """Refused before a minute is spent measuring; of the same mode the report has the ratios."""
    other = saved(tmp_path / "other.json", "MAXN")
    code, out, err = specc("bench", bundle, *asked, "--against", other)
    assert (code, out) == (2, "") and "(MODE_15W against MAXN)" in err and err.count("\n") == 1
    (tmp_path / "mine.json").write_text(specc("bench", bundle, *asked, "--json")[1])
    code, out, _ = specc("bench", bundle, *asked, "--json", "--against", tmp_path / "mine.json")
    assert code == 0 and len(json.loads(out)["comparison"]["rows"]) == 8
    code, out, _ = specc("bench", tmp_path / "mine.json", "--against", tmp_path / "mine.json")
    assert code == 0 and "1.00" in out and "against" in out and "ratio" in out


def test_a_mode_that_changes_meanwhile(
    specc: Run, bundle: Path, asked: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    power = machine.power()
    modes = iter(["MODE_15W", "MAXN"])
    monkeypatch.setattr(machine, "power", lambda: {**power, "mode": next(modes)})
    code, out, err = specc("bench", bundle, *asked, "--quick")
    assert (code, out) == (
        3,
        "",
    ) and "the power mode changed while the bench ran (MODE_15W against MAXN)" in err


def test_a_prompt_beyond_the_context(specc: Run, bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("short\n" + "x" * 200)
    code, _, err = specc("bench", bundle, "--prompts", tmp_path / "long.txt")
    assert (
        code == 2 and "prompt 2 of class 'prompts'" in err and "context 128" in err and err.count("\n") == 1
    )


# ---------------------------------------------------------------------- tests/bench/bench_peers.py


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The bench against other engines, as a module."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    return __import__("bench_peers")


FOUND: dict[str, Any] = {
    "bandwidth_gb_s": 40.0,
    "weights_mb": 95.0,
    "cache_mb": 25.0,
    "peers": {"llama.cpp": {"system": "AVX2 = 1"}},
    "ms_by_rows": {"specc": {1: 4.0, 5: 6.0}, "llama.cpp": {1: 12.0}},
    "tokens_per_second": {
        "specc": {"plain": 240.0, "spec": 330.0},
        "llama.cpp": {"plain": 80.0, "spec": 60.0},
        "onnxruntime-genai": {"plain": 110.0},
    },
}


def test_ratios_against_peers(peers: Any) -> None:
    found = peers.report(FOUND)
    assert found["verify_cost_ratio"] == 1.5 and found["verify5_vs_llama_cpp_1"] == 0.5
    assert found["plain_vs_llama_cpp"] == 3.0 and found["spec_vs_best_peer"] == 3.0
    assert (
        found["bandwidth_share_of_a_plain_step"] == pytest.approx(0.75)
        and found["llama_cpp_system"] == "AVX2 = 1"
    )
    assert peers.report(json.loads(json.dumps(FOUND))) == found


def test_a_peer_that_is_missing_has_no_ratio(peers: Any) -> None:
    """Nothing is guessed."""
    alone = {
        **FOUND,
        "ms_by_rows": {"specc": {1: 4.0, 5: 6.0}},
        "peers": {},
        "tokens_per_second": {"specc": {"plain": 1.0}},
    }
    found = peers.report(alone)
    assert not {"verify5_vs_llama_cpp_1", "plain_vs_llama_cpp", "spec_vs_best_peer"} & found.keys()
    assert found["llama_cpp_system"] is None and peers.report({"peers": {}}) == {"llama_cpp_system": None}


def test_parts_of_several_runs_join(peers: Any) -> None:
    first = {"ms_by_rows": {"specc": {"1": 4.0}}, "turns": {"rows": 15}, "bandwidth_gb_s": 30.0}
    found = peers.joined(
        first, {"ms_by_rows": {"specc": {1: 7.0, 9: 8.0}, "x": {9: 1.0}}, "turns": {"speeds": 32}}
    )
    assert found["ms_by_rows"] == {"specc": {"1": 4.0, "9": 8.0}, "x": {"9": 1.0}}
    assert found["turns"] == {"rows": 15, "speeds": 32} and found["bandwidth_gb_s"] == 30.0


def test_a_llama_without_avx2_is_refused(peers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "flags : fpu avx avx2 fma")
    with pytest.raises(SystemExit, match="without AVX2"):
        peers.check_build({"llama.cpp": {"system": "AVX = 1 | AVX2 = 0"}})
    peers.check_build({"llama.cpp": {"system": "AVX2 = 1"}})
    peers.check_build({})


def test_workers_take_turns(peers: Any) -> None:
    """First and last change places; without time there are still three turns."""
    from workers import in_turn

    asked: list[tuple[str, int]] = []

    def ask(worker: Any, key: int, turn: int) -> float | None:
        asked.append((worker.name, turn))
        return float(turn) if worker.name == "a" else None

    workers = [SimpleNamespace(name="a"), SimpleNamespace(name="b")]
    found, count = in_turn(workers, (1,), 15, -1.0, ask)
    assert found == {"a": {1: 1.0}, "b": {}} and count == 3
    assert asked == [("a", 0), ("b", 0), ("b", 1), ("a", 1), ("a", 2), ("b", 2)]


def test_a_peer_that_cannot_start_says_why(peers: Any, tmp_path: Path) -> None:
    from workers import started

    workers, missing = started({"onnxruntime-genai": (str(tmp_path), "python3")}, 64)
    assert not workers and "Error" in missing["onnxruntime-genai"]
