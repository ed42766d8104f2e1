"""Activation ranges of every product, measured on the float model: static scales for int8 and fp8.

One pass fills a histogram of magnitudes for each product's input; four methods read a range from it. Before that, some
of each input channel's size may move from the activations into the weights (`migrate`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

LOW, HIGH, STEPS = -24, 17, 16
"""Magnitudes from 2^LOW to 2^HIGH, so many bins an octave; smaller ones count as the lowest."""
BINS = (HIGH - LOW) * STEPS
PERCENTILE = 0.9999
LEVELS = 127
"""Steps from 0 to the range, in 8 bits."""
SHRINKS = tuple(np.linspace(1.0, 0.25, 61))
"""Parts of the largest magnitude that `mse` and `entropy` try."""
ROWS = 256
"""Positions of the calibration text a call."""
FED_BY = {
    "input_layernorm": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "post_attention_layernorm": ("mlp.gate_proj", "mlp.up_proj"),
}
"""Products that read a norm's result and nothing else does."""
PACKED = {"self_attn.q_proj": "self_attn.qkv_proj"}
"""Names of products that the exporter joins: they read what their first part reads."""


@dataclass(frozen=True)
class Seen:
    """One product's input over the calibration text."""

    counts: np.ndarray
    """int64 [BINS]: magnitudes by size."""
    channels: np.ndarray
    """fp32 [K]: largest magnitude of each input channel."""

    @property
    def largest(self) -> float:
        """Largest magnitude of all."""
        return float(self.channels.max(initial=0.0))


def calibrate(model: Any, ids: np.ndarray, method: str, migrate: float | None) -> dict[str, Any]:
    """Plain JSON values: `ranges` by product, `shifts` by norm (per channel), `errors` by product.

    `model`: the float module; it is changed by the shifts. `ids` int64 [n]. `errors`: part of the input's energy that
    rounding to 8 bits over the range loses.
    """
    moved: dict[str, np.ndarray] = {}
    if migrate is not None:
        moved = shifts(model, observe(model, ids), migrate)
        apply_shifts(model, moved)
    seen = observe(model, ids)
    ranges = {name: METHODS[method](one) for name, one in seen.items()}
    errors = {name: lost(one.counts, ranges[name]) for name, one in seen.items()}
    return {
        "method": method,
        "ranges": {alias: value for name, value in ranges.items() for alias in names_of(name)},
        "shifts": {name: [float(x) for x in values] for name, values in moved.items()},
        "errors": errors,
    }


def names_of(product: str) -> Iterator[str]:
    """The product's own name, and that of the joined one it is the first part of."""
    yield product
    for part, joined in PACKED.items():
        if product.endswith(part):
            yield product.removesuffix(part) + joined


# ---------------------------------------------------------------------- observing


