"""A recipe: what to build, from which checkpoint, how to draft, what must hold. Frozen, checked, with line
numbers.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path

from specc.contracts.draft_kinds import AUTO_DRAFT, Draft, read_draft
from specc.contracts.scheme import DEFAULT_SCHEME, Scheme, read_scheme
from specc.errors import InputError, RecipeError, describe_read_error
from specc.yaml_table import Table, read_table

K_LIMIT = 16
RANGES = ("percentile", "max", "mse", "entropy")
TEMPLATES = ("chat", "none")
DIALECTS = ("auto", "specc-cpu", "ort", "onnx24")
CACHES = ("auto", "fp8")
OPTIONS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
)
LARGEST_CONTEXT = 1 << 20
MOST_TOKENS = 100
"""Of one list of end tokens; the runtime reads 256 of all together."""
KEYS = (
    "name",
    "target",
    "draft",
    "k",
    "context",
    "scheme",
    "calibration",
    "sampling",
    "certify",
    "gate",
    "hardware",
    "dialect",
    "threads",
    "prompt_template",
    "template",
    "eos",
    "stop_ids",
    "cache",
    "batch",
)


class TokenNotFound(InputError):
    """A token of a recipe that the model does not have; `key`: the recipe's key."""

    def __init__(self, key: str, found: str, allowed: str) -> None:
        super().__init__(f"{found}; {allowed}")
        self.key, self.found, self.allowed = key, found, allowed


@dataclass(frozen=True)
class Source:
    """A checkpoint: `package:NAME/FILE`, a local folder or GGUF file, or a hub id; revision for the hub
    only. The other fields are the recipe's, in place of what the checkpoint says.
    """

    checkpoint: str
    revision: str | None = None
    template: str | None = None
    """Jinja text of the chat template; None: the checkpoint's."""
    eos: tuple[int | str, ...] | None = None
    """End tokens as ids or strings; None: all that the checkpoint names."""
    stop_ids: tuple[int | str, ...] = ()
    """Further tokens at which a generation ends."""


@dataclass(frozen=True)
class Sampling:
    """Defaults of `run`, named and ranged as in specc.h."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0


@dataclass(frozen=True)
class Ranges:
    """How static activation scales are found, for schemes that need them (int8, fp8)."""

    method: str = "percentile"
    migrate: float | None = None
    """Share of an input channel's size that moves into the weights (0 to 1); None: nothing moves."""


@dataclass(frozen=True)
class GateLimits:
    """What the judges hold the build to; None means: measured and reported, not limited."""

    kl_max: float | None = None
    top1_min: float | None = None
    perplexity_max: float | None = None
    allow_bounded: float | None = None


@dataclass(frozen=True)
class Recipe:
    """One recipe file, checked; `k` is None for auto, `threads` 0 for the hardware's own."""

    file: str
    text: str
    name: str
    target: Source
    draft: Draft
    k: int | None
    context: int
    scheme: Scheme
    calibration_text: str | None
    sampling: Sampling
    certify: tuple[str, ...]
    gate: GateLimits
    hardware: str
    dialect: str
    """Operators of the graphs; "auto": the hardware's own where they have the scheme."""
    threads: int
    prompt_template: str
    ranges: Ranges
    cache: str
    """Type of keys and values; "auto": that of the products beside them."""
    lines: dict[str, int] = field(compare=False, repr=False)
    measured_k: bool = False
    """`k: auto` is written: a build measures acceptance and chooses. Left out, K is 4."""

    @property
    def sha256(self) -> str:
        """Of the recipe's text."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def folder(self) -> Path:
        """Where relative paths of the recipe start."""
        return Path(self.file).resolve().parent

    def find_line(self, key: str) -> int:
        """Line of a dotted key; of its nearest table above where the key is left out."""
        while key and key not in self.lines:
            key = key.rpartition(".")[0]
        return self.lines.get(key, 1)

    def make_error(self, key: str, found: str, allowed: str) -> RecipeError:
        """A RecipeError at the line of a dotted key."""
        return RecipeError(self.file, self.find_line(key), found, allowed)


def load_recipe(path: str | Path) -> Recipe:
    """Read and check a recipe. Raises InputError (no such file) or RecipeError (file:line: found; allowed).

    >>> from specc import load_recipe
    >>> recipe = load_recipe("recipe.yaml")
    >>> recipe.target.checkpoint, recipe.draft.kind, recipe.k
    ('tiny', 'ngram', 4)
    """
    root = read_table(Path(path))
    root.check_keys(*KEYS)
    k = read_k(root)
    check_batch(root)
    return Recipe(
        file=root.file,
        text=root.source,
        name=read_name(root),
        target=read_source(root),
        draft=AUTO_DRAFT if root.get("draft") == "auto" else read_draft(root.get_table("draft")),
        k=k,
        context=root.get_integer("context", None, (k or 1) + 2, LARGEST_CONTEXT, low_is="K + 2"),
        scheme=read_scheme(root, DEFAULT_SCHEME),
        calibration_text=read_calibration_text(root),
        sampling=read_sampling(root.get_table("sampling")),
        certify=root.get_choices("certify", OPTIONS, ("temperature", "top_p", "top_k", "min_p")),
        gate=read_gate(root.get_table("gate")),
        hardware=root.get_text("hardware", "cpu-x86"),
        dialect=root.get_choice("dialect", DIALECTS, "auto"),
        threads=root.get_integer("threads", 0, 0, 1024),
        prompt_template=root.get_choice("prompt_template", TEMPLATES, "chat"),
        ranges=read_ranges(root.get_table("calibration")),
        cache=root.get_choice("cache", CACHES, "auto"),
        lines=root.list_lines(),
        measured_k=root.get("k") == "auto",
    )


def check_batch(root: Table) -> None:
    """A call holds the rows of one sequence; several sequences are several sessions of one model."""
    batch = root.get_integer("batch", 1, 1, 1 << 16)
    if batch != 1:
        raise root.make_error(
            "batch", f"batch is {batch}", "allowed is 1 (a graph takes one sequence; open a session each)"
        )


def read_name(root: Table) -> str:
    """The bundle's name, which is also the default folder: letters, digits, dot, dash and underscore."""
    name = root.get_text("name", Path(root.file).stem)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise root.make_error(
            "name", f"name is {name!r}", "allowed are 1 to 100 letters, digits, '.', '-' and '_'"
        )
    return name


