"""Two saved reports of `specc bench`, row by row; reports of different power modes are not compared."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specc.bench.machine import UNKNOWN, compare_modes
from specc.errors import InputError

Json = dict[str, Any]
KEY = ("class", "mode", "temperature", "rule")
NOTED = ("cpu", "threads", "kernels", "bundle", "max_new_tokens", "repeats")
"""Settings that may differ between two reports; differences are listed in the notes."""


def load_report(path: Path) -> Json:
    """A saved report. Raises InputError for any other file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"cannot read {path} as a report: {error}; save one with `specc bench --json`"
        ) from error
    power = found.get("environment", {}).get("power") if isinstance(found, dict) else None
    if not isinstance(power, dict) or "mode" not in power or not isinstance(found.get("rows"), list):
        raise InputError(f"{path} is no report of `specc bench --json`; save one with it")
    return {**found, "name": str(path)}


def refuse_other_mode(one: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Raise InputError where the power modes of two environments, named in `name`, differ."""
    different = compare_modes(one["power"], other["power"])
    if different:
        raise InputError(
            f"{one['name']} and {other['name']} ran in different power modes ({different}): their speeds "
            "do not compare; set one mode on the device and run both again"
        )


def compare_reports(one: Mapping[str, Any], other: Mapping[str, Any]) -> Json:
    """The rows that both have, as ratios of `one` to `other`, and what else differs. Raises as
    refuse_other_mode.
    """
    environments = [{**report["environment"], "name": report["name"]} for report in (one, other)]
    refuse_other_mode(*environments)
    before = {tuple(row[key] for key in KEY): row for row in other["rows"]}
    both = [(row, before[tuple(row[key] for key in KEY)]) for row in one["rows"] if make_key(row) in before]
    if not both:
        raise InputError(
            f"{one['name']} and {other['name']} have no class, temperature and rule in common; "
            "run both with the same options"
        )
    return {
        "against": other["name"],
        "notes": list_differences(*environments),
        "rows": [compute_ratio(*pair) for pair in both],
    }


def make_key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Two rows with equal keys are measurements of the same thing."""
    return tuple(row[key] for key in KEY)


def compute_ratio(row: Mapping[str, Any], before: Mapping[str, Any]) -> Json:
    """Speed of a row, speed of the same row before, and their ratio."""
    fast, slow = row["tokens_per_second"], before["tokens_per_second"]
    change = {"tokens_per_second": fast, "tokens_per_second_before": slow, "ratio": fast / max(slow, 1e-12)}
    return {**{key: row[key] for key in KEY}, **change}


def list_differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """One sentence for each difference of the settings that affects speed."""
    found = [f"{n}: {one.get(n)} against {other.get(n)}" for n in NOTED if one.get(n) != other.get(n)]
    unknown = one["power"]["mode"] == UNKNOWN
    return found + (["the power modes are unknown: this system does not tell them"] if unknown else [])
