"""What the command line prints for people: progress, tables, verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from specc.contracts.costs import ENGINE_OVERHEAD
from specc.contracts.plan import Plan
from specc.gate.quality import describe_worst_groups
from specc.pipeline.build import Built
from specc.pipeline.choice import is_open, sentence

MEGA = 1 << 20
FEW = 12
"""Most checks of one judge that are shown one by one."""


class StageBars:
    """One bar a stage on a terminal's standard error, one line a stage elsewhere; a context manager."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        columns = (SpinnerColumn(finished_text=" "), TextColumn("{task.description}"), BarColumn(24))
        columns_after = (TimeElapsedColumn(), TextColumn("{task.fields[note]}"))
        self._progress = Progress(*columns, *columns_after, console=self._console)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> StageBars:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._progress.stop()

    def begin(self, name: str) -> None:
        """A stage begins."""
        if self._console.is_terminal:
            self._tasks[name] = self._progress.add_task(f"{name:16}", total=None, note="")

    def step(self, name: str, doing: str, part: float) -> None:
        """A stage goes on."""
        if name in self._tasks:
            self._progress.update(self._tasks[name], total=1, completed=part, note=doing)

    def report(self, step: str, done: float) -> None:
        """A judge goes on: `done` is the finished part of it; a progress callback of the gate, bench and diff."""
        if step not in self._tasks:
            self.begin(step)
        if step in self._tasks:
            self._progress.update(self._tasks[step], total=1, completed=done)

    def end(self, name: str, seconds: float, cached: bool) -> None:
        """A stage is done."""
        note = "cached" if cached else ""
        if name in self._tasks:
            self._progress.update(self._tasks[name], total=1, completed=1, note=note)
        else:
            self._console.print(f"{name:16} {seconds:7.2f} s  {note}".rstrip(), highlight=False)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print one table to standard output."""
    shown = Table(title=title, title_justify="left", title_style="bold")
    for column in columns:
        shown.add_column(column, overflow="fold")
    for row in rows:
        shown.add_row(*map(str, row))
    Console().print(shown)


def megabytes(count: int) -> str:
    """Bytes as MB (2^20)."""
    return f"{count / MEGA:.1f} MB"


def built(result: Built) -> None:
    """The short verdict at the end of a build."""
    plan, bundle = result.plan, result.bundle
    total = sum(file.bytes for file in bundle.files)
    scheme = plan.target.scheme
    rows = [
        ("bundle", f"{bundle.folder} ({'written' if result.written else 'up to date'})"),
        ("digest", bundle.digest[:16]),
        ("size", f"{megabytes(total)} in {len(bundle.files)} files"),
        ("weights", f"layers {scheme.layers}, head {scheme.head}"),
        ("draft", f"{plan.recipe.draft.kind}, K = {plan.k}"),
        *(("chosen", sentence(facts)) for facts in [plan.choice] if facts),
        ("context", f"{plan.context} tokens, {megabytes(plan.memory.total)} of memory predicted"),
        ("speculation", verdict(result)),
    ]
    groups = result.quality.get("target", {}).get("sensitivity")
    if groups:
        rows.append(("costs most alone", describe_worst_groups(groups)))
    rows += [("also", str(other.folder)) for other in result.also]
    table(bundle.manifest["name"], ("what", "value"), rows)


def verdict(result: Built) -> str:
    """On, off, or who decides."""
    if result.lint:
        first = result.lint[0]
        return f"off: lint ({len(result.lint)} findings; {first['node']}: {first['why']})"
    if any(part.get("finalize") for part in result.bundle.manifest["engines"].values()):
        return f"off until `specc finalize {result.bundle.folder}` has built and certified its engines on the device"
    if result.reasons:
        return f"off: {', '.join(result.reasons)}; run `specc gate {result.bundle.folder}` on the device"
    return f"as its certificate says; see `specc inspect {result.bundle.folder}`"


def plan(made: Plan, fit: str) -> None:
    """Sizes, memory, predicted speed; `fit` says whether the device holds it."""
    memory, timing = made.memory, made.timing
    rows = [
        ("K, rows, context", f"{made.k}, {made.rows}, {made.context}"),
        ("widths", ", ".join(map(str, made.target.widths))),
        ("weights", megabytes(memory.weights)),
        ("target cache", megabytes(memory.target_cache)),
        ("draft cache", megabytes(memory.draft_cache)),
        ("workspace", megabytes(memory.workspace)),
        ("engine library", megabytes(ENGINE_OVERHEAD)),
        ("total", f"{megabytes(memory.total)}, {fit}"),
        ("target call", f"at least {timing.target_call_ms:.2f} ms at {made.hardware.bandwidth_gb_s} GB/s"),
        ("plain", f"at most {timing.plain_tokens_per_second:.0f} tokens/s"),
        ("all accepted", f"at most {timing.best_tokens_per_second:.0f} tokens/s"),
    ]
    rows += [("chosen", sentence(made.choice))] if made.choice else []
    if is_open(made.recipe) and not made.choice:
        rows.append(("auto", f"{made.recipe.draft.kind} with K = {made.k} until a build has measured"))
    rows += [("head", made.head.note)] if made.head is not None and made.head.note else []
    table(f"{made.recipe.name} on {made.hardware.name}", ("what", "value"), rows)


def inspected(found: Mapping[str, Any]) -> None:
    """What is inside and why speculation is on or off."""
    certificate, spec, numbers = found["certificate"], found["speculation"], found["plan"]
    classes = " ".join("[" + ",".join(map(str, group)) + "]" for group in certificate["widths"]) or "none"
    rows = [
        ("digest", found["digest"]),
        ("speculation", spec["why"]),
        ("certificate", f"{certificate['kind']}, device {certificate['device']}"),
        ("width classes", f"{classes}, law width {certificate['law_width']}"),
        ("rows compared", certificate["rows_compared"]),
        ("rows different", by_width(certificate["rows_different"])),
        ("largest logit difference", by_width(certificate["max_abs_diff"])),
        (
            "total variation",
            "not measured" if certificate["tv_bound"] is None else f"<= {certificate['tv_bound']:g}",
        ),
        *((f"not in force: {Path(n['file']).name}", n["note"]) for n in certificate["notes"]),
        ("lint", lint_text(found["lint"])),
        ("plan", f"K = {numbers['k']}, context {numbers['context']}, draft {numbers['draft']}"),
        ("weights", f"layers {numbers['schemes']['layers']}, head {numbers['schemes']['head']}"),
        *((f"products of {name}", types_text(types)) for name, types in found["types"].items()),
        *(("head", note) for note in head_notes(found)),
        *(("chosen", sentence(facts)) for facts in [numbers.get("choice")] if facts),
        (
            "files",
            f"{len(found['files'])}, {megabytes(sum(file['bytes'] for file in found['files']))}, all as hashed",
        ),
    ]
    table(found["name"], ("what", "value"), rows)


def types_text(types: Mapping[str, Any]) -> str:
    """In which types an engine's products run, who says so, and which ones stray from the scheme."""
    if not types:
        return "not told"
    products = ", ".join(f"{count} {kind}" for kind, count in types["kinds"].get("product", {}).items())
    stray = f"; NOT as the scheme says: {', '.join(types['strays'])}" if types["strays"] else ""
    return f"{products or 'none'} ({types['source']}){stray}"


