"""The report as one HTML file: plots inline, nothing from elsewhere, readable on a phone."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from specc.bench import shown
from specc.bench.svg import Bar, bars, lines

Rows = Sequence[Mapping[str, Any]]
STYLE = """
:root{color-scheme:light dark;--line:#8884;--ink:#1c1c1e;--paper:#fff}
@media(prefers-color-scheme:dark){:root{--ink:#eee;--paper:#16161a}}
body{margin:0 auto;padding:1rem;max-width:60rem;font:16px/1.45 system-ui,sans-serif}
body{color:var(--ink);background:var(--paper)}
h1{font-size:1.35rem}h2{font-size:1.1rem;margin-top:2rem}
.plots{display:grid;gap:1rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,22rem),1fr))}
figure{margin:0}figcaption{font-weight:600;margin-bottom:.3rem}
svg{width:100%;height:auto}svg text{font-size:12px;fill:var(--ink)}
.g{stroke:var(--line)}.b{stroke:var(--ink);stroke-dasharray:4 3}.w{stroke:var(--ink);stroke-width:1.5}
.m{fill:var(--paper);stroke:var(--ink);stroke-width:1.5}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.85rem}
th,td{padding:.25rem .6rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th:first-child,td:first-child{text-align:left}.text td{text-align:left;white-space:normal}
"""


def write(found: Mapping[str, Any], path: Path) -> None:
    """Write the page whole or not at all."""
    half = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        half.write_text(page(found), encoding="utf-8")
        os.replace(half, path)
    finally:
        half.unlink(missing_ok=True)


def page(found: Mapping[str, Any]) -> str:
    """The whole document."""
    title = f"specc bench: {found['environment']['name']}"
    settings = dict.fromkeys(map(shown.drawn, found["rows"]))
    rows = {name: [row for row in found["rows"] if shown.drawn(row) == name] for name in settings}
    parts = [f"<h1>{escape(title)}</h1>", headline(found["summary"]), plots(rows)]
    parts += [
        f"<h2>Speed</h2><p>{escape(shown.HEAD)}</p>",
        table(shown.SPEED, shown.speed_lines(found["rows"])),
    ]
    rounds = table(shown.ROUNDS, shown.round_lines(found["rows"]))
    parts += [f"<h2>Rounds</h2><p>{escape(shown.HEAD_ROUNDS)}</p>", rounds]
    machine = table(("what", "value"), shown.machine_lines(found["environment"]), "text")
    parts += ["<h2>Machine</h2>", machine, f"<p>{escape(method(found['task']))}</p>"]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width,initial-scale=1"><title>{escape(title)}</title><style>{STYLE}</style></head>'
        f"<body>{''.join(parts)}</body></html>\n"
    )


def headline(summary: Rows) -> str:
    """One sentence a setting."""
    said = [
        f"{shown.drawn(s)}: {s['mean_speed_up']:.2f} times plain on average over "
        f"{s['classes']} classes, least {s['least_speed_up']:.2f} ({s['least_class']}), "
        f"{s['tokens_per_target_call']:.2f} tokens a target call."
        for s in summary
    ]
    return "".join(f"<p>{escape(text)}</p>" for text in said)


def plots(rows: Mapping[str, Rows]) -> str:
    """Speed, acceptance and waiting."""
    spec = {name: [row for row in some if row["mode"] == "spec"] for name, some in rows.items()}
    classes = list(dict.fromkeys(row["class"] for some in spec.values() for row in some))
    speed = bars(
        "Speed-up by class: median and quartiles over prompts; circles are predicted",
        classes,
        {name: [bar_of(some, c) for c in classes] for name, some in spec.items()},
        "x",
        1.0,
    )
    figures = [("Speed-up against plain (circle: predicted)", speed)]
    for name, some in spec.items():
        by_slot = {
            row["class"]: row["acceptance_by_position"] for row in some if row["acceptance_by_position"]
        }
        if by_slot:
            figures.append(
                (f"Acceptance by position, {name}", lines(f"Acceptance by position, {name}", by_slot))
            )
    figures += [
        (f"Milliseconds a token, median to 99 %, {n}", waiting(some, classes, n)) for n, some in rows.items()
    ]
    parts = (f"<figure><figcaption>{escape(head)}</figcaption>{plot}</figure>" for head, plot in figures)
    return f'<div class="plots">{"".join(parts)}</div>'


def bar_of(some: Rows, name: str) -> Bar | None:
    """Speed-up of one class."""
    row = next((row for row in some if row["class"] == name), None)
    spread = ("speed_up", "speed_up_low", "speed_up_high", "predicted_speed_up")
    return Bar(*(row[key] for key in spread)) if row else None


def waiting(some: Rows, classes: Sequence[str], name: str) -> str:
    """Inter-token latency of both modes: the bar is the median, the whisker reaches p99."""

    def one(row: Mapping[str, Any]) -> Bar | None:
        return (
            Bar(row["itl_ms_p50"], row["itl_ms_p50"], row["itl_ms_p99"])
            if row["itl_ms_p50"] is not None
            else None
        )

    by_mode = {
        mode: {row["class"]: one(row) for row in some if row["mode"] == mode} for mode in ("plain", "spec")
    }
    series = {mode: [by_class.get(c) for c in classes] for mode, by_class in by_mode.items()}
    return bars(f"Milliseconds a token by class, {name}", classes, series)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> str:
    """A table that scrolls by itself on a narrow screen."""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table class="{kind}"><tr>{head}</tr>{body}</table></div>'


def method(task: Mapping[str, Any]) -> str:
    """How it was measured."""
    counts = ", ".join(f"{name} {count}" for name, count in task["classes"].items())
    return (
        f"Prompts: {task['prompts']} ({counts}); {task['repeats']} repeats, at most {task['max_new_tokens']} new "
        "tokens, each from an empty cache. Plain and speculative decoding took turns; a speed-up is the median "
        "over prompts of ratios of neighbouring runs, its whisker the quartiles. A round's tokens share its time."
    )
