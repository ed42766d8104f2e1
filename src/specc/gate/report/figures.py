"""The pictures of the gate's report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specc.report.page import Figure
from specc.report.plots import CellRow, Line, draw_cell_map, draw_lines, draw_named_bars

Report = Mapping[str, Any]
MOST_GROUPS = 40
"""Groups of layers in one picture."""


def draw_figures(report: Report) -> list[Figure]:
    """Bit equality of slot and width, cost against rows, acceptance by position, KL by layer group; what
    exists.
    """
    figures = [draw_equality(report), draw_cost(report), draw_acceptance(report), draw_layers(report)]
    return [figure for figure in figures if figure is not None]


def draw_acceptance(report: Report) -> Figure | None:
    """How often slot i of a round is accepted, given that it was reached, at the largest K that was tried."""
    rows = [row for row in (report.get("speed") or {}).get("rows") or [] if row.get("proposing")]
    if not rows:
        return None
    most = max(row["k"] for row in rows)
    series = [
        Line(f"{row['prompt_class']}, T={row['temperature']:g}", number_points(row["by_position"]))
        for row in rows
        if row["k"] == most
    ]
    caption = f"Acceptance by position, K = {most}"
    note = (
        "Chance that a proposed token is accepted, given that all before it were; "
        "over the gate's own prompts."
    )
    return Figure(caption, draw_lines(caption, series, "slot of the round", 1.0), note)


def number_points(values: Sequence[float]) -> tuple[tuple[float, float], ...]:
    """(1, first), (2, second), ..."""
    return tuple((float(i), value) for i, value in enumerate(values, 1))


def draw_cost(report: Report) -> Figure | None:
    """Milliseconds of a call by its rows, and what as many plain calls would cost."""
    certificate = report["certificate"]
    times = {int(width): ms for width, ms in certificate["call_ms"].items() if ms}
    narrow = {width: ms for width, ms in times.items() if width <= 17}
    plain = times.get(certificate["law_width"], 0.0)
    if len(narrow) < 2 or not plain:
        return None
    ends = (min(narrow), max(narrow))
    guide = Line("as many plain calls", tuple((float(w), plain * w) for w in ends), True)
    series = [Line("one call", tuple((float(w), ms) for w, ms in sorted(narrow.items()))), guide]
    wide = [f"{width} rows (prompt chunk): {ms:.4g} ms." for width, ms in sorted(times.items()) if width > 17]
    note = [
        "Median milliseconds of a call on this machine. Speculation pays where the line stays flat.",
        *wide,
    ]
    plot = draw_lines("Milliseconds of a target call against its rows", series, "rows in a call")
    return Figure("Cost against rows: milliseconds a call", plot, " ".join(note))


def draw_layers(report: Report) -> Figure | None:
    """KL when one group alone is quantized, where the build measured it."""
    groups = (report["quality"].get("target") or {}).get("sensitivity") or []
    if not groups:
        return None
    worst = sorted(groups, key=lambda group: -(group["kl"] or 0))[:MOST_GROUPS]
    drawn = [group for group in groups if group in worst]
    values = {group["group"]: float(group["kl"] or 0) for group in drawn}
    note = "KL to the float model in nats a token when this group alone is quantized, on held-out text."
    if len(groups) > len(drawn):
        note += f" The {len(drawn)} worst of {len(groups)} groups; all are in the JSON."
    return Figure("KL by layer group", draw_named_bars("KL by layer group", values), note)


def draw_equality(report: Report) -> Figure | None:
    """Slot by width: equal to the same position alone, bit for bit, or not."""
    slots = report.get("slots")
    if not slots:
        return None
    rows = [
        CellRow(str(row["width"]), tuple(map(divide, row["different"], row["compared"])))
        for row in slots["rows"]
    ]
    cells = [cell for row in rows for cell in row.wrong if cell is not None]
    bad = sum(cell > 0 for cell in cells)
    note = (
        f"Each row of a call of so many rows against the same position alone at width {slots['law_width']}, "
        f"behind {', '.join(map(str, slots['pasts']))} cache entries: {bad} of {len(cells)} slots differ. "
        "= equal bits, \u2260 other bits."
    )
    caption = "Bit equality: width (down) by slot (across)"
    return Figure(caption, draw_cell_map(caption, rows, "slot of the row in its call"), note)


def divide(different: int, compared: int) -> float | None:
    """The part that differs, None where nothing was compared."""
    return different / compared if compared else None