def head_notes(found: Mapping[str, Any]) -> list[str]:
    """What nobody could check of a published head."""
    draft = found["provenance"].get("draft")
    return [str(draft["note"])] if isinstance(draft, dict) and draft.get("note") else []


def by_width(values: Mapping[str, float]) -> str:
    """Non-zero numbers by width."""
    return ", ".join(f"width {width}: {value:.4g}" for width, value in values.items() if value) or "none"


def lint_text(lint: Mapping[str, Any]) -> str:
    """The lint verdict with its first finding."""
    if lint["passed"]:
        return "passed"
    first = lint["findings"][0]
    return f"{len(lint['findings'])} findings; {first['node']} ({first['op']}): {first['why']}"


def linted(report: Mapping[str, Any]) -> None:
    """The findings of a lint, one line each."""
    rows = [
        tuple(str(finding[key]) for key in ("node", "op", "why", "fix")) for finding in report["findings"]
    ]
    table(
        f"lint: {report['verdict']}, {report['file']}",
        ("node", "op", "why", "fix"),
        rows or [("none", "", "", "")],
    )


def gated(report: Mapping[str, Any]) -> None:
    """The verdict, one line a judge, and every check that a judge with few of them made or that failed."""
    checks: Sequence[Mapping[str, Any]] = report["checks"]
    rows: list[tuple[str, ...]] = []
    for judge in dict.fromkeys(judge_of(check) for check in checks):
        rows += judge_rows(judge, [check for check in checks if judge_of(check) == judge])
    title = f"gate: {report['verdict']}"
    reasons = f", speculation off: {', '.join(report['reasons'])}" if report.get("reasons") else ""
    table(title + reasons, ("check", "value", "limit", "verdict"), rows)
    for path in report.get("reports", ()):
        print(f"report: {path}")


