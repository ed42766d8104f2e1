"""What the command line prints for people: tables and verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from specc.contracts.bundle.contents import NO_END
from specc.contracts.costs import ENGINE_OVERHEAD
from specc.contracts.plan import Plan
from specc.gate.quality import describe_worst_groups
from specc.pipeline.build import Built
from specc.pipeline.choice import is_open, sentence

MEGA = 1 << 20
FEW = 12
"""Most checks of one judge that are shown one by one."""


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print one table to standard output."""
    printed = Table(title=title, title_justify="left", title_style="bold")
    for column in columns:
        printed.add_column(column, overflow="fold")
    for row in rows:
        printed.add_row(*map(str, row))
    Console().print(printed)


def format_megabytes(count: int) -> str:
    """Bytes as MB (2^20)."""
    return f"{count / MEGA:.1f} MB"


def print_build(result: Built) -> None:
    """The short verdict at the end of a build."""
    plan, bundle = result.plan, result.bundle
    total = sum(file.bytes for file in bundle.files)
    scheme = plan.target.scheme
    rows = [
        ("bundle", f"{bundle.folder} ({'written' if result.written else 'up to date'})"),
        ("digest", bundle.digest[:16]),
        ("size", f"{format_megabytes(total)} in {len(bundle.files)} files"),
        ("weights", f"layers {scheme.layers}, head {scheme.head}"),
        ("draft", f"{plan.recipe.draft.kind}, K = {plan.k}"),
        *(("chosen", sentence(facts)) for facts in [plan.choice] if facts),
        ("context", f"{plan.context} tokens, {format_megabytes(plan.memory.total)} of memory predicted"),
        ("speculation", describe_speculation(result)),
        *(("note", note) for note in result.notes),
    ]
    groups = result.quality.get("target", {}).get("sensitivity")
    if groups:
        rows.append(("costs most alone", describe_worst_groups(groups)))
    rows += [("also", str(other.folder)) for other in result.also]
    print_table(bundle.manifest["name"], ("what", "value"), rows)


def describe_speculation(result: Built) -> str:
    """On, off, or who decides."""
    if result.lint:
        first = result.lint[0]
        return f"off: lint ({len(result.lint)} findings; {first['node']}: {first['why']})"
    folder = result.bundle.folder
    if any(part.get("finalize") for part in result.bundle.manifest["engines"].values()):
        return f"off until `specc finalize {folder}` has built and certified its engines on the device"
    if result.reasons:
        return f"off: {', '.join(result.reasons)}; run `specc gate {folder}` on the device"
    return f"as its certificate says; see `specc inspect {folder}`"


def print_plan(plan: Plan, fit: str) -> None:
    """Sizes, memory, predicted speed; `fit` says whether the device holds it."""
    memory, timing = plan.memory, plan.timing
    rows = [
        ("K, rows, context", f"{plan.k}, {plan.rows}, {plan.context}"),
        ("widths", ", ".join(map(str, plan.target.widths))),
        ("weights", format_megabytes(memory.weights)),
        ("target cache", format_megabytes(memory.target_cache)),
        ("draft cache", format_megabytes(memory.draft_cache)),
        ("workspace", format_megabytes(memory.workspace)),
        ("engine library", format_megabytes(ENGINE_OVERHEAD)),
        ("total", f"{format_megabytes(memory.total)}, {fit}"),
        ("target call", f"at least {timing.target_call_ms:.2f} ms at {plan.hardware.bandwidth_gb_s} GB/s"),
        ("plain", f"at most {timing.plain_tokens_per_second:.0f} tokens/s"),
        ("all accepted", f"at most {timing.best_tokens_per_second:.0f} tokens/s"),
    ]
    rows += [("chosen", sentence(plan.choice))] if plan.choice else []
    if is_open(plan.recipe) and not plan.choice:
        rows.append(("auto", f"{plan.recipe.draft.kind} with K = {plan.k} until a build has measured"))
    rows += [("head", plan.head.note)] if plan.head is not None and plan.head.note else []
    print_table(f"{plan.recipe.name} on {plan.hardware.name}", ("what", "value"), rows)


