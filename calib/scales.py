"""Activation ranges of every product, measured on the float model: static scales for int8 and fp8.

One pass counts a histogram of magnitudes for each product's input; four methods choose a range from it.
Before that, `migrate` may move a part of each input channel's magnitude from the activations into the
weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

LOW, HIGH, STEPS = -24, 17, 16
"""Bins of magnitudes from 2^LOW to 2^HIGH, STEPS an octave; smaller magnitudes count in the lowest bin."""
BINS = (HIGH - LOW) * STEPS
PERCENTILE = 0.9999
LEVELS = 127
"""Steps from 0 to the range, in 8 bits."""
SHRINKS = tuple(np.linspace(1.0, 0.25, 61))
"""Ranges that `mse` and `entropy` try, as parts of the largest magnitude."""
ROWS = 256
"""Positions of the calibration text in one call."""
FED_BY = {
    "input_layernorm": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "post_attention_layernorm": ("mlp.gate_proj", "mlp.up_proj"),
}
"""Norm -> the products that read its output; nothing else does."""
PACKED = {"self_attn.q_proj": "self_attn.qkv_proj"}
"""First part -> name of the product that the exporter joins it into; both read the same input."""


@dataclass(frozen=True)
class InputStatistics:
    """One product's input over the calibration text."""

    counts: np.ndarray
    """int64 [BINS]: magnitudes by size."""
    channels: np.ndarray
    """fp32 [K]: largest magnitude of each input channel."""

    @property
    def largest(self) -> float:
        """The largest magnitude of all channels."""
        return float(self.channels.max(initial=0.0))


def calibrate(model: Any, ids: np.ndarray, method: str, migrate: float | None) -> dict[str, Any]:
    """Plain JSON values: `ranges` by product, `shifts` by norm (per channel), `errors` by product.

    `model`: the float module; it is changed by the shifts. `ids` int64 [n]. `errors`: part of the input's
    energy that rounding to 8 bits over the range loses.
    """
    shifts: dict[str, np.ndarray] = {}
    if migrate is not None:
        shifts = compute_shifts(model, collect_statistics(model, ids), migrate)
        apply_shifts(model, shifts)
    seen = collect_statistics(model, ids)
    ranges = {name: RANGE_METHODS[method](statistics) for name, statistics in seen.items()}
    errors = {name: measure_loss(statistics.counts, ranges[name]) for name, statistics in seen.items()}
    return {
        "method": method,
        "ranges": {alias: value for name, value in ranges.items() for alias in list_names(name)},
        "shifts": {name: [float(x) for x in values] for name, values in shifts.items()},
        "errors": errors,
    }


def list_names(product: str) -> Iterator[str]:
    """The product's name, and that of the joined product whose first part it is."""
    yield product
    for part, joined in PACKED.items():
        if product.endswith(part):
            yield product.removesuffix(part) + joined


# ---------------------------------------------------------------------- observing


