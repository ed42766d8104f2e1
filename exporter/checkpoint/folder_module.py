"""The Hugging Face module of a checkpoint folder, with every parameter and every tensor accounted for."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specc.errors import InputError
from specc.exporter.checkpoint.config_keys import first_sentence, quiet_transformers
from specc.exporter.checkpoint.weights import list_tensors

if TYPE_CHECKING:
    import torch

WRAPPER_PREFIXES = {
    "_orig_mod.": "torch.compile",
    "module.": "DataParallel",
    "base_model.model.": "PEFT, which may hold adapters to merge",
}
"""What a wrapper puts before every name when it is saved in place of the module inside it."""
IGNORED_TENSORS = re.compile(r"(^|\.)rotary_emb\.inv_freq$")
"""Buffers that older releases saved and that the module computes itself."""


def load_folder_module(folder: Path, names: Iterable[str]) -> torch.nn.Module:
    """The module of a folder with safetensors: fp32, eval, on CPU.

    `names`: the tensors that the folder's weight files hold. Raises InputError that names the first tensors
    that are missing, have no place in the module, have another shape, or hold NaN or infinity.
    """
    import torch
    from transformers import AutoModelForCausalLM

    check_prefix(names, folder.name)
    try:
        with contextlib.redirect_stderr(io.StringIO()), quiet_transformers():
            pair: Any = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=torch.float32,
                local_files_only=True,
                use_safetensors=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
            )
    except (ValueError, OSError, ImportError, RuntimeError, NameError, AttributeError, KeyError) as error:
        raise InputError(
            f"The checkpoint folder {folder.name} cannot be loaded by transformers: "
            f"{first_sentence(error)}; name a folder that AutoModelForCausalLM loads."
        ) from None
    model, report = pair
    check_report(report, folder.name)
    check_finite(model, folder.name)
    loaded: torch.nn.Module = model.eval()
    return loaded


def check_prefix(names: Iterable[str], folder: str) -> None:
    """Refuse weights that were saved from inside a wrapper: the wrapper's prefix stands before every name."""
    names = list(names)
    for prefix, wrapper in WRAPPER_PREFIXES.items():
        if names and all(name.startswith(prefix) for name in names):
            raise InputError(
                f"Every tensor of {folder} has the prefix {prefix!r} of {wrapper}; save the module inside "
                "it and name that folder."
            )


def check_report(report: Mapping[str, Any], folder: str) -> None:
    """Hold transformers' account of the loading against zero: nothing missing, nothing left, no other
    shapes.
    """
    missing = sorted(report["missing_keys"])
    unexpected = sorted(name for name in report["unexpected_keys"] if not IGNORED_TENSORS.search(name))
    shapes = sorted(report["mismatched_keys"])
    if shapes:
        name, stored, wanted = shapes[0]
        raise InputError(
            f"The tensor {name} of {folder} has shape {list(stored)} and the configuration asks for "
            f"{list(wanted)}; config.json and the weights do not belong together, fetch the folder again."
        )
    if missing:
        held = f" and holds {list_tensors(unexpected)} instead" if unexpected else ""
        raise InputError(
            f"The weight files of {folder} lack {list_tensors(missing)}{held}; fetch the whole folder "
            "again, or save it anew from the module itself."
        )
    if unexpected:
        raise InputError(
            f"The weight files of {folder} hold {list_tensors(unexpected)}, which the module has no place "
            "for; its config.json describes another model, or an adapter that has to be merged first."
        )
    if report.get("error_msgs"):
        raise InputError(f"The checkpoint folder {folder} cannot be loaded: {report['error_msgs'][0]}.")


def check_finite(model: Any, folder: str) -> None:
    """Refuse NaN and infinities in any parameter."""
    import torch

    for name, weight in model.named_parameters():
        if not bool(torch.isfinite(weight).all()):
            raise InputError(f"The tensor {name} of {folder} holds NaN or infinity; fetch the file again.")
