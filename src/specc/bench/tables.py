"""The report of `specc bench` as tables of text, for a terminal and for the HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    """One table; every row has an entry for each column."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def tabulate(report: Json) -> list[Table]:
    """All tables of a report, in the order in which they are read."""
    tables = [
        tabulate_speed(report["rows"]),
        tabulate_rounds(report["rows"]),
        tabulate_summary(report["summary"], report["rows"]),
        tabulate_machine(report["environment"]),
    ]
    return [*tables, tabulate_comparison(report["comparison"])] if "comparison" in report else tables


def name_setting(row: Json) -> str:
    """Temperature and, where it matters and is not the default, the rule."""
    if row["temperature"] == 0:
        return "greedy"
    return f"T={row['temperature']:g}" + ("" if row["rule"] == "rejection" else f" {row['rule']}")


def tabulate_speed(rows: Sequence[Json]) -> Table:
    """One line for each class and setting: plain and speculative side by side."""
    plain = {(row["class"], name_setting(row)): row for row in rows if row["mode"] == "plain"}
    lines = [
        (
            str(row["class"]),
            name_setting(row),
            format_number(plain[row["class"], name_setting(row)]["tokens_per_second"], 1),
            format_number(row["tokens_per_second"], 1),
            format_number(row["speed_up"]),
            f"{format_number(row['speed_up_low'])}-{format_number(row['speed_up_high'])}",
            format_number(row["predicted_speed_up"]),
        )
        for row in rows
        if row["mode"] == "spec"
    ]
    title = "tokens/s, plain and speculative in turn; medians over prompts"
    return Table(title, ("class", "drawn", "plain", "spec", "speed-up", "quartiles", "predicted"), lines)


def tabulate_rounds(rows: Sequence[Json]) -> Table:
    """One line for each class and setting: what the speculative rounds did."""
    lines = [
        (
            str(row["class"]),
            name_setting(row),
            format_number(row["tokens_per_target_call"]),
            format_percent(row["acceptance_rate"]),
            format_percent(row["proposing_share"]),
            format_number(row["ttft_ms"], 0),
            format_number(row["itl_ms_p50"], 1),
            format_number(row["itl_ms_p99"], 1),
            format_percent(row["draft_share"]),
        )
        for row in rows
        if row["mode"] == "spec"
    ]
    title = "speculative rounds: tokens a call, ms to the first token and a token, drafter's time"
    columns = ("class", "drawn", "a call", "accept", "propose", "first", "p50", "p99", "draft")
    return Table(title, columns, lines)


def tabulate_summary(summary: Sequence[Json], rows: Sequence[Json]) -> Table:
    """One line for each setting: means over the classes."""
    columns = ("drawn", "speed-up", "predicted", "least", "a call", "by position")
    return Table("means over the classes", columns, [summary_line(line, rows) for line in summary])


def summary_line(summary: Json, rows: Sequence[Json]) -> tuple[str, ...]:
    """One setting; the last entry is the mean acceptance rate of each slot over the classes that reach it."""
    slots = [
        row["acceptance_by_position"]
        for row in rows
        if row["mode"] == "spec" and name_setting(row) == name_setting(summary)
    ]
    longest = max(map(len, slots), default=0)
    by_slot = [[rates[i] for rates in slots if len(rates) > i] for i in range(longest)]
    return (
        name_setting(summary),
        format_number(summary["mean_speed_up"]),
        format_number(summary["mean_predicted_speed_up"]),
        f"{format_number(summary['least_speed_up'])} ({summary['least_class']})",
        format_number(summary["tokens_per_target_call"]),
        " ".join(format_number(sum(rates) / len(rates)) for rates in by_slot) or "-",
    )


def tabulate_machine(environment: Json) -> Table:
    """Where it ran."""
    spec, power = environment["speculation"], environment["power"]
    state = f"on, {spec['drafter']}" if spec["enabled"] else f"off: {', '.join(spec['reasons'])}"
    versions = ", ".join(f"{name} {version}" for name, version in environment["versions"].items())
    lines = [
        (
            "cpu",
            f"{environment['cpu']}, {environment['threads']} of {environment['cores']} cores, "
            f"kernels {environment['kernels']}",
        ),
        ("power mode", str(power["mode"])),
        ("clocks", describe_clocks(power["clocks_mhz"])),
        (
            "temperature",
            ", ".join(f"{name} {c:.0f} C" for name, c in power["temperature_c"].items()) or "unknown",
        ),
        ("pays from", describe_break_even(environment["certificate"]["break_even"])),
        ("load before", format_number(environment["load"])),
        ("versions", versions),
        ("speculation", state),
        ("opens in", f"{environment['start_s']:.2f} s"),
        ("peak memory", f"{environment['peak_mb']:.0f} MB"),
    ]
    return Table("machine", ("what", "value"), lines)


def describe_break_even(tokens: Mapping[Any, float]) -> str:
    """Tokens that a call must bring so that proposing K of them pays."""
    return ", ".join(f"{n:.2f} tokens at K={k}" for k, n in tokens.items()) or "unknown"


def describe_clocks(by_cpu: Mapping[str, Mapping[str, float]]) -> str:
    """Lowest clock now and the largest allowed."""
    now = [clock["now"] for clock in by_cpu.values() if "now" in clock]
    most = [clock["max"] for clock in by_cpu.values() if "max" in clock]
    return f"{min(now):.0f} MHz now, {max(most):.0f} MHz allowed" if now and most else "unknown"


def tabulate_comparison(comparison: Json) -> Table:
    """Against a saved report."""
    lines = [
        (
            row["class"],
            row["mode"],
            name_setting(row),
            format_number(row["tokens_per_second_before"], 1),
            format_number(row["tokens_per_second"], 1),
            format_number(row["ratio"]),
        )
        for row in comparison["rows"]
    ]
    title = f"against {comparison['against']}" + "".join(f"; {note}" for note in comparison["notes"])
    return Table(title, ("class", "mode", "drawn", "tokens/s there", "here", "ratio"), lines)


def format_number(value: float | None, digits: int = 2) -> str:
    """A number, or a dash for what could not be told."""
    return "-" if value is None else f"{value:.{digits}f}"


def format_percent(value: float | None) -> str:
    """A share in percent."""
    return "-" if value is None else f"{100 * value:.0f} %"
