"""Plots as SVG text: lines over whole numbers, groups of bars with a spread, named bars, a map of cells.

Pictures are 380 units wide, so that letters stay readable on a phone, and need no fonts, scripts or files.
Colours are classes of the page's style sheet (s0 to s5), each line with a dash of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, LEFT, RIGHT, TOP = 380, 44, 10, 12
HEIGHT = 190
"""Of the area within the axes."""
FLOOR = TOP + HEIGHT
"""y of the x axis."""
STYLES = 6


@dataclass(frozen=True)
class Line:
    """One series of a line plot: points (x, y) in x's order; a guide has no marks and a grey dash."""

    name: str
    points: tuple[tuple[float, float], ...]
    guide: bool = False


@dataclass(frozen=True)
class Bar:
    """One bar: a value, the range around it, and a prediction drawn as a circle."""

    value: float
    low: float | None = None
    high: float | None = None
    predicted: float | None = None


@dataclass(frozen=True)
class CellRow:
    """One row of a map: a name and for each cell the part that is wrong, None where nothing was measured."""

    name: str
    wrong: tuple[float | None, ...]


# ---------------------------------------------------------------------- whole plots


def draw_lines(
    title: str, series: Sequence[Line], x_name: str, top: float | None = None, unit: str = ""
) -> str:
    """Series over whole numbers; `top` is the upper end of the y axis where it is known."""
    xs = sorted({x for line in series for x, _ in line.points})
    ticks = choose_ticks(top or max((y for line in series for _, y in line.points), default=1.0))

    def place(point: tuple[float, float]) -> tuple[float, float]:
        span = (xs[-1] - xs[0]) or 1
        x = LEFT + 14 + (WIDTH - LEFT - RIGHT - 28) * (point[0] - xs[0]) / span
        return x, FLOOR - HEIGHT * point[1] / ticks[-1]

    parts = draw_axis(ticks, unit)
    parts += [draw_text(place((x, 0))[0], FLOOR + 15, f"{x:g}", "middle") for x in xs]
    parts.append(draw_text((LEFT + WIDTH - RIGHT) / 2, FLOOR + 30, x_name, "middle"))
    styles = choose_styles(series)
    for line, style in zip(series, styles, strict=True):
        parts.append(draw_path([place(point) for point in line.points], style, line))
    parts += draw_legend([line.name for line in series], [f"line {style}" for style in styles], FLOOR + 46)
    return wrap_picture(title, FLOOR + 34 + 16 * ((len(series) + 1) // 2), parts)


def draw_bar_groups(
    title: str,
    groups: Sequence[str],
    series: Mapping[str, Sequence[Bar | None]],
    unit: str = "",
    base: float | None = None,
) -> str:
    """One group of bars for each name, in it one bar for each series; `base` is a level to compare with."""
    bars = [bar for row in series.values() for bar in row if bar]
    heights = [y for bar in bars for y in (bar.value, bar.high or 0, bar.predicted or 0)]
    ticks = choose_ticks(max([*heights, base or 0]))
    span = (WIDTH - LEFT - RIGHT) / max(len(groups), 1)
    wide = 0.8 * span / max(len(series), 1)
    parts = draw_axis(ticks, unit)
    for s, (name, row) in enumerate(series.items()):
        for g, bar in enumerate(row):
            if bar is not None:
                left = LEFT + span * (g + 0.1) + wide * s
                parts.append(draw_bar(bar, left, wide * 0.9, HEIGHT / ticks[-1], f"f{s % STYLES}", name))
    if base is not None:
        parts.append(draw_level("base", FLOOR - HEIGHT * base / ticks[-1]))
    parts += [
        draw_text(LEFT + span * (g + 0.5), FLOOR + 15, name[:14], "middle") for g, name in enumerate(groups)
    ]
    parts += draw_legend(list(series), [f"swatch s{s % STYLES}" for s in range(len(series))], FLOOR + 34)
    return wrap_picture(title, FLOOR + 24 + 16 * ((len(series) + 1) // 2), parts)


def draw_named_bars(title: str, values: Mapping[str, float]) -> str:
    """One horizontal bar for each name, the names on the left, the numbers at the bars' ends."""
    most, row, names = max([*values.values(), 1e-300]), 18, 108
    room, parts = WIDTH - names - 62, []
    for i, (name, value) in enumerate(values.items()):
        y, wide = TOP + row * i, max(room * value / most, 1.0)
        parts.append(draw_text(names - 6, y + 12, name[:18], "end"))
        parts.append(f'<rect class="f0" x="{names}" y="{y + 2}" width="{wide:.1f}" height="{row - 5}"/>')
        parts.append(draw_text(names + wide + 5, y + 12, f"{value:.3g}"))
    return wrap_picture(title, TOP + row * len(values) + 6, parts)


def draw_cell_map(title: str, rows: Sequence[CellRow], x_name: str) -> str:
    """Rows of at most 17 cells share one scale; a row of more has a strip of its own below."""
    few = [row for row in rows if len(row.wrong) <= 17]
    widest, room = max((len(row.wrong) for row in few), default=1), WIDTH - LEFT - RIGHT
    parts, y, size = [], float(TOP), min(34.0, room / widest)
    for row in few:
        parts.append(draw_cells(row, y, size, 22))
        y += 25
    if few:
        parts += [draw_text(LEFT + size * (i + 0.5), y + 12, str(i), "middle") for i in range(widest)]
        y += 30
    for row in (row for row in rows if len(row.wrong) > 17):
        parts.append(draw_cells(row, y, room / len(row.wrong), 18))
        y += 22
    parts.append(draw_text((LEFT + WIDTH - RIGHT) / 2, y + 12, x_name, "middle"))
    return wrap_picture(title, int(y) + 20, parts)


# ---------------------------------------------------------------------- parts of a plot


def choose_ticks(most: float) -> list[float]:
    """About four round numbers from 0 to at least `most`; 0 and 1 where `most` is no positive number."""
    if not most > 0 or not math.isfinite(most):
        return [0.0, 1.0]
    unit = 10.0 ** math.floor(math.log10(most / 4))
    step = next(unit * m for m in (1, 2, 2.5, 5, 10) if unit * m >= most / 4 * (1 - 1e-9))
    return [step * i for i in range(math.ceil(most / step - 1e-9) + 1)]


def choose_styles(series: Sequence[Line]) -> list[str]:
    """A style class for each line: s0, s1, ... in turn, `guide` for guides."""
    styles, number = [], 0
    for line in series:
        styles.append("guide" if line.guide else f"s{number % STYLES}")
        number += not line.guide
    return styles


def draw_axis(ticks: Sequence[float], unit: str) -> list[str]:
    """Levels of the y axis with their numbers."""
    parts = []
    for tick in ticks:
        y = FLOOR - HEIGHT * tick / ticks[-1]
        parts.append(draw_level("grid", y) + draw_text(LEFT - 6, y + 4, f"{tick:g}{unit}", "end"))
    return parts


def draw_level(kind: str, y: float) -> str:
    """A line across the plot."""
    return f'<line class="{kind}" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'


def draw_path(places: Sequence[tuple[float, float]], style: str, line: Line) -> str:
    """A polyline and its marks, whose tooltips give the numbers."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    out = f'<polyline class="line {style}" points="{path}"/>'
    for (x, y), (at, value) in zip(places, line.points, strict=True):
        if not line.guide:
            tip = f"<title>{escape(line.name)}, {at:g}: {value:.4g}</title>"
            out += f'<circle class="dot {style}" cx="{x:.1f}" cy="{y:.1f}" r="3.5">{tip}</circle>'
    return out


def draw_bar(bar: Bar, left: float, wide: float, scale: float, style: str, name: str) -> str:
    """A bar, the whisker of its range and the circle of its prediction; scale: units of height for 1."""
    middle, top = left + wide / 2, FLOOR - scale * bar.value
    out = (
        f'<rect class="{style}" x="{left:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{FLOOR - top:.1f}">'
        f"<title>{escape(name)}: {bar.value:.3g}</title></rect>"
    )
    if bar.low is not None and bar.high is not None:
        low, high = FLOOR - scale * bar.low, FLOOR - scale * bar.high
        out += f'<line class="whisker" x1="{middle:.1f}" x2="{middle:.1f}" y1="{low:.1f}" y2="{high:.1f}"/>'
    if bar.predicted is not None:
        y = FLOOR - scale * bar.predicted
        out += f'<circle class="predicted" cx="{middle:.1f}" cy="{y:.1f}" r="3.5"/>'
    return out


def draw_cells(row: CellRow, y: float, size: float, tall: float) -> str:
    """One row of cells; cells wider than 14 also carry a sign, so that colour is not needed."""
    out = draw_text(LEFT - 8, y + tall / 2 + 4, row.name, "end")
    for i, wrong in enumerate(row.wrong):
        kind = "none" if wrong is None else "bad" if wrong else "good"
        x, gap = LEFT + size * i, 1.5 if size > 8 else 0.4
        box = f'x="{x:.2f}" y="{y:.1f}" width="{size - gap:.2f}" height="{tall}"'
        out += f'<rect class="cell {kind}" {box}/>'
        if size > 14:
            sign = {"none": "?", "bad": "\u2260", "good": "="}[kind]
            place = f'x="{x + size / 2 - 0.7:.1f}" y="{y + tall / 2 + 4:.1f}"'
            out += f'<text class="sign {kind}" {place}>{sign}</text>'
    return out


def draw_legend(names: Sequence[str], styles: Sequence[str], top: float) -> list[str]:
    """Two names a row under the plot, each behind a stroke in its style."""
    parts = []
    for i, (name, style) in enumerate(zip(names, styles, strict=True)):
        x, y = (LEFT - 30, LEFT + 140)[i % 2], top + 16 * (i // 2)
        parts.append(f'<line class="{style}" x1="{x}" x2="{x + 22}" y1="{y - 4}" y2="{y - 4}"/>')
        parts.append(draw_text(x + 28, y, name))
    return parts


def draw_text(x: float, y: float, words: str, anchor: str = "start") -> str:
    """A label."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def wrap_picture(title: str, height: float, parts: Sequence[str]) -> str:
    """The SVG element, with a title for readers who do not see it."""
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )
