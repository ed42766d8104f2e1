"""The training loop: fixed seeds, one order, a checkpoint from which a killed run goes on to the very same weights."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from specc.calib.answers import Sample
from specc.calib.batches import Rows, batch_of, plan_batches

Tell = Callable[[int, int, float], None]
"""Hears (steps done, steps in all, loss)."""


@dataclass(frozen=True)
class Settings:
    """What decides the weights, beside the data and the target."""

    seed: int = 2026
    epochs: int = 5
    batch_tokens: int = 256
    """Small: on few cores a step costs what its rows cost, and for the same work more steps teach more."""
    rate: float = 1.5e-3
    warm: int = 20
    """Steps until the full rate."""
    depth: int = 3
    """Unrolled steps of a feature head."""
    clip: float = 1.0
    every: int = 50
    """Steps between checkpoints."""


def train(
    parameters: Sequence[torch.nn.Parameter],
    loss_of: Callable[[Rows], torch.Tensor],
    samples: Sequence[Sample],
    settings: Settings,
    checkpoint: Path,
    tell: Tell = lambda done, steps, loss: None,
    stop: Callable[[int], bool] = lambda step: False,
) -> int:
    """Train in place; returns the steps made. `stop` is asked after each step, for tests and cancelling.

    The checkpoint holds weights, optimizer, step and torch's generator; order and rate are functions of the step. The
    rate falls to zero at the last step, so a run that stops early is one that was not finished.
    """
    plan = [batch for epoch in range(settings.epochs) for batch in epoch_batches(samples, settings, epoch)]
    optimizer = torch.optim.AdamW(
        parameters, lr=settings.rate, betas=(0.9, 0.95), weight_decay=0.01, fused=True
    )
    done = resume(checkpoint, parameters, optimizer)
    for step in range(done, len(plan)):
        for group in optimizer.param_groups:
            group["lr"] = rate_at(step, len(plan), settings)
        rows = batch_of([samples[i] for i in plan[step]], whole=True)
        loss = one_step(loss_of, rows, parameters, optimizer, settings)
        tell(step + 1, len(plan), loss)
        if (step + 1) % settings.every == 0 or step + 1 == len(plan):
            save(checkpoint, step + 1, parameters, optimizer)
        if stop(step + 1):
            return step + 1
    return len(plan)


def epoch_batches(samples: Sequence[Sample], settings: Settings, epoch: int) -> list[list[int]]:
    """The batches of one epoch."""
    return plan_batches([len(s.ids) for s in samples], settings.batch_tokens, settings.seed, epoch)


def rate_at(step: int, steps: int, settings: Settings) -> float:
    """Linear warm-up, then a cosine to zero."""
    warm = min(1.0, (step + 1) / settings.warm)
    return settings.rate * warm * 0.5 * (1 + math.cos(math.pi * step / max(1, steps)))


def one_step(
    loss_of: Callable[[Rows], torch.Tensor],
    rows: Rows,
    parameters: Sequence[torch.nn.Parameter],
    optimizer: torch.optim.Optimizer,
    settings: Settings,
) -> float:
    """Forward and backward in bfloat16 products, update in fp32; the loss."""
    device = parameters[0].device
    moved = Rows(*(getattr(rows, name).to(device) for name in ("ids", "hidden", "wanted", "next", "counts")))
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast(device.type, torch.bfloat16):
        loss = loss_of(moved)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(parameters, settings.clip)
    optimizer.step()
    return float(loss.detach())


def save(
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


def resume(path: Path, parameters: Sequence[torch.nn.Parameter], optimizer: torch.optim.Optimizer) -> int:
    """Steps already made; weights, optimizer and generator are as they were then."""
    if not path.exists():
        return 0
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    with torch.no_grad():
        for parameter, weight in zip(parameters, state["weights"], strict=True):
            parameter.copy_(weight)
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["random"])
    return int(state["step"])


def heard_by(tell: Callable[[str, int, int, float], None]) -> Tell:
    """Training progress, told as (what, done, of, seconds left) at the speed since the first step heard of."""
    began, first = time.monotonic(), list[int]()

    def heard(done: int, steps: int, loss: float) -> None:
        first[:] = first or [done - 1]
        tell("training", done, steps, (steps - done) * (time.monotonic() - began) / max(1, done - first[0]))

    return heard
