"""manifest.json: read and checked, written in its canonical form, and its digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path, PurePosixPath
from typing import Any

from specc.contracts.files import File, hash_file
from specc.contracts.recipe import Sampling
from specc.errors import InputError
from specc.yaml_table import format_value

FORMAT = 1
MANIFEST, CERTIFICATES = "manifest.json", "certificates"
NO_DIGEST = "0" * 64
AGAIN = "build the bundle again or copy it once more"
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


# ---------------------------------------------------------------------- reading


def read_bundle(folder: str | Path) -> Bundle:
    """Read a bundle's manifest: its digest and format are checked, its files not yet. Raises InputError.

    >>> from specc import read_bundle, verify_bundle
    >>> bundle = verify_bundle(read_bundle("bundle"))
    >>> bundle.manifest["plan"]["k"], "target.onnx" in [file.path for file in bundle.files]
    (4, True)
    """
    folder = Path(folder)
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
    undigested = text.replace(digest.encode(errors="replace"), NO_DIGEST.encode(), 1)
    if hashlib.sha256(undigested).hexdigest() != digest:
        raise InputError(f"{path} has been changed: its digest does not match; build the bundle again")
    check_parts(manifest, path, PARTS)
    bundle = Bundle(folder, manifest)
    check_values(bundle, path)
    return bundle


def check_parts(manifest: Any, path: Path, parts: Mapping[str, tuple[type, ...]]) -> None:
    """Raise InputError for a manifest in which a dotted part is missing or has another type."""
    missing = object()
    for name, types in parts.items():
        value = manifest
        for key in name.split("."):
            value = value.get(key, missing) if isinstance(value, dict) else missing
        if type(value) not in types:
            found = "has no usable" if value is missing else f"has {format_value(value)} as its"
            raise InputError(f"{path} {found} {name!r}; {AGAIN}")


def check_values(bundle: Bundle, path: Path) -> None:
    """Check the parts against each other: files, the names of files, token ids, widths, lint, sampling
    options.
    """
    for file in bundle.manifest["files"]:
        check_parts(file, path, FILE_PARTS)
        check_path(bundle, file["path"])
    check_names(bundle, path)
    tokenizer, target = bundle.manifest["tokenizer"], bundle.manifest["engines"]["target"]
    for number in (*tokenizer["eos"], tokenizer["bos"] or 0, *target["widths"]):
        if type(number) is not int or not 0 <= number < 2**31:
            found = format_value(number)
            raise InputError(f"{path} has {found} as an end or begin token or as a width; {AGAIN}")
    special_tokens = tokenizer.get("special_tokens", {})
    if not isinstance(special_tokens, dict) or not all(type(v) is str for v in special_tokens.values()):
        raise InputError(f"{path} has {format_value(special_tokens)} as its special tokens; {AGAIN}")
    if not isinstance(tokenizer.get("stop_ids", []), list):
        raise InputError(f"{path} has {format_value(tokenizer['stop_ids'])} as its stop ids; {AGAIN}")
    check_lint(bundle.manifest["lint"], path)
    options = {field.name for field in fields(Sampling)}
    for name, value in bundle.manifest["sampling"].items():
        if name not in options or type(value) not in NUMBER:
            raise InputError(f"{path} has the sampling option {name!r} as {format_value(value)}; {AGAIN}")


def check_names(bundle: Bundle, path: Path) -> None:
    """Raise InputError unless engines and tokenizer name files that the manifest lists."""
    tokenizer, engines = bundle.manifest["tokenizer"], list(bundle.manifest["engines"].values())
    for engine in engines:
        check_parts(engine, path, {"file": (str,)})
    listed = {file.path for file in bundle.files}
    names = [tokenizer["file"], tokenizer["bytes"], tokenizer["chat_template"], *(e["file"] for e in engines)]
    for name in names:
        if name is None:
            continue
        check_path(bundle, name)
        if name not in listed:
            raise InputError(f"{path} names {name!r}, which is none of its files; {AGAIN}")


def check_lint(lint: Mapping[str, Any], path: Path) -> None:
    """Raise InputError where the findings of the lint and its verdict do not agree."""
    findings = lint["findings"]
    for finding in findings:
        check_parts(finding, path, FINDING_PARTS)
    if lint["passed"] is bool(findings):
        raise InputError(f"{path} has {len(findings)} findings and says passed: {lint['passed']}; {AGAIN}")


def check_path(bundle: Bundle, path: str) -> None:
    """Raise InputError unless the path is relative and stays within the bundle."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or not pure.parts:
        raise InputError(
            f"{bundle.folder / MANIFEST} lists {path!r}, which leads out of the bundle; do not use it"
        )


def verify_bundle(bundle: Bundle, trust: bool = False) -> Bundle:
    """Check every file's size and, unless `trust`, its hash. Raises InputError naming the first that
    differs.
    """
    for file in bundle.files:
        check_path(bundle, file.path)
        path = bundle.folder / file.path
        try:
            verify_file(path, file, trust)
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror or error}; check its rights") from error
    return bundle


def verify_file(path: Path, file: File, trust: bool) -> None:
    """Check one file's size and, unless `trust`, its hash. Raises InputError, OSError."""
    if path.is_symlink() or not path.is_file():
        raise InputError(f"{path} is missing or a link; build the bundle again or copy it with its files")
    if path.stat().st_size != file.bytes:
        raise InputError(f"{path} has {path.stat().st_size} bytes, the manifest says {file.bytes}; {AGAIN}")
    if not trust and hash_file(path) != file.sha256:
        raise InputError(f"{path} has been changed: its SHA-256 is not the manifest's; {AGAIN}")


# ---------------------------------------------------------------------- writing


def needs_gpu(manifest: Mapping[str, Any]) -> bool:
    """Whether a GPU runs the target's engine."""
    engine = manifest["engines"]["target"]
    return engine["backend"] != "ort" or "provider" in engine


def format_manifest(manifest: Mapping[str, Any]) -> tuple[str, str]:
    """The text of manifest.json and its digest: SHA-256 of that text with 64 zeros in the digest's place."""
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
