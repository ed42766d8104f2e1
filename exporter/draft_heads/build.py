"""Build the module of a draft head file beside its target."""

from __future__ import annotations

from typing import Any

import torch

from specc.contracts.draft_kinds import KINDS, import_function
from specc.errors import InputError
from specc.exporter.draft_heads.file import PROBE_IDS, DraftHeadFile
from specc.exporter.draft_heads.modules import FeatureHead, MedusaHead, OwnRowsMedusaHead, build_feature_head

LEAST_COSINE = 0.9
"""Least cosine between those rows and the target's."""


def build_draft_head(file: DraftHeadFile, target: Any) -> FeatureHead | MedusaHead:
    """The module of a draft head file (fp32, eval). Raises InputError where it does not fit the target."""
    check_published(file, target)
    extra = ("draft_ids", PROBE_IDS, "probe.rows")
    own = {name: tensor.float() for name, tensor in file.tensors.items() if name not in extra}
    try:
        head: FeatureHead | MedusaHead = import_function(KINDS[file.kind].build_head)(file, own, target)
        return head
    except (RuntimeError, IndexError, KeyError) as error:
        text = str(error).splitlines()[0]
        raise InputError(f"the head does not fit the target ({text}); it was made for another one") from error


def build_feature(file: DraftHeadFile, tensors: dict[str, torch.Tensor], target: Any) -> FeatureHead:
    """A feature head with the tensors of its file (fp32)."""
    head = build_feature_head(target, file.ids)
    fit_parts(head, tensors)
    head.parts.load_state_dict(tensors)
    head.parts.eval()
    return head


def build_medusa(file: DraftHeadFile, tensors: dict[str, torch.Tensor], target: Any) -> MedusaHead:
    """Medusa heads with the tensors of their file (fp32); published ones may have their own lm_head rows."""
    k = int(file.metadata["k"])
    if "depth" in file.metadata:
        hidden, depth = int(file.metadata["hidden"]), int(file.metadata["depth"])
        deep = OwnRowsMedusaHead(k, depth, len(file.ids), hidden)
        deep.load_state_dict(tensors)
        return deep.eval()
    medusa = MedusaHead(target.get_output_embeddings().weight.detach()[file.ids], k)
    medusa.load_state_dict(tensors, strict=False)
    return medusa.eval()


def fit_parts(head: FeatureHead, own: dict[str, torch.Tensor]) -> None:
    """Fit a feature head to the tensors of a published one, and take its lm_head rows out of `own`.

    Published draft heads may lack the norms, have a bias in fc, and have lm_head rows of their own.
    """
    layer, identity = head.parts["layer"], torch.nn.Identity()
    if "fc.bias" in own:
        rows, columns = own["fc.weight"].shape
        head.enter.fc = head.parts["fc"] = torch.nn.Linear(columns, rows)
    if "layer.input_layernorm.weight" not in own:
        layer.input_layernorm = identity  # type: ignore[assignment]
    if "norm.weight" not in own:
        head.parts["norm"] = head.model.base_model._modules["norm"] = identity
    if (output := own.pop("output.weight", None)) is not None:
        head.model.get_output_embeddings().weight = torch.nn.Parameter(output, requires_grad=False)


def check_published(file: DraftHeadFile, target: Any) -> None:
    """Compare a published draft head with the target: rotary base and some embedding rows.

    Raises InputError.
    """
    theta = (getattr(target.config, "rope_parameters", None) or {}).get("rope_theta")
    head_theta = file.metadata.get("rope_theta")
    if head_theta is not None and theta is not None and float(head_theta) != float(theta):
        raise InputError(
            f"the head was trained with rope_theta {head_theta}, the target has {theta}; "
            "use a head made for it"
        )
    if PROBE_IDS not in file.tensors:
        return
    rows = target.get_input_embeddings().weight.detach()[file.tensors[PROBE_IDS].long()]
    cosine = torch.cosine_similarity(file.tensors["probe.rows"].float(), rows.float(), dim=-1).mean()
    if not cosine >= LEAST_COSINE:
        found = f"its embedding is not the target's (cosine {float(cosine):.2f} over {len(rows)} rows)"
        raise InputError(f"the head was made for another target: {found}; use a head made for this one")
