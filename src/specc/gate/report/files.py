"""Where a report lies, and how it gets there: whole or not at all."""

from __future__ import annotations

import json
import math
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specc.atomic import io_errors
from specc.gate.report.page import page


def names_beside(certificate: Path, folder: Path | None = None) -> tuple[Path, Path]:
    """The JSON and the page of a certificate's report: `cpu-2.json` has `cpu-2.report.json` and `cpu-2.report.html`."""
    place = folder or certificate.parent
    return place / f"{certificate.stem}.report.json", place / f"{certificate.stem}.report.html"


def write(report: Mapping[str, Any], certificate: Path, folder: Path | None = None) -> tuple[Path, Path]:
    """Writes both files, each in one step. Raises EnvironmentFault where the folder takes none."""
    paths = names_beside(certificate, folder)
    clean = finite(report)
    for path, text in zip(
        paths, (json.dumps(clean, indent=1, allow_nan=False) + "\n", page(clean)), strict=True
    ):
        with io_errors(f"writing the report {path}"):
            put(path, text)
    return paths


def put(path: Path, text: str) -> None:
    """Under a hidden name beside its place, synced, then renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with half.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(half, path)
    finally:
        half.unlink(missing_ok=True)


def finite(value: Any) -> Any:
    """The same value with None for numbers that JSON does not have, and words for keys."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value
