"""report.json: every input, seed, number, limit and version of one gate, as one value."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from specc.contracts.reasons import explain_speculation
from specc.gate import law
from specc.gate.checks import Check
from specc.gate.engine import slot_map, speed, two_sample
from specc.runtime import Certificate, Info, Model, kernels
from specc.version import __version__

FORMAT = 1


@dataclass(frozen=True)
class GateRequest:
    """The options of a gate that its numbers depend on."""

    seed: int
    trials: int | None
    """None: what the stated power needs."""
    threads: int


def compose_report(
    folder: Path,
    manifest: Mapping[str, Any],
    tokens: Sequence[int],
    model: Model,
    certificate: Certificate,
    checks: Sequence[Check],
    judged: Mapping[str, Any],
    verdict: str,
    request: GateRequest,
) -> dict[str, Any]:
    """The report of one engine at one thread count. `judged`: what the judges report beside their checks."""
    info = model.info
    measured = {**certificate.as_dict(), "device": info.device}
    lint = manifest.get("lint", {"passed": True, "findings": []})
    reasons = list(certificate.reasons)
    return {
        "report": FORMAT,
        "specc": __version__,
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "bundle": {"name": manifest.get("name", ""), "folder": str(folder), "digest": info.digest},
        "verdict": verdict,
        "speculation": {
            "enabled": not reasons,
            "reasons": reasons,
            "why": explain_speculation(not reasons, reasons, measured, lint, str(folder)),
        },
        "checks": [asdict(check) for check in checks],
        "judges": count_by_judge(checks),
        "certificate": measured,
        "slots": slot_map.measure_slots(model, certificate, tokens).as_dict(),
        "lint": lint,
        "quality": manifest.get("quality", {}),
        "limits": list_limits(manifest),
        **{name: judged[name] for name in ("law", "two_sample", "speed", "certify") if name in judged},
        "inputs": describe_inputs(folder, manifest, tokens, request),
        "engine": describe_engine(info, manifest),
        "machine": describe_machine(info),
    }


def list_limits(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe's limits and the gate's own."""
    return {
        **manifest.get("gate", {}),
        "speed_up_min": speed.LEAST_GAIN,
        "law_family_error": law.FAMILY_ERROR,
        "two_sample_family_error": two_sample.FAMILY_ERROR,
    }


def describe_engine(info: Info, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The engine that was judged; `types` where the manifest states the types that operators compute in."""
    types = manifest.get("engines", {}).get("target", {}).get("types")
    return {
        "sha256": info.engine_sha256,
        "backend": info.backend,
        "backend_version": info.backend_version,
        "drafter": info.drafter,
        "context": info.context,
        "k_max": info.k_max,
        "chunk": info.chunk,
        **({"types": types} if types else {}),
    }


def count_by_judge(checks: Sequence[Check]) -> list[dict[str, Any]]:
    """By judge: how many checks it made and how many failed."""
    names = dict.fromkeys(name_judge(check) for check in checks)
    by_judge = {name: [check for check in checks if name_judge(check) == name] for name in names}
    return [
        {"name": name, "checks": len(some), "failed": sum(not check.passed for check in some)}
        for name, some in by_judge.items()
    ]


def name_judge(check: Check) -> str:
    """The judge's name: what stands before the colon."""
    return check.name.partition(":")[0]


def describe_inputs(
    folder: Path, manifest: Mapping[str, Any], tokens: Sequence[int], request: GateRequest
) -> dict[str, Any]:
    """What the judges drew from: the same inputs give the same numbers but for times."""
    ids = np.asarray(tokens, "<i4").tobytes()
    provenance = manifest.get("provenance", {})
    return {
        **asdict(request),
        "calibration": {"ids": len(tokens), "sha256": hashlib.sha256(ids).hexdigest()},
        "recipe": {name: provenance.get("recipe", {}).get(name) for name in ("name", "sha256")},
        "plan": manifest.get("plan", {}),
        "sampling": manifest.get("sampling", {}),
        "command": f"specc gate {folder} --seed {request.seed} --threads {request.threads}"
        + (f" --trials {request.trials}" if request.trials else ""),
    }


def describe_machine(info: Info) -> dict[str, Any]:
    """Where it ran, with the versions of what ran."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0
    return {
        "device": info.device,
        "fingerprint": info.fingerprint,
        "cores": os.cpu_count() or 0,
        "threads": info.threads,
        "memory_mb": pages >> 20,
        "kernels": kernels(),
        "machine": platform.machine(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
