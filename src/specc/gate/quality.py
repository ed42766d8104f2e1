"""The quality judge: what quantizing cost, measured by the exporter on held-out text, against the recipe's
limits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


def list_missed_limits(
    measured: Mapping[str, float],
    kl_max: float | None = None,
    top1_min: float | None = None,
    perplexity_max: float | None = None,
) -> list[str]:
    """One sentence for each limit that is not met; a number that is NaN or missing meets none. None means no
    limit.

    `perplexity_max` limits the ratio to the float module's perplexity: 1.005 is half a percent worse.
    """
    missing = float("nan")
    limits = (
        ("kl", kl_max, "above"),
        ("top1", top1_min, "below"),
        ("perplexity_ratio", perplexity_max, "above"),
    )
    return [
        f"{name} is {measured.get(name, missing):.4g}, {side} the limit {limit:.4g}"
        for name, limit, side in limits
        if limit is not None and not meets_limit(measured.get(name, missing), limit, side)
    ]


def meets_limit(value: float, limit: float, side: str) -> bool:
    """Whether a number is on the right side of its limit."""
    return value >= limit if side == "below" else value <= limit


def describe_worst_groups(groups: Sequence[Mapping[str, Any]], most: int = 3) -> str:
    """The groups that cost most when they alone are quantized, the worst first, in words."""
    ranked = sorted(groups, key=lambda group: -group["kl"] if math.isfinite(group["kl"]) else -math.inf)
    return ", ".join(f"{group['group']} (kl {group['kl']:.3g})" for group in ranked[:most])
