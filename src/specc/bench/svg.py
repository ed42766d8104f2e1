"""Small plots as SVG text: bars with spread, and lines. No fonts, scripts or files from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from specc.report.svg import picture, text, ticks

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 420, 46, 8, 12, 44
COLOURS = ("#2f6fdb", "#e08a1e", "#2a9d6f", "#b5489a", "#7a6ff0", "#888888")


@dataclass(frozen=True)
class Bar:
    """A value, the range around it, and a prediction beside it."""

    value: float
    low: float | None = None
    high: float | None = None
    mark: float | None = None


def frame(body: str, height: int, title: str, marks: Sequence[float], unit: str) -> str:
    """Axis, grid and a title for readers who do not see it."""
    top, size = marks[-1], height - TOP - BOTTOM
    lines = []
    for mark in marks:
        y = height - BOTTOM - size * mark / top
        lines.append(level("g", y) + text(LEFT - 5, y + 4, f"{mark:g}{unit}", "end"))
    return picture(title, WIDTH, height, [*lines, body])


def level(kind: str, y: float) -> str:
    """A line across the plot."""
    return f'<line class="{kind}" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'


def bars(
    title: str,
    groups: Sequence[str],
    series: Mapping[str, Sequence[Bar | None]],
    unit: str = "",
    base: float | None = None,
    height: int = 240,
) -> str:
    """One group of bars a name, one bar in it a series; `base` is a level to compare with."""
    shown = [bar for some in series.values() for bar in some if bar]
    marks = ticks(max([v for bar in shown for v in (bar.value, bar.high or 0, bar.mark or 0)] + [base or 0]))
    span, size = (WIDTH - LEFT - RIGHT) / max(len(groups), 1), height - TOP - BOTTOM
    wide = 0.8 * span / max(len(series), 1)
    parts = []
    for s, (name, values) in enumerate(series.items()):
        for g, bar in enumerate(values):
            if bar is not None:
                left = LEFT + span * (g + 0.1) + wide * s
                parts.append(
                    one_bar(bar, left, wide * 0.9, size / marks[-1], height - BOTTOM, COLOURS[s % 6], name)
                )
    if base is not None:
        y = height - BOTTOM - size * base / marks[-1]
        parts.append(level("b", y))
    parts += [group_name(name, LEFT + span * (g + 0.5), height) for g, name in enumerate(groups)]
    return frame("".join(parts) + legend(list(series), height), height, title, marks, unit)


def one_bar(bar: Bar, left: float, wide: float, scale: float, floor: float, colour: str, name: str) -> str:
    """A bar, its whisker and its mark."""
    middle, top = left + wide / 2, floor - scale * bar.value
    out = (
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{floor - top:.1f}" fill="{colour}">'
        f"<title>{escape(name)}: {bar.value:.3g}</title></rect>"
    )
    if bar.low is not None and bar.high is not None:
        low, high = floor - scale * bar.low, floor - scale * bar.high
        out += f'<line class="w" x1="{middle:.1f}" x2="{middle:.1f}" y1="{low:.1f}" y2="{high:.1f}"/>'
    if bar.mark is not None:
        out += f'<circle class="m" cx="{middle:.1f}" cy="{floor - scale * bar.mark:.1f}" r="3.5"/>'
    return out


def lines(title: str, series: Mapping[str, Sequence[float]], unit: str = "", height: int = 240) -> str:
    """One line a series over 1, 2, 3, ..."""
    longest = max(map(len, series.values()), default=0)
    marks = ticks(max([v for values in series.values() for v in values], default=1.0))
    step, size = (WIDTH - LEFT - RIGHT) / max(longest, 1), height - TOP - BOTTOM
    parts = []
    for s, values in enumerate(series.values()):
        places = [
            (LEFT + step * (i + 0.5), height - BOTTOM - size * v / marks[-1]) for i, v in enumerate(values)
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[s % 6]}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{COLOURS[s % 6]}"/>' for x, y in places]
    parts += [group_name(str(i + 1), LEFT + step * (i + 0.5), height) for i in range(longest)]
    return frame("".join(parts) + legend(list(series), height), height, title, marks, unit)


def group_name(name: str, middle: float, height: int) -> str:
    """A name under the axis."""
    return text(middle, height - BOTTOM + 15, name[:14], "middle")


def legend(names: Sequence[str], height: int) -> str:
    """Colours and names in one line at the bottom."""
    out, left = [], float(LEFT)
    for i, name in enumerate(names):
        out.append(
            f'<rect x="{left:.0f}" y="{height - 15}" width="9" height="9" fill="{COLOURS[i % 6]}"/>'
            + text(left + 13, height - 6, name)
        )
        left += 26 + 6.6 * len(name)
    return "".join(out)