def print_bundle(contents: Mapping[str, Any]) -> None:
    """What is inside and why speculation is on or off."""
    certificate, spec, numbers = contents["certificate"], contents["speculation"], contents["plan"]
    total = sum(file["bytes"] for file in contents["files"])
    classes = " ".join("[" + ",".join(map(str, group)) + "]" for group in certificate["widths"]) or "none"
    rows = [
        ("digest", contents["digest"]),
        ("speculation", spec["why"]),
        ("certificate", f"{certificate['kind']}, device {certificate['device']}"),
        ("width classes", f"{classes}, law width {certificate['law_width']}"),
        ("rows compared", certificate["rows_compared"]),
        ("rows different", format_by_width(certificate["rows_different"])),
        ("largest logit difference", format_by_width(certificate["max_abs_diff"])),
        (
            "total variation",
            "not measured" if certificate["tv_bound"] is None else f"<= {certificate['tv_bound']:g}",
        ),
        *((f"not in force: {Path(n['file']).name}", n["note"]) for n in certificate["notes"]),
        ("lint", format_lint(contents["lint"])),
        *list_token_rows(contents["tokenizer"]),
        ("plan", f"K = {numbers['k']}, context {numbers['context']}, draft {numbers['draft']}"),
        ("weights", f"layers {numbers['schemes']['layers']}, head {numbers['schemes']['head']}"),
        *((f"products of {name}", format_types(types)) for name, types in contents["types"].items()),
        *(("head", note) for note in list_head_notes(contents)),
        *(("chosen", sentence(facts)) for facts in [numbers.get("choice")] if facts),
        ("files", f"{len(contents['files'])}, {format_megabytes(total)}, all as hashed"),
    ]
    print_table(contents["name"], ("what", "value"), rows)


def list_token_rows(tokenizer: Mapping[str, Any]) -> list[tuple[str, str]]:
    """End, stop and begin tokens, and whether prompts go through a chat template."""
    ends, stops, begin = tokenizer["eos"], tokenizer["stop_ids"], tokenizer["bos"]
    template = "yes" if tokenizer["template"] else "no"
    if tokenizer["template"] and tokenizer["prompt_template"] != "chat":
        template = "yes, not used (prompt_template: none)"
    return [
        ("end tokens", ", ".join(map(format_token, ends)) or f"none: {NO_END}"),
        *([("stop tokens", ", ".join(map(format_token, stops)))] if stops else []),
        ("begin token", "none" if begin is None else format_token(begin)),
        ("chat template", template),
    ]


def format_token(token: Mapping[str, Any]) -> str:
    """An id with its string, whose brackets are not taken for markup."""
    return escape(f"{token['id']} {token['token']}")


def print_engines(engines: Mapping[str, Mapping[str, Any]]) -> None:
    """What the builders of `specc finalize` say of their engines."""
    rows = [
        (
            name,
            facts["library"],
            facts["tensorrt"],
            f"SM {facts['sm']}",
            f"{facts['seconds']} s",
            format_types(facts["types"]),
        )
        for name, facts in engines.items()
    ]
    print_table("finalize", ("engine", "library", "version", "device", "built in", "products"), rows)


def format_types(types: Mapping[str, Any]) -> str:
    """In which types an engine's products run, who says so, and which ones stray from the scheme."""
    if not types:
        return "not told"
    products = ", ".join(f"{count} {kind}" for kind, count in types["kinds"].get("product", {}).items())
    stray = f"; NOT as the scheme says: {', '.join(types['strays'])}" if types["strays"] else ""
    return f"{products or 'none'} ({types['source']}){stray}"


def list_head_notes(contents: Mapping[str, Any]) -> list[str]:
    """What nobody could check of a published head."""
    draft = contents["provenance"].get("draft")
    return [str(draft["note"])] if isinstance(draft, dict) and draft.get("note") else []


def format_by_width(values: Mapping[str, float]) -> str:
    """Non-zero numbers by width."""
    return ", ".join(f"width {width}: {value:.4g}" for width, value in values.items() if value) or "none"


def format_lint(lint: Mapping[str, Any]) -> str:
    """The lint verdict with its first finding."""
    if lint["passed"]:
        return "passed"
    first = lint["findings"][0]
    return f"{len(lint['findings'])} findings; {first['node']} ({first['op']}): {first['why']}"


def print_lint(report: Mapping[str, Any]) -> None:
    """The findings of a lint, one line each."""
    rows = [
        tuple(str(finding[key]) for key in ("node", "op", "why", "fix")) for finding in report["findings"]
    ]
    print_table(
        f"lint: {report['verdict']}, {report['file']}",
        ("node", "op", "why", "fix"),
        rows or [("none", "", "", "")],
    )


def print_gate(report: Mapping[str, Any]) -> None:
    """The verdict, one line a judge, and every check that a judge with few of them made or that failed."""
    checks: Sequence[Mapping[str, Any]] = report["checks"]
    rows: list[tuple[str, ...]] = []
    for judge in dict.fromkeys(judge_of(check) for check in checks):
        rows += judge_rows(judge, [check for check in checks if judge_of(check) == judge])
    title = f"gate: {report['verdict']}"
    reasons = f", speculation off: {', '.join(report['reasons'])}" if report.get("reasons") else ""
    print_table(title + reasons, ("check", "value", "limit", "verdict"), rows)
    for path in report.get("reports", ()):
        print(f"report: {path}")


