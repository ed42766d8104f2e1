"""Models, certificates, lifetimes and the library itself through the Python binding."""

from __future__ import annotations

import numpy as np
import pytest
from support.table_models import chain, noise_table

from specc.errors import InputError, RuntimeFault, SpeccError
from specc.runtime import Model, Ngram, Table, controls, device, library


def test_info_and_reasons() -> None:
    """A model is certified only where its maker or the gate says so."""
    table = Table(noise_table(8, 1), 1, 64 + 16, (1, 2, 3, 16))
    with Model.from_parts(table, Ngram(), n_ids=8, context=64, k_max=2, eos=[7]) as model:
        assert (model.info.enabled, model.info.reasons) == (False, ("uncertified-device",))
        certificate = model.certify(np.arange(200) % 8, seed=1)
        assert certificate.kind == "bit-exact"
        model.apply(certificate)
        info = model.info
        assert (info.enabled, info.reasons, info.certificate) == (True, (), certificate)
        assert (info.n_ids, info.context, info.k_max, info.chunk, info.eos) == (8, 64, 2, 16, (7,))
        assert info.backend == "table"


def test_certify_progress_and_cancel() -> None:
    """progress sees a rising count; a true answer cancels; its exception comes through."""
    with Model.table(noise_table(8, 1)) as model:
        seen: list[tuple[int, int]] = []
        model.certify([0, 1, 2], progress=lambda done, total: seen.append((done, total)))
        assert len(seen) > 100
        assert [done for done, _ in seen] == sorted(done for done, _ in seen)
        with pytest.raises(RuntimeFault, match="cancelled"):
            model.certify([0, 1, 2], progress=lambda done, total: True)
        with pytest.raises(ZeroDivisionError):
            model.certify([0, 1, 2], progress=lambda done, total: 1 // 0)
        with pytest.raises(InputError, match="out of range"):
            model.certify([99])


def test_session_keeps_its_model_alive() -> None:
    """Freeing in any order is safe; closed objects say so."""
    model = Model.table(chain(8))
    session = model.session()
    other = model.session()
    del model
    assert session.run([0], temperature=0, max_new_tokens=2).tokens == [1, 2]
    session.close()
    session.close()
    with pytest.raises(InputError, match="closed"):
        session.run([0])
    assert other.run([0], temperature=0, max_new_tokens=1).tokens == [1]
    closed = Model.table(chain(8))
    orphan = closed.session()
    closed.close()
    with pytest.raises(InputError, match="closed"):
        orphan.run([0])
    with pytest.raises(InputError, match="closed"):
        closed.session()


def test_impossible_models() -> None:
    """Each a sentence, nothing leaks: tables of no order, rows that do not fit, a K too large."""
    for table, parts in (
        (np.zeros((5, 4)), {"order": 2}),
        (np.zeros(4), {}),
        (np.zeros((4, 4)), {"k_max": 17}),
        (np.zeros((4, 4)), {"eos": [9]}),
        (np.zeros((4, 4)), {"context": 1}),
        (np.zeros((4, 4)), {"token_bytes": [b"a"]}),
        (np.zeros((4, 4)), {"widths": (4, 2)}),
    ):
        with pytest.raises(SpeccError):
            Model.table(table, **parts)
    with pytest.raises(SpeccError):
        Model.open("/nonexistent")


def test_device_and_library() -> None:
    """Name and fingerprint of the device; the controls library lists its faults, the shipped one has none."""
    name, fingerprint = device()
    assert name
    assert len(fingerprint) == 64
    assert "drop_low_q" in controls().faults()
    with pytest.raises(AttributeError):
        library().faults()
    with pytest.raises(InputError, match="no fault"), controls().fault("typo"):
        pass
