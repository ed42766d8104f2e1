"""What the plots of reports and of the bench share: round axis numbers, labels, the picture around them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape


def ticks(most: float) -> list[float]:
    """About four round numbers from 0 to at least `most`."""
    if not most > 0 or not math.isfinite(most):
        return [0.0, 1.0]
    unit = 10.0 ** math.floor(math.log10(most / 4))
    step = next(unit * m for m in (1, 2, 2.5, 5, 10) if unit * m >= most / 4 * (1 - 1e-9))
    return [step * i for i in range(math.ceil(most / step - 1e-9) + 1)]


def text(x: float, y: float, words: str, anchor: str = "start") -> str:
    """A label."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def picture(title: str, width: float, height: float, parts: Sequence[str]) -> str:
    """The picture, with a title for readers who do not see it."""
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )
