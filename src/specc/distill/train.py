"""The training loop: fixed seeds and order; a killed run resumes from its checkpoint to the same weights."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from specc.calib.batches import Rows, plan_batches, stack_samples
from specc.calib.samples import Sample
from specc.progress import Progress, no_progress

RECORD_KEYS = {"learning_rate": "rate", "warmup_steps": "warm", "checkpoint_steps": "every"}
"""Field -> its key in provenance.json, where they differ."""


@dataclass(frozen=True)
class TrainingSettings:
    """What decides the weights, beside the data and the target."""

    seed: int = 2026
    epochs: int = 5
    batch_tokens: int = 256
    """Small: on few cores a step costs what its rows cost, and for the same cost more steps train better."""
    learning_rate: float = 1.5e-3
    warmup_steps: int = 20
    """Steps until the full learning rate."""
    depth: int = 3
    """Unrolled steps of a feature head."""
    clip: float = 1.0
    """Largest norm of the gradient."""
    checkpoint_steps: int = 50
    """Steps between checkpoints."""

    def to_record(self) -> dict[str, Any]:
        """The settings as provenance.json has them."""
        return {RECORD_KEYS.get(name, name): value for name, value in asdict(self).items()}


def checkpoint_path(folder: Path, *inputs: Any) -> Path:
    """The checkpoint's path, named by a hash of everything (plain JSON values) that decides the weights."""
    digest = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
    return folder / f"{digest[:16]}.pt"


def train(
    parameters: Sequence[torch.nn.Parameter],
    loss_of: Callable[[Rows], torch.Tensor],
    samples: Sequence[Sample],
    settings: TrainingSettings,
    checkpoint: Path,
    progress: Progress = no_progress,
    on_step: Callable[[int, float], bool] = lambda step, loss: False,
) -> int:
    """Train in place; returns the steps done. `on_step(steps done, loss)` stops the training if true.

    The checkpoint holds weights, optimizer, step and torch's generator; order and learning rate are functions
    of the step. The learning rate falls to zero at the last step, so weights of a stopped run are not those
    of a shorter run.
    """
    plan = [batch for epoch in range(settings.epochs) for batch in epoch_batches(samples, settings, epoch)]
    optimizer = torch.optim.AdamW(
        parameters, lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=0.01, fused=True
    )
    first = load_checkpoint(checkpoint, parameters, optimizer)
    progress("training", first / max(1, len(plan)))
    for step in range(first, len(plan)):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate_at(step, len(plan), settings)
        rows = stack_samples([samples[i] for i in plan[step]], whole=True)
        loss = run_step(loss_of, rows, parameters, optimizer, settings)
        progress("training", (step + 1) / len(plan))
        if (step + 1) % settings.checkpoint_steps == 0 or step + 1 == len(plan):
            save_checkpoint(checkpoint, step + 1, parameters, optimizer)
        if on_step(step + 1, loss):
            return step + 1
    return len(plan)


def epoch_batches(samples: Sequence[Sample], settings: TrainingSettings, epoch: int) -> list[list[int]]:
    """Indices of the samples of each batch of one epoch."""
    return plan_batches([len(s.ids) for s in samples], settings.batch_tokens, settings.seed, epoch)


def learning_rate_at(step: int, steps: int, settings: TrainingSettings) -> float:
    """Linear warm-up, then a cosine to zero."""
    warmup = min(1.0, (step + 1) / settings.warmup_steps)
    return settings.learning_rate * warmup * 0.5 * (1 + math.cos(math.pi * step / max(1, steps)))


def run_step(
    loss_of: Callable[[Rows], torch.Tensor],
    rows: Rows,
    parameters: Sequence[torch.nn.Parameter],
    optimizer: torch.optim.Optimizer,
    settings: TrainingSettings,
) -> float:
    """Forward and backward with products in bfloat16, update in fp32; returns the loss."""
    device = parameters[0].device
    names = ("ids", "hidden", "wanted", "next", "counts")
    on_device = Rows(*(getattr(rows, name).to(device) for name in names))
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast(device.type, torch.bfloat16):
        loss = loss_of(on_device)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(parameters, settings.clip)
    optimizer.step()
    return float(loss.detach())


def save_checkpoint(
    path: Path, step: int, parameters: Sequence[torch.nn.Parameter], optimizer: torch.optim.Optimizer
) -> None:
    """Write a checkpoint, whole or not at all."""
    part = path.with_suffix(".part")
    weights = [p.detach().cpu() for p in parameters]
    state = {
        "step": step,
        "weights": weights,
        "optimizer": optimizer.state_dict(),
        "random": torch.get_rng_state(),
    }
    torch.save(state, part)
    os.replace(part, path)


def load_checkpoint(
    path: Path, parameters: Sequence[torch.nn.Parameter], optimizer: torch.optim.Optimizer
) -> int:
    """Steps already done, 0 without a checkpoint; restores weights, optimizer and generator."""
    if not path.exists():
        return 0
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    with torch.no_grad():
        for parameter, weight in zip(parameters, state["weights"], strict=True):
            parameter.copy_(weight)
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["random"])
    return int(state["step"])
