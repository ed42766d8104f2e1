"""Where a report lies, and how it gets there: whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specc.atomic import io_errors
from specc.gate.report.page import render_page
from specc.report.page import write_whole
from specc.report.values import replace_non_finite


def report_paths(certificate: Path, folder: Path | None = None) -> tuple[Path, Path]:
    """The JSON and the page of a certificate's report: `cpu-2.json` has `cpu-2.report.json` and
    `cpu-2.report.html`.
    """
    parent = folder or certificate.parent
    return parent / f"{certificate.stem}.report.json", parent / f"{certificate.stem}.report.html"


def write_report(
    report: Mapping[str, Any], certificate: Path, folder: Path | None = None
) -> tuple[Path, Path]:
    """Writes both files, each in one step. Raises EnvironmentFault where the folder takes none."""
    paths = report_paths(certificate, folder)
    finite = replace_non_finite(report)
    for path, text in zip(
        paths, (json.dumps(finite, indent=1, allow_nan=False) + "\n", render_page(finite)), strict=True
    ):
        with io_errors(f"writing the report {path}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text)
    return paths
