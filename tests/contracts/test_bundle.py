"""Bundles: whole or not at all, every byte accounted for."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specc import atomic, targets
from specc.contracts.bundle import manifest as manifests
from specc.contracts.bundle import tables, writer
from specc.contracts.bundle.contents import TokenizerPart, make_manifest
from specc.contracts.bundle.manifest import read_bundle, verify_bundle
from specc.contracts.bundle.writer import write_bundle
from specc.contracts.files import File, describe_file
from specc.contracts.model_spec import ModelSpec
from specc.contracts.plan import make_plan
from specc.contracts.recipe import load_recipe
from specc.errors import EnvironmentFault, InputError

SPEC = ModelSpec(
    "llama", 264, 258, 2, 32, 4, 2, 8, 64, 2048, True, (1, 7), 0, 9, "i" * 64, "w" * 64, None, None
)
Parts = tuple[dict[str, Any], dict[str, tuple[Path, File]]]


@pytest.fixture
def parts(tmp_path: Path, write_recipe: Callable[..., Path]) -> Parts:
    """A manifest and the files behind it."""
    plan = make_plan(load_recipe(write_recipe()), targets.load("cpu-x86"), SPEC)
    made = tmp_path / "made"
    made.mkdir()
    for name in ("target.onnx", "target.onnx.data", "tokenizer.json", "id_bytes.bin", "calibration.bin"):
        (made / name).write_bytes(name.encode() * 50)
    files = [describe_file(made, path.name) for path in made.iterdir()]
    tokenizer = TokenizerPart(258, "i" * 64, False, (1, 7), 0, False)
    engines = {"target": ["target.onnx", "target.onnx.data"]}
    manifest = make_manifest(plan, files, engines, tokenizer, [], {}, {"recipe": "zeros " + "0" * 64})
    return manifest, {file.path: (made / file.path, file) for file in files}


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_digest_rule_and_key_order(tmp_path: Path, parts: Parts) -> None:
    """SHA-256 over the file with 64 zeros for the digest; first digest, then format, then the rest sorted."""
    made, written = write_bundle(tmp_path / "b", *parts)
    text = (tmp_path / "b" / "manifest.json").read_bytes()
    keys = list(json.loads(text))
    assert written and keys[:2] == ["digest", "format"] and keys[2:] == sorted(keys[2:])
    assert hashlib.sha256(text.replace(made.digest.encode(), b"0" * 64, 1)).hexdigest() == made.digest
    assert text.decode("ascii") == json.dumps(json.loads(text), indent=1, ensure_ascii=True)


def test_manifest_says_what_the_runtime_needs(tmp_path: Path, parts: Parts) -> None:
    manifest = write_bundle(tmp_path / "b", *parts)[0].manifest
    engine = manifest["engines"]["target"]
    assert engine["vocab"] == 264 and manifest["tokenizer"]["ids"] == 258
    assert manifest["tokenizer"]["eos"] == [1, 7], "R25: every end id is stored"
    assert engine["widths"] == [1, 2, 3, 4, 5, 64] and engine["capacity"] == 128 + 64
    lines = "".join(
        f"{f['path']} {f['sha256']}\n" for f in manifest["files"] if f["path"].startswith("target")
    )
    assert engine["sha256"] == hashlib.sha256(lines.encode()).hexdigest()
    assert manifest["draft"] == {"kind": "ngram", "min_match": 2, "max_match": 4}


def test_files_are_copied_never_linked(tmp_path: Path, parts: Parts) -> None:
    """R33: a source that is a link becomes a real file."""
    manifest, sources = parts
    source, file = sources["target.onnx.data"]
    moved = source.rename(tmp_path / "elsewhere")
    source.symlink_to(moved)
    made, _ = write_bundle(tmp_path / "b", manifest, sources)
    data = made.folder / "target.onnx.data"
    assert not data.is_symlink() and data.stat().st_nlink == 1 and verify_bundle(made) is made
    data.unlink()
    data.symlink_to(moved)
    with pytest.raises(InputError, match="target.onnx.data is missing or a link"):
        verify_bundle(read_bundle(made.folder))


def test_one_changed_byte_is_found(tmp_path: Path, parts: Parts) -> None:
    made, _ = write_bundle(tmp_path / "b", *parts)
    for file in made.files:
        path = made.folder / file.path
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        with pytest.raises(InputError, match=f"{file.path} has been changed: its SHA-256"):
            verify_bundle(read_bundle(made.folder))
        verify_bundle(read_bundle(made.folder), trust=True)
        path.write_bytes(data[:-1])
        with pytest.raises(InputError, match="bytes, the manifest says"):
            verify_bundle(read_bundle(made.folder), trust=True)
        path.write_bytes(data)
    verify_bundle(read_bundle(made.folder))


def test_a_changed_manifest_is_found(tmp_path: Path, parts: Parts) -> None:
    made, _ = write_bundle(tmp_path / "b", *parts)
    path = made.folder / "manifest.json"
    path.write_text(path.read_text().replace('"k": 4', '"k": 5'))
    with pytest.raises(InputError, match="has been changed: its digest does not match"):
        read_bundle(made.folder)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"digest": "aa", "format": 2}', "has format 2, newer than 1, which this specc reads; update specc"),
        ("{", "is not a manifest"),
        ("[]", "is not a manifest"),
        ('{"format": "x", "digest": ""}', "is not a manifest"),
        ('{"format": 1e999, "digest": ""}', "is not a manifest"),
        ('{"format": Infinity, "digest": ""}', "is not a manifest"),
        ("[" * 100000, "is not a manifest"),
        ('{"format": 1, "digest": "\\ud800"}', "has been changed"),
    ],
)
def test_manifests_that_cannot_be_read(tmp_path: Path, text: str, found: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(InputError, match=found):
        read_bundle(tmp_path)


def test_no_bundle_at_all(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no bundle: it has no manifest.json"):
        read_bundle(tmp_path / "nothing")


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "a/../../b", ""])
def test_paths_that_lead_out_are_refused(tmp_path: Path, parts: Parts, path: str) -> None:
    manifest, sources = parts
    made, _ = write_bundle(tmp_path / "b", manifest, sources)
    evil = dict(manifest, files=[{"path": path, "bytes": 0, "sha256": ""}])
    (made.folder / "manifest.json").write_text(manifests.format_manifest(evil)[0])
    with pytest.raises(InputError, match="leads out of the bundle"):
        verify_bundle(read_bundle(made.folder))


def forged(folder: Path, manifest: dict[str, Any]) -> Path:
    """A bundle whose manifest is whole by its digest."""
    (folder / "manifest.json").write_text(manifests.format_manifest(manifest)[0])
    return folder


@pytest.mark.parametrize("name", manifests.PARTS)
@pytest.mark.parametrize("missing", [True, False])
def test_parts_that_are_missing_or_mistyped(tmp_path: Path, parts: Parts, name: str, missing: bool) -> None:
    """A right digest makes no right manifest."""
    made, _ = write_bundle(tmp_path / "b", *parts)
    *above, last = name.split(".")
    owner = made.manifest
    for key in above:
        owner = owner[key]
    owner[last] = [] if dict in manifests.PARTS[name] else {}
    if missing:
        del owner[last]
    with pytest.raises(InputError, match=f"manifest.json has .*{name}'; build the bundle again"):
        read_bundle(forged(made.folder, made.manifest))


@pytest.mark.parametrize("files", [[3], [{}], [{"path": "a", "bytes": "1", "sha256": ""}]])
def test_files_that_are_no_list_of_files(tmp_path: Path, parts: Parts, files: Any) -> None:
    made, _ = write_bundle(tmp_path / "b", *parts)
    with pytest.raises(InputError, match="manifest.json has"):
        read_bundle(forged(made.folder, dict(made.manifest, files=files)))


@pytest.mark.parametrize("key", ["file", "bytes", "chat_template"])
@pytest.mark.parametrize(
    ("path", "found"),
    [("../x", "leads out"), ("/etc/passwd", "leads out"), ("x", "names 'x', which is none of its files")],
)
def test_names_of_the_tokenizer_are_files_of_the_bundle(
    tmp_path: Path, parts: Parts, key: str, path: str, found: str
) -> None:
    made, _ = write_bundle(tmp_path / "b", *parts)
    made.manifest["tokenizer"][key] = path
    with pytest.raises(InputError, match=found):
        read_bundle(forged(made.folder, made.manifest))


@pytest.mark.parametrize(
    ("key", "value"), [("special_tokens", ["<s>"]), ("special_tokens", {"bos_token": 1}), ("stop_ids", 2)]
)
def test_tokens_of_another_kind(tmp_path: Path, parts: Parts, key: str, value: Any) -> None:
    """A bundle without these keys is read as before."""
    made, _ = write_bundle(tmp_path / "b", *parts)
    del made.manifest["tokenizer"][key]
    read_bundle(forged(made.folder, made.manifest))
    made.manifest["tokenizer"][key] = value
    with pytest.raises(InputError, match=key.replace("_", " ")):
        read_bundle(forged(made.folder, made.manifest))


def test_a_file_that_cannot_be_read(tmp_path: Path, parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path) -> str:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    made, _ = write_bundle(tmp_path / "b", *parts)
    monkeypatch.setattr(manifests, "hash_file", denied)
    with pytest.raises(InputError, match="cannot be read: Permission denied"):
        verify_bundle(made)


def test_a_linked_place_stays_a_link(tmp_path: Path, parts: Parts) -> None:
    """The folder behind it is replaced, and nothing stays behind."""
    manifest, sources = parts
    write_bundle(tmp_path / "there" / "b", manifest, sources)
    (tmp_path / "link").symlink_to(tmp_path / "there" / "b")
    made, written = write_bundle(tmp_path / "link", dict(manifest, name="other"), sources)
    assert written and made.folder == tmp_path / "link" and made.folder.is_symlink()
    assert read_bundle(tmp_path / "there" / "b").manifest["name"] == "other"
    assert leftovers(tmp_path) == leftovers(tmp_path / "there") == []


def test_the_same_bundle_is_left_alone_with_its_certificates(tmp_path: Path, parts: Parts) -> None:
    made, _ = write_bundle(tmp_path / "b", *parts)
    (made.folder / "certificates" / "cpu-2.json").write_text("{}")
    again, written = write_bundle(tmp_path / "b", *parts)
    assert not written and again.digest == made.digest
    (made.folder / "target.onnx").write_bytes(b"damaged")
    mended, written = write_bundle(tmp_path / "b", *parts)
    assert written and (mended.folder / "certificates" / "cpu-2.json").exists()
    verify_bundle(mended)


def test_another_bundle_takes_the_place_without_old_certificates(tmp_path: Path, parts: Parts) -> None:
    manifest, sources = parts
    made, _ = write_bundle(tmp_path / "b", manifest, sources)
    (made.folder / "certificates" / "cpu-2.json").write_text("{}")
    (made.folder / "old").write_text("")
    write_bundle(tmp_path / "b", dict(manifest, name="other"), sources)
    assert read_bundle(tmp_path / "b").manifest["name"] == "other"
    assert not list((tmp_path / "b" / "certificates").iterdir()) and not (tmp_path / "b" / "old").exists()
    assert leftovers(tmp_path) == []


def test_replacing_is_one_step(tmp_path: Path, parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build that dies just before the swap leaves the old bundle whole."""
    manifest, sources = parts
    old, _ = write_bundle(tmp_path / "b", manifest, sources)

    def die(*_: Path) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(atomic, "swap_folders", die)
        with pytest.raises(RuntimeError):
            write_bundle(tmp_path / "b", dict(manifest, name="other"), sources)
    assert verify_bundle(read_bundle(tmp_path / "b")).digest == old.digest and leftovers(tmp_path) == []