def collect_statistics(model: Any, ids: np.ndarray) -> dict[str, InputStatistics]:
    """Inputs of all linear modules over the text, in calls of ROWS positions without a past."""
    import torch

    counts: dict[str, np.ndarray] = {}
    channels: dict[str, np.ndarray] = {}

    def hook(name: str) -> Callable[..., None]:
        def record(_: Any, inputs: tuple[torch.Tensor, ...]) -> None:
            x = inputs[0].detach().abs().reshape(-1, inputs[0].shape[-1]).float().numpy()
            counts[name] = counts.get(name, 0) + count_magnitudes(x)
            channels[name] = np.maximum(channels.get(name, 0), x.max(0))

        return record

    linear = [(name, module) for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
    hooks = [module.register_forward_pre_hook(hook(name)) for name, module in linear]
    try:
        with torch.no_grad():
            for start in range(0, len(ids), ROWS):
                model(input_ids=torch.from_numpy(ids[start : start + ROWS])[None], use_cache=False)
    finally:
        for handle in hooks:
            handle.remove()
    return {name: InputStatistics(counts[name], channels[name]) for name in counts}


def count_magnitudes(magnitudes: np.ndarray) -> np.ndarray:
    """int64 [BINS] of non-negative numbers."""
    with np.errstate(divide="ignore"):
        bins = (np.log2(magnitudes.reshape(-1)) - LOW) * STEPS
    counts: np.ndarray = np.bincount(np.clip(bins, 0, BINS - 1).astype(np.int64), minlength=BINS)
    return counts


def list_bin_centers() -> np.ndarray:
    """The magnitude of each bin, float64 [BINS]."""
    centers: np.ndarray = 2.0 ** (LOW + (np.arange(BINS) + 0.5) / STEPS)
    return centers


# ---------------------------------------------------------------------- ranges


def find_max_range(seen: InputStatistics) -> float:
    """The largest magnitude: nothing is clipped."""
    return seen.largest


def find_percentile_range(seen: InputStatistics) -> float:
    """The magnitude that 9,999 of 10,000 do not exceed."""
    part = np.cumsum(seen.counts) / max(seen.counts.sum(), 1)
    edge = 2.0 ** (LOW + (int(np.searchsorted(part, PERCENTILE)) + 1) / STEPS)
    return float(min(edge, seen.largest))


def find_least_error_range(seen: InputStatistics) -> float:
    """The range with the least energy lost by rounding and clipping."""
    return float(
        min((seen.largest * part for part in SHRINKS), key=lambda top: measure_loss(seen.counts, top))
    )


def find_entropy_range(seen: InputStatistics) -> float:
    """The range whose rounded histogram has the smallest Kullback-Leibler divergence from the histogram."""
    return float(
        min((seen.largest * part for part in SHRINKS), key=lambda top: measure_divergence(seen.counts, top))
    )


RANGE_METHODS: Mapping[str, Callable[[InputStatistics], float]] = {
    "max": find_max_range,
    "percentile": find_percentile_range,
    "mse": find_least_error_range,
    "entropy": find_entropy_range,
}


def measure_loss(counts: np.ndarray, top: float) -> float:
    """Part of the energy that rounding magnitudes to LEVELS steps of `top` loses; 0 for an input of zeros."""
    if top <= 0:
        return 0.0
    x = list_bin_centers()
    rounded = np.clip(np.rint(x / top * LEVELS), 0, LEVELS) * top / LEVELS
    energy = float((counts * x * x).sum())
    return float((counts * (x - rounded) ** 2).sum()) / energy if energy else 0.0


def measure_divergence(counts: np.ndarray, top: float) -> float:
    """KL from the histogram to its rounded form, in nats; clipped magnitudes count in the last bin below
    `top`.
    """
    x = list_bin_centers()
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


def compute_shifts(model: Any, seen: Mapping[str, InputStatistics], share: float) -> dict[str, np.ndarray]:
    """Norm -> factor of each channel, fp32 [K]: it divides activations and multiplies the next weights."""
    shifts = {}
    for name, module in model.named_modules():
        products = FED_BY.get(name.rpartition(".")[2])
        layer = name.rpartition(".")[0]
        readers = [f"{layer}.{product}" for product in products or ()]
        if readers and all(reader in seen for reader in readers):
            weights = [np.abs(model.get_submodule(r).weight.detach().numpy()).max(0) for r in readers]
            shifts[name] = compute_factors(seen[readers[0]].channels, np.maximum.reduce(weights), share)
            assert len(shifts[name]) == len(module.weight)
    return shifts


def compute_factors(activations: np.ndarray, weights: np.ndarray, share: float) -> np.ndarray:
    """activations^share / weights^(1 - share), channel by channel; 1 where either is zero."""
    both = (activations > 0) & (weights > 0)
    ones = np.ones_like(activations)
    a, w = np.where(both, activations, ones), np.where(both, weights, ones)
    result: np.ndarray = np.where(both, np.clip(a**share / w ** (1 - share), 1e-4, 1e4), ones).astype(
        np.float32
    )
    return result


def apply_shifts(model: Any, shifts: Mapping[str, Any]) -> None:
    """Divide each norm's weight and multiply the weights of its readers, in place; outputs stay the same."""
    import torch

    with torch.no_grad():
        for name, values in shifts.items():
            factors = torch.from_numpy(np.asarray(values, np.float32))
            norm, layer = model.get_submodule(name), name.rpartition(".")[0]
            norm.weight.div_(factors)
            for product in FED_BY[name.rpartition(".")[2]]:
                model.get_submodule(f"{layer}.{product}").weight.mul_(factors)
