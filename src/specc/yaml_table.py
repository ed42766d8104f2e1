"""YAML whose values remember their line, so that an error can say file:line, what was found and what is
allowed.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from specc.errors import InputError, RecipeError, describe_read_error

Value = TypeVar("Value", int, str)

PARSE_ERRORS = (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, ArithmeticError)
"""What the YAML package raises for text that its tag, or its escapes, do not fit."""


class Loader(yaml.SafeLoader):
    """Refuses aliases: a few lines of them stand for billions of values, or for a value inside itself."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """The next node, or an error where it is an alias."""
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "aliases are not used here", mark)
        node: yaml.Node | None = super().compose_node(parent, index)
        return node


@dataclass(frozen=True)
class Table:
    """One mapping of a YAML file: values (scalars, lists, Tables) and the line of each key."""

    file: str
    source: str
    path: str
    """Dotted name of the mapping itself, "" for the file."""
    line: int
    values: dict[str, Any]
    lines: dict[str, int]

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def get(self, key: str, default: Any = None) -> Any:
        """The raw value."""
        return self.values.get(key, default)

    def qualify(self, key: str) -> str:
        """Full name of a key, as errors show it."""
        return f"{self.path}.{key}" if self.path else key

    def make_error(self, key: str, found: str, allowed: str) -> RecipeError:
        """A RecipeError at the key's line (the table's where the key is missing)."""
        return RecipeError(self.file, self.lines.get(key, self.line), found, allowed)

    def list_lines(self) -> dict[str, int]:
        """Line of every dotted key of this table and the tables below."""
        lines = {self.qualify(key): line for key, line in self.lines.items()}
        for value in self.values.values():
            if isinstance(value, Table):
                lines.update(value.list_lines())
        return lines

    def check_keys(self, *allowed: str, owner: str = "") -> None:
        """Refuse keys beyond `allowed`, with the nearest spelling."""
        for key in self.values:
            if key not in allowed:
                near = difflib.get_close_matches(key, allowed, 1)
                hint = f"did you mean {near[0]!r}? " if near else ""
                where = owner or (f"'{self.path}'" if self.path else "this file")
                names = ", ".join(sorted(allowed)) or "none"
                raise self.make_error(
                    key, f"unknown key {self.qualify(key)!r}", f"{hint}keys of {where} are {names}"
                )

    def get_table(self, key: str, required: bool = False) -> Table:
        """The mapping under `key`; an empty one where it is missing and not required."""
        value = self.values.get(key)
        if isinstance(value, Table):
            return value
        if value is None and not required:
            return Table(self.file, self.source, self.qualify(key), self.lines.get(key, self.line), {}, {})
        raise self.make_value_error(key, "a mapping is needed")

    def make_value_error(self, key: str, allowed: str) -> RecipeError:
        """The error for a missing or unusable value."""
        if key not in self.values:
            return self.make_error(key, f"{self.qualify(key)!r} is missing", allowed)
        return self.make_error(key, f"{self.qualify(key)} is {format_value(self.values[key])}", allowed)

    def get_text(self, key: str, default: str | None) -> str:
        """A non-empty string; required where `default` is None."""
        value = self.values.get(key, default)
        if not isinstance(value, str) or not value.strip():
            raise self.make_value_error(key, "a non-empty string is needed")
        if any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in value):
            raise self.make_value_error(key, "a string without NUL and without halves of letters is needed")
        return value

    def get_optional_text(self, key: str) -> str | None:
        """A string, or None where it is missing."""
        return self.get_text(key, None) if self.values.get(key) is not None else None

    def get_integer(
        self, key: str, default: int | None, low: int, high: int, *, low_is: str = "", otherwise: str = ""
    ) -> int:
        """A whole number in [low, high]; booleans are not numbers."""
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            bound = f"{low} ({low_is})" if low_is else str(low)
            raise self.make_value_error(
                key, f"allowed are whole numbers from {bound} to {high}{' ' * bool(otherwise)}{otherwise}"
            )
        return value

    def get_number(
        self, key: str, default: float | None, low: float, high: float, *, above: bool = False
    ) -> float:
        """A finite number in [low, high], or in (low, high] where `above`."""
        value = self.values.get(key, default)
        good = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < math.inf
        if not good or not low <= value <= high or (above and value == low):  # type: ignore[operator]
            word = "above" if above else "from"
            raise self.make_value_error(key, f"allowed are numbers {word} {low:g} to {high:g}")
        return float(value)  # type: ignore[arg-type]

    def get_optional_number(self, key: str, low: float, high: float) -> float | None:
        """A finite number in [low, high], or None where it is missing."""
        return self.get_number(key, None, low, high) if self.values.get(key) is not None else None

    def get_choice(self, key: str, allowed: tuple[str, ...], default: str) -> str:
        """One of a few words."""
        return self.get_value(key, allowed, default)

    def get_value(self, key: str, allowed: tuple[Value, ...], default: Value) -> Value:
        """One of a few values."""
        value = self.values.get(key, default)
        for candidate in allowed:
            if type(value) is type(candidate) and value == candidate:
                return candidate
        raise self.make_value_error(key, f"allowed are {', '.join(map(str, allowed))}")

    def get_tables(self, key: str) -> list[Table]:
        """A list of mappings."""
        value = self.values.get(key)
        if not isinstance(value, list) or not value or not all(isinstance(item, Table) for item in value):
            raise self.make_value_error(key, "a list of mappings is needed")
        return value

    def get_choices(self, key: str, allowed: tuple[str, ...], default: tuple[str, ...]) -> tuple[str, ...]:
        """A list of words, each one of a few."""
        value = self.values.get(key, list(default))
        if not isinstance(value, list) or not all(
            isinstance(item, str) and item in allowed for item in value
        ):
            raise self.make_value_error(key, f"a list is needed of words from {', '.join(allowed)}")
        return tuple(dict.fromkeys(value))


def format_value(value: Any) -> str:
    """A value as an error prints it."""
    if isinstance(value, Table):
        return "a mapping"
    try:
        text = "empty" if value is None else repr(value)
    except ValueError:  # Python prints whole numbers up to 4300 digits only
        return "a very long number"
    return text if len(text) <= 60 else text[:57] + "..."


def read_table(path: Path) -> Table:
    """Parse a YAML file whose top level is a mapping. Raises InputError or RecipeError."""
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"cannot read {path}: {describe_read_error(error)}; give the path of a YAML file"
        ) from error
    try:
        node = yaml.compose(source, Loader=Loader)
        if not isinstance(node, yaml.MappingNode):
            raise RecipeError(str(path), 1, "the file holds no mapping", "'key: value' lines are needed")
        return build_table(node, str(path), source, "")
    except PARSE_ERRORS as error:
        raise RecipeError(
            str(path), find_line(error), f"not YAML: {describe_problem(error)}", "correct the line"
        ) from error
    except RecursionError as error:
        raise RecipeError(str(path), 1, "the file is nested too deeply", "two levels are enough") from error


def find_line(error: Exception) -> int:
    """Line of a YAML error, 1 where it has none."""
    mark = getattr(error, "problem_mark", None)
    return mark.line + 1 if mark is not None else 1


def describe_problem(error: Exception) -> str:
    """The parser's own short word for the problem."""
    return str(getattr(error, "problem", None) or error).splitlines()[0]


