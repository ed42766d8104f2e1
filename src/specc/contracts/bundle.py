"""The bundle: the folder that ships. Written whole or not at all, read back with sizes, hashes and format checked."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path, PurePosixPath
from typing import Any

from specc.atomic import put, scratch_folder, told
from specc.contracts.plan import EnginePlan, Plan
from specc.contracts.recipe import Draft, Sampling
from specc.contracts.yaml_table import shown
from specc.errors import EnvironmentFault, InputError

FORMAT = 1
MANIFEST, CERTIFICATES = "manifest.json", "certificates"
NO_DIGEST = "0" * 64
CHUNK = 1 << 20
MOST_INNER = 15
"""Tokens that a small draft proposes to a middle model at a time, as specc.h has it."""
NUMBER, OR_NONE = (int, float), type(None)
FILE_PARTS = {"path": (str,), "bytes": (int,), "sha256": (str,)}
FINDING_PARTS = {"node": (str,), "op": (str,), "why": (str,)}
PARTS: Mapping[str, tuple[type, ...]] = {
    "name": (str,),
    "files": (list,),
    "plan": (dict,),
    "plan.k": (int,),
    "plan.context": (int,),
    "plan.threads": (int,),
    "plan.hardware": (str,),
    "plan.draft": (str,),
    "plan.schemes.layers": (str,),
    "plan.schemes.head": (str,),
    "engines.target.file": (str,),
    "engines.target.backend": (str,),
    "engines.target.vocab": (int,),
    "engines.target.layers": (int,),
    "engines.target.kv_heads": (int,),
    "engines.target.head_dim": (int,),
    "engines.target.capacity": (int,),
    "engines.target.widths": (list,),
    "draft.kind": (str,),
    "tokenizer.file": (str,),
    "tokenizer.bytes": (str,),
    "tokenizer.ids": (int,),
    "tokenizer.eos": (list,),
    "tokenizer.bos": (int, OR_NONE),
    "tokenizer.chat_template": (str, OR_NONE),
    "lint.passed": (bool,),
    "lint.findings": (list,),
    "quality": (dict,),
    "sampling": (dict,),
    "gate": (dict,),
    "gate.allow_bounded": (*NUMBER, OR_NONE),
    "provenance": (dict,),
}
"""Every part of the manifest that is read here or by a judge, with the JSON types that it may have."""


@dataclass(frozen=True)
class File:
    """One file of a bundle: path relative to it with forward slashes, size in bytes, SHA-256 in hex."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class TokenizerPart:
    """What the manifest says of the tokenizer, beside its files."""

    ids: int
    id_map_sha256: str
    strip_leading_space: bool
    eos: tuple[int, ...]
    bos: int | None
    has_chat_template: bool


@dataclass(frozen=True)
class Bundle:
    """A bundle whose manifest has been read."""

    folder: Path
    manifest: dict[str, Any]

    @property
    def digest(self) -> str:
        """SHA-256 of the manifest, and through it of all files."""
        return str(self.manifest["digest"])

    @property
    def files(self) -> tuple[File, ...]:
        """Everything but the manifest and the certificates."""
        return tuple(File(item["path"], item["bytes"], item["sha256"]) for item in self.manifest["files"])


# ---------------------------------------------------------------------- writing


def pack(
    place: Path, manifest: Mapping[str, Any], sources: Mapping[str, tuple[Path, File]]
) -> tuple[Bundle, bool]:
    """Write the bundle to `place`: `sources` maps each path to the real file and what it must be.

    Returns the bundle and whether anything was written: a whole bundle that stands there already stays as it is,
    certificates included. Raises InputError (`place` is something else), EnvironmentFault (disk full, damaged cache).
    """
    check_place(place)
    text, digest = manifest_text(manifest)
    if stands(place, text):
        return read(place), False
    real = Path(os.path.realpath(place))  # behind a link the folder is replaced, not the link
    with told(f"writing the bundle {place}"), scratch_folder(real) as folder:
        for path, (source, file) in sources.items():
            copy(source, folder / path, file)
        (folder / CERTIFICATES).mkdir()
        keep_certificates(place, folder, digest)
        (folder / MANIFEST).write_text(text, encoding="ascii")
        put(folder, real)
    return read(place), True


def check_place(place: Path) -> None:
    """Only an earlier bundle may be replaced."""
    empty = place.is_dir() and not any(place.iterdir())
    if place.exists() and not empty and not (place / MANIFEST).is_file():
        raise InputError(f"{place} exists and is no bundle; choose another folder with -o")


