"""The public Python names: which there are, their signatures, what an import loads; every example runs."""

from __future__ import annotations

import doctest
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import tiny

import specc
from specc.runtime import Model

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
CLASSES = {
    "Built": "bundle plan written times lint quality reasons also",
    "Bundle": "folder manifest",
    "Certificate": None,
    "DraftContext": None,
    "Drafter": None,
    "Event": "tokens text proposed accepted drafted finished prefill decisions",
    "Info": None,
    "Model": None,
    "Node": "token q parent",
    "Options": "temperature top_p top_k min_p repetition_penalty presence_penalty frequency_penalty "
    "logit_bias",
    "Progress": None,
    "Prompter": None,
    "Recipe": None,
    "Request": None,
    "Result": "tokens text finish_reason seed stats",
    "Session": None,
}
"""Class -> its fields, where a program reads them by name."""
ERRORS = {
    "SpeccError": 2,
    "InputError": 2,
    "RecipeError": 2,
    "JudgeError": 1,
    "EnvironmentFault": 3,
    "RuntimeFault": 3,
}
"""Error -> the exit code of the command line."""
SIGNATURES = {
    "build": "recipe, hardware=None, out=None, reporter=None, sensitivity=False",
    "gate": "bundle, *, trials=None, seed=0, threads=0, certificates=None, report=None, progress=no_progress",
    "load_recipe": "path",
    "read_bundle": "folder",
    "verify_bundle": "bundle, trust=False",
    "Model.open": "folder, *, threads=0, certificates=None, trust=False, engine_library=None, loaded=None",
    "Model.session": "self",
    "Session.generate": "self, ids, **options",
    "Session.run": "self, ids, *, text=True, **options",
    "Prompter.from_bundle": "bundle",
    "Prompter.encode_user": "self, text, parse_special=False",
    "Prompter.encode_raw": "self, text",
    "Prompter.encode_chat": "self, messages, parse_special=False",
    "Drafter.open": "self",
    "Drafter.propose": "self, state, context",
    "Drafter.commit": "self, state, n_keep",
    "Drafter.close": "self, state",
    "DraftContext.draw": "self, logits, depth",
}
DOCUMENTED = "build gate load_recipe read_bundle Model Session Request Prompter Drafter".split()
"""Names whose docstring holds an example."""


def lookup(path: str) -> Any:
    """A public name, or a method of one."""
    value: Any = specc
    for part in path.split("."):
        value = getattr(value, part)
    return value


def signature_of(value: Any) -> str:
    """Parameters with their defaults, without types."""
    parameters = inspect.signature(value).parameters.values()
    signature = inspect.Signature([p.replace(annotation=inspect.Parameter.empty) for p in parameters])
    functions = {repr(default): default.__name__ for default in [specc.progress.no_progress]}
    text = str(signature)[1:-1]
    for found, name in functions.items():
        text = text.replace(found, name)
    return text


def test_the_names() -> None:
    """All there are; each is found by attribute, by `from specc import`, and by dir()."""
    functions = {name for name in SIGNATURES if "." not in name}
    assert set(specc.__all__) == {*CLASSES, *ERRORS, *functions}
    for name in specc.__all__:
        assert callable(getattr(specc, name)) and name in dir(specc)
        assert lookup(name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        specc.nothing  # noqa: B018


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name: str) -> None:
    assert signature_of(lookup(name)) == SIGNATURES[name]


@pytest.mark.parametrize("name", [name for name, fields in CLASSES.items() if fields])
def test_fields(name: str) -> None:
    assert " ".join(lookup(name).__dataclass_fields__) == CLASSES[name]


def test_the_bundle_names_its_files_and_digest() -> None:
    assert {"files", "digest"} <= set(dir(specc.Bundle))


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    assert lookup(name).exit_code == ERRORS[name] and issubclass(lookup(name), specc.SpeccError)