def test_systems_without_a_swap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Bare:
        pass

    monkeypatch.setattr(atomic.ctypes, "CDLL", lambda *_, **__: Bare())
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_text(name)
    atomic.swap_folders(tmp_path / "one", tmp_path / "other")
    assert (tmp_path / "other" / "f").read_text() == "one" and leftovers(tmp_path) == []


def test_a_folder_that_is_no_bundle_is_never_replaced(tmp_path: Path, parts: Parts) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter").write_text("dear")
    with pytest.raises(InputError, match="exists and is no bundle; choose another folder"):
        write_bundle(tmp_path / "home", *parts)
    assert (tmp_path / "home" / "letter").read_text() == "dear"
    (tmp_path / "empty").mkdir()
    write_bundle(tmp_path / "empty", *parts)


def test_disk_full_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "target.onnx.data")

    monkeypatch.setattr(writer, "copy_file", full)
    with pytest.raises(EnvironmentFault) as caught:
        write_bundle(tmp_path / "b", *parts)
    message = str(caught.value)
    assert "No space left on device (target.onnx.data); free some space" in message and "\n" not in message
    assert not (tmp_path / "b").exists() and leftovers(tmp_path) == []


KILLED = """
import os, sys, time
from pathlib import Path
from specc.atomic import scratch_folder
with scratch_folder(Path(sys.argv[1])) as folder:
    (folder / "half").write_text("half")
    print(folder, flush=True)
    time.sleep(60)
"""


