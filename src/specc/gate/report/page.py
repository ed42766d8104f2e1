"""report.html: one file that needs nothing else; the verdict first, then pictures, then every number in tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from specc.gate.report.figures import figures
from specc.gate.report.style import STYLE

Report = Mapping[str, Any]
Cell = str  # HTML of one <td>
FEW = 12  # checks of one judge that are listed one by one


def render_page(report: Report) -> str:
    """The whole document."""
    title = f"specc gate: {report['bundle']['name']} {report['verdict']}"
    pictures = "".join(
        f"<figure><figcaption>{escape(head)}</figcaption>{body}<p>{escape(note)}</p></figure>"
        for head, body, note in figures(report)
    )
    parts = [
        head_of(report),
        "<h2>Verdict</h2>",
        verdict_table(report),
        f'<div class="plots">{pictures}</div>',
        speed_part(report),
        width_part(report),
        quality_part(report),
        lint_part(report),
        power_part(report),
        "<h2>Inputs, versions, machine</h2>",
        facts(report),
        all_checks(report),
    ]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width,initial-scale=1"><title>{escape(title)}</title><style>{STYLE}</style>'
        f"</head><body><main>{''.join(parts)}</main></body></html>\n"
    )


def head_of(report: Report) -> str:
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


def verdict_table(report: Report) -> str:
    """A row for each judge, then its checks one by one where they are few, else those that failed."""
    rows = list[str]()
    for j, judge in enumerate(report["judges"]):
        mine = [(i, check) for i, check in enumerate(report["checks"]) if judge_of(check) == judge["name"]]
        shown = mine if len(mine) <= FEW else [(i, check) for i, check in mine if not check["passed"]]
        rows.append(judge_row(j, judge))
        rows += [check_row(i, check) for i, check in shown]
    return table("verdict", ("check", "value", "limit", "seed", "verdict"), rows)


def judge_row(j: int, judge: Mapping[str, Any]) -> str:
    """How many checks a judge made and how many failed."""
    bad = judge["failed"] > 0
    checks, failed = (linked(f"judges.{j}.{name}", judge[name]) for name in ("checks", "failed"))
    counts = f"{checks} check{'s' * (judge['checks'] != 1)}, {failed} failed"
    head = f'<th scope="row">{escape(judge["name"])}</th>'
    return f'<tr class="judge">{head}<td colspan="2">{counts}</td><td class="seed"></td>{sign(not bad)}</tr>'


def check_row(i: int, check: Mapping[str, Any]) -> str:
    """One check: its number against its limit, and the seed that repeats it."""
    cells = "".join(
        f'<td class="num {name}">{linked(f"checks.{i}.{name}", check[name])}</td>'
        for name in ("value", "limit", "seed")
    )
    return f'<tr><td class="what">{escape(words_of(check))}</td>{cells}{sign(check["passed"])}</tr>'


def linked(key: str, value: Any) -> str:
    """A number with the place of report.json that it stands for; its full digits are its title."""
    return f'<span data-key="{key}" title="{escape(str(value))}">{escape(number(value))}</span>'


def sign(passed: bool) -> Cell:
    """A verdict as word and colour."""
    return f'<td class="{"ok" if passed else "no"}">{"passed" if passed else "FAILED"}</td>'


def judge_of(check: Mapping[str, Any]) -> str:
    """What stands before the colon."""
    return str(check["name"]).partition(":")[0]


def words_of(check: Mapping[str, Any]) -> str:
    """What stands behind it."""
    judge, _, rest = str(check["name"]).partition(": ")
    return rest or judge


def number(value: Any) -> str:
    """Four digits; what is no number as it is."""
    if value is None:
        return "not a number"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


# ---------------------------------------------------------------------- the other tables


def speed_part(report: Report) -> str:
    """By prompt class, temperature and K: predicted speed-up and what it comes from."""
    speed = report.get("speed") or {}
    rows = speed.get("rows") or []
    if not rows:
        return ""
    names = [name for name in rows[0] if name != "by_position"]
    said = f"Least speed-up that pays: {number(speed.get('limit'))}. Chosen K: {number(speed.get('k'))}."
    return f"<h2>Speed</h2><p>{escape(said)}</p>" + plain_table(
        [name.replace("_", " ") for name in names], [[row.get(name) for name in names] for row in rows]
    )


def width_part(report: Report) -> str:
    """What was measured of each width."""
    found = report["certificate"]
    names = ("width_class", "rows_different", "max_abs_diff", "call_ms")
    rows = [[width, *(found[name].get(width) for name in names)] for width in found["width_class"]]
    said = (
        f"{found['rows_compared']} rows compared in {found['calls']} calls; law width {found['law_width']}. "
        "Widths of one class agree bit for bit; class -1 is at odds with itself."
    )
    heads = ("width", "class", "rows different", "largest logit difference", "median ms a call")
    return f"<h2>Widths</h2><p>{escape(said)}</p>{plain_table(heads, rows)}"


def quality_part(report: Report) -> str:
    """The shipped graph against the float model, measured at build, and the recipe's limits."""
    found = (report["quality"].get("target") or {}).get("quality") or {}
    limits = report["limits"]
    held = {
        "kl": limits.get("kl_max"),
        "top1": limits.get("top1_min"),
        "perplexity_ratio": limits.get("perplexity_max"),
    }
    rows = [[name, value, "none" if held.get(name) is None else held[name]] for name, value in found.items()]
    said = "Measured at build on held-out text, against the float model."
    return f"<h2>Quality</h2><p>{said}</p>{plain_table(('number', 'value', 'limit'), rows)}" if rows else ""