def stands(place: Path, text: str) -> bool:
    """Whether exactly this bundle is there and whole."""
    try:
        return (place / MANIFEST).read_text(encoding="ascii") == text and verify(read(place)) is not None
    except (OSError, UnicodeDecodeError, InputError):
        return False


def copy(source: Path, target: Path, file: File) -> None:
    """Copy the bytes themselves, never a link, and hold them against what they must be."""
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with source.open("rb") as reader, target.open("wb") as writer:
        while data := reader.read(CHUNK):
            digest.update(data)
            writer.write(data)
    if digest.hexdigest() != file.sha256:
        raise EnvironmentFault(
            f"the cached file {source} has changed since it was built; delete {source.parent}"
        )


def keep_certificates(old: Path, new: Path, digest: str) -> None:
    """Certificates stay when the bundle is written again with the same content (after damage)."""
    try:
        same = read(old).digest == digest
    except (InputError, OSError):
        return
    if same and (old / CERTIFICATES).is_dir():
        shutil.copytree(old / CERTIFICATES, new / CERTIFICATES, dirs_exist_ok=True)


def manifest_text(manifest: Mapping[str, Any]) -> tuple[str, str]:
    """The manifest as it is written, and its digest: SHA-256 of that text with 64 zeros in the digest's place."""
    rest = {key: manifest[key] for key in sorted(manifest) if key not in ("digest", "format")}
    ordered = {"digest": NO_DIGEST, "format": manifest["format"], **sort_keys(rest)}
    text = json.dumps(ordered, indent=1, ensure_ascii=True, allow_nan=False)
    digest = hashlib.sha256(text.encode("ascii")).hexdigest()
    return text.replace(NO_DIGEST, digest, 1), digest


def sort_keys(value: Any) -> Any:
    """The value with the keys of all mappings sorted."""
    if isinstance(value, Mapping):
        return {key: sort_keys(value[key]) for key in sorted(value)}
    if isinstance(value, (list, tuple)):
        return [sort_keys(item) for item in value]
    return value


