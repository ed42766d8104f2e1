"""The report's pictures: each a head, its SVG and a sentence on how to read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specc.gate.report.plots import Cells, Line, bars, cell_map, lines

Report = Mapping[str, Any]
Figure = tuple[str, str, str]
MOST = 40  # groups of layers in one picture


def figures(report: Report) -> list[Figure]:
    """Bit equality of slot and width, cost against rows, acceptance by position, KL by layer group; what exists."""
    found = [equality(report), cost(report), acceptance(report), layers(report)]
    return [figure for figure in found if figure is not None]


def acceptance(report: Report) -> Figure | None:
    """How often slot i of a round is accepted, given that it was reached, at the largest K that was tried."""
    rows = [row for row in (report.get("speed") or {}).get("rows") or [] if row.get("proposing")]
    if not rows:
        return None
    most = max(row["k"] for row in rows)
    series = [
        Line(f"{row['prompt_class']}, T={row['temperature']:g}", points(row["by_position"]))
        for row in rows
        if row["k"] == most
    ]
    head = f"Acceptance by position, K = {most}"
    note = "Chance that a proposed token stands, given that all before it did; over the gate's own prompts."
    return head, lines(head, series, "slot of the round", 1.0), note


def points(values: Sequence[float]) -> tuple[tuple[float, float], ...]:
    """(1, first), (2, second), ..."""
    return tuple((float(i), value) for i, value in enumerate(values, 1))


def cost(report: Report) -> Figure | None:
    """Milliseconds of a call by its rows, and what as many plain calls would cost."""
    found = report["certificate"]
    times = {int(width): ms for width, ms in found["call_ms"].items() if ms}
    shown = {width: ms for width, ms in times.items() if width <= 17}
    plain = times.get(found["law_width"], 0.0)
    if len(shown) < 2 or not plain:
        return None
    guide = Line("as many plain calls", tuple((float(w), plain * w) for w in (min(shown), max(shown))), True)
    series = [Line("one call", tuple((float(w), ms) for w, ms in sorted(shown.items()))), guide]
    wide = [f"{width} rows (prompt chunk): {ms:.4g} ms." for width, ms in sorted(times.items()) if width > 17]
    note = [
        "Median milliseconds of a call on this machine. Speculation pays where the line stays flat.",
        *wide,
    ]
    plot = lines("Milliseconds of a target call against its rows", series, "rows in a call")
    return "Cost against rows: milliseconds a call", plot, " ".join(note)


def layers(report: Report) -> Figure | None:
    """KL when one group alone is quantized, where the build measured it."""
    groups = (report["quality"].get("target") or {}).get("sensitivity") or []
    if not groups:
        return None
    worst = sorted(groups, key=lambda group: -(group["kl"] or 0))[:MOST]
    shown = [group for group in groups if group in worst]
    values = {group["group"]: float(group["kl"] or 0) for group in shown}
    note = "KL to the float model in nats a token when this group alone is quantized, on held-out text."
    if len(groups) > len(shown):
        note += f" The {len(shown)} worst of {len(groups)} groups; all are in the JSON."
    return "KL by layer group", bars("KL by layer group", values), note


def equality(report: Report) -> Figure | None:
    """Slot by width: equal to the same position alone, bit for bit, or not."""
    found = report.get("slots")
    if not found:
        return None
    rows = [
        Cells(
            str(row["width"]),
            tuple(part(d, c) for d, c in zip(row["different"], row["compared"], strict=True)),
        )
        for row in found["rows"]
    ]
    cells = [cell for row in rows for cell in row.wrong if cell is not None]
    bad = sum(cell > 0 for cell in cells)
    note = (
        f"Each row of a call of so many rows against the same position alone at width {found['law_width']}, behind "
        f"{', '.join(map(str, found['pasts']))} cache entries: {bad} of {len(cells)} slots differ. "
        "= equal bits, \u2260 other bits."
    )
    head = "Bit equality: width (down) by slot (across)"
    return head, cell_map(head, rows, "slot of the row in its call"), note


def part(different: int, compared: int) -> float | None:
    """The part that differs, None where nothing was compared."""
    return different / compared if compared else None
