"""Which files of a checkpoint count as read."""

from __future__ import annotations

from pathlib import Path

import pytest

from specc.exporter.checkpoint.files import list_read_files

READ = (
    "adapter_config.json",
    "added_tokens.json",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "merges.txt",
    "model.safetensors",
    "model.safetensors.index.json",
    "qwen.tiktoken",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
    "chat_templates/tool.jinja",
    "additional_chat_templates/deep/rag.jinja",
)
UNREAD = (
    ".gitattributes",
    ".cache/huggingface/config.json",
    "LICENSE",
    "README.md",
    "original/params.json",
    "out/manifest.json",
    "model.gguf",
    "train.log",
)


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")


def test_a_folders_files(tmp_path: Path) -> None:
    write(tmp_path, *READ, *UNREAD)
    assert list(list_read_files(tmp_path)) == sorted(READ)


def test_shards_that_the_index_names_elsewhere(tmp_path: Path) -> None:
    write(tmp_path / "folder", "config.json", "parts/a.safetensors", "parts/b.safetensors")
    write(tmp_path, "c.safetensors")
    (tmp_path / "folder" / "model.safetensors.index.json").write_text(
        '{"weight_map": {"x": "parts/a.safetensors", "y": "../c.safetensors", "z": "gone.safetensors"}}'
    )
    found = list_read_files(tmp_path / "folder")
    assert list(found) == [
        "../c.safetensors",
        "config.json",
        "model.safetensors.index.json",
        "parts/a.safetensors",
    ]
    assert all(path.is_file() for path in found.values())


@pytest.mark.parametrize("index", ["[]", '{"weight_map": []}', "{", "\x00"])
def test_an_index_that_is_none(tmp_path: Path, index: str) -> None:
    write(tmp_path, "model.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(index)
    assert list(list_read_files(tmp_path)) == ["model.safetensors", "model.safetensors.index.json"]


def test_a_gguf_file_and_its_parts(tmp_path: Path) -> None:
    parts = [f"m-0000{i}-of-00002.gguf" for i in (1, 2)]
    write(tmp_path, *parts, "m-00001-of-00003.gguf", "n-00002-of-00002.gguf", "other.gguf", "notes.json")
    write(tmp_path, "tokenizer_config.json")
    assert list(list_read_files(tmp_path / parts[0])) == [*parts, "tokenizer_config.json"]
    assert list(list_read_files(tmp_path / "other.gguf")) == ["other.gguf", "tokenizer_config.json"]


def test_links_are_listed_and_loops_end(tmp_path: Path) -> None:
    write(tmp_path / "store", "abc", "templates/tool.jinja")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "config.json").symlink_to("../store/abc")
    (folder / "tokenizer.json").symlink_to("../store/gone")
    (folder / "chat_templates").symlink_to("../store/templates")
    (tmp_path / "store" / "templates" / "again").symlink_to(".")
    assert list(list_read_files(folder)) == ["chat_templates/tool.jinja", "config.json"]
