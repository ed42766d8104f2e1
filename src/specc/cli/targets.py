"""`specc targets`: the hardware targets."""

from __future__ import annotations

import click

from specc.cli.options import as_json, print_json
from specc.targets import Hardware


@click.command("targets")
@as_json
def targets_verb(as_json: bool) -> None:
    """List the hardware targets."""
    from dataclasses import asdict

    from specc import targets
    from specc.cli import tables
    from specc.inspection.machine import is_here

    devices = [targets.load(name) for name in targets.list_names()]
    if as_json:
        print_json([{**asdict(item), "here": is_here(item)} for item in devices])
        return
    rows = [
        (
            t.name,
            t.title,
            f"{t.memory_mb} MB",
            f"{t.bandwidth_gb_s:g} GB/s",
            software(t),
            "yes" if t.verified else "no",
        )
        for t in devices
    ]
    tables.print_table("targets", ("name", "device", "memory", "bandwidth", "software", "verified"), rows)


def software(target: Hardware) -> str:
    """What runs the engines, and the schemes that it has; further systems go by name@system."""
    if target.gpu is None:
        return f"ONNX Runtime, {target.threads} threads"
    systems = ", ".join(f"{s.name} (TensorRT {s.tensorrt}, CUDA {s.cuda})" for s in target.gpu.systems)
    return f"SM {target.gpu.sm}; {systems}; {' '.join(target.gpu.precisions)}"