def lint_part(report: Report) -> str:
    """Findings on the target's graph, if any."""
    rows = [[f.get(name, "") for name in ("node", "op", "why", "fix")] for f in report["lint"]["findings"]]
    return f"<h2>Lint</h2>{plain_table(('node', 'op', 'why', 'fix'), rows, 'text')}" if rows else ""


def power_part(report: Report) -> str:
    """What the statistical judges can see."""
    parts = [(judge.replace("_", " "), report[judge]) for judge in ("law", "two_sample") if report.get(judge)]
    rows = [
        [f"{judge}: {name.replace('_', ' ')}", value]
        for judge, found in parts
        for name, value in found.items()
    ]
    return (
        f"<h2>Power of the statistical judges</h2>{plain_table(('what', 'value'), rows, 'text')}"
        if rows
        else ""
    )


def facts(report: Report) -> str:
    """Everything that a repetition needs."""
    rows = [
        [f"{part}: {name}", value]
        for part in ("inputs", "limits", "engine", "machine")
        for name, value in flat(report[part])
    ]
    rows += [["specc", report["specc"]], ["date", report["date"]]]
    return plain_table(("what", "value"), rows, "text")


def flat(values: Mapping[str, Any], stem: str = "") -> Iterable[tuple[str, Any]]:
    """Nested names joined by points."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{stem}{name}.")
        else:
            yield f"{stem}{name}".replace("_", " "), value


def all_checks(report: Report) -> str:
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
    body = plain_table(("check", "value", "limit", "seed", "verdict"), rows)
    return f"<details><summary>All {len(rows)} checks</summary>{body}</details>"


def plain_table(heads: Sequence[str], rows: Sequence[Sequence[Any]], kind: str = "") -> str:
    """A table of values."""
    return table(
        kind, heads, ["<tr>" + "".join(value_cell(value) for value in row) + "</tr>" for row in rows]
    )


def value_cell(value: Any) -> Cell:
    """Numbers to the right, words to the left, flags as words."""
    if isinstance(value, bool):
        value = "yes" if value else "no"
    kind = "num" if isinstance(value, (int, float)) else "what"
    return f'<td class="{kind}">{escape("none" if value is None else number(value))}</td>'


def table(kind: str, heads: Sequence[str], rows: Sequence[str]) -> str:
    """A table that scrolls by itself where the screen is narrow."""
    head = "".join(f'<th class="{escape(name.split()[0])}">{escape(name)}</th>' for name in heads)
    return (
        f'<div class="wide"><table class="{kind}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )
