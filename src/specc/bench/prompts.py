"""The prompts of the bench, by class: those that ship with the package, or the user's own file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from specc.contracts.bundle.manifest import Bundle
from specc.errors import InputError
from specc.generate.run import GenerateRequest, encode_prompt
from specc.yaml_table import PARSE_ERRORS, Loader

OWN = "prompts"
"""Name of the class of a file without classes."""
Classes = dict[str, list[str]]


def load_shipped(split: str) -> Classes:
    """The prompts that ship with the package: `held-out` (nothing was trained on them) or `tuning`."""
    from specc.calib.prompts import load

    return load(split)


def read_file(path: Path) -> Classes:
    """One prompt a line (one class), or YAML that maps class names to lists of prompts (.yaml, .yml,
    .json).
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"cannot read the prompts in {path}: {error}; give a UTF-8 text or YAML file"
        ) from error
    if path.suffix not in (".yaml", ".yml", ".json"):
        classes = {OWN: [line.strip() for line in text.splitlines() if line.strip()]}
    else:
        classes = check_classes(path, parse_yaml(path, text))
    if not any(classes.values()):
        raise InputError(
            f"{path} holds no prompt; write one a line, or YAML that maps class names to lists of them"
        )
    return classes


def parse_yaml(path: Path, text: str) -> Any:
    """The YAML value."""
    try:
        return yaml.load(text, Loader)
    except PARSE_ERRORS as error:
        raise InputError(
            f"{path} is no YAML: {' '.join(str(error).split())}; map class names to lists"
        ) from error


def check_classes(path: Path, value: Any) -> Classes:
    """Classes of prompts, each with at least one."""
    if not isinstance(value, dict):
        raise InputError(
            f"{path} holds {type(value).__name__}; YAML must map class names to lists of prompts"
        )
    for name, texts in value.items():
        good = (
            isinstance(texts, list)
            and texts
            and all(isinstance(text, str) and text.strip() for text in texts)
        )
        if not isinstance(name, str) or not good:
            raise InputError(
                f"{path}: class {name!r} is not a list of texts; write `{name}: [a prompt, another]`"
            )
    return dict(value)


def select_prompts(classes: Classes, count: int) -> Classes:
    """At most `count` prompts of each class, spread over it."""

    def spread(texts: list[str]) -> list[str]:
        n = min(count, len(texts))
        return [texts[i * len(texts) // n] for i in range(n)]

    return {name: spread(texts) for name, texts in classes.items()}


def encode_prompts(bundle: Bundle, classes: Classes, context: int) -> dict[str, list[list[int]]]:
    """Ids of every prompt. Raises InputError for one that leaves no room for two tokens."""
    out = {
        name: [encode_prompt(bundle, GenerateRequest(text)) for text in texts]
        for name, texts in classes.items()
    }
    for name, prompts in out.items():
        for i, ids in enumerate(prompts):
            if len(ids) + 2 > context:
                raise InputError(
                    f"prompt {i + 1} of class {name!r} is {len(ids)} tokens and the bundle's context "
                    f"{context}; shorten it or build with a larger context"
                )
    return out