def build_table(node: yaml.MappingNode, file: str, source: str, path: str) -> Table:
    """A Table from a mapping node, tables below included."""
    values: dict[str, Any] = {}
    lines: dict[str, int] = {}
    for key, line, value in list_pairs(node, file):
        if key in values:
            raise RecipeError(
                file, line, f"key {key!r} stands twice (first in line {lines[key]})", "keep one of them"
            )
        lines[key] = line
        below = f"{path}.{key}" if path else key
        values[key] = build_value(value, file, source, below)
    return Table(file, source, path, node.start_mark.line + 1, values, lines)


def list_pairs(node: yaml.MappingNode, file: str) -> Iterator[tuple[str, int, yaml.Node]]:
    """Keys with their lines and value nodes; keys must be plain strings."""
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
            raise RecipeError(
                file, line, f"a key is {getattr(key, 'value', 'a collection')!r}", "keys must be words"
            )
        yield key.value, line, value


def build_value(node: yaml.Node, file: str, source: str, path: str) -> Any:
    """The plain value of a node; mappings become Tables."""
    if isinstance(node, yaml.MappingNode):
        return build_table(node, file, source, path)
    if isinstance(node, yaml.SequenceNode):
        return [build_value(item, file, source, path) for item in node.value]
    try:
        return Loader("").construct_object(node)
    except PARSE_ERRORS as error:
        line = node.start_mark.line + 1
        raise RecipeError(
            file, line, f"{path} is {format_value(node.value)}", "a plain value is needed"
        ) from error