def read_k(root: Table) -> int | None:
    """K, or None for auto."""
    if root.get("k", "auto") == "auto":
        return None
    return root.get_integer("k", None, 1, K_LIMIT, otherwise="or 'auto'")


def read_source(root: Table) -> Source:
    """The target's checkpoint with the recipe's template and end tokens; a scheme's spelling is checked
    where it is opened.
    """
    table = root.get_table("target", required=True)
    table.check_keys("checkpoint", "revision")
    return Source(
        table.get_text("checkpoint", None),
        table.get_optional_text("revision"),
        read_template(root),
        read_tokens(root, "eos"),
        read_tokens(root, "stop_ids") or (),
    )


def read_tokens(root: Table, key: str) -> tuple[int | str, ...] | None:
    """A list of tokens, each an id or a string of the tokenizer; None where the key is left out."""
    if key not in root:
        return None
    listed = root.get(key)
    if (
        not isinstance(listed, list)
        or len(listed) > MOST_TOKENS
        or not all(
            (type(token) is int and 0 <= token < 1 << 31) or (isinstance(token, str) and token)
            for token in listed
        )
    ):
        raise root.make_value_error(
            key, f"a list is needed of at most {MOST_TOKENS} token ids or token strings"
        )
    return tuple(dict.fromkeys(listed))


def read_template(root: Table) -> str | None:
    """The text of the recipe's own chat template: written out, or in a file relative to the recipe."""
    text = root.get_optional_text("template")
    if text is None:
        return None
    if root.get("prompt_template") == "none":
        raise root.make_error("template", "template is given and prompt_template is none", "keep one of them")
    if not any(sign in text for sign in ("{{", "{%", "{#", "\n")):
        try:
            text = (Path(root.file).resolve().parent / text).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise root.make_value_error(
                "template",
                f"which cannot be read as a file ({describe_read_error(error)}); a file's path relative to "
                "the recipe is needed, or a Jinja text with {{ or {%",
            ) from error
    from specc.contracts.chat_template import check_template

    problem = check_template(text)
    if problem is not None:
        raise root.make_error("template", f"template is no Jinja text: {problem}", "correct it")
    return text


def read_calibration_text(root: Table) -> str | None:
    """The calibration text's path as written, relative to the recipe; None for the text that comes along."""
    table = root.get_table("calibration")
    table.check_keys("text", "ranges", "migrate")
    return table.get_optional_text("text")


def read_ranges(table: Table) -> Ranges:
    """How activation scales are found."""
    return Ranges(
        table.get_choice("ranges", RANGES, "percentile"), table.get_optional_number("migrate", 0.0, 1.0)
    )


def read_sampling(table: Table) -> Sampling:
    """Sampling defaults within the ranges of specc.h."""
    table.check_keys(*(option for option in OPTIONS if option != "logit_bias"))
    return Sampling(
        temperature=table.get_number("temperature", 1.0, 0.0, 1e6),
        top_p=table.get_number("top_p", 1.0, 0.0, 1.0, above=True),
        top_k=table.get_integer("top_k", 0, 0, 1 << 30),
        min_p=table.get_number("min_p", 0.0, 0.0, 1.0),
        repetition_penalty=table.get_number("repetition_penalty", 1.0, 0.0, 1e6, above=True),
        presence_penalty=table.get_number("presence_penalty", 0.0, -1e6, 1e6),
        frequency_penalty=table.get_number("frequency_penalty", 0.0, -1e6, 1e6),
    )


def read_gate(table: Table) -> GateLimits:
    """Limits of the quality judge, and the total variation up to which a bounded certificate may
    speculate.
    """
    table.check_keys("kl_max", "top1_min", "perplexity_max", "allow_bounded")
    return GateLimits(
        kl_max=table.get_optional_number("kl_max", 0.0, 1e6),
        top1_min=table.get_optional_number("top1_min", 0.0, 1.0),
        perplexity_max=table.get_optional_number("perplexity_max", 1.0, 1e9),
        allow_bounded=table.get_optional_number("allow_bounded", 0.0, 1.0),
    )
