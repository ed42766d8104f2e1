"""An HTML page that needs nothing else: the document, its figures, its tables; and how it gets onto
the disk.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from specc.report.style import STYLE


@dataclass(frozen=True)
class Figure:
    """A plot with its caption; note: a sentence on how to read it."""

    caption: str
    svg: str
    note: str = ""


def render_document(title: str, parts: Iterable[str]) -> str:
    """The whole document; parts: HTML of the page's body in order."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width,initial-scale=1"><title>{escape(title)}</title><style>{STYLE}</style>'
        f"</head><body><main>{''.join(parts)}</main></body></html>\n"
    )


def render_figures(figures: Iterable[Figure]) -> str:
    """Figures side by side where the screen is wide enough."""
    return f'<div class="plots">{"".join(map(render_figure, figures))}</div>'


def render_figure(figure: Figure) -> str:
    """One figure."""
    note = f"<p>{escape(figure.note)}</p>" if figure.note else ""
    return f"<figure><figcaption>{escape(figure.caption)}</figcaption>{figure.svg}{note}</figure>"


def render_table(kind: str, columns: Sequence[str], rows: Iterable[str]) -> str:
    """A table that scrolls by itself where the screen is narrow; rows: HTML of each <tr>."""
    head = "".join(f'<th class="{escape(name.split()[0])}">{escape(name)}</th>' for name in columns)
    return (
        f'<div class="wide"><table class="{kind}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def write_whole(path: Path, text: str) -> None:
    """Writes under a hidden name beside its place, synced, then renames: the file is whole or not there.

    Raises OSError.
    """
    hidden = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with hidden.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(hidden, path)
    finally:
        hidden.unlink(missing_ok=True)
