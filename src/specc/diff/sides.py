"""The sides of a diff: a bundle, read through the shipped runtime, or a checkpoint, read by transformers in
fp32.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from specc.contracts.bundle.manifest import MANIFEST, Bundle, read_bundle, verify_bundle
from specc.errors import EnvironmentFault, InputError
from specc.runtime import Model

if TYPE_CHECKING:
    from specc.exporter.checkpoint.checkpoint import Checkpoint

Logits = npt.NDArray[np.float32]
BLOCK = 64
"""Rows that are compared at a time."""
WEIGHTS = (".safetensors", ".gguf", ".bin")


class BundleSide:
    """A bundle's target at its law: one session, rows at the law's width or at one whose rows are the same
    bits.
    """

    kind = "bundle"

    def __init__(self, bundle: Bundle, model: Model) -> None:
        self.name, self.bundle, self.info = str(bundle.folder), bundle, model.info
        part = bundle.manifest["tokenizer"]
        self.ids, self.bos, self.context = int(part["ids"]), part["bos"], model.info.context
        self.tokenizer = read_text(bundle.folder / part["file"])
        self.law_width = model.info.certificate.law_width
        self._session = model.session()

    @property
    def bytes(self) -> dict[str, int]:
        """Size of the target's graph and weights, and of everything."""
        sizes = {file.path: file.bytes for file in self.bundle.files}
        stem = Path(self.bundle.manifest["engines"]["target"]["file"]).stem
        own = [size for path, size in sizes.items() if Path(path).name.partition(".")[0] == stem]
        return {"target": sum(own), "total": sum(sizes.values())}

    @property
    def facts(self) -> dict[str, Any]:
        """What is worth telling of it."""
        plan, info = self.bundle.manifest["plan"], self.info
        return {
            "digest": self.bundle.digest,
            "engine_sha256": info.engine_sha256,
            "law_width": self.law_width,
            "certificate": info.certificate.kind,
            "schemes": plan["schemes"],
            "dialect": plan.get("dialect"),
        }

    def blocks(self, ids: Sequence[int]) -> Iterator[Logits]:
        """Logits [<= BLOCK, ids] of a window, block by block."""
        step, width = self.calls()
        for at in range(0, len(ids), BLOCK):
            end = min(at + BLOCK, len(ids))
            yield np.concatenate([self.rows(ids[:end], start, step, width) for start in range(at, end, step)])

    def rows(self, ids: Sequence[int], start: int, count: int, width: int) -> Logits:
        """Logits [<= count, ids] of places start, start + 1, ...; ids without a logit have minus infinity."""
        found = self._session.rows(ids[start : start + count], start, width)[:, : self.ids]
        missing = self.ids - found.shape[1]
        return np.pad(found, ((0, 0), (0, missing)), constant_values=-np.inf) if missing else found

    def calls(self) -> tuple[int, int]:
        """Ids and rows of a call: the widest up to BLOCK whose rows are certified to be the law's, else plain
        steps.
        """
        certificate, law = self.info.certificate, self.law_width
        classes = dict(zip(certificate.widths, certificate.width_class, strict=True))
        same = [w for w in certificate.widths if classes[w] == classes[law] >= 0 and w <= BLOCK]
        return (same[-1], same[-1]) if certificate.kind == "bit-exact" and same else (1, law)

    def step_ms(self, ids: Sequence[int], at: int) -> float:
        """Milliseconds of one plain step behind `at` tokens, which have been read."""
        begin = time.perf_counter()
        self._session.rows(ids[at : at + 1], at, self.law_width)
        return 1e3 * (time.perf_counter() - begin)


class FloatSide:
    """A Hugging Face folder or a GGUF file: the float module without a cache."""

    kind = "checkpoint"

    def __init__(self, name: str, checkpoint: Checkpoint) -> None:
        self.name, self._checkpoint = name, checkpoint
        spec = checkpoint.spec
        self.ids, self.bos, self.context = spec.token_ids, spec.bos, spec.max_context
        self.tokenizer = checkpoint.tokens.text
        self._module = checkpoint.load()

    @property
    def bytes(self) -> dict[str, int]:
        """Size of the weight files."""
        path = self._checkpoint.source.path
        files = [path] if path.is_file() else [file for file in path.iterdir() if file.suffix in WEIGHTS]
        size = sum(file.stat().st_size for file in files)
        return {"target": size, "total": size}

    @property
    def facts(self) -> dict[str, Any]:
        """What is worth telling of it."""
        return {
            "weights_sha256": self._checkpoint.spec.weights_sha256,
            "schemes": {"layers": "fp32", "head": "fp32"},
        }

    def blocks(self, ids: Sequence[int]) -> Iterator[Logits]:
        """Logits [<= BLOCK, ids] of a window, block by block."""
        from specc.exporter.check.logits import compute_logits

        found = compute_logits(self._module, np.asarray(ids, np.int64))[:, : self.ids]
        missing = self.ids - found.shape[1]
        found = np.pad(found, ((0, 0), (0, missing)), constant_values=-np.inf) if missing else found
        for at in range(0, len(ids), BLOCK):
            yield found[at : at + BLOCK]


Side: TypeAlias = "BundleSide | FloatSide"


@contextmanager
def open_side(text: str, threads: int = 0) -> Iterator[Side]:
    """A bundle's folder, or what a recipe's `target` may name. Raises InputError, EnvironmentFault."""
    path = Path(text)
    if (path / MANIFEST).is_file():
        bundle = verify_bundle(read_bundle(path))
        with Model.open(path, threads=threads, trust=True) as model:
            yield BundleSide(bundle, model)
    else:
        yield open_float_side(text)


def open_float_side(text: str) -> FloatSide:
    """A checkpoint; needs the packages of the extra `build`."""
    path = Path(text)
    if path.is_dir() and not (path / "config.json").is_file():
        raise InputError(f"{text} is neither a bundle (no {MANIFEST}) nor a checkpoint (no config.json)")
    try:
        from specc.exporter.checkpoint.checkpoint import open_checkpoint

        return FloatSide(text, open_checkpoint(text))
    except ModuleNotFoundError as error:
        if not error.name or error.name.startswith("specc"):
            raise
        raise EnvironmentFault(
            f"{text} is no bundle, and reading a checkpoint needs the package {error.name!r}, "
            "not installed here; pip install 'specc[build]'"
        ) from error


def read_text(path: Path) -> str:
    """A file's text."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}; build the bundle again") from None
