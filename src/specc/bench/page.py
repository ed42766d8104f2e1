"""The report of `specc bench` as one HTML file: plots inline, nothing loaded from elsewhere, readable on a
phone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from specc.bench import tables
from specc.report.page import Figure, render_document, render_figures, render_table, write_whole
from specc.report.plots import Bar, Line, draw_bar_groups, draw_lines

Rows = Sequence[Mapping[str, Any]]


def write_page(report: Mapping[str, Any], path: Path) -> None:
    """Writes the page whole or not at all. Raises OSError."""
    write_whole(path, render_page(report))


def render_page(report: Mapping[str, Any]) -> str:
    """The whole document."""
    title = f"specc bench: {report['environment']['name']}"
    speed = tables.tabulate_speed(report["rows"])
    rounds = tables.tabulate_rounds(report["rows"])
    machine = tables.tabulate_machine(report["environment"])
    parts = [
        f"<h1>{escape(title)}</h1>",
        render_summary(report["summary"]),
        render_figures(draw_figures(group_by_setting(report["rows"]))),
        f"<h2>Speed</h2><p>{escape(speed.title)}</p>{render_cells(speed)}",
        f"<h2>Rounds</h2><p>{escape(rounds.title)}</p>{render_cells(rounds)}",
        f"<h2>Machine</h2>{render_cells(machine, 'text')}",
        f"<p>{escape(describe_method(report['task']))}</p>",
    ]
    return render_document(title, parts)


def group_by_setting(rows: Rows) -> dict[str, Rows]:
    """Rows by how tokens were drawn, in the order of the report."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tables.name_setting(row), []).append(row)
    return dict(groups)


def render_summary(summary: Rows) -> str:
    """One sentence for each setting."""
    sentences = [
        f"{tables.name_setting(s)}: {s['mean_speed_up']:.2f} times plain on average over "
        f"{s['classes']} classes, least {s['least_speed_up']:.2f} ({s['least_class']}), "
        f"{s['tokens_per_target_call']:.2f} tokens a target call."
        for s in summary
    ]
    return "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)


def draw_figures(by_setting: Mapping[str, Rows]) -> list[Figure]:
    """Speed-up by class; acceptance by position and inter-token latency for each setting."""
    spec = {name: [row for row in rows if row["mode"] == "spec"] for name, rows in by_setting.items()}
    classes = list(dict.fromkeys(row["class"] for rows in spec.values() for row in rows))
    speed = draw_bar_groups(
        "Speed-up by class: median and quartiles over prompts; circles are predicted",
        classes,
        {name: [make_speed_bar(rows, c) for c in classes] for name, rows in spec.items()},
        "x",
        1.0,
    )
    figures = [Figure("Speed-up against plain (circle: predicted)", speed)]
    for name, rows in spec.items():
        series = [
            Line(row["class"], tuple((float(i), p) for i, p in enumerate(row["acceptance_by_position"], 1)))
            for row in rows
            if row["acceptance_by_position"]
        ]
        if series:
            caption = f"Acceptance by position, {name}"
            figures.append(Figure(caption, draw_lines(caption, series, "slot of the round")))
    for name, both in by_setting.items():
        caption = f"Milliseconds a token, median to 99 %, {name}"
        figures.append(Figure(caption, draw_latency(both, classes, name)))
    return figures


def make_speed_bar(rows: Rows, name: str) -> Bar | None:
    """Speed-up of one class."""
    row = next((row for row in rows if row["class"] == name), None)
    keys = ("speed_up", "speed_up_low", "speed_up_high", "predicted_speed_up")
    return Bar(*(row[key] for key in keys)) if row else None


def draw_latency(rows: Rows, classes: Sequence[str], name: str) -> str:
    """Inter-token latency of both modes: the bar is the median, the whisker reaches p99."""

    def make_bar(row: Mapping[str, Any]) -> Bar | None:
        median, p99 = row["itl_ms_p50"], row["itl_ms_p99"]
        return None if median is None else Bar(median, median, p99)

    by_mode = {
        mode: {row["class"]: make_bar(row) for row in rows if row["mode"] == mode}
        for mode in ("plain", "spec")
    }
    series = {mode: [by_class.get(c) for c in classes] for mode, by_class in by_mode.items()}
    return draw_bar_groups(f"Milliseconds a token by class, {name}", classes, series)


def render_cells(table: tables.Table, kind: str = "") -> str:
    """A table: the first column is text, the others are numbers."""
    rows = [
        "<tr>"
        + "".join(f'<td class="{"num" if i else "what"}">{escape(cell)}</td>' for i, cell in enumerate(row))
        + "</tr>"
        for row in table.rows
    ]
    return render_table(kind, table.columns, rows)


def describe_method(task: Mapping[str, Any]) -> str:
    """How it was measured."""
    counts = ", ".join(f"{name} {count}" for name, count in task["classes"].items())
    return (
        f"Prompts: {task['prompts']} ({counts}); {task['repeats']} repeats, at most {task['max_new_tokens']} "
        "new tokens, each from an empty cache. Plain and speculative decoding took turns; a speed-up is the "
        "median over prompts of ratios of neighbouring runs, its whisker the quartiles. A round's tokens "
        "share its time."
    )
