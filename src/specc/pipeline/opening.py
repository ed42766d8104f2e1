"""The last look at a new bundle: the shipped runtime opens it once before it is put in place."""

from __future__ import annotations

import platform
import struct
from pathlib import Path

import numpy as np

from specc import targets
from specc.contracts.bundle.manifest import Bundle, needs_gpu, read_bundle
from specc.contracts.bundle.tables import CALIBRATION, decode_calibration
from specc.errors import EnvironmentFault, InternalFault, RuntimeFault, SpeccError

PREFILL_IDS = 5
OF_MACHINE = {3: "memory", 4: "files", 6: "the engine library"}
"""Codes of specc.h that this machine may be to blame for: SPECC_E_MEMORY, SPECC_E_IO, SPECC_E_ENGINE."""


def open_new_bundle(folder: Path) -> None:
    """Open the bundle as `specc run` does, then prefill a few ids and decode one row.

    A bundle of another machine or of a GPU is read only: its tables and the numbers that a reader compares.
    Raises InternalFault for a bundle that cannot be used, EnvironmentFault where this machine is to blame.
    """
    bundle = read_bundle(folder)
    check_tables(bundle)
    machines = targets.load(bundle.manifest["plan"]["hardware"]).machines
    if not needs_gpu(bundle.manifest) and platform.machine().lower() in machines:
        call_model(bundle)


def check_tables(bundle: Bundle) -> None:
    """The table of texts, the end tokens and the engines' sizes fit each other. Raises InternalFault."""
    manifest, name = bundle.manifest, bundle.manifest["tokenizer"]["bytes"]
    ids, target = manifest["tokenizer"]["ids"], manifest["engines"]["target"]
    head = (bundle.folder / name).read_bytes()[:12]
    count = struct.unpack("<4sII", head)[2] if len(head) == 12 else 0
    longest = manifest["plan"]["context"] + target["widths"][-1]
    past = [i for i in manifest["tokenizer"]["eos"] if i >= ids]
    faults = {
        f"{name} holds {count} ids and the tokenizer {ids}": count != ids,
        f"the target has {target['vocab']} columns for {ids} ids": target["vocab"] < ids,
        f"the end token {past[:1]} is none of {ids} ids": bool(past),
        f"the target's cache has {target['capacity']} places for {longest}": target["capacity"] < longest,
    }
    for fault in (sentence for sentence, is_found in faults.items() if is_found):
        raise InternalFault(f"the bundle was built but cannot be opened ({fault}), so it is not written")


def call_model(bundle: Bundle) -> None:
    """Open with the runtime, prefill and decode. Raises InternalFault, EnvironmentFault."""
    from specc.runtime import Model

    ids = decode_calibration((bundle.folder / CALIBRATION).read_bytes())[: PREFILL_IDS + 1]
    try:
        with Model.open(bundle.folder, trust=True) as model, model.session() as session:
            first = ids[: min(PREFILL_IDS, model.info.chunk)]
            logits = [session.rows(first, 0, model.info.chunk), session.rows(ids[-1:], len(first), 1)]
    except SpeccError as error:
        found = str(error).rpartition("; ")[0] or str(error)  # its advice is for a bundle that was once whole
        if isinstance(error, RuntimeFault) and error.code in OF_MACHINE:
            blamed = OF_MACHINE[error.code]
            raise EnvironmentFault(
                f"the bundle was built but cannot be opened here ({found}), so it is not written; check "
                f"{blamed} of this machine"
            ) from error
        raise InternalFault(
            f"the bundle was built but cannot be opened ({found}), so it is not written"
        ) from error
    if not all(np.isfinite(rows).all() for rows in logits):
        raise InternalFault("the bundle was built but its logits are not numbers, so it is not written")
