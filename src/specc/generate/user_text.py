"""Special tokens that a user writes stay text, while those of the chat template are recognized.

The user's text is located in the rendered conversation (`locate_contents`). Where a control token is
recognized within it, the conversation is encoded by a second tokenizer (`QuotingTokenizer`) in which every
control token has another, private name: the template's own tokens are renamed, the user's are not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from specc.contracts.chat_template import Messages
from specc.errors import InputError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Span = tuple[int, int]
Wrap = Callable[[str], str]

NOT_TEXT = ("role", "type")
"""Keys of a message whose strings the template compares rather than writes."""
PRIVATE = range(0x10FFFD, 0xF0000, -1)
"""Private-use characters, taken as marks where the conversation does not hold them."""


# ------------------------------------------------------------------ where the user's text stands


def locate_contents(
    render: Callable[[Messages], str], messages: Messages, pattern: re.Pattern[str]
) -> list[Span] | None:
    """Spans of the user's text in `render(messages)`, without the spaces around it.

    pattern: matches control tokens. The text is marked and the conversation rendered once more: the marks
    stand where the text went, and without them both results must be equal. A template that looks at how a
    text begins or ends is tried with the control tokens alone marked, and then searched for the text itself.
    None where the text cannot be located.
    """
    plain = render(messages)
    begin, end = unused_characters(plain + "".join(list_strings(messages)), 2)

    def wrap_all(text: str) -> str:
        core = text.strip()
        return text.replace(core, f"{begin}{core}{end}", 1) if core else text

    def wrap_tokens(text: str) -> str:
        return pattern.sub(lambda match: f"{begin}{match[0]}{end}", text)

    for wrap, is_whole in ((wrap_all, True), (wrap_tokens, False)):
        try:
            marked = render(map_strings(messages, wrap))
        except InputError:
            continue
        spans = read_spans(marked, begin, end, is_whole)
        if spans is not None and marked.replace(begin, "").replace(end, "") == plain:
            return spans
    return search_contents(plain, messages, pattern)


def read_spans(marked: str, begin: str, end: str, is_whole: bool) -> list[Span] | None:
    """Spans between marks, counted without the marks.

    A mark without its pair comes from a text that the template has cut. Where whole texts are marked
    (`is_whole`) the answer is None then; where control tokens are, the one that was cut is none any more.
    """
    spans, at, start = list[Span](), 0, -1
    for part in re.split(f"([{begin}{end}])", marked):
        if part in (begin, end):
            if is_whole and (part == begin) == (start >= 0):
                return None
            if part == end and start >= 0:
                spans.append((start, at))
            start = at if part == begin else -1
        else:
            at += len(part)
    return None if is_whole and start >= 0 else spans


def search_contents(plain: str, messages: Messages, pattern: re.Pattern[str]) -> list[Span] | None:
    """Spans of the texts that hold control tokens, where each stands exactly as often as it was given."""
    cores = [text.strip() for text in list_strings(messages) if pattern.search(text)]
    spans = list[Span]()
    for core in dict.fromkeys(cores):
        found = [match.span() for match in re.finditer(re.escape(core), plain)]
        if len(found) != cores.count(core):
            return None
        spans += found
    return sorted(spans)


def list_strings(value: Any, key: str = "") -> Iterator[str]:
    """Every string of a conversation that a template may write."""
    if isinstance(value, str):
        yield from () if key in NOT_TEXT else (value,)
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from list_strings(inner, str(name))
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from list_strings(inner, key)


def map_strings(value: Any, wrap: Wrap, key: str = "") -> Any:
    """The conversation with each of those strings replaced."""
    if isinstance(value, str):
        return value if key in NOT_TEXT else wrap(value)
    if isinstance(value, Mapping):
        return {name: map_strings(inner, wrap, str(name)) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [map_strings(inner, wrap, key) for inner in value]
    return value


def unused_characters(text: str, count: int) -> list[str]:
    """`count` private-use characters that the text does not hold."""
    used = set(text)
    free = (chr(code) for code in PRIVATE if chr(code) not in used)
    return [next(free) for _ in range(count)]


# ------------------------------------------------------------------ how it becomes ids


class QuotingTokenizer:
    """Encodes text of which only a part may hold control tokens.

    control: id -> string of the control tokens. Any other added token, such as a run of spaces, is recognized
    in all text.
    """

    def __init__(self, tokenizer: Tokenizer, control: Mapping[int, str]) -> None:
        self._tokenizer, self._control = tokenizer, dict(control)
        self.pattern = re.compile(
            "|".join(map(re.escape, sorted(self._control.values(), key=len, reverse=True))) or "(?!)"
        )

    def encode(self, text: str, contents: Sequence[Span]) -> list[int] | None:
        """Ids of the text, whose spans `contents` hold no control tokens; None where it cannot be encoded so.

        Equal to what the tokenizer makes of it where no control token stands in a span.
        """
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        found = [
            (id, any(a < end and start < b for start, end in contents))
            for id, (a, b) in zip(encoding.ids, encoding.offsets, strict=True)
            if id in self._control
        ]
        if not any(inside for _, inside in found):
            return list(encoding.ids)
        if self._renamed is None:
            return None
        tokenizer, names = self._renamed
        if set(names.values()) & set(text):
            return None
        pieces, at = list[str](), 0
        for start, end in [*contents, (len(text), len(text))]:
            pieces.append(self.pattern.sub(lambda match: names[match[0]], text[at:start]))
            pieces.append(text[start:end])
            at = end
        ids = list(tokenizer.encode("".join(pieces), add_special_tokens=False).ids)
        written = iter(id for id in ids if id in self._control)
        return ids if all(id in written for id, inside in found if not inside) else None

    def encode_text(self, text: str) -> list[int]:
        """Ids of text without control tokens."""
        ids = self.encode(text, [(0, len(text))])
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids) if ids is None else ids

    @cached_property
    def _renamed(self) -> tuple[Tokenizer, dict[str, str]] | None:
        """The same tokenizer with renamed control tokens, and new names by old ones; None where it cannot be
        made.
        """
        from tokenizers import Tokenizer

        names = {token: chr(0xF0000 + i) for i, token in enumerate(dict.fromkeys(self._control.values()))}
        try:
            renamed = Tokenizer.from_str(json.dumps(rename(json.loads(self._tokenizer.to_str()), names)))
        except Exception:  # the package raises plain Exception
            return None
        same = all(renamed.token_to_id(names[token]) == id for id, token in self._control.items())
        return (renamed, names) if same else None


def rename(parsed: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """A parsed tokenizer.json whose added and model tokens have the given new names; nothing is added to a
    text. Merges that read or write a renamed token are left out.
    """
    model = parsed["model"]
    for token in parsed.get("added_tokens") or ():
        token["content"] = names.get(token["content"], token["content"])
    vocab = model.get("vocab")
    if isinstance(vocab, dict):
        model["vocab"] = {names.get(token, token): id for token, id in vocab.items()}
    elif vocab is not None:
        model["vocab"] = [[names.get(piece, piece), *rest] for piece, *rest in vocab]
    if isinstance(model.get("unk_token"), str):
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
    if model.get("merges"):
        pairs = [merge.split(" ", 1) if isinstance(merge, str) else merge for merge in model["merges"]]
        model["merges"] = [
            [a, b] for a, b in pairs if a not in names and b not in names and a + b not in names
        ]
    return {**parsed, "model": model, "post_processor": None, "truncation": None, "padding": None}
