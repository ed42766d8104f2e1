"""Generation on a bundle, as `specc run` does it: prompt to ids, events to text, one JSON at the end."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specc.contracts.bundle.manifest import Bundle, read_bundle, verify_bundle
from specc.errors import InputError
from specc.generate.record import make_header, open_record
from specc.generate.template import Prompter

if TYPE_CHECKING:
    from specc.runtime import Event

STATS = ("target_calls", "draft_calls", "proposed", "accepted", "emitted", "seconds")


@dataclass(frozen=True)
class GenerateRequest:
    """One prompt and how to answer it."""

    prompt: str
    raw: bool = False
    threads: int = 0
    certificates: Path | None = None
    trust: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    """Fields of specc.runtime.Request, in place of the bundle's own sampling options."""
    record: Path | None = None
    """Where a record goes that `specc gate --replay` judges again."""
    parse_special: bool = False
    """Whether special tokens that the prompt writes out are tokens, not text, within the chat template."""


def encode_prompt(
    bundle: Bundle, request: GenerateRequest, on_note: Callable[[str], None] = lambda _: None
) -> list[int]:
    """Ids of the prompt, by the chat template unless `raw`. Raises InputError for an empty one.

    `on_note` gets each sentence about what the chat template does to the prompt.
    """
    if not request.prompt:
        raise InputError("the prompt is empty; give some text with -p")
    if any("\ud800" <= letter <= "\udfff" for letter in request.prompt):
        raise InputError("the prompt is not valid UTF-8; write it in UTF-8")
    prompter = Prompter.from_bundle(bundle)
    if request.raw:
        return prompter.encode_raw(request.prompt)
    ids = prompter.encode_user(request.prompt, request.parse_special)
    for note in prompter.notes:
        on_note(note)
    return ids


def generate(
    folder: Path,
    request: GenerateRequest,
    on_text: Callable[[str], None] = lambda _: None,
    on_note: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Generate, and return the JSON of `specc run`; `on_text` gets each piece of whole UTF-8 at once, and
    `on_note` each sentence about the prompt.

    An interrupt ends the generation; what is there is returned with `finish_reason` "cancelled".
    """
    from specc.runtime import Model

    bundle = verify_bundle(read_bundle(folder), request.trust)
    ids = encode_prompt(bundle, request, on_note)
    options = {**bundle.manifest["sampling"], **request.options}
    opened = Model.open(folder, threads=request.threads, certificates=request.certificates, trust=True)
    with opened as model, model.session() as session:
        pieces, finish = [], "cancelled"
        if request.record is not None:
            session.trace()
        events = session.generate(ids, **options)
        if request.record is not None:
            header = make_header(bundle.manifest["name"], model.info, session, options, ids)
            events = record_events(events, request.record, header)
        try:
            for event in events:
                pieces.append(event.text)
                on_text(event.text)
                finish = event.finished or finish
        except KeyboardInterrupt:
            events.close()
        return make_result("".join(pieces), finish, session, options, model.info.certificate.words)


def record_events(
    events: Generator[Event, None, None], path: Path, header: Mapping[str, Any]
) -> Generator[Event, None, None]:
    """The same events, each written into the record before it is passed on."""
    at, finish = len(header["prompt"]), "error"
    with open_record(path) as recorder:
        recorder.line(header)
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


def make_result(
    text: str, finish: str, session: Any, options: Mapping[str, Any], law: str = ""
) -> dict[str, Any]:
    """The JSON of `specc run`, all counters included. law: the words of the certificate."""
    stats = dict(session.stats)
    enabled, reasons = stats.pop("enabled"), stats.pop("reasons")
    return {
        "text": text,
        "token_ids": list(session.tokens),
        "finish_reason": finish,
        "seed": session.seed,
        "rule": options.get("rule", "rejection"),
        "speculation": {"enabled": enabled, "reasons": list(reasons), "law": law},
        "stats": {name: stats.pop(name) for name in STATS} | stats,
    }


def format_stats(result: Mapping[str, Any]) -> str:
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
