"""Tokenizers: bytes per id, and which two may work together."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support import tiny

pytest.importorskip("tokenizers")

from specc.errors import InputError  # noqa: E402
from specc.exporter.check.sample_text import encode_sample  # noqa: E402
from specc.exporter.checkpoint.tokenizer import (
    TokenizerJson,
    compare_tokenizers,
    hash_id_map,
    list_id_bytes,
    strips_leading_space,
)


def tokens(**changes: Any) -> TokenizerJson:
    """The tiny tokenizer with some keys of its tokenizer.json changed."""
    return TokenizerJson(json.dumps({**tiny.tokenizer_json(), **changes}))


def swapped(a: int, b: int) -> dict[str, int]:
    """The tiny vocabulary with two ids swapped."""
    other = {a: b, b: a}
    return {token: other.get(i, i) for token, i in tiny.byte_vocab().items()}


def test_equal_tokenizers_have_no_notes() -> None:
    """The same twice."""
    assert compare_tokenizers(tokens(), tokens()) == ()


def test_two_ids_swapped_are_refused() -> None:
    """R22: same size, other map; the first differing id is named, and the hashes differ."""
    other = TokenizerJson(json.dumps(tiny.tokenizer_json(swapped(65, 66))))
    assert tokens().count == other.count and hash_id_map(tokens().by_id) != hash_id_map(other.by_id)
    with pytest.raises(InputError, match="id 65 is 'A' in the target, 'B' in the draft"):
        compare_tokenizers(tokens(), other)


def test_comparing_sizes_only_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """R22 put back: with nothing but the sizes compared, the test above fails."""
    from specc.exporter.checkpoint import tokenizer as inside

    monkeypatch.setattr(inside, "check_ids", lambda target, draft, names: target.count == draft.count)
    with pytest.raises(pytest.fail.Exception):
        test_two_ids_swapped_are_refused()


@pytest.mark.parametrize("rule", ["normalizer", "pre_tokenizer", "decoder"])
def test_other_rules_are_refused(rule: str) -> None:
    """R22: the ids agree, but a text is cut or joined in another way."""
    with pytest.raises(InputError, match=f"the {rule.replace('_', '-')} is not the same"):
        compare_tokenizers(tokens(), tokens(**{rule: {"type": "NFC"}}))


def test_other_merges_are_refused() -> None:
    """R22: same vocabulary, other merges; the two spellings of a merge are one."""

    def merging(*merges: Any) -> TokenizerJson:
        model = tiny.tokenizer_json()["model"]
        return tokens(model={**model, "merges": list(merges)})

    assert compare_tokenizers(merging("a b"), merging(["a", "b"])) == ()
    with pytest.raises(InputError, match="the merges is not the same"):
        compare_tokenizers(merging("a b"), merging("a c"))


def test_an_extra_special_token_is_a_note() -> None:
    """R22: a special token of the draft alone is harmless; an ordinary one is not."""
    extra = {**tiny.tokenizer_json()["added_tokens"][0], "id": 256, "content": "<pad>"}
    known = tiny.tokenizer_json()["added_tokens"]
    assert compare_tokenizers(tokens(), tokens(added_tokens=[*known, extra])) == (
        "id 256 '<pad>' is a special token of the draft only",
    )
    with pytest.raises(InputError, match="id 256 is None in the target"):
        compare_tokenizers(tokens(), tokens(added_tokens=[*known, {**extra, "special": False}]))


def test_byte_level_bytes() -> None:
    """R24: each id is its byte, so an emoji of four ids joins to its four bytes.

    The special id adds nothing.
    """
    from tokenizers import Tokenizer

    table = list_id_bytes(tokens())
    assert table[:255] == [bytes([b]) for b in range(255)] and table[255] == b""
    text = "a b\n\u4f60\U0001f600 end"
    ids = Tokenizer.from_str(tokens().text).encode(text).ids
    assert b"".join(table[i] for i in ids).decode() == text


def sentence_tokens() -> TokenizerJson:
    """A SentencePiece-like tokenizer with byte fallback."""
    vocab = {
        "<s>": 0,
        **{f"<0x{b:02X}>": b + 1 for b in range(256)},
        "\u2581Hello": 257,
        "\u2581": 258,
        "w": 259,
    }
    replace = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    decoder = {"type": "Sequence", "decoders": [replace, {"type": "ByteFallback"}, {"type": "Fuse"}, strip]}
    model = {**tiny.tokenizer_json()["model"], "vocab": vocab, "byte_fallback": True}
    start = {**tiny.tokenizer_json()["added_tokens"][0], "id": 0, "content": "<s>"}
    return tokens(model=model, decoder=decoder, pre_tokenizer=None, added_tokens=[start])


def test_byte_fallback_bytes() -> None:
    """R24: `<0xF0>` is one byte and the space mark is a space.

    The joined bytes equal the library's own decoding.
    """
    from tokenizers import Tokenizer

    table, ids = list_id_bytes(sentence_tokens()), [257, 258, 259, *(b + 1 for b in "\U0001f600".encode())]
    assert table[0] == b"" and table[0xF0 + 1] == b"\xf0" and table[257] == b" Hello"
    assert strips_leading_space(sentence_tokens()) and not strips_leading_space(tokens())
    joined = b"".join(table[i] for i in ids).decode().removeprefix(" ")
    assert joined == Tokenizer.from_str(sentence_tokens().text).decode(ids) == "Hello w\U0001f600"


def test_added_token_outside_the_byte_alphabet() -> None:
    """An ordinary added token with a space stands for itself."""
    added = {**tiny.tokenizer_json()["added_tokens"][0], "id": 256, "content": "two words", "special": False}
    assert list_id_bytes(tokens(added_tokens=[added]))[256] == b"two words"


def test_sample_text_fits_any_vocabulary() -> None:
    """Ids to check with stay below the head's width, and are as many as wanted."""
    ids = encode_sample(tokens(), 3000, 120)
    assert len(ids) == 3000 and ids.max() < 120


def begin_counts() -> list[int]:
    """Begin tokens of a chat, of its rendered text and of plain text, with a tokenizer that adds one
    itself.
    """
    from tokenizers import Tokenizer

    from specc.generate.template import Prompter

    begin, text = {"SpecialToken": {"id": "<end>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    special = {"<end>": {"id": "<end>", "ids": [tiny.END], "tokens": ["<end>"]}}
    adds = {
        "type": "TemplateProcessing",
        "single": [begin, text],
        "pair": [begin, text],
        "special_tokens": special,
    }
    template = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    made = Prompter(Tokenizer.from_str(tokens(post_processor=adds).text), template, tiny.END, ())
    rendered = made.render([{"role": "user", "content": "hi"}])
    return [
        list(ids).count(tiny.END)
        for ids in (made.encode_user("hi"), made.encode_raw(rendered), made.encode_raw("hi"))
    ]


def test_a_second_begin_token_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """R23: one begin token whoever writes it.

    Put back, with special tokens added whatever stands there, two.
    """
    from specc.generate.template import Prompter

    assert begin_counts() == [1, 1, 1]
    monkeypatch.setattr(Prompter, "encode_raw", lambda self, text: self._tokenizer.encode(text).ids)
    monkeypatch.setattr(
        Prompter, "encode_chat", lambda self, messages, _: self.encode_raw(self.render(messages))
    )
    assert begin_counts() == [2, 2, 1]
