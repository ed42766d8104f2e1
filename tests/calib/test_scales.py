"""Activation ranges: four methods on known distributions, and the migration that changes nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specc.calib.scales import (
    RANGE_METHODS,
    InputStatistics,
    calibrate,
    compute_factors,
    count_magnitudes,
    measure_loss,
)

torch = pytest.importorskip("torch")


def collect(values: np.ndarray) -> InputStatistics:
    """One product's input [n, K]."""
    return InputStatistics(count_magnitudes(np.abs(values)), np.abs(values).max(0))


def test_methods_agree_where_there_is_nothing_to_cut() -> None:
    """Uniform magnitudes: each method keeps nearly all of the range."""
    statistics = collect(np.random.default_rng(0).uniform(-3, 3, (4000, 8)).astype(np.float32))
    for name, method in RANGE_METHODS.items():
        assert 2.6 < method(statistics) <= 3.0, name


def test_an_outlier_is_cut_by_all_but_max() -> None:
    """One magnitude of 1,000 among many of about 1: energy decides for `mse`, frequency for the others."""
    values = np.random.default_rng(1).standard_normal((20000, 8)).astype(np.float32)
    values[7, 3] = 1000
    statistics = collect(values)
    assert RANGE_METHODS["max"](statistics) == 1000
    assert RANGE_METHODS["percentile"](statistics) < 6
    assert RANGE_METHODS["entropy"](statistics) < 1000
    assert measure_loss(statistics.counts, RANGE_METHODS["mse"](statistics)) <= min(
        measure_loss(statistics.counts, RANGE_METHODS[m](statistics)) for m in ("max", "percentile")
    )


def test_loss_is_that_of_rounding() -> None:
    """The histogram's estimate against the numbers themselves."""
    values = np.abs(np.random.default_rng(2).standard_normal(50000)).astype(np.float32)
    top = float(values.max())
    rounded = np.rint(values / top * 127) * top / 127
    true = float(((values - rounded) ** 2).sum() / (values**2).sum())
    assert measure_loss(count_magnitudes(values), top) == pytest.approx(true, rel=0.1)


def test_zeros_and_empty_inputs() -> None:
    """A product that never saw anything but zeros has range 0 and loses nothing."""
    statistics = collect(np.zeros((10, 4), np.float32))
    assert (
        all(method(statistics) == 0 for method in RANGE_METHODS.values())
        and measure_loss(statistics.counts, 0.0) == 0.0
    )


def test_factors_even_out_channels() -> None:
    """At one half, activations and weights get the same size; where either is zero nothing moves."""
    a, w = np.array([16.0, 1.0, 0.0, 4.0], np.float32), np.array([1.0, 4.0, 2.0, 0.0], np.float32)
    by = compute_factors(a, w, 0.5)
    assert np.allclose((a / by)[:2], (w * by)[:2]) and np.array_equal(by[2:], [1, 1])


class Layer(torch.nn.Module):  # type: ignore[name-defined,misc]
    """As much of a decoder layer as a norm feeds."""

    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm = torch.nn.RMSNorm(16)
        self.self_attn = torch.nn.ModuleDict(
            {name: torch.nn.Linear(16, 16, False) for name in ("q_proj", "k_proj", "v_proj")}
        )

    def forward(self, x: Any) -> Any:
        x = self.input_layernorm(x)
        return sum(self.self_attn[name](x) for name in ("q_proj", "k_proj", "v_proj"))


class Model(torch.nn.Module):  # type: ignore[name-defined,misc]
    """An embedding whose channels differ a hundredfold, and one layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.layer = torch.nn.Embedding(50, 16), Layer()
        with torch.no_grad():
            self.layer.input_layernorm.weight.copy_(torch.logspace(-1, 1, 16))

    def forward(self, input_ids: Any, use_cache: bool = False) -> Any:
        return SimpleNamespace(logits=self.layer(self.embed(input_ids)))


def test_migration_keeps_the_model_and_narrows_its_inputs() -> None:
    """R49: what is computed stays; 8 bits lose less of the input."""
    ids = np.random.default_rng(3).integers(0, 50, 600)
    plain, moved = Model(), Model()
    wanted = plain(torch.from_numpy(ids)[None]).logits
    before, after = calibrate(plain, ids, "max", None), calibrate(moved, ids, "max", 0.5)
    assert torch.allclose(moved(torch.from_numpy(ids)[None]).logits, wanted, atol=1e-5)
    name = "layer.self_attn.q_proj"
    assert after["ranges"][name] == after["ranges"]["layer.self_attn.qkv_proj"]
    assert list(after["shifts"]) == ["layer.input_layernorm"] and before["shifts"] == {}
    spread = [
        np.ptp(np.log(np.abs(np.array(one["shifts"].get("layer.input_layernorm", [1.0])))))
        for one in (before, after)
    ]
    assert spread[1] > spread[0] and after["errors"][name] < before["errors"][name]
