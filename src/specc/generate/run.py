"""Generation on a bundle, as `specc run` does it: prompt to ids, events to text, one JSON at the end."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specc.contracts.bundle.manifest import Bundle, read_bundle, verify_bundle
from specc.errors import InputError
from specc.generate.record import head_line, recording
from specc.generate.template import Prompter

if TYPE_CHECKING:
    from specc.runtime import Event

STATS = ("target_calls", "draft_calls", "proposed", "accepted", "emitted", "seconds")


@dataclass(frozen=True)
class Ask:
    """One prompt and how to answer it. `request` holds fields of specc.runtime.Request
    that were asked for.
    """

    prompt: str
    raw: bool = False
    threads: int = 0
    certificates: Path | None = None
    trust: bool = False
    request: Mapping[str, Any] = field(default_factory=dict)
    record: Path | None = None
    """Where a record goes that `specc gate --replay` judges again."""


def prompt_ids(bundle: Bundle, ask: Ask) -> list[int]:
    """Ids of the prompt, by the chat template unless `raw`. Raises InputError for an empty one."""
    if not ask.prompt:
        raise InputError("the prompt is empty; give some text with -p")
    if any("\ud800" <= letter <= "\udfff" for letter in ask.prompt):
        raise InputError("the prompt is not valid UTF-8; write it in UTF-8")
    prompter = Prompter.from_bundle(bundle)
    return prompter.encode_raw(ask.prompt) if ask.raw else prompter.encode_user(ask.prompt)


def generate(folder: Path, ask: Ask, on_text: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Generate; `on_text` gets each piece of whole UTF-8 as soon as it is certain. Returns the JSON of `specc
    run`.

    An interrupt ends the generation; what is there is returned with `finish_reason` "cancelled".
    """
    from specc.runtime import Model

    bundle = verify_bundle(read_bundle(folder), ask.trust)
    ids = prompt_ids(bundle, ask)
    request = {**bundle.manifest["sampling"], **ask.request}
    opened = Model.open(folder, threads=ask.threads, certificates=ask.certificates, trust=True)
    with opened as model, model.session() as session:
        pieces, finish = [], "cancelled"
        if ask.record is not None:
            session.trace()
        events = session.generate(ids, **request)
        if ask.record is not None:
            events = kept(
                events, ask.record, head_line(bundle.manifest["name"], model.info, session, request, ids)
            )
        try:
            for event in events:
                pieces.append(event.text)
                on_text(event.text)
                finish = event.finished or finish
        except KeyboardInterrupt:
            events.close()
        return answer("".join(pieces), finish, session, request, model.info.certificate.words)


def kept(
    events: Generator[Event, None, None], path: Path, head: Mapping[str, Any]
) -> Generator[Event, None, None]:
    """The same events, each written into the record before it is passed on."""
    at, finish = len(head["prompt"]), "error"
    with recording(path) as recorder:
        recorder.line(head)
        try:
            for event in events:
                recorder.event(event, at)
                at, finish = at + len(event.tokens), event.finished or finish
                yield event
        except (KeyboardInterrupt, GeneratorExit):
            events.close()
            finish = "cancelled"
            raise
        finally:
            recorder.end(finish)


def answer(text: str, finish: str, session: Any, request: Mapping[str, Any], law: str = "") -> dict[str, Any]:
    """The JSON of `specc run`; counters beyond the promised ones come along. law: what
    the certificate says.
    """
    stats = dict(session.stats)
    enabled, reasons = stats.pop("enabled"), stats.pop("reasons")
    return {
        "text": text,
        "token_ids": list(session.tokens),
        "finish_reason": finish,
        "seed": session.seed,
        "rule": request.get("rule", "rejection"),
        "speculation": {"enabled": enabled, "reasons": list(reasons), "law": law},
        "stats": {name: stats.pop(name) for name in STATS} | stats,
    }


def stats_line(result: Mapping[str, Any]) -> str:
    """The statistics in one line for people."""
    stats, spec = result["stats"], result["speculation"]
    seconds = max(stats["seconds"], 1e-9)
    calls = max(stats["target_calls"], 1)
    approximate = f", {spec['law']}" if spec.get("law", "").startswith("approximate") else ""
    mode = (
        f"speculation on{approximate}"
        if spec["enabled"]
        else f"speculation off ({', '.join(spec['reasons'])})"
    )
    drafted = (
        f", {stats['accepted']} of {stats['proposed']} proposed tokens accepted" if stats["proposed"] else ""
    )
    return (
        f"{stats['emitted']} tokens in {seconds:.2f} s, {stats['emitted'] / seconds:.1f} tokens/s, "
        f"{stats['emitted'] / calls:.2f} tokens per target call{drafted}, {mode}, "
        f"seed {result['seed']}, finish {result['finish_reason']}"
    )
