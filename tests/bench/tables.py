"""The report of bench_peers.py for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specc.cli.tables import print_table

Numbers = Mapping[str, Mapping[Any, float]]


def tables(found: Mapping[str, Any]) -> None:
    """Every part that was measured."""
    turns = found.get("turns", {})
    by_number(
        found.get("ms_by_rows", {}), f"ms of one call at 512 tokens, by rows; {turns.get('rows')} turns"
    )
    rates(found)
    by_number(found.get("first_token_ms", {}), "ms to the first token, by length of the prompt")
    by_number(found.get("ms_by_context", {}), "ms of one row, by tokens of context")
    if "alone" in found:
        rows = [
            (name, *(f"{one[key]:.2f}" if key in one else "-" for key in ("start_s", "peak_mb")))
            for name, one in found["alone"].items()
        ]
        print_table("a fresh process, plain: start and peak memory", ("engine", "seconds", "MB"), rows)
    ratios(found)


def by_number(values: Numbers, title: str) -> None:
    """Engines as columns, numbers as lines."""
    if values:
        lines = sorted({int(key) for by in values.values() for key in by})
        print_table(title, ("", *values), [(str(n), *(cell(by, n) for by in values.values())) for n in lines])


def cell(by: Mapping[Any, float], key: int) -> str:
    """A number under its name as a number or, from a file, as text."""
    value = by.get(key, by.get(str(key)))
    return "-" if value is None else f"{value:.1f}"


def rates(found: Mapping[str, Any]) -> None:
    """Tokens per second: all prompts, then by class."""
    by_class = found.get("tokens_per_second_by_class", {})
    if by_class:
        rows = []
        for name, modes in found["tokens_per_second"].items():
            for mode, rate in modes.items():
                classes = by_class[name][mode]
                rows.append((name, mode, f"{rate:.1f}", *(f"{classes[c]:.1f}" for c in sorted(classes))))
        columns = ("engine", "mode", "median", *sorted(by_class["specc"]["plain"]))
        print_table(f"tokens/s, greedy; {found['turns'].get('speeds')} turns", columns, rows)


def ratios(found: Mapping[str, Any]) -> None:
    """What other programs read, the machine, and what is missing."""
    rows = [(name, f"{value:.2f}") for name, value in found.items() if isinstance(value, float)]
    if "products" in found:
        one = found["products"]
        share = f", {one['gb_s'] / found['bandwidth_gb_s']:.2f} of the bandwidth" if "gb_s" in one else ""
        rows.append(("products alone", f"{one['ms']:.2f} ms{share}" if "ms" in one else one["missing"]))
    rows += [(name, f"missing: {why}") for name, why in found.get("missing", {}).items()]
    rows += [(name, f"{one['version']} {one['system']}") for name, one in found.get("peers", {}).items()]
    print_table("ratios and where they come from", ("what", "value"), rows)