def observe(model: Any, ids: np.ndarray) -> dict[str, Seen]:
    """Inputs of all linear modules over the text, in calls of ROWS positions without a past."""
    import torch

    counts: dict[str, np.ndarray] = {}
    channels: dict[str, np.ndarray] = {}

    def hook(name: str) -> Callable[..., None]:
        def look(_: Any, inputs: tuple[torch.Tensor, ...]) -> None:
            x = inputs[0].detach().abs().reshape(-1, inputs[0].shape[-1]).float().numpy()
            counts[name] = counts.get(name, 0) + histogram(x)
            channels[name] = np.maximum(channels.get(name, 0), x.max(0))

        return look

    linear = [(name, module) for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
    hooks = [module.register_forward_pre_hook(hook(name)) for name, module in linear]
    try:
        with torch.no_grad():
            for start in range(0, len(ids), ROWS):
                model(input_ids=torch.from_numpy(ids[start : start + ROWS])[None], use_cache=False)
    finally:
        for handle in hooks:
            handle.remove()
    return {name: Seen(counts[name], channels[name]) for name in counts}


def histogram(magnitudes: np.ndarray) -> np.ndarray:
    """int64 [BINS] of non-negative numbers."""
    with np.errstate(divide="ignore"):
        place = (np.log2(magnitudes.reshape(-1)) - LOW) * STEPS
    found: np.ndarray = np.bincount(np.clip(place, 0, BINS - 1).astype(np.int64), minlength=BINS)
    return found


def centers() -> np.ndarray:
    """Magnitude that each bin stands for, float64 [BINS]."""
    middle: np.ndarray = 2.0 ** (LOW + (np.arange(BINS) + 0.5) / STEPS)
    return middle


# ---------------------------------------------------------------------- ranges


def largest(seen: Seen) -> float:
    """No magnitude is cut."""
    return seen.largest


def percentile(seen: Seen) -> float:
    """All but one of 10,000 magnitudes are below."""
    part = np.cumsum(seen.counts) / max(seen.counts.sum(), 1)
    edge = 2.0 ** (LOW + (int(np.searchsorted(part, PERCENTILE)) + 1) / STEPS)
    return float(min(edge, seen.largest))


def least_error(seen: Seen) -> float:
    """The range whose rounding and cutting lose the least energy."""
    return float(min((seen.largest * part for part in SHRINKS), key=lambda top: lost(seen.counts, top)))


def entropy(seen: Seen) -> float:
    """The range whose rounded histogram is nearest to the histogram itself, by Kullback-Leibler divergence."""
    return float(min((seen.largest * part for part in SHRINKS), key=lambda top: divergence(seen.counts, top)))


METHODS: Mapping[str, Callable[[Seen], float]] = {
    "max": largest,
    "percentile": percentile,
    "mse": least_error,
    "entropy": entropy,
}


def lost(counts: np.ndarray, top: float) -> float:
    """Part of the energy that is lost when magnitudes are rounded to LEVELS steps of `top`; 0 for an input of zeros."""
    if top <= 0:
        return 0.0
    x = centers()
    rounded = np.clip(np.rint(x / top * LEVELS), 0, LEVELS) * top / LEVELS
    energy = float((counts * x * x).sum())
    return float((counts * (x - rounded) ** 2).sum()) / energy if energy else 0.0


def divergence(counts: np.ndarray, top: float) -> float:
    """KL of the histogram from its rounded form, in nats; what is cut stands in the last bin below `top`."""
    x = centers()
    kept = x <= top
    if not kept.any():
        return float("inf")
    p = counts[kept].astype(np.float64)
    p[-1] += counts[~kept].sum()
    level = np.rint(x[kept] / top * LEVELS).astype(np.int64)
    filled = counts[kept] > 0
    mass, bins = (np.bincount(level, weights=w, minlength=LEVELS + 1) for w in (counts[kept], filled))
    q = np.where(filled, (mass / np.maximum(bins, 1))[level], 0)
    both = (p > 0) & (q > 0)
    missing = p[(p > 0) & (q == 0)].sum() / max(p.sum(), 1)
    p, q = p / max(p.sum(), 1), q / max(q.sum(), 1)
    return float((p[both] * np.log(p[both] / q[both])).sum() + 10 * missing)


# ---------------------------------------------------------------------- migration


def shifts(model: Any, seen: Mapping[str, Seen], share: float) -> dict[str, np.ndarray]:
    """Norm -> factor of each channel, fp32 [K]: activations are divided by it, the weights behind multiplied."""
    found = {}
    for name, module in model.named_modules():
        products = FED_BY.get(name.rpartition(".")[2])
        layer = name.rpartition(".")[0]
        readers = [f"{layer}.{product}" for product in products or ()]
        if readers and all(reader in seen for reader in readers):
            weights = [np.abs(model.get_submodule(r).weight.detach().numpy()).max(0) for r in readers]
            found[name] = factors(seen[readers[0]].channels, np.maximum.reduce(weights), share)
            assert len(found[name]) == len(module.weight)
    return found


def factors(activations: np.ndarray, weights: np.ndarray, share: float) -> np.ndarray:
    """activations^share / weights^(1 - share), channel by channel; 1 where either is zero."""
    both = (activations > 0) & (weights > 0)
    one = np.ones_like(activations)
    a, w = np.where(both, activations, one), np.where(both, weights, one)
    result: np.ndarray = np.where(both, np.clip(a**share / w ** (1 - share), 1e-4, 1e4), one).astype(
        np.float32
    )
    return result


def apply_shifts(model: Any, moved: Mapping[str, Any]) -> None:
    """Divide each norm's weight and multiply the weights of its readers, in place; what the model computes stays."""
    import torch

    with torch.no_grad():
        for name, values in moved.items():
            by = torch.from_numpy(np.asarray(values, np.float32))
            norm, layer = model.get_submodule(name), name.rpartition(".")[0]
            norm.weight.div_(by)
            for product in FED_BY[name.rpartition(".")[2]]:
                model.get_submodule(f"{layer}.{product}").weight.mul_(by)
