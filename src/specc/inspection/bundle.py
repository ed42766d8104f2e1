"""What is inside a bundle, and whether it speculates on this device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specc.contracts.bundle.manifest import needs_gpu, read_bundle, verify_bundle
from specc.contracts.reasons import explain_speculation
from specc.errors import SpeccError
from specc.generate.template import load_tokenizer

if TYPE_CHECKING:
    from specc.runtime import Model


def inspect_bundle(folder: Path, threads: int = 0, certificates: Path | None = None) -> dict[str, Any]:
    """The JSON of `specc inspect`: every file is checked, the verdict comes from the certificate in force.

    threads: 0 for the plan's; certificates: an additional folder with certificates. Raises InputError for a
    folder that is no bundle or is damaged.
    """
    from specc.runtime import Model

    bundle = verify_bundle(read_bundle(folder))
    manifest = bundle.manifest
    try:
        with Model.open(folder, threads=threads, certificates=certificates, trust=True) as model:
            info = model.info
            folders = [folder / "certificates", *([certificates] if certificates else [])]
            notes = list_unfit_certificates(model, folders)
        enabled, reasons = info.enabled, list(info.reasons)
        certificate = {**info.certificate.as_dict(), "device": info.device, "notes": notes}
    except SpeccError as error:
        enabled, reasons = False, ["uncertified-device"]
        certificate = missing_certificate(manifest, error)
    why = explain_speculation(enabled, reasons, certificate, manifest["lint"], str(folder))
    return {
        "format": manifest["format"],
        "digest": bundle.digest,
        "name": manifest["name"],
        "speculation": {"enabled": enabled, "reasons": reasons, "why": why},
        "certificate": certificate,
        "lint": manifest["lint"],
        "tokenizer": describe_tokens(folder, manifest["tokenizer"], manifest.get("prompt_template", "chat")),
        "plan": manifest["plan"],
        "types": {name: part["types"] for name, part in manifest["engines"].items() if part.get("types")},
        "quality": manifest["quality"],
        "files": [asdict(file) for file in bundle.files],
        "provenance": manifest["provenance"],
    }


def describe_tokens(folder: Path, part: Mapping[str, Any], prompt_template: str) -> dict[str, Any]:
    """End, stop and begin tokens with their strings, and whether prompts go through a chat template."""
    tokenizer = load_tokenizer(folder / part["file"])
    stop_ids = part.get("stop_ids", [])

    def describe(id: int) -> dict[str, Any]:
        return {"id": id, "token": tokenizer.id_to_token(id)}

    return {
        "ids": part["ids"],
        "eos": [describe(id) for id in part["eos"] if id not in stop_ids],
        "stop_ids": [describe(id) for id in stop_ids],
        "bos": None if part["bos"] is None else describe(part["bos"]),
        "special_tokens": part.get("special_tokens", {}),
        "template": part["chat_template"] is not None,
        "prompt_template": prompt_template,
    }


def missing_certificate(manifest: Mapping[str, Any], error: SpeccError) -> dict[str, Any]:
    """In place of the certificate of a bundle that needs a GPU and does not open on this machine.

    For a bundle that needs none, `error` is raised again.
    """
    from specc.runtime import Certificate

    if not needs_gpu(manifest):
        raise error
    plan = manifest["plan"]
    none = Certificate("none", 0, (), (), plan["threads"], 0, (), evidence=str(error))
    return {**none.as_dict(), "device": plan["hardware"], "notes": []}


def list_unfit_certificates(model: Model, folders: Sequence[Path]) -> list[dict[str, str]]:
    """Certificate files in the folders that are not for this engine on this device, and why."""
    files = sorted(file for folder in folders if folder.is_dir() for file in folder.glob("*.json"))
    notes = [
        (file, *model.certificate_note(file)) for file in files if not file.name.endswith(".report.json")
    ]
    return [{"file": str(file), "note": note} for file, fits, note in notes if not fits]