def judge_of(check: Mapping[str, Any]) -> str:
    """The judge's name: what stands before the colon."""
    return str(check["name"]).partition(":")[0]


def judge_rows(judge: str, checks: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """All checks of a judge with few, a count and the failures of a judge with many."""
    failed = [check for check in checks if not check["passed"]]
    rows = [check_row(check) for check in (checks if len(checks) <= FEW else failed)]
    if len(checks) > FEW:
        count, verdict = f"{judge}: {len(checks)} checks", format_verdict(not failed)
        rows.insert(0, (count, f"{len(failed)} failed", "0 failed", verdict))
    return rows


def check_row(check: Mapping[str, Any]) -> tuple[str, ...]:
    """Name, value, limit and verdict of one check."""
    value, limit = format_number(check["value"]), format_number(check["limit"])
    return str(check["name"]), value, limit, format_verdict(check["passed"])


def print_diff(report: Mapping[str, Any]) -> None:
    """What differs between two models, and each limit."""
    kl, tv, top1, text = report["kl"], report["tv"], report["top1"], report["perplexity"]
    equal = f"{report['same_bits']} of {report['rows']} rows equal"
    law = "the same, bit for bit" if report["same_law"] else f"different, {equal}"
    size, speed = report["size"], report["speed"]
    rows = [
        ("law", law),
        ("KL(A || B)", format_spread(kl["a_b"])),
        ("KL(B || A)", format_spread(kl["b_a"])),
        ("total variation", format_spread(tv)),
        ("same most probable token", f"{top1['agreement']:.4f}, {top1['flips']} of {report['rows']} differ"),
        ("perplexity", f"{text['a']:.5g} and {text['b']:.5g}, ratio {text['ratio']:.5f}"),
        (
            "target's size",
            f"{format_megabytes(size['a']['target'])} and {format_megabytes(size['b']['target'])}",
        ),
        (
            "a plain token",
            f"{speed['a_ms']:.3g} and {speed['b_ms']:.3g} ms, in turn" if speed else "not compared",
        ),
        ("text", f"{report['text']['origin']}, {report['text']['tokens']} tokens"),
    ]
    print_table(f"A {report['a']['name']}, B {report['b']['name']}", ("what", "A and B"), rows)
    print_flips(report["examples"])
    checks = [check_row(check) for check in report["checks"]]
    if checks:
        print_table(f"diff: {report['verdict']}", ("check", "value", "limit", "verdict"), checks)


def print_flips(examples: Sequence[Mapping[str, Any]]) -> None:
    """Places where the most probable token differs, the most decided first; nothing where there are none."""
    rows = [
        (
            flip["context"],
            f"{flip['a']!r} {flip['p_a'][0]:.3f}, {flip['p_b'][0]:.3f}",
            f"{flip['b']!r} {flip['p_a'][1]:.3f}, {flip['p_b'][1]:.3f}",
        )
        for flip in examples
    ]
    if rows:
        title = "most decided flips: a token with its probability in A and in B"
        print_table(title, ("behind", "A says", "B says"), rows)


def format_spread(values: Mapping[str, float]) -> str:
    """A mean with its interval, and the largest value."""
    interval = f"{values['low']:.4g} to {values['high']:.4g}, 95 %"
    return f"mean {values['mean']:.4g} ({interval}), largest {values['max']:.4g}"


def print_replay(report: Mapping[str, Any]) -> None:
    """The verdict of a replay, its first difference, and what else is worth knowing."""
    difference = report["difference"]
    rows: list[tuple[str, object]] = [
        ("rounds, decisions", f"{report['rounds']}, {report['decisions']}"),
        ("seed, rule", f"{report['seed']}, {report['rule']}"),
    ]
    if difference:
        numbers = ", ".join(f"{name} {difference[name]}" for name in ("p", "q", "u", "p_emitted"))
        rows += [
            ("first difference", difference["what"]),
            ("round, slot", f"{difference['round']}, {difference['slot']}"),
            ("position", difference["position"]),
            ("drafted, emitted", f"{difference['token']}, {difference['emitted']}"),
            ("recorded", numbers),
        ]
    rows += [("note", note) for note in report["notes"]]
    print_table(f"replay: {report['verdict']}", ("what", "value"), rows)


def format_verdict(passed: bool) -> str:
    """A verdict in a word."""
    return "passed" if passed else "FAILED"


def format_number(value: Any) -> str:
    """A number in four digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
