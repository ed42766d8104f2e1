"""The report's plots as SVG text: lines over a row of numbers, bars of named values, and a map of cells.

Small enough for a phone: 380 units wide, so that letters stay readable when the picture is as wide as the screen.
Colours are classes of the page's style, each with a mark or a dash of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from specc.report.svg import picture, text, ticks

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 380, 44, 10, 12, 34
SERIES = 6  # styles s0 .. s5


@dataclass(frozen=True)
class Line:
    """One series: points (x, y) in x's order; a guide has no marks and a grey dash."""

    name: str
    points: tuple[tuple[float, float], ...]
    guide: bool = False


def lines(title: str, series: Sequence[Line], x_name: str, top: float | None = None, unit: str = "") -> str:
    """Series over whole numbers; `top` is the upper end of the y axis where it is known."""
    xs = sorted({x for line in series for x, _ in line.points})
    marks = ticks(top or max((y for line in series for _, y in line.points), default=1.0))
    legend_rows = (len(series) + 1) // 2
    height = 190 + TOP + BOTTOM + 16 * legend_rows
    floor = TOP + 190

    def place(point: tuple[float, float]) -> tuple[float, float]:
        span = (xs[-1] - xs[0]) or 1
        x = LEFT + 14 + (WIDTH - LEFT - RIGHT - 28) * (point[0] - xs[0]) / span
        return x, floor - 190 * point[1] / marks[-1]

    parts = [grid(mark, floor - 190 * mark / marks[-1], unit) for mark in marks]
    parts += [text(place((x, 0))[0], floor + 15, f"{x:g}", "middle") for x in xs]
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, floor + 30, x_name, "middle"))
    number = 0
    for line in series:
        style = "guide" if line.guide else f"s{number % SERIES}"
        parts.append(path_of([place(point) for point in line.points], style, line))
        number += not line.guide
    return picture(title, WIDTH, height, parts + legend(series, floor + 46))


def path_of(places: Sequence[tuple[float, float]], style: str, line: Line) -> str:
    """A polyline and its marks, each of which tells its number."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    out = f'<polyline class="line {style}" points="{path}"/>'
    for (x, y), (at, value) in zip(places, line.points, strict=True):
        if not line.guide:
            tip = f"<title>{escape(line.name)}, {at:g}: {value:.4g}</title>"
            out += f'<circle class="dot {style}" cx="{x:.1f}" cy="{y:.1f}" r="3.5">{tip}</circle>'
    return out


def legend(series: Sequence[Line], top: float) -> list[str]:
    """Two names a row under the plot."""
    parts, number = [], 0
    for i, line in enumerate(series):
        style = "guide" if line.guide else f"s{number % SERIES}"
        number += not line.guide
        x, y = (LEFT - 30, LEFT + 140)[i % 2], top + 16 * (i // 2)
        parts.append(f'<line class="line {style}" x1="{x}" x2="{x + 22}" y1="{y - 4}" y2="{y - 4}"/>')
        parts.append(text(x + 28, y, line.name))
    return parts


def bars(title: str, values: Mapping[str, float]) -> str:
    """One bar a name, the names on the left, the numbers at the bars' ends."""
    most, row, names = max([*values.values(), 1e-300]), 18, 108
    room, parts = WIDTH - names - 62, []
    for i, (name, value) in enumerate(values.items()):
        y, wide = TOP + row * i, max(room * value / most, 1.0)
        parts.append(text(names - 6, y + 12, name[:18], "end"))
        parts.append(f'<rect class="bar" x="{names}" y="{y + 2}" width="{wide:.1f}" height="{row - 5}"/>')
        parts.append(text(names + wide + 5, y + 12, f"{value:.3g}"))
    return picture(title, WIDTH, TOP + row * len(values) + 6, parts)


@dataclass(frozen=True)
class Cells:
    """One row of a map: a name and for each cell the part that is wrong, None where nothing was measured."""

    name: str
    wrong: tuple[float | None, ...]


def cell_map(title: str, rows: Sequence[Cells], x_name: str) -> str:
    """Rows of few cells share one scale; a row of many has a strip of its own below."""
    few = [row for row in rows if len(row.wrong) <= 17]
    widest, room = max((len(row.wrong) for row in few), default=1), WIDTH - LEFT - RIGHT
    parts, y, size = [], float(TOP), min(34.0, room / widest)
    for row in few:
        parts.append(cells(row, y, size, 22))
        y += 25
    parts += [text(LEFT + size * (i + 0.5), y + 12, str(i), "middle") for i in range(widest)] if few else []
    y += 30 if few else 0
    for row in (row for row in rows if len(row.wrong) > 17):
        parts.append(cells(row, y, room / len(row.wrong), 18))
        y += 22
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, y + 12, x_name, "middle"))
    return picture(title, WIDTH, int(y) + 20, parts)


def cells(row: Cells, y: float, size: float, tall: float) -> str:
    """One row of cells; wide ones also carry a sign, so that colour is not needed."""
    out = text(LEFT - 8, y + tall / 2 + 4, row.name, "end")
    for i, wrong in enumerate(row.wrong):
        kind = "none" if wrong is None else "bad" if wrong else "good"
        x, gap = LEFT + size * i, 1.5 if size > 8 else 0.4
        box = f'x="{x:.2f}" y="{y:.1f}" width="{size - gap:.2f}" height="{tall}"'
        out += f'<rect class="cell {kind}" {box}/>'
        if size > 14:
            sign = {"none": "?", "bad": "\u2260", "good": "="}[kind]
            out += f'<text class="sign {kind}" x="{x + size / 2 - 0.7:.1f}" y="{y + tall / 2 + 4:.1f}">{sign}</text>'
    return out


def grid(mark: float, y: float, unit: str) -> str:
    """A level of the y axis with its number."""
    line = f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
    return line + text(LEFT - 6, y + 4, f"{mark:g}{unit}", "end")
