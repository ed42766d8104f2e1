"""Trained heads as modules: built beside a target, saved to and loaded from one safetensors file.

`feature`: fc([embedding of a token; feature before it]) -> one decoder layer of the target's own kind -> norm; the
result is the next feature, in the space of the target's final normalised hidden states, and the target's own output
rows of the draft vocabulary read tokens from it. `medusa`: k residual blocks over one hidden state, then the same rows.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save

from specc.errors import InputError
from specc.exporter.trace import shallow

FORMAT, VERSION = "specc-head", "1"
KINDS = ("feature", "medusa")
PROBED = "probe.ids"
"""Ids whose embedding rows a published head brings along as `probe.rows`."""
ALIKE = 0.9
"""Least cosine between those rows and the target's."""


class FeatureInput(torch.nn.Module):
    """Stands where the embedding stood: fp [1, R, H] of ids [1, R] and the features set beforehand."""

    def __init__(self, embedding: torch.nn.Module, hidden: int) -> None:
        super().__init__()
        self.embedding = embedding
        self.fc = torch.nn.Linear(2 * hidden, hidden, bias=False)
        self.feature: torch.Tensor | None = None

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        assert self.feature is not None
        joined = torch.cat((self.embedding(input_ids), self.feature), -1)
        out: torch.Tensor = self.fc(joined)
        return out


@dataclass(frozen=True)
class FeatureHead:
    """A causal model that shares the target's embedding and output rows; only `parts` are its own."""

    model: Any
    enter: FeatureInput
    parts: torch.nn.ModuleDict
    """fc, layer, norm: what is trained and saved."""


class MedusaHead(torch.nn.Module):
    """Block i: h + silu(W_i h + b_i), read by the output rows: logits [k, Vd] of the tokens after the next."""

    def __init__(self, rows: torch.Tensor, k: int) -> None:
        super().__init__()
        hidden = rows.shape[1]
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(hidden, hidden) for _ in range(k))
        for block in self.blocks:
            torch.nn.init.zeros_(block.weight)  # type: ignore[arg-type]
            torch.nn.init.zeros_(block.bias)  # type: ignore[arg-type]
        self.lm_head = torch.nn.Linear(hidden, len(rows), bias=False)
        self.lm_head.weight = torch.nn.Parameter(rows.clone(), requires_grad=False)

    @property
    def width(self) -> int:
        """Numbers of a hidden state."""
        return self.lm_head.in_features

    def cut(self, k: int) -> None:
        """Keep the first k heads."""
        self.blocks = self.blocks[:k]

    def features(self, hidden: torch.Tensor) -> torch.Tensor:
        """fp [..., H] -> [..., k, H]."""
        return torch.stack([hidden + torch.nn.functional.silu(block(hidden)) for block in self.blocks], -2)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.lm_head(self.features(hidden))
        return out


class OwnRowsMedusa(MedusaHead):
    """As published: several residual blocks a head, and output rows of its own for each."""

    def __init__(self, k: int, depth: int, columns: int, hidden: int) -> None:
        torch.nn.Module.__init__(self)
        square = [[torch.nn.Linear(hidden, hidden) for _ in range(depth)] for _ in range(k)]
        self.blocks = torch.nn.ModuleList(torch.nn.ModuleList(blocks) for blocks in square)
        self.outputs = torch.nn.ModuleList(torch.nn.Linear(hidden, columns, bias=False) for _ in range(k))

    @property
    def width(self) -> int:
        """Numbers of a hidden state."""
        return int(self.outputs[0].in_features)  # type: ignore[arg-type]

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        rows = []
        for blocks, output in zip(self.blocks, self.outputs, strict=False):
            feature = hidden
            for block in blocks:  # type: ignore[union-attr,attr-defined]
                feature = feature + torch.nn.functional.silu(block(feature))
            rows.append(output(feature))
        return torch.stack(rows, -2)


def feature_head(target: Any, ids: torch.Tensor) -> FeatureHead:
    """A head for `target` over draft ids [Vd], not trained: it passes the feature on; the target is left as it was."""
    base = target.base_model
    layer = copy.deepcopy(list(base.layers)[-1])
    for module in layer.modules():
        if hasattr(module, "layer_idx"):
            module.layer_idx = 0
        if hasattr(module, "config"):
            module.config = target.config  # a copy would keep the attention that is swapped at the door
    hidden = target.config.hidden_size
    enter = FeatureInput(target.get_input_embeddings(), hidden)
    norm = copy.deepcopy(base.norm)
    start(enter, layer, norm)
    inner = shallow(base)
    inner._modules["layers"] = torch.nn.ModuleList([layer])
    inner._modules["norm"] = norm
    inner._modules[name_of(base, target.get_input_embeddings())] = enter
    rows = torch.nn.Linear(hidden, len(ids), bias=False)
    rows.weight = torch.nn.Parameter(
        target.get_output_embeddings().weight.detach()[ids].clone(), requires_grad=False
    )
    view = shallow(target)
    view._modules[target.base_model_prefix] = inner
    view._modules[name_of(target, target.get_output_embeddings())] = rows
    return FeatureHead(view, enter, torch.nn.ModuleDict({"fc": enter.fc, "layer": layer, "norm": norm}))


def name_of(parent: Any, child: Any) -> str:
    """Under which name `parent` holds `child`."""
    return next(str(name) for name, module in parent._modules.items() if module is child)