def test_kill_leaves_no_bundle_and_the_next_build_sweeps_up(tmp_path: Path, parts: Parts) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path / "b")], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    hidden = Path(child.stdout.readline().strip())
    atomic.remove_abandoned(tmp_path)
    assert hidden.exists(), "a running build's folder is not swept away"
    child.kill()
    child.wait()
    child.stdout.close()
    assert hidden.exists() and not (tmp_path / "b").exists()
    made, _ = write_bundle(tmp_path / "b", *parts)
    assert not hidden.exists() and leftovers(tmp_path) == [] and verify_bundle(made)


def test_a_damaged_cache_is_named(tmp_path: Path, parts: Parts) -> None:
    manifest, sources = parts
    sources["target.onnx"][0].write_bytes(b"x" * 550)
    with pytest.raises(EnvironmentFault, match="has changed since it was built; delete"):
        write_bundle(tmp_path / "b", manifest, sources)
    assert not (tmp_path / "b").exists() and leftovers(tmp_path) == []


def test_tables_there_and_back() -> None:
    texts = [b"", "é".encode(), b"\xf0\x9f", b" a"]
    table = tables.encode_id_bytes(texts)
    offsets = struct.unpack_from("<5I", table, 12)
    assert table[:12] == b"SPCB" + struct.pack("<II", 1, 4)
    assert [table[32 + a : 32 + b] for a, b in zip(offsets, offsets[1:], strict=False)] == texts
    assert (
        tables.encode_id_bytes([b"ab"])
        == b"SPCB" + bytes([1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0]) + b"ab"
    )
    assert tables.decode_calibration(tables.encode_calibration([3, 49151])) == [3, 49151]
    assert tables.encode_calibration([258]) == b"SPCT" + bytes([1, 0, 0, 0, 1, 0, 0, 0, 2, 1, 0, 0])
    for broken in (b"", b"SPCX" * 5, b"SPCT\1\0\0\0\2\0\0\0\0"):
        with pytest.raises(InputError):
            tables.decode_calibration(broken)