def judge_of(check: Mapping[str, Any]) -> str:
    """The judge's name: what stands before the colon."""
    return str(check["name"]).partition(":")[0]


def judge_rows(judge: str, checks: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """All checks of a judge with few, a count and the failures of a judge with many."""
    failed = [check for check in checks if not check["passed"]]
    shown = checks if len(checks) <= FEW else failed
    rows: list[tuple[str, ...]]
    rows = [(str(c["name"]), short(c["value"]), short(c["limit"]), verdict_of(c["passed"])) for c in shown]
    if len(checks) > FEW:
        rows.insert(
            0, (f"{judge}: {len(checks)} checks", f"{len(failed)} failed", "0 failed", verdict_of(not failed))
        )
    return rows


def diffed(found: Mapping[str, Any]) -> None:
    """What differs between two models, and each limit."""
    kl, tv, top1, text = found["kl"], found["tv"], found["top1"], found["perplexity"]
    equal = f"{found['same_bits']} of {found['rows']} rows equal"
    law = "the same, bit for bit" if found["same_law"] else f"different, {equal}"
    size, speed = found["size"], found["speed"]
    rows = [
        ("law", law),
        ("KL(A || B)", spread(kl["a_b"])),
        ("KL(B || A)", spread(kl["b_a"])),
        ("total variation", spread(tv)),
        ("same most probable token", f"{top1['agreement']:.4f}, {top1['flips']} of {found['rows']} differ"),
        ("perplexity", f"{text['a']:.5g} and {text['b']:.5g}, ratio {text['ratio']:.5f}"),
        ("target's size", f"{megabytes(size['a']['target'])} and {megabytes(size['b']['target'])}"),
        (
            "a plain token",
            f"{speed['a_ms']:.3g} and {speed['b_ms']:.3g} ms, in turn" if speed else "not compared",
        ),
        ("text", f"{found['text']['origin']}, {found['text']['tokens']} tokens"),
    ]
    table(f"A {found['a']['name']}, B {found['b']['name']}", ("what", "A and B"), rows)
    flips = [
        (
            e["context"],
            f"{e['a']!r} {e['p_a'][0]:.3f}, {e['p_b'][0]:.3f}",
            f"{e['b']!r} {e['p_a'][1]:.3f}, {e['p_b'][1]:.3f}",
        )
        for e in found["examples"]
    ]
    if flips:
        table(
            "most decided flips: a token with its probability in A and in B",
            ("behind", "A says", "B says"),
            flips,
        )
    limits = [
        (c["name"], short(c["value"]), short(c["limit"]), verdict_of(c["passed"])) for c in found["checks"]
    ]
    if limits:
        table(f"diff: {found['verdict']}", ("check", "value", "limit", "verdict"), limits)


def spread(found: Mapping[str, float]) -> str:
    """A mean with its interval and the largest."""
    return f"mean {found['mean']:.4g} ({found['low']:.4g} to {found['high']:.4g}, 95 %), largest {found['max']:.4g}"


def replayed(report: Mapping[str, Any]) -> None:
    """The verdict of a replay, its first difference, and what else is worth knowing."""
    found = report["difference"]
    rows: list[tuple[str, object]] = [
        ("rounds, decisions", f"{report['rounds']}, {report['decisions']}"),
        ("seed, rule", f"{report['seed']}, {report['rule']}"),
    ]
    if found:
        numbers = ", ".join(f"{name} {found[name]}" for name in ("p", "q", "u", "p_emitted"))
        rows += [
            ("first difference", found["what"]),
            ("round, slot", f"{found['round']}, {found['slot']}"),
            ("position", found["position"]),
            ("drafted, emitted", f"{found['token']}, {found['emitted']}"),
            ("recorded", numbers),
        ]
    rows += [("note", note) for note in report["notes"]]
    table(f"replay: {report['verdict']}", ("what", "value"), rows)


def verdict_of(passed: bool) -> str:
    """A verdict in a word."""
    return "passed" if passed else "FAILED"


def short(value: Any) -> str:
    """A number in four digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