def run_python(code: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_an_import_loads_nothing() -> None:
    """No module of specc but its version, in under 10 ms of processor time (best of five interpreters)."""
    code = (
        "import sys, time; start = time.process_time(); import specc; took = time.process_time() - start\n"
        "heavy = {'torch', 'onnxruntime', 'numpy', 'cffi', 'click', 'yaml'} & set(sys.modules)\n"
        "print(took, sorted(heavy), sorted(m for m in sys.modules if m.startswith('specc')))"
    )
    lines = [run_python(code).split(" ", 1) for _ in range(5)]
    assert {rest for _, rest in lines} == {"[] ['specc', 'specc.version']"}
    assert min(float(seconds) for seconds, _ in lines) < 0.010


def test_the_gate_is_a_function_and_a_package() -> None:
    """Whichever is imported first: Python puts the package in the function's place."""
    for first in ("from specc import gate", "import specc.gate.lint; from specc import gate"):
        code = f"{first}\nimport specc.gate.quality\nprint(callable(gate), callable(specc.gate))"
        assert run_python(code) == "True True"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a tiny checkpoint, a recipe and its bundle."""
    folder = tmp_path_factory.mktemp("surface")
    tiny.tiny_folder(folder / "tiny")
    parts = {"name": "tiny", "target": {"checkpoint": "tiny"}, "draft": {"kind": "ngram"}, "k": 4}
    rest = {"context": 96, "scheme": "w8", "prompt_template": "none"}
    (folder / "recipe.yaml").write_text(json.dumps(parts | rest))
    old = os.environ.get("SPECC_CACHE")
    os.environ["SPECC_CACHE"] = str(folder / "cache")
    specc.build(folder / "recipe.yaml", out=folder / "bundle")
    yield folder
    os.environ.pop("SPECC_CACHE") if old is None else os.environ.update(SPECC_CACHE=old)


@pytest.mark.parametrize("name", ["specc", *DOCUMENTED])
def test_the_examples_of_docstrings(place: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Run as they stand, in a folder with `recipe.yaml` and `bundle`."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("SPECC_CACHE", str(place / "cache"))
    value = {"specc": specc, "gate": specc.gate.gate_bundle}.get(name) or lookup(name)
    text = inspect.getdoc(value) or ""
    test = doctest.DocTestParser().get_doctest(text, {}, name, None, 0)
    assert test.examples
    printed: list[str] = []
    outcome = doctest.DocTestRunner().run(test, out=printed.append)
    assert outcome.failed == 0, "".join(printed)


def run_example(name: str, *arguments: object) -> str:
    """What an example prints."""
    command = [sys.executable, str(EXAMPLES / name), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_generate(place: Path) -> None:
    """Streams a text and says that speculation is off without a certificate."""
    out = run_example("generate.py", place / "bundle", "Hello", "--temperature", 0, "--max-new-tokens", 8)
    assert "8 tokens, " in out and "speculation off: uncertified-device" in out


def test_custom_drafter(place: Path, tmp_path: Path) -> None:
    """On a certified bundle the target verifies the drafter's tokens, and some are accepted."""
    bundle = tmp_path / "bundle"
    bundle.symlink_to(place / "bundle", target_is_directory=True)
    with Model.open(bundle) as model, model.session() as session:
        widths = model.info.certificate.widths
        exact = replace(model.info.certificate, kind="bit-exact", width_class=(0,) * len(widths), reasons=())
        path = model.save_certificate(exact, place / "bundle" / "certificates")
        ids = session.run(list(b"Hello"), temperature=0, max_new_tokens=96, text=False).tokens
    source = tmp_path / "source.txt"
    source.write_bytes(b"Hello" + bytes(ids[:40]).decode("latin-1").encode())
    try:
        lines = run_example("custom_drafter.py", bundle, source, "Hello").splitlines()
    finally:
        path.unlink()
    accepted, proposed = (int(word) for word in lines[-1].split() if word.isdigit())
    assert 0 < accepted <= proposed
