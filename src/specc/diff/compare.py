"""Two sides over one text: the law in bits, KL and total variation, flips, perplexity, size, speed,
limits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from specc.diff.numbers import (
    RowComparison,
    compare_rows,
    find_worst_flips,
    join_blocks,
    summarize_comparison,
)
from specc.diff.sides import BLOCK, BundleSide, Side, open_side
from specc.errors import InputError
from specc.progress import Progress, no_progress

WINDOW, FEWEST, EXAMPLES, TAIL = 512, 32, 5, 60
STEPS, WARM = 24, 4
"""Plain steps of each bundle that are timed, and steps before them that are not."""


@dataclass(frozen=True)
class Limits:
    """What a diff must keep; None is no limit. A is what B is held against."""

    kl_max: float | None = None
    """Mean KL(A || B), nats."""
    tv_max: float | None = None
    """Mean total variation."""
    top1_min: float | None = None
    """Share of places with the same most probable id."""
    perplexity_max: float | None = None
    """B's over A's."""
    same_law: bool = False
    """Every row equal, bit for bit."""


@dataclass(frozen=True)
class Text:
    """What both sides read: windows of ids, each from an empty cache."""

    origin: str
    windows: tuple[tuple[int, ...], ...]


def diff(
    a: str,
    b: str,
    limits: Limits,
    text: Path | None = None,
    tokens: int = WINDOW,
    threads: int = 0,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """The JSON of `specc diff`. Raises InputError where the sides cannot be compared."""
    with ExitStack() as stack:
        one, other = (stack.enter_context(open_side(name, threads)) for name in (a, b))
        notes, ids = check_tokenizers(one, other), min(one.ids, other.ids)
        read = cut_windows(one, other, text, tokens)
        parts = [
            compare_window(one, other, window, ids, i, read, progress)
            for i, window in enumerate(read.windows)
        ]
        found = join_blocks(parts)
        speed = measure_speed(one, other, read, progress)
    numbers = summarize_comparison(found)
    same_law = numbers["same_bits"] == numbers["rows"]
    checks = check_limits(numbers, same_law, limits)
    return {
        "verdict": "passed" if all(check["passed"] for check in checks) else "failed",
        "same_law": same_law,
        **numbers,
        "examples": describe_flips(found, read, one),
        "size": {"a": one.bytes, "b": other.bytes},
        "speed": speed,
        "checks": checks,
        "a": {"name": one.name, "kind": one.kind, **one.facts},
        "b": {"name": other.name, "kind": other.kind, **other.facts},
        "text": {"origin": read.origin, "tokens": sum(map(len, read.windows)), "windows": len(read.windows)},
        "notes": notes,
    }


def check_tokenizers(one: Side, other: Side) -> list[str]:
    """Notes on harmless differences. Raises InputError naming the first id or rule in which they differ."""
    from specc.exporter.checkpoint.tokenizer import TokenizerJson, compare_tokenizers

    names = f"A ({one.name})", f"B ({other.name})"
    return list(compare_tokenizers(TokenizerJson(one.tokenizer), TokenizerJson(other.tokenizer), names))


def cut_windows(one: Side, other: Side, path: Path | None, tokens: int) -> Text:
    """The text's first `tokens` ids in windows that fit both; each begins with the begin token of a model
    with one.
    """
    from tokenizers import Tokenizer

    from specc.exporter.check.held_out_text import TEXT

    origin, text = ("held-out text", TEXT) if path is None else (str(path), read_text(path))
    ids = Tokenizer.from_str(one.tokenizer).encode(text, add_special_tokens=False).ids
    ids = [i for i in ids if i < min(one.ids, other.ids)][:tokens]
    first = () if one.bos is None else (one.bos,)
    size = min(WINDOW, one.context, other.context) - len(first)
    cut = [(*first, *ids[at : at + size]) for at in range(0, len(ids), size)]
    windows = tuple(window for window in cut if len(window) >= min(FEWEST, size))
    if not windows:
        raise InputError(f"{origin} has {len(ids)} tokens; give a text of at least {min(FEWEST, size)}")
    return Text(origin, windows)


def read_text(path: Path) -> str:
    """A text file in UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the text {path}: {error}; give a file in UTF-8") from None


