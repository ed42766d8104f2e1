"""The report for people: tables on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specc.cli import tables as show

SPEED = ("class", "drawn", "plain", "spec", "speed-up", "quartiles", "predicted")
ROUNDS = ("class", "drawn", "a call", "accept", "propose", "first", "p50", "p99", "draft")
HEAD = "tokens/s, plain and speculative in turn; medians over prompts"
HEAD_ROUNDS = "speculative rounds: tokens a call, ms to the first token and a token, drafter's time"
Json = Mapping[str, Any]


def report(found: Json) -> None:
    """All tables."""
    show.table(HEAD, SPEED, speed_lines(found["rows"]))
    show.table(HEAD_ROUNDS, ROUNDS, round_lines(found["rows"]))
    columns = ("drawn", "speed-up", "predicted", "least", "a call", "by position")
    show.table(
        "means over the classes", columns, [summary_line(one, found["rows"]) for one in found["summary"]]
    )
    show.table("machine", ("what", "value"), machine_lines(found["environment"]))
    if "comparison" in found:
        comparison(found["comparison"])


def drawn(row: Json) -> str:
    """Temperature and, where it matters and is not the usual one, the rule."""
    if row["temperature"] == 0:
        return "greedy"
    return f"T={row['temperature']:g}" + ("" if row["rule"] == "rejection" else f" {row['rule']}")


def speed_lines(rows: Sequence[Json]) -> list[tuple[str, ...]]:
    """One line a class and setting: plain and speculative side by side."""
    plain = {(row["class"], drawn(row)): row for row in rows if row["mode"] == "plain"}
    return [
        (
            str(row["class"]),
            drawn(row),
            number(plain[row["class"], drawn(row)]["tokens_per_second"], 1),
            number(row["tokens_per_second"], 1),
            number(row["speed_up"]),
            f"{number(row['speed_up_low'])}-{number(row['speed_up_high'])}",
            number(row["predicted_speed_up"]),
        )
        for row in rows
        if row["mode"] == "spec"
    ]


def round_lines(rows: Sequence[Json]) -> list[tuple[str, ...]]:
    """One line a class and setting: what the speculative rounds did."""
    return [
        (
            str(row["class"]),
            drawn(row),
            number(row["tokens_per_target_call"]),
            percent(row["acceptance_rate"]),
            percent(row["proposing_share"]),
            number(row["ttft_ms"], 0),
            number(row["itl_ms_p50"], 1),
            number(row["itl_ms_p99"], 1),
            percent(row["draft_share"]),
        )
        for row in rows
        if row["mode"] == "spec"
    ]


def summary_line(one: Json, rows: Sequence[Json]) -> tuple[str, ...]:
    """One setting."""
    slots = [
        row["acceptance_by_position"] for row in rows if row["mode"] == "spec" and drawn(row) == drawn(one)
    ]
    longest = max(map(len, slots), default=0)
    by_slot = [[some[i] for some in slots if len(some) > i] for i in range(longest)]
    return (
        drawn(one),
        number(one["mean_speed_up"]),
        number(one["mean_predicted_speed_up"]),
        f"{number(one['least_speed_up'])} ({one['least_class']})",
        number(one["tokens_per_target_call"]),
        " ".join(number(sum(some) / len(some)) for some in by_slot) or "-",
    )


def machine_lines(found: Json) -> list[tuple[str, str]]:
    """Where it ran."""
    spec, power = found["speculation"], found["power"]
    state = f"on, {spec['drafter']}" if spec["enabled"] else f"off: {', '.join(spec['reasons'])}"
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    return [
        ("cpu", f"{found['cpu']}, {found['threads']} of {found['cores']} cores, kernels {found['kernels']}"),
        ("power mode", str(power["mode"])),
        ("clocks", clocks(power["clocks_mhz"])),
        (
            "temperature",
            ", ".join(f"{name} {c:.0f} C" for name, c in power["temperature_c"].items()) or "unknown",
        ),
        ("pays from", break_even(found["certificate"]["break_even"])),
        ("load before", number(found["load"])),
        ("versions", versions),
        ("speculation", state),
        ("opens in", f"{found['start_s']:.2f} s"),
        ("peak memory", f"{found['peak_mb']:.0f} MB"),
    ]


def break_even(tokens: Mapping[Any, float]) -> str:
    """Tokens that a call must bring so that proposing K of them pays."""
    return ", ".join(f"{n:.2f} tokens at K={k}" for k, n in tokens.items()) or "unknown"


def clocks(by_cpu: Mapping[str, Mapping[str, float]]) -> str:
    """Lowest clock now and the largest allowed."""
    now = [one["now"] for one in by_cpu.values() if "now" in one]
    most = [one["max"] for one in by_cpu.values() if "max" in one]
    return f"{min(now):.0f} MHz now, {max(most):.0f} MHz allowed" if now and most else "unknown"


def comparison(found: Json) -> None:
    """Against a saved report."""
    rows = [
        (
            row["class"],
            row["mode"],
            drawn(row),
            number(row["tokens_per_second_before"], 1),
            number(row["tokens_per_second"], 1),
            number(row["ratio"]),
        )
        for row in found["rows"]
    ]
    title = f"against {found['against']}" + "".join(f"; {note}" for note in found["notes"])
    show.table(title, ("class", "mode", "drawn", "tokens/s there", "here", "ratio"), rows)


def number(value: float | None, digits: int = 2) -> str:
    """A number, or a dash for what could not be told."""
    return "-" if value is None else f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    """A share in percent."""
    return "-" if value is None else f"{100 * value:.0f} %"
