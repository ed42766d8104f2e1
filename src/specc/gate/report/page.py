"""The gate's report as HTML: the verdict first, then pictures, then every number in tables.

Numbers of the verdict carry the key of the JSON value that they stand for, so that a test can compare the
two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from specc.gate.report.figures import draw_figures
from specc.report.page import render_document, render_figures, render_table

Report = Mapping[str, Any]
Html = str
FEW = 12
"""Checks of one judge that are listed one by one."""


def render_page(report: Report) -> Html:
    """The whole document."""
    parts = [
        render_header(report),
        "<h2>Verdict</h2>",
        render_verdict(report),
        render_figures(draw_figures(report)),
        render_speed(report),
        render_widths(report),
        render_quality(report),
        render_lint(report),
        render_power(report),
        "<h2>Inputs, versions, machine</h2>",
        render_inputs(report),
        render_all_checks(report),
    ]
    return render_document(f"specc gate: {report['bundle']['name']} {report['verdict']}", parts)


def render_header(report: Report) -> Html:
    """Passed or failed, and why speculation is on or off."""
    passed, speculation = report["verdict"] == "passed", report["speculation"]
    name, machine = escape(report["bundle"]["name"] or "bundle"), report["machine"]
    sub = f"{escape(machine['device'])}, {machine['threads']} threads, {escape(report['date'])}"
    return (
        f'<header class="{"ok" if passed else "no"}"><p class="kicker">specc gate</p><h1>{name}: '
        f'<strong>{escape(report["verdict"])}</strong></h1><p class="why">Speculation is '
        f'{escape(speculation["why"])}.</p><p class="sub">{sub}<br>'
        f'<span class="mono">{escape(report["bundle"]["digest"])}</span></p></header>'
    )


# ---------------------------------------------------------------------- the verdict


def render_verdict(report: Report) -> str:
    """A row for each judge, then its checks one by one where they are few, else those that failed."""
    rows = list[str]()
    for j, judge in enumerate(report["judges"]):
        of_judge = [
            (i, check) for i, check in enumerate(report["checks"]) if name_judge(check) == judge["name"]
        ]
        listed = (
            of_judge if len(of_judge) <= FEW else [(i, check) for i, check in of_judge if not check["passed"]]
        )
        rows.append(render_judge_row(j, judge))
        rows += [render_check_row(i, check) for i, check in listed]
    return render_table("verdict", ("check", "value", "limit", "seed", "verdict"), rows)


def render_judge_row(j: int, judge: Mapping[str, Any]) -> str:
    """How many checks a judge made and how many failed."""
    bad = judge["failed"] > 0
    checks, failed = (render_number(f"judges.{j}.{name}", judge[name]) for name in ("checks", "failed"))
    counts = f"{checks} check{'s' * (judge['checks'] != 1)}, {failed} failed"
    head = f'<th scope="row">{escape(judge["name"])}</th>'
    cells = f'{head}<td colspan="2">{counts}</td><td class="seed"></td>{render_passed(not bad)}'
    return f'<tr class="judge">{cells}</tr>'


def render_check_row(i: int, check: Mapping[str, Any]) -> str:
    """One check: its number against its limit, and the seed that repeats it."""
    cells = "".join(
        f'<td class="num {name}">{render_number(f"checks.{i}.{name}", check[name])}</td>'
        for name in ("value", "limit", "seed")
    )
    what = f'<td class="what">{escape(describe_check(check))}</td>'
    return f"<tr>{what}{cells}{render_passed(check['passed'])}</tr>"


def render_number(key: str, value: Any) -> str:
    """A number with the place of report.json that it stands for; its full digits are its title."""
    return f'<span data-key="{key}" title="{escape(str(value))}">{escape(format_number(value))}</span>'


def render_passed(passed: bool) -> Html:
    """A verdict as word and colour."""
    return f'<td class="{"ok" if passed else "no"}">{"passed" if passed else "FAILED"}</td>'


def name_judge(check: Mapping[str, Any]) -> str:
    """What stands before the colon."""
    return str(check["name"]).partition(":")[0]


def describe_check(check: Mapping[str, Any]) -> str:
    """What stands behind it."""
    judge, _, rest = str(check["name"]).partition(": ")
    return rest or judge


def format_number(value: Any) -> str:
    """Four digits; what is no number as it is."""
    if value is None:
        return "not a number"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


# ---------------------------------------------------------------------- the other tables


def render_speed(report: Report) -> str:
    """By prompt class, temperature and K: predicted speed-up and what it comes from."""
    speed = report.get("speed") or {}
    rows = speed.get("rows") or []
    if not rows:
        return ""
    names = [name for name in rows[0] if name != "by_position"]
    limit, k = format_number(speed.get("limit")), format_number(speed.get("k"))
    sentence = f"Least speed-up that pays: {limit}. Chosen K: {k}."
    return f"<h2>Speed</h2><p>{escape(sentence)}</p>" + render_values(
        [name.replace("_", " ") for name in names], [[row.get(name) for name in names] for row in rows]
    )


def render_widths(report: Report) -> str:
    """What was measured of each width."""
    certificate = report["certificate"]
    names = ("width_class", "rows_different", "max_abs_diff", "call_ms")
    rows = [
        [width, *(certificate[name].get(width) for name in names)] for width in certificate["width_class"]
    ]
    sentence = (
        f"{certificate['rows_compared']} rows compared in {certificate['calls']} calls; "
        f"law width {certificate['law_width']}. "
        "Widths of one class agree bit for bit; class -1 is at odds with itself."
    )
    heads = ("width", "class", "rows different", "largest logit difference", "median ms a call")
    return f"<h2>Widths</h2><p>{escape(sentence)}</p>{render_values(heads, rows)}"


def render_quality(report: Report) -> str:
    """The shipped graph against the float model, measured at build, and the recipe's limits."""
    quality = (report["quality"].get("target") or {}).get("quality") or {}
    limits = report["limits"]
    limit_of = {
        "kl": limits.get("kl_max"),
        "top1": limits.get("top1_min"),
        "perplexity_ratio": limits.get("perplexity_max"),
    }
    rows = [
        [name, value, "none" if limit_of.get(name) is None else limit_of[name]]
        for name, value in quality.items()
    ]
    sentence = "Measured at build on held-out text, against the float model."
    return (
        f"<h2>Quality</h2><p>{sentence}</p>{render_values(('number', 'value', 'limit'), rows)}"
        if rows
        else ""
    )


