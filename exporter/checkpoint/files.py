"""The files that are read of a checkpoint, listed without reading the weights."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from specc.exporter.checkpoint.weights import read_json

TEMPLATE_FOLDERS = ("additional_chat_templates", "chat_templates")
"""The subfolders that are read, with all that they hold."""
UNREAD_SUFFIXES = frozenset(
    (".md", ".rst", ".log", ".yaml", ".yml", ".png", ".jpg", ".jpeg", ".gif", ".svg", ".webp", ".pdf")
    + (".gguf", ".onnx", ".pt", ".pth", ".h5", ".msgpack", ".ot", ".tflite", ".part", ".tmp", ".lock")
)
"""Of files that may lie in a checkpoint's folder and are not read: prose, pictures, weights of other
formats.
"""
UNREAD_NAMES = re.compile(r"\.|LICEN[CS]E|NOTICE|README|USE_POLICY", re.IGNORECASE)
"""Beginnings of such names; a leading dot hides a file."""
BESIDE_GGUF = (
    "adapter_config.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "config.json",
    "generation_config.json",
    "merges.txt",
    "processor_config.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
)
"""What transformers looks for in the folder of a GGUF file."""
SPLIT_GGUF = re.compile(r"(.+-)\d{5}(-of-\d{5}\.gguf)", re.IGNORECASE)


def list_read_files(path: Path) -> dict[str, Path]:
    """Name -> path of every file that is read of the checkpoint at `path`, in the order of the names.

    Of a folder: its files but those of UNREAD_SUFFIXES and UNREAD_NAMES, its chat templates, and what its
    index of weights names. Of a GGUF file: all its parts, and what transformers reads beside it. Links are
    followed when a file is opened; a link that leads nowhere counts as missing.
    """
    if path.is_dir():
        names = {*list_folder(path), *list_shards(path)}
        folder = path
    else:
        folder = path.parent
        names = {path.name, *list_gguf_parts(path), *(n for n in BESIDE_GGUF if (folder / n).is_file())}
    names.update(list_templates(folder))
    return {name: folder / name for name in sorted(names)}


def list_folder(folder: Path) -> Iterator[str]:
    """Names of the files in a folder itself that may be read."""
    for file in folder.iterdir():
        unread = file.suffix.lower() in UNREAD_SUFFIXES or UNREAD_NAMES.match(file.name)
        if not unread and file.is_file():
            yield file.name


def list_shards(folder: Path) -> Iterator[str]:
    """The weight files that the index names and that are there; they may lie in subfolders."""
    shards = read_json(folder / "model.safetensors.index.json").get("weight_map")
    names = shards.values() if isinstance(shards, dict) else ()
    return (name for name in names if isinstance(name, str) and (folder / name).is_file())


def list_templates(folder: Path) -> Iterator[str]:
    """Files of the template folders, relative to `folder`; links to folders are followed once."""
    for name in TEMPLATE_FOLDERS:
        seen: set[str] = set()
        for place, inner, files in os.walk(folder / name, followlinks=True):
            real = os.path.realpath(place)
            if real in seen:
                inner.clear()
                continue
            seen.add(real)
            paths = (Path(place, file) for file in files)
            yield from (path.relative_to(folder).as_posix() for path in paths if path.is_file())


def list_gguf_parts(path: Path) -> Iterator[str]:
    """The parts of a split GGUF file that are there, by its own name; nothing for a file in one piece."""
    name = SPLIT_GGUF.fullmatch(path.name)
    if name is None:
        return
    for file in path.parent.iterdir():
        other = SPLIT_GGUF.fullmatch(file.name)
        if other is not None and other.groups() == name.groups() and file.is_file():
            yield file.name
