"""`specc doctor`: what this machine has."""

from __future__ import annotations

from dataclasses import asdict

import click

from specc.cli.options import as_json, print_json


@click.command("doctor")
@as_json
def doctor_verb(as_json: bool) -> int:
    """Check what this machine has; exit 3 where running a bundle is impossible."""
    from specc.cli import tables
    from specc.inspection.machine import check_machine

    requirements = check_machine()
    if as_json:
        print_json({"findings": [asdict(requirement) for requirement in requirements]})
    else:
        rows = [(r.name, "ok" if r.ok else "missing", r.needed_for, r.value) for r in requirements]
        tables.print_table("doctor", ("what", "state", "needed for", "value"), rows)
    return 3 if any(not r.ok and r.needed_for == "run" for r in requirements) else 0
