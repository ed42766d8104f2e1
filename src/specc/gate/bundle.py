"""The gate as programs and the command line call it: a folder in, the report out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specc.contracts.bundle.manifest import needs_gpu, read_bundle, verify_bundle
from specc.progress import Progress, no_progress


def gate_bundle(
    bundle: str | Path,
    *,
    trials: int | None = None,
    seed: int = 0,
    threads: int | Sequence[int] = 0,
    certificates: str | Path | None = None,
    report: str | Path | None = None,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Certify the bundle in a folder on this device: all judges run, then the certificate is written.

    trials: rounds of each law test, None for what the stated power needs; threads: 0 for the plan's, or
    several counts, each of which gets a certificate; certificates: where they go, None for the bundle's own
    folder; report: where their reports go, None for beside them. Returns the JSON of `specc gate`: `verdict`
    ("passed" or "failed"), `checks`, `reasons` why speculation is off, `certificate` and figures of each
    judge. Raises InputError for a folder that is no bundle, EnvironmentFault where a certificate cannot be
    written, RuntimeFault where the engine fails.

    >>> from specc import gate
    >>> report = gate("bundle", trials=200, certificates="certificates")
    >>> report["verdict"], len(report["checks"]) > 10
    ('passed', True)
    """
    from specc.gate.run import judge_bundle
    from specc.runtime import Model

    folder = Path(bundle)
    if needs_gpu(verify_bundle(read_bundle(folder)).manifest):
        # An engine that does not fit this device fails here, before minutes of law tests.
        Model.open(folder, trust=True).close()
    return judge_bundle(
        folder,
        trials=trials,
        seed=seed,
        threads=threads,
        certificates=certificates,
        report=report,
        progress=progress,
    )


def replay_record(
    bundle: Path, record: Path, threads: int, certificates: Path | None, progress: Progress
) -> dict[str, Any]:
    """The JSON of `specc gate --replay`: a record of `specc run --record` judged again. Raises InputError."""
    from specc.gate.replay import judge_record

    verify_bundle(read_bundle(bundle))
    return judge_record(bundle, record, threads, certificates, progress)
