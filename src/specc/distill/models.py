"""Drafts that are models: `small`, a few of the target's layers trained on their own, and `early-exit`, a trained norm.

Both keep the target's embedding and output rows, frozen, and so all its ids: the runtime's draft models have no reduced
vocabulary. `small` is written as a checkpoint folder with the target's tokenizer, for a draft of kind model;
`early-exit` as one norm for the layer that it was trained behind.
"""

from __future__ import annotations

import contextlib
import copy
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import log_softmax

from specc.calib import acceptance, answers
from specc.calib.answers import Sample
from specc.calib.batches import Rows
from specc.distill.data import Tell
from specc.distill.train import Settings, heard_by, train
from specc.errors import InputError
from specc.exporter.draft_heads.file import save_draft_head
from specc.exporter.module_view import copy_shallow

if TYPE_CHECKING:
    from specc.distill.job import Asked
    from specc.exporter.checkpoint.checkpoint import Checkpoint

SMALL, EXIT = "small", "exit.safetensors"
SMALL_LAYERS = 2
DEPTH = 4


@dataclass(frozen=True)
class DraftModel:
    """A causal model in training; it shares the target's output rows."""

    base: Any
    """ids [b, L] -> last_hidden_state [b, L, H]."""
    output: torch.Tensor
    """[V, H], the target's."""
    parameters: list[torch.nn.Parameter]
    whole: Any = None
    """The model to be saved, of `small` alone."""

    def states(self, ids: torch.Tensor) -> torch.Tensor:
        """Final normalised hidden states [b, L, H]."""
        found: torch.Tensor = self.base(input_ids=ids, use_cache=False).last_hidden_state
        return found

    def loss(self, rows: Rows) -> torch.Tensor:
        """Cross-entropy with the target's own distribution over all ids; mean over the counted rows."""
        got, wanted = self.states(rows.ids)[rows.counts], rows.wanted[rows.counts]
        with torch.no_grad():
            p = torch.softmax((wanted @ self.output.T).float(), -1)
        return -(p * log_softmax((got @ self.output.T).float(), -1)).sum(-1).mean()

    def argmax(self, ids: Sequence[int]) -> Sequence[int]:
        """What each place foretells for the next one."""
        with torch.no_grad():
            row = torch.tensor([list(ids)], device=self.output.device)
            found: list[int] = (self.states(row)[0] @ self.output.T).argmax(-1).tolist()
        return found


def small_model(target: Any, layers: int) -> DraftModel:
    """Evenly chosen layers of the target, the first and the last among them, in a model of their own."""
    config, own = copy.deepcopy(target.config), list(target.base_model.layers)
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:layers]
    picked = [round(i * (len(own) - 1) / max(1, layers - 1)) for i in range(layers)]
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
    moving = [p for p in model.parameters() if p.requires_grad]
    return DraftModel(model.base_model, target.get_output_embeddings().weight.detach(), moving, model)


def exit_model(target: Any, layers: int) -> DraftModel:
    """The target's first layers behind a norm of their own, which alone is trained."""
    base = copy_shallow(target.base_model)
    norm = copy.deepcopy(target.base_model.norm).requires_grad_(True)
    base._modules["layers"] = torch.nn.ModuleList(list(target.base_model.layers)[:layers])
    base._modules["norm"] = norm
    return DraftModel(base, target.get_output_embeddings().weight.detach(), list(norm.parameters()))


def layers_of(asked: Asked, target: Any) -> int:
    """Layers of the draft. Raises InputError for as many as the target has."""
    most = len(target.base_model.layers) - 1
    layers = asked.layers or (SMALL_LAYERS if asked.kind == SMALL else max(1, (most + 1) // 2))
    if not 1 <= layers <= most:
        raise InputError(f"--layers is {layers}; allowed are 1 to {most}, one fewer than the target has")
    return layers


def trained(
    asked: Asked,
    target: Any,
    checkpoint: Checkpoint,
    samples: Sequence[Sample],
    tuning: Sequence[Sample],
    folder: Path,
    out: Path,
    shape: dict[str, str],
    tell: Tell,
) -> tuple[dict[str, Any], dict[str, list[float]], list[str]]:
    """(settings, acceptance by class, files written); a killed run goes on from its last checkpoint in `folder`."""
    from specc.distill.job import digest

    layers = layers_of(asked, target)
    settings = Settings(seed=asked.seed, epochs=asked.epochs, batch_tokens=512, rate=5e-4)
    torch.manual_seed(settings.seed)
    draft = small_model(target, layers) if asked.kind == SMALL else exit_model(target, layers)
    data = answers.data_sha256(samples)
    key = digest([asdict(settings), asked.kind, layers, data, checkpoint.spec.weights_sha256])
    train(draft.parameters, draft.loss, samples, settings, folder / f"{key[:16]}.pt", heard_by(tell))
    about = {**shape, "layers": str(layers), "seed": str(asked.seed), "data_sha256": data}
    found = accepted(draft, tuning)
    names = save_small(draft.whole, checkpoint, out) if asked.kind == SMALL else save_exit(draft, about, out)
    return {**asdict(settings), "layers": layers}, found, names


def accepted(draft: DraftModel, tuning: Sequence[Sample]) -> dict[str, list[float]]:
    """Class -> greedy acceptance at each depth, given acceptance before it."""
    out = {}
    for kind in sorted({s.kind for s in tuning}):
        own = [s for s in tuning if s.kind == kind and s.temperature == 0 and len(s.answer) > 2]
        played = [acceptance.play(s, [acceptance.model_stage(s, draft.argmax)], DEPTH) for s in own]
        if played:
            both = acceptance.together(played)
            out[kind] = [round(a / b, 4) if b else 0.0 for a, b in zip(both.right, both.tried, strict=True)]
    return out


def save_small(model: Any, checkpoint: Checkpoint, out: Path) -> list[str]:
    """A checkpoint folder in half precision with the target's tokenizer."""
    place = out / SMALL
    place.mkdir(exist_ok=True)
    with contextlib.redirect_stderr(io.StringIO()):
        model.eval().to("cpu", torch.float16).save_pretrained(place)
    checkpoint.save_tokenizer(place)
    return sorted(f"{SMALL}/{path.name}" for path in place.iterdir())


def save_exit(draft: DraftModel, about: dict[str, str], out: Path) -> list[str]:
    """One norm."""
    save_draft_head(out / EXIT, "early-exit", {"norm.weight": draft.parameters[0]}, None, about)
    return [EXIT]
