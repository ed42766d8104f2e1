"""`specc targets`: the hardware targets."""

from __future__ import annotations

import click

from specc.verbs.options import as_json, out


@click.command("targets")
@as_json
def targets_verb(as_json: bool) -> None:
    """List the hardware targets."""
    from dataclasses import asdict

    from specc import show, targets

    found = [targets.load(name) for name in targets.names()]
    if as_json:
        out([{**asdict(item), "here": item.is_here()} for item in found])
        return
    rows = [(t.name, t.title, t.threads, f"{t.memory_mb} MB", f"{t.bandwidth_gb_s:g} GB/s") for t in found]
    show.table("targets", ("name", "device", "threads", "memory", "bandwidth"), rows)