def render_lint(report: Report) -> str:
    """Findings on the target's graph, if any."""
    rows = [[f.get(name, "") for name in ("node", "op", "why", "fix")] for f in report["lint"]["findings"]]
    return f"<h2>Lint</h2>{render_values(('node', 'op', 'why', 'fix'), rows, 'text')}" if rows else ""


def render_power(report: Report) -> str:
    """What the statistical judges can see."""
    parts = [(judge.replace("_", " "), report[judge]) for judge in ("law", "two_sample") if report.get(judge)]
    rows = [
        [f"{judge}: {name.replace('_', ' ')}", value]
        for judge, values in parts
        for name, value in values.items()
    ]
    return (
        f"<h2>Power of the statistical judges</h2>{render_values(('what', 'value'), rows, 'text')}"
        if rows
        else ""
    )


def render_inputs(report: Report) -> str:
    """Everything that a repetition needs."""
    rows = [
        [f"{part}: {name}", value]
        for part in ("inputs", "limits", "engine", "machine")
        for name, value in flatten(report[part])
    ]
    rows += [["specc", report["specc"]], ["date", report["date"]]]
    return render_values(("what", "value"), rows, "text")


def flatten(values: Mapping[str, Any], stem: str = "") -> Iterable[tuple[str, Any]]:
    """Nested names joined by points."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{stem}{name}.")
        else:
            yield f"{stem}{name}".replace("_", " "), value


def render_all_checks(report: Report) -> str:
    """Every single check, folded."""
    rows = [
        [
            check["name"],
            check["value"],
            check["limit"],
            check["seed"],
            "passed" if check["passed"] else "FAILED",
        ]
        for check in report["checks"]
    ]
    body = render_values(("check", "value", "limit", "seed", "verdict"), rows)
    return f"<details><summary>All {len(rows)} checks</summary>{body}</details>"


def render_values(heads: Sequence[str], rows: Sequence[Sequence[Any]], kind: str = "") -> str:
    """A table of values."""
    return render_table(
        kind, heads, ["<tr>" + "".join(render_cell(value) for value in row) + "</tr>" for row in rows]
    )


def render_cell(value: Any) -> Html:
    """Numbers to the right, words to the left, flags as words."""
    if isinstance(value, bool):
        value = "yes" if value else "no"
    kind = "num" if isinstance(value, (int, float)) else "what"
    return f'<td class="{kind}">{escape("none" if value is None else format_number(value))}</td>'
