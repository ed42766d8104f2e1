"""`specc bench` as a verb: its JSON, its tables and page, and power modes that do not compare (R52)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.bench_model import ROW_KEYS, table_model

from specc.bench import compare, machine, page
from specc.errors import InputError
from specc.pipeline.build import build

Run = Callable[..., tuple[int, str, str]]

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
    found = machine.read_power(
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
    assert machine.read_power(board)["mode"] == "MODE_15W"
    laptop = system(tmp_path / "laptop", governor="powersave", maximum="1200000")
    assert machine.read_power(laptop)["mode"] == "governor powersave, max_khz 1200000"
    nothing = machine.read_power(tmp_path / "nothing")
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
        compare.compare_reports(compare.load_report(one), compare.load_report(other))
    found = compare.compare_reports(compare.load_report(one), compare.load_report(same))
    assert found["rows"][0]["ratio"] == pytest.approx(1.2) and found["notes"] == []


def test_an_unknown_mode_compares_with_itself_only(tmp_path: Path) -> None:
    one, other = saved(tmp_path / "a", "unknown", None), saved(tmp_path / "b", "15W")
    with pytest.raises(InputError, match="unknown against 15W"):
        compare.compare_reports(compare.load_report(one), compare.load_report(other))
    assert (
        "unknown" in compare.compare_reports(compare.load_report(one), compare.load_report(one))["notes"][-1]
    )


def test_what_is_no_report(tmp_path: Path) -> None:
    for text in ("[]", "{}", "nothing", '{"environment": {"power": 3}, "rows": []}'):
        (tmp_path / "x").write_text(text)
        with pytest.raises(InputError, match="report"):
            compare.load_report(tmp_path / "x")


# ---------------------------------------------------------------------- the verb


@pytest.fixture
def bundle(
    tmp_path: Path,
    write_recipe: Callable[..., Path],
    fake_model: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """A bundle of a few bytes, opened as a table model; and a fake system in a 15 W mode."""
    monkeypatch.setattr("specc.bench.run.Model.open", lambda folder, **options: table_model())
    monkeypatch.setattr(machine.shutil, "which", lambda name: None)
    root = system(tmp_path / "root", status="pmode:0002", configuration=JETSON)
    real = machine.read_power
    monkeypatch.setattr(machine, "read_power", lambda: real(root))
    return build(write_recipe(sampling={"temperature": 0.5, "top_k": 40}), out=tmp_path / "b").bundle.folder


@pytest.fixture
def asked(tmp_path: Path) -> list[object]:
    """Few prompts, few tokens."""
    (tmp_path / "p.yaml").write_text("chat: [hello, good <b>morning</b>]\n'co<py': [again and again]\n")
    return ["--prompts", tmp_path / "p.yaml", "--max-new-tokens", 8, "--repeats", 1]


def test_json(specc: Run, bundle: Path, asked: list[object]) -> None:
    code, out, _ = specc("bench", bundle, *asked, "--json", "--rule", "coupled", "--rule", "rejection")
    found = json.loads(out)
    assert (
        code == 0 and len(found["rows"]) == 2 * 2 * 3 and all(row.keys() >= ROW_KEYS for row in found["rows"])
    )
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
    power = machine.read_power()
    modes = iter(["MODE_15W", "MAXN"])
    monkeypatch.setattr(machine, "read_power", lambda: {**power, "mode": next(modes)})
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
