"""The picture of cost against rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def picture(rows: Mapping[str, Mapping[int | str, float]], path: Path) -> None:
    """Milliseconds of one call by peer and rows, as PNG."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 3.8))
    for name, by in rows.items():
        counts = sorted(map(int, by))
        values = [by[r] if r in by else by[str(r)] for r in counts]
        axes.plot(counts, values, marker="o", label=name, linewidth=2.5 if name == "specc" else 1.5)
    axes.set_xlabel("rows in one call")
    axes.set_ylabel("milliseconds (median, context 512)")
    axes.set_xticks(sorted({int(r) for by in rows.values() for r in by}))
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
