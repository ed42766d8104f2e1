"""Draft models: `small`, a few of the target's layers trained further, and `early-exit`, a trained norm.

Both keep the target's embedding and LM head, frozen, and so all its ids: the runtime's draft models have no
reduced vocabulary. `small` is written as a checkpoint folder with the target's tokenizer, for a draft of kind
model; `early-exit` as one norm, which follows the last layer that the draft runs.
"""

from __future__ import annotations

import contextlib
import copy
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import log_softmax

from specc.calib import acceptance
from specc.calib.batches import Rows
from specc.calib.samples import Sample
from specc.distill.data import TrainingData
from specc.distill.heads import describe_target
from specc.distill.request import DistillRequest
from specc.distill.train import TrainingSettings, checkpoint_path, train
from specc.errors import InputError
from specc.exporter.draft_heads.file import save_draft_head
from specc.exporter.module_view import copy_shallow
from specc.progress import Progress

if TYPE_CHECKING:
    from specc.exporter.checkpoint.checkpoint import Checkpoint

SMALL, EXIT = "small", "exit.safetensors"
SMALL_LAYERS = 2
LEARNING_RATE, BATCH_TOKENS = 5e-4, 512
DEPTH = 4
"""Depths at which acceptance is measured."""


@dataclass(frozen=True)
class DraftModel:
    """A causal model in training; it shares the target's LM head."""

    base: Any
    """ids [b, L] -> last_hidden_state [b, L, H]."""
    output: torch.Tensor
    """[V, H], the target's LM head."""
    parameters: list[torch.nn.Parameter]
    model: Any = None
    """The module that is saved, of `small` alone."""

    def compute_hidden(self, ids: torch.Tensor) -> torch.Tensor:
        """Hidden states [b, L, H] after the final norm."""
        hidden: torch.Tensor = self.base(input_ids=ids, use_cache=False).last_hidden_state
        return hidden

    def loss(self, rows: Rows) -> torch.Tensor:
        """Cross-entropy with the target's own distribution over all ids; mean over the counted rows."""
        hidden, wanted = self.compute_hidden(rows.ids)[rows.counts], rows.wanted[rows.counts]
        with torch.no_grad():
            p = torch.softmax((wanted @ self.output.T).float(), -1)
        return -(p * log_softmax((hidden @ self.output.T).float(), -1)).sum(-1).mean()

    def argmax(self, ids: Sequence[int]) -> Sequence[int]:
        """The likeliest next id at each index."""
        with torch.no_grad():
            row = torch.tensor([list(ids)], device=self.output.device)
            tokens: list[int] = (self.compute_hidden(row)[0] @ self.output.T).argmax(-1).tolist()
        return tokens


def small_model(target: Any, layers: int) -> DraftModel:
    """Evenly spaced layers of the target, the first and the last among them, in a model of their own."""
    config, target_layers = copy.deepcopy(target.config), list(target.base_model.layers)
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:layers]
    picked = [round(i * (len(target_layers) - 1) / max(1, layers - 1)) for i in range(layers)]
    model = type(target)(config).to(target.device, torch.float32)
    names = {f".layers.{old}.": f".layers.{new}." for new, old in enumerate(picked)}
    weights = {
        name.replace(old, new): weight
        for name, weight in target.state_dict().items()
        for old, new in (names.items() if ".layers." in name else [("", "")])
        if old in name
    }
    model.load_state_dict(weights)
    model.requires_grad_(True).train()
    for part in (model.get_input_embeddings(), model.get_output_embeddings()):
        part.requires_grad_(False)
    trained = [p for p in model.parameters() if p.requires_grad]
    return DraftModel(model.base_model, target.get_output_embeddings().weight.detach(), trained, model)


def exit_model(target: Any, layers: int) -> DraftModel:
    """The target's first layers and a norm of their own, the only part that is trained."""
    base = copy_shallow(target.base_model)
    norm = copy.deepcopy(target.base_model.norm).requires_grad_(True)
    base._modules["layers"] = torch.nn.ModuleList(list(target.base_model.layers)[:layers])
    base._modules["norm"] = norm
    return DraftModel(base, target.get_output_embeddings().weight.detach(), list(norm.parameters()))


def choose_layers(request: DistillRequest, target: Any) -> int:
    """Layers of the draft. Raises InputError for as many as the target has."""
    most = len(target.base_model.layers) - 1
    layers = request.layers or (SMALL_LAYERS if request.kind == SMALL else max(1, (most + 1) // 2))
    if not 1 <= layers <= most:
        raise InputError(f"--layers is {layers}; allowed are 1 to {most}, one fewer than the target has")
    return layers


def train_model(
    request: DistillRequest,
    target: Any,
    checkpoint: Checkpoint,
    data: TrainingData,
    folder: Path,
    out: Path,
    progress: Progress,
) -> tuple[dict[str, Any], dict[str, list[float]], list[str]]:
    """Train a draft model and write it; returns (settings, acceptance by class, names of the files written).

    `target`: fp32, frozen. `folder`: where the checkpoint of a killed run is.
    """
    layers = choose_layers(request, target)
    settings = TrainingSettings(
        seed=request.seed,
        epochs=request.epochs,
        batch_tokens=BATCH_TOKENS,
        learning_rate=LEARNING_RATE,
    )
    torch.manual_seed(settings.seed)
    draft = small_model(target, layers) if request.kind == SMALL else exit_model(target, layers)
    record, weights = settings.to_record(), checkpoint.spec.weights_sha256
    path = checkpoint_path(folder, record, request.kind, layers, data.sha256, weights)
    train(draft.parameters, draft.loss, data.training, settings, path, progress)
    accepted = measure_acceptance(draft, data.tuning)
    if request.kind == SMALL:
        return {**record, "layers": layers}, accepted, save_small(draft.model, checkpoint, out)
    metadata = {
        **describe_target(checkpoint.spec),
        "layers": str(layers),
        "seed": str(request.seed),
        "data_sha256": data.sha256,
    }
    return {**record, "layers": layers}, accepted, save_exit(draft, metadata, out)


def measure_acceptance(draft: DraftModel, tuning: Sequence[Sample]) -> dict[str, list[float]]:
    """Class -> greedy acceptance at each depth where all before it were accepted."""
    accepted = {}
    for kind in sorted({s.kind for s in tuning}):
        samples = [s for s in tuning if s.kind == kind and s.temperature == 0 and len(s.answer) > 2]
        replays = [
            acceptance.replay_rounds(s, [acceptance.make_model_stage(s, draft.argmax)], DEPTH)
            for s in samples
        ]
        if replays:
            total = acceptance.sum_replays(replays)
            pairs = zip(total.accepted, total.tried, strict=True)
            accepted[kind] = [round(a / b, 4) if b else 0.0 for a, b in pairs]
    return accepted


def save_small(model: Any, checkpoint: Checkpoint, out: Path) -> list[str]:
    """Write a checkpoint folder in fp16 with the target's tokenizer; returns the names of its files."""
    place = out / SMALL
    place.mkdir(exist_ok=True)
    with contextlib.redirect_stderr(io.StringIO()):
        model.eval().to("cpu", torch.float16).save_pretrained(place)
    checkpoint.save_tokenizer(place)
    return sorted(f"{SMALL}/{path.name}" for path in place.iterdir())


def save_exit(draft: DraftModel, metadata: dict[str, str], out: Path) -> list[str]:
    """Write the norm; returns the name of its file."""
    save_draft_head(out / EXIT, "early-exit", {"norm.weight": draft.parameters[0]}, None, metadata)
    return [EXIT]
