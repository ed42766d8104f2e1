"""`specc doctor`: what this machine has."""

from __future__ import annotations

import click

from specc.cli.options import as_json, out


@click.command("doctor")
@as_json
def doctor_verb(as_json: bool) -> int:
    """Check what this machine has; exit 3 where running a bundle is impossible."""
    from dataclasses import asdict

    from specc.cli import tables as show
    from specc.inspection.summary import doctor

    findings = doctor()
    if as_json:
        out({"findings": [asdict(finding) for finding in findings]})
    else:
        rows = [(f.name, "ok" if f.ok else "missing", f.needed_for, f.value) for f in findings]
        show.table("doctor", ("what", "state", "needed for", "value"), rows)
    return 3 if any(not f.ok and f.needed_for == "run" for f in findings) else 0