def start(enter: FeatureInput, layer: Any, norm: Any) -> None:
    """Small random numbers, drawn from torch's generator; fc hands the feature on without its norm weights."""
    with torch.no_grad():
        scale = norm.weight.float()
        scale = torch.where(scale.abs() < 0.05, torch.ones_like(scale), scale)
        hidden = len(scale)
        torch.nn.init.normal_(enter.fc.weight, std=0.02)
        enter.fc.weight[:, hidden:] += torch.diag(1 / scale)
        for name, weight in layer.named_parameters():
            if weight.dim() == 2:
                torch.nn.init.normal_(
                    weight, std=0.02 if "o_proj" not in name and "down_proj" not in name else 0.005
                )
            elif name.endswith("bias"):
                torch.nn.init.zeros_(weight)
            else:
                torch.nn.init.ones_(weight)


def save_head(
    path: Path,
    kind: str,
    tensors: Mapping[str, torch.Tensor],
    ids: torch.Tensor | None,
    metadata: Mapping[str, str],
) -> None:
    """Write a head in half precision with its draft ids; whole numbers as int32."""
    types = {name: torch.float16 if t.is_floating_point() else torch.int32 for name, t in tensors.items()}
    half = {name: tensor.detach().to("cpu", types[name]).contiguous() for name, tensor in tensors.items()}
    if ids is not None:
        half["draft_ids"] = ids.to(torch.int32)
    path.write_bytes(
        sorted_header(save(half, {"format": FORMAT, "version": VERSION, "kind": kind, **metadata}))
    )


def sorted_header(data: bytes) -> bytes:
    """The same file with its metadata in alphabetical order, so that equal heads are equal bytes."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    text = json.dumps({"__metadata__": dict(sorted(header.pop("__metadata__").items())), **header}).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[8 + size :]


@dataclass(frozen=True)
class HeadFile:
    """A head as it lies on disk."""

    metadata: dict[str, str]
    tensors: dict[str, torch.Tensor]

    @property
    def kind(self) -> str:
        """feature or medusa."""
        return self.metadata["kind"]

    @property
    def ids(self) -> torch.Tensor:
        """Draft ids, int64 [Vd], strictly rising."""
        return self.tensors["draft_ids"].long()


def load_head(path: Path) -> HeadFile:
    """Read a head file. Raises InputError for one that is none."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except Exception as error:  # the package raises its own kinds
        raise InputError(
            f"cannot read the head {path}: {error}; name a file that `specc distill` wrote"
        ) from error
    if metadata.get("format") != FORMAT or metadata.get("kind") not in KINDS or "draft_ids" not in tensors:
        raise InputError(f"{path} is no draft head; name a file that `specc distill` wrote")
    return HeadFile(metadata, tensors)


def build_head(file: HeadFile, target: Any) -> FeatureHead | MedusaHead:
    """The module of a head file beside its target (fp32, eval). Raises InputError where the shapes do not fit."""
    check_published(file, target)
    apart = ("draft_ids", PROBED, "probe.rows")
    own = {name: tensor.float() for name, tensor in file.tensors.items() if name not in apart}
    try:
        if file.kind == "feature":
            head = feature_head(target, file.ids)
            fit_parts(head, own)
            head.parts.load_state_dict(own)
            head.parts.eval()
            return head
        if "depth" in file.metadata:
            k, hidden = int(file.metadata["k"]), int(file.metadata["hidden"])
            deep = OwnRowsMedusa(k, int(file.metadata["depth"]), len(file.ids), hidden)
            deep.load_state_dict(own)
            return deep.eval()
        medusa = MedusaHead(target.get_output_embeddings().weight.detach()[file.ids], int(file.metadata["k"]))
        medusa.load_state_dict(own, strict=False)
        return medusa.eval()
    except (RuntimeError, IndexError, KeyError) as error:
        text = str(error).splitlines()[0]
        raise InputError(f"the head does not fit the target ({text}); it was made for another one") from error


def fit_parts(head: FeatureHead, own: dict[str, torch.Tensor]) -> None:
    """Published heads may lack the norms, give fc a bias, and bring output rows of their own (taken out of `own`)."""
    layer, nothing = head.parts["layer"], torch.nn.Identity()
    if "fc.bias" in own:
        rows, columns = own["fc.weight"].shape
        head.enter.fc = head.parts["fc"] = torch.nn.Linear(columns, rows)
    if "layer.input_layernorm.weight" not in own:
        layer.input_layernorm = nothing  # type: ignore[assignment]
    if "norm.weight" not in own:
        head.parts["norm"] = head.model.base_model._modules["norm"] = nothing
    if (output := own.pop("output.weight", None)) is not None:
        head.model.get_output_embeddings().weight = torch.nn.Parameter(output, requires_grad=False)


def put_norm(path: Path) -> Callable[[Any], None]:
    """What replaces a model's final norm by the one in a file, trained behind an inner layer."""
    from safetensors.torch import load_file

    norm = load_file(path)["norm.weight"].float()

    def prepare(model: Any) -> None:
        model.base_model.norm.weight = torch.nn.Parameter(norm, requires_grad=False)

    return prepare


def check_published(file: HeadFile, target: Any) -> None:
    """Hold what a published head says of its target against this one: some embedding rows, the rotary base."""
    theta = (getattr(target.config, "rope_parameters", None) or {}).get("rope_theta")
    said = file.metadata.get("rope_theta")
    if said is not None and theta is not None and float(said) != float(theta):
        raise InputError(
            f"the head was trained with rope_theta {said}, the target has {theta}; use a head made for it"
        )
    if PROBED not in file.tensors:
        return
    rows = target.get_input_embeddings().weight.detach()[file.tensors[PROBED].long()]
    alike = torch.cosine_similarity(file.tensors["probe.rows"].float(), rows.float(), dim=-1).mean()
    if not alike >= ALIKE:
        found = f"its embedding is not the target's (cosine {float(alike):.2f} over {len(rows)} rows)"
        raise InputError(f"the head was made for another target: {found}; use a head made for this one")
