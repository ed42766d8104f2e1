"""Exit codes: whose fault an error is, over all verbs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from specc.errors import InputError

Write = Callable[..., Path]
Run = Callable[..., tuple[int, str, str]]

WAYS = {  # verb -> (what it calls, its arguments)
    "build": ("specc.pipeline.build.build", ("RECIPE",)),
    "finalize": ("specc.pipeline.finalize.finalize", ("BUNDLE",)),
    "plan": ("specc.pipeline.plan.plan_recipe", ("RECIPE",)),
    "gate": ("specc.gate.gate_bundle", ("BUNDLE",)),
    "diff": ("specc.diff.diff", ("BUNDLE", "BUNDLE")),
    "run": ("specc.generate.run.generate", ("BUNDLE", "-p", "x")),
    "bench": ("specc.bench.run.bench", ("BUNDLE",)),
    "inspect": ("specc.inspection.bundle.inspect_bundle", ("BUNDLE",)),
    "doctor": ("specc.inspection.machine.check_machine", ()),
    "targets": ("specc.targets.load", ()),
    "recipes": ("specc.contracts.recipe.load_recipe", ()),
    "distill": ("specc.distill.job.distill", ("RECIPE", "--out", "BUNDLE")),
}


@pytest.mark.parametrize("verb", WAYS)
@pytest.mark.parametrize(
    "error",
    [KeyError("intermediate_size"), RuntimeError("two\nlines"), AssertionError(), ValueError("x" * 999)],
)
def test_an_unexpected_error_is_our_fault(
    specc: Run,
    tmp_path: Path,
    write_recipe: Write,
    monkeypatch: pytest.MonkeyPatch,
    verb: str,
    error: Exception,
) -> None:
    """Exit 70 and one sentence that asks for a report; never 1, which says that a judge said no."""

    def fail(*_: object, **__: object) -> None:
        raise error

    target, arguments = WAYS[verb]
    places = {"BUNDLE": tmp_path, "RECIPE": write_recipe()}
    monkeypatch.setattr(target, fail)
    code, out, err = specc(verb, *(places.get(word, word) for word in arguments))
    assert (code, out) == (70, "") and err.count("\n") == 1 and len(err) < 500
    assert type(error).__name__ in err and "report it" in err and "SPECC_TRACEBACK=1" in err


@pytest.mark.parametrize("error", [KeyError("mine"), InputError("yours")])
def test_a_traceback_on_request(
    specc: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("specc.generate.run.generate", fail)
    assert "Traceback" not in specc("run", tmp_path, "-p", "x")[2]
    monkeypatch.setenv("SPECC_TRACEBACK", "1")
    code, _, err = specc("run", tmp_path, "-p", "x")
    assert code == (70 if isinstance(error, KeyError) else 2)
    assert err.startswith("Traceback") and "in fail" in err and "specc: " in err.splitlines()[-1]


def test_too_little_memory(specc: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine is to blame, not specc."""

    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("specc.generate.run.generate", fail)
    code, _, err = specc("run", tmp_path, "-p", "x")
    assert code == 3 and "memory" in err and err.count("\n") == 1