def compare_window(
    one: Side, other: Side, window: Sequence[int], ids: int, number: int, text: Text, progress: Progress
) -> RowComparison:
    """All rows of a window but the last, after which nothing follows."""
    before, total = sum(map(len, text.windows[:number])), sum(map(len, text.windows))
    parts, follows = [], np.asarray(window[1:], np.int64)
    for i, (a, b) in enumerate(zip(one.blocks(window), other.blocks(window), strict=True)):
        following = follows[i * BLOCK : i * BLOCK + len(a)]
        parts.append(compare_rows(a[: len(following), :ids], b[: len(following), :ids], following))
        progress("compare", (before + i * BLOCK + len(a)) / total)
    return join_blocks([part for part in parts if len(part.tv)])


def measure_speed(one: Side, other: Side, text: Text, progress: Progress) -> dict[str, Any] | None:
    """Median milliseconds of a plain step of both, taken in turn; None unless both are bundles."""
    if not isinstance(one, BundleSide) or not isinstance(other, BundleSide):
        return None
    window, times = text.windows[0], {"a": list[float](), "b": list[float]()}
    room = len(window)
    for i in range(WARM + STEPS):
        for name, side in (("a", one), ("b", other)):
            ms = side.step_ms(window, min(i, room - 1))
            times[name] += [ms] if i >= WARM else []
        progress("speed", (i + 1) / (WARM + STEPS))
    a, b = median(times["a"]), median(times["b"])
    return {"a_ms": a, "b_ms": b, "ratio": b / a, "steps": STEPS}


def describe_flips(found: RowComparison, text: Text, one: Side) -> list[dict[str, Any]]:
    """The most decided flips in text: what stood before, and what either side would say."""
    from specc.exporter.checkpoint.tokenizer import TokenizerJson, list_id_bytes

    texts = list_id_bytes(TokenizerJson(one.tokenizer))
    places = [(window, i) for window in text.windows for i in range(len(window) - 1)]

    def words(ids: Sequence[int]) -> str:
        return b"".join(texts[i] if i < len(texts) else b"" for i in ids).decode("utf-8", "replace")

    out = []
    for row in find_worst_flips(found, EXAMPLES):
        window, at = places[row]
        top_a, top_b = int(found.top_a[row]), int(found.top_b[row])
        out.append(
            {
                "context": words(window[max(0, at - TAIL) : at + 1])[-TAIL:],
                "a": words([top_a]),
                "b": words([top_b]),
                "a_id": top_a,
                "b_id": top_b,
                "p_a": [float(found.p_aa[row]), float(found.p_ab[row])],
                "p_b": [float(found.p_ba[row]), float(found.p_bb[row])],
            }
        )
    return out


def check_limits(numbers: Mapping[str, Any], same_law: bool, limits: Limits) -> list[dict[str, Any]]:
    """Each limit that was given, with its number; what is no number passes none."""
    held = [
        ("kl: mean of KL(A || B)", limits.kl_max, numbers["kl"]["a_b"]["mean"], False),
        ("tv: mean total variation", limits.tv_max, numbers["tv"]["mean"], False),
        ("top1: same most probable token", limits.top1_min, numbers["top1"]["agreement"], True),
        ("perplexity: B over A", limits.perplexity_max, numbers["perplexity"]["ratio"], False),
    ]
    checks = [
        {"name": name, "limit": limit, "value": value, "passed": value >= limit if least else value <= limit}
        for name, limit, value, least in held
        if limit is not None
    ]
    if limits.same_law:
        different = numbers["rows"] - numbers["same_bits"]
        checks.append(
            {"name": "law: rows with other bits", "limit": 0, "value": different, "passed": same_law}
        )
    return checks