def manifest_of(
    plan: Plan,
    files: Sequence[File],
    engine_files: Mapping[str, Sequence[str]],
    tokenizer: TokenizerPart,
    lint: Sequence[Mapping[str, str]],
    quality: Mapping[str, Any],
    provenance: Mapping[str, Any],
    engine_parts: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """The manifest without its digest. `engine_files`: the paths that each engine ("target", "draft") is made of;
    `engine_parts`: what else is said of it."""
    recipe, hashes = plan.recipe, {file.path: file for file in files}
    engines = {
        e.name: engine_part(e, plan, [hashes[path] for path in engine_files[e.name]]) for e in plan.engines
    }
    for name, part in (engine_parts or {}).items():
        engines[name].update(part)
    return {
        "format": FORMAT,
        "name": recipe.name,
        "files": [asdict(hashes[path]) for path in sorted(hashes)],
        "plan": plan_part(plan),
        "engines": engines,
        "draft": draft_part(plan),
        "tokenizer": tokenizer_part(tokenizer),
        "lint": {"passed": not lint, "findings": [dict(finding) for finding in lint]},
        "quality": dict(quality),
        "sampling": asdict(recipe.sampling),
        "certify": {"options": list(recipe.certify)},
        "gate": asdict(recipe.gate),
        "prompt_template": recipe.prompt_template,
        "provenance": dict(provenance),
    }


def plan_part(plan: Plan) -> dict[str, Any]:
    """The numbers that a runtime needs."""
    return {
        "k": plan.k,
        "rows": plan.rows,
        "context": plan.context,
        "chunk": plan.chunk,
        "schemes": {"layers": plan.target.scheme.layers, "head": plan.target.scheme.head},
        "draft": "hierarchy" if plan.recipe.draft.small else plan.recipe.draft.kind,
        "dialect": plan.target.dialect,
        "hardware": plan.hardware.name,
        "threads": plan.threads,
        **({"choice": plan.choice} if plan.choice else {}),
        "digest": plan.digest,
    }


def engine_part(engine: EnginePlan, plan: Plan, files: Sequence[File]) -> dict[str, Any]:
    """One engine's file, shape and hash."""
    return {
        "file": f"{engine.name}.onnx",
        "backend": plan.hardware.backend,
        "sha256": engine_hash(files),
        "vocab": engine.spec.vocab,
        "layers": engine.layers,
        "kv_heads": engine.spec.kv_heads,
        "head_dim": engine.spec.head_dim,
        "capacity": engine.capacity,
        "widths": list(engine.widths),
        **hidden_part(engine, plan),
    }


def hidden_part(engine: EnginePlan, plan: Plan) -> dict[str, int]:
    """Columns of the hidden states that an engine gives, and of those that it reads."""
    gives = {"hidden": engine.spec.hidden} if engine.hidden else {}
    return gives | (
        {"hidden_in": engine.spec.hidden} if engine.name == "draft" and plan.head is not None else {}
    )


def engine_hash(files: Sequence[File]) -> str:
    """SHA-256 over one line 'path sha256' for each file, sorted by path: what a certificate is bound to."""
    lines = "".join(f"{file.path} {file.sha256}\n" for file in sorted(files, key=lambda file: file.path))
    return hashlib.sha256(lines.encode()).hexdigest()


def draft_part(plan: Plan) -> dict[str, Any]:
    """The drafter and its parameters."""
    return stages_part(plan.recipe.draft, plan)


def stages_part(draft: Draft, plan: Plan) -> dict[str, Any]:
    """A drafter, or a chain of them."""
    if draft.stages:
        return {"kind": draft.kind, "stages": [stage_part(stage, plan) for stage in draft.stages]}
    return stage_part(draft, plan)


def stage_part(draft: Draft, plan: Plan) -> dict[str, Any]:
    """One drafter."""
    part: dict[str, Any] = {"kind": draft.kind}
    if draft.kind == "ngram":
        part |= {"min_match": draft.min_match, "max_match": draft.max_match}
    elif draft.kind == "table":
        part |= {"file": "draft_table.bin", "min_count": draft.min_count}
    elif draft.head is not None:
        ids = {"ids": "draft_ids.bin"} if plan.head is not None and plan.head.ids is not None else {}
        part |= {"engine": "draft", "stop": draft.stop, **ids}
    elif draft.small is not None:
        k = min(plan.k, MOST_INNER)
        part = {"kind": "hierarchy", "engine": "draft", "k": k, "draft": stages_part(draft.small, plan)}
    return part


def tokenizer_part(part: TokenizerPart) -> dict[str, Any]:
    """The tokenizer's files and ids."""
    return {
        "file": "tokenizer.json",
        "ids": part.ids,
        "id_map_sha256": part.id_map_sha256,
        "bytes": "id_bytes.bin",
        "strip_leading_space": part.strip_leading_space,
        "eos": list(part.eos),
        "bos": part.bos,
        "chat_template": "chat_template.jinja" if part.has_chat_template else None,
    }


def id_bytes_table(texts: Sequence[bytes]) -> bytes:
    """id_bytes.bin, little endian: "SPCB", u32 version 1, u32 n, u32 offsets[n + 1], bytes."""
    offsets = [0]
    for text in texts:
        offsets.append(offsets[-1] + len(text))
    head = struct.pack(f"<4sII{len(offsets)}I", b"SPCB", 1, len(texts), *offsets)
    return head + b"".join(texts)


def read_id_bytes(data: bytes) -> list[bytes]:
    """The texts behind id_bytes.bin. Raises InputError for what is no such table."""
    if len(data) < 16 or data[:4] != b"SPCB":
        raise InputError("id_bytes.bin is no table of id texts; build the bundle again")
    _, version, n = struct.unpack_from("<4sII", data)
    start = 12 + 4 * (n + 1)
    if version != 1 or len(data) < start:
        raise InputError(
            f"id_bytes.bin of version {version} with {n} ids is cut short; build the bundle again"
        )
    offsets = struct.unpack_from(f"<{n + 1}I", data, 12)
    return [data[start + a : start + b] for a, b in zip(offsets, offsets[1:], strict=False)]


def calibration_table(ids: Sequence[int]) -> bytes:
    """calibration.bin, little endian: "SPCT", u32 version 1, u32 n, i32 ids[n]."""
    return struct.pack(f"<4sII{len(ids)}i", b"SPCT", 1, len(ids), *ids)


def read_calibration(data: bytes) -> list[int]:
    """The ids behind calibration.bin. Raises InputError for what is no such table."""
    if len(data) < 12 or data[:4] != b"SPCT":
        raise InputError("calibration.bin is no table of token ids; build the bundle again")
    _, version, n = struct.unpack_from("<4sII", data)
    if version != 1 or len(data) != 12 + 4 * n:
        raise InputError(
            f"calibration.bin of version {version} with {n} ids is cut short; build the bundle again"
        )
    return list(struct.unpack_from(f"<{n}i", data, 12))


# ---------------------------------------------------------------------- reading


def read(folder: Path) -> Bundle:
    """Read a bundle's manifest: its digest and format are checked, its files not yet."""
    path = folder / MANIFEST
    if not path.is_file():
        raise InputError(
            f"{folder} is no bundle: it has no {MANIFEST}; give a folder that `specc build` wrote"
        )
    try:
        text = path.read_bytes()
        manifest = json.loads(text)
        version, digest = int(manifest["format"]), str(manifest["digest"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise InputError(f"{path} is not a manifest ({error}); build the bundle again") from error
    if version > FORMAT:
        raise InputError(
            f"{path} has format {version}, newer than {FORMAT}, which this specc reads; update specc"
        )
    if (
        hashlib.sha256(text.replace(digest.encode(errors="replace"), NO_DIGEST.encode(), 1)).hexdigest()
        != digest
    ):
        raise InputError(f"{path} has been changed: its digest does not match; build the bundle again")
    check_parts(manifest, path, PARTS)
    bundle = Bundle(folder, manifest)
    check_values(bundle, path)
    return bundle


def check_parts(manifest: Any, path: Path, parts: Mapping[str, tuple[type, ...]]) -> None:
    """Refuse a manifest in which a dotted part is missing or has another type."""
    for name, types in parts.items():
        value = manifest
        for key in name.split("."):
            value = value.get(key, ...) if isinstance(value, dict) else ...  # what no JSON value is
        if type(value) not in types:
            found = "has no usable" if value is ... else f"has {shown(value)} as its"
            raise InputError(f"{path} {found} {name!r}; {AGAIN}")


def check_values(bundle: Bundle, path: Path) -> None:
    """Hold the parts against each other: files, the names that point at them, ids and sampling options."""
    for item in bundle.manifest["files"]:
        check_parts(item, path, FILE_PARTS)
        checked_path(bundle, item["path"])
    tokenizer, sampling = bundle.manifest["tokenizer"], bundle.manifest["sampling"]
    listed, engines = {file.path for file in bundle.files}, list(bundle.manifest["engines"].values())
    for engine in engines:
        check_parts(engine, path, {"file": (str,)})
    for name in (
        tokenizer["file"],
        tokenizer["bytes"],
        tokenizer["chat_template"],
        *(e["file"] for e in engines),
    ):
        if name is not None and checked_path(bundle, name) not in listed:
            raise InputError(f"{path} names {name!r}, which is none of its files; {AGAIN}")
    for number in (*tokenizer["eos"], tokenizer["bos"] or 0, *bundle.manifest["engines"]["target"]["widths"]):
        if type(number) is not int or not 0 <= number < 2**31:
            raise InputError(f"{path} has {shown(number)} as an end or begin token or as a width; {AGAIN}")
    lint = bundle.manifest["lint"]
    for finding in lint["findings"]:
        check_parts(finding, path, FINDING_PARTS)
    if lint["passed"] is bool(lint["findings"]):
        raise InputError(
            f"{path} has {len(lint['findings'])} findings and says passed: {lint['passed']}; {AGAIN}"
        )
    known = {field.name for field in fields(Sampling)}
    for name, value in sampling.items():
        if name not in known or type(value) not in NUMBER:
            raise InputError(f"{path} has the sampling option {name!r} as {shown(value)}; {AGAIN}")


def verify(bundle: Bundle, trust: bool = False) -> Bundle:
    """Check every file's size and, unless `trust`, its hash. Raises InputError naming the first that differs."""
    for file in bundle.files:
        path = bundle.folder / checked_path(bundle, file.path)
        try:
            verify_file(path, file, trust)
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror or error}; check its rights") from error
    return bundle


def verify_file(path: Path, file: File, trust: bool) -> None:
    """Check one file's size and, unless `trust`, its hash."""
    if path.is_symlink() or not path.is_file():
        raise InputError(f"{path} is missing or a link; build the bundle again or copy it with its files")
    if path.stat().st_size != file.bytes:
        raise InputError(f"{path} has {path.stat().st_size} bytes, the manifest says {file.bytes}; {AGAIN}")
    if not trust and sha256_of(path) != file.sha256:
        raise InputError(f"{path} has been changed: its SHA-256 is not the manifest's; {AGAIN}")


AGAIN = "build the bundle again or copy it once more"


def checked_path(bundle: Bundle, path: str) -> str:
    """A relative path that stays within the bundle."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or not pure.parts:
        raise InputError(
            f"{bundle.folder / MANIFEST} lists {path!r}, which leads out of the bundle; do not use it"
        )
    return path


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as reader:
        while data := reader.read(CHUNK):
            digest.update(data)
    return digest.hexdigest()


def file_of(root: Path, path: str) -> File:
    """Size and hash of one file below `root`."""
    return File(path, (root / path).stat().st_size, sha256_of(root / path))
