"""A model: an opened bundle, or engines of your own put together; read-only, shared by its sessions."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from specc.errors import InputError
from specc.runtime._ffi import Library, ffi, library, text_of
from specc.runtime._ffi import engine_library as found_engine
from specc.runtime.certificate import Certificate, from_struct, reason_names, to_struct
from specc.runtime.engines import Table
from specc.runtime.nvidia import find_provider_library, find_tensorrt_library, preload_cuda
from specc.runtime.request import Options, fill_options, int_pointer, token_array
from specc.runtime.session import Session

NUMBERS = ("n_ids", "vocab", "context", "capacity", "k_max", "chunk", "threads")
Progress = Callable[[int, int], Any]  # (done, total); a true answer cancels


@dataclass(frozen=True)
class Info:
    """specc_model_info as Python values."""

    n_ids: int
    vocab: int
    context: int
    capacity: int
    k_max: int
    chunk: int
    threads: int
    enabled: bool  # speculation is on for requests that ask for it
    reasons: tuple[str, ...]
    backend: str
    backend_version: str
    drafter: str
    engine_sha256: str
    digest: str
    device: str  # what computes, a GPU's or the CPU's name
    fingerprint: str  # SHA-256 of what identifies it
    eos: tuple[int, ...]
    certificate: Certificate


class Model:
    """Opened by Model.open, Model.table or Model.from_parts; a context manager.

    >>> from specc import Model
    >>> with Model.open("bundle") as model:
    ...     info = model.info
    >>> info.k_max, info.enabled, info.reasons
    (4, False, ('uncertified-device',))
    """

    def __init__(self, handle: Any, keep: list[Any], loaded: Library) -> None:
        self._library, self._c = loaded, handle
        self._sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        self._free = weakref.finalize(self, _free, loaded, handle, keep)

    @classmethod
    def open(
        cls,
        folder: str | Path,
        *,
        threads: int = 0,
        certificates: str | Path | None = None,
        trust: bool = False,
        engine_library: str | Path | None = None,
        loaded: Library | None = None,
    ) -> Model:
        """Opens a bundle.

        threads 0: as its plan says; certificates: a further folder with some; trust: sizes are checked,
        hashes are not; engine_library: path of libonnxruntime, None for the one in the onnxruntime package.
        """
        loaded = loaded or library()
        texts = [
            _path(folder),
            _path(engine_library or found_engine()),
            _path(certificates),
            *_gpu_libraries(folder),
        ]
        options, out = ffi.new("specc_open_options *"), ffi.new("specc_model **")
        options.folder, options.engine_library, options.certificates = texts[:3]
        options.tensorrt_library, options.provider_library = texts[3:]
        options.threads, options.trust = _count("threads", threads), int(trust)
        loaded.check(loaded.c.specc_model_open(options, out))
        return cls(out[0], [], loaded)

    @classmethod
    def table(
        cls,
        logits: npt.ArrayLike,
        *,
        order: int = 1,
        drafter: Any = None,
        k_max: int = 4,
        context: int = 256,
        widths: Sequence[int] | None = None,
        chunk: int = 32,
        **parts: Any,
    ) -> Model:
        """A Markov table [n ** order, vocab] as the target; further arguments as for from_parts."""
        table = np.ascontiguousarray(logits, np.float32)
        rows = tuple(widths) if widths else (*range(1, k_max + 2), max(chunk, k_max + 2))
        backend = Table(table, order, context + rows[-1], rows)
        n = round(table.shape[0] ** (1 / order)) if order in (1, 2) else 0
        parts = {"n_ids": n, "assume_exact": True, **parts}
        return cls.from_parts(backend, drafter, k_max=k_max, context=context, **parts)

    @classmethod
    def from_parts(
        cls,
        backend: Any,
        drafter: Any = None,
        *,
        n_ids: int,
        context: int,
        k_max: int = 4,
        eos: Sequence[int] = (),
        token_bytes: Sequence[bytes] | None = None,
        assume_exact: bool = False,
        strip_leading_space: bool = False,
        loaded: Library | None = None,
    ) -> Model:
        """A model without a bundle, from an engine and a drafter (modules `engines` and `drafters`).

        token_bytes: the text of each id; assume_exact: rows do not depend on the width, which otherwise has
        to be certified before the model speculates.
        """
        loaded = loaded or library()
        target, keep = backend.native(loaded)
        draft, keep_draft = drafter.native(loaded) if drafter is not None else (ffi.NULL, [])
        ends = token_array(eos)
        parts, out = ffi.new("specc_model_parts *"), ffi.new("specc_model **")
        parts.target, parts.drafter = target, draft
        for name, value in (("n_ids", n_ids), ("context", context), ("k_max", k_max)):
            setattr(parts, name, _count(name, value))
        parts.n_eos, parts.eos = ends.size, int_pointer(ends)
        text = _text_table(token_bytes, n_ids, parts)
        parts.assume_exact, parts.strip_leading_space = int(assume_exact), int(strip_leading_space)
        status = loaded.c.specc_model_create(parts, out)
        if status:  # the engines are still ours
            _release(draft)
            _release(target)
        loaded.check(status)
        del text
        return cls(out[0], [target, keep, draft, keep_draft, backend, drafter], loaded)

    @property
    def info(self) -> Info:
        """What was opened, whether speculation is on, and the certificate in force."""
        c = ffi.new("specc_model_info *")
        self._library.check(self._library.c.specc_model_info_get(self._pointer(), c))
        numbers: dict[str, Any] = {name: getattr(c, name) for name in NUMBERS}
        names = ("backend", "backend_version", "drafter", "engine_sha256", "digest", "device", "fingerprint")
        texts: dict[str, Any] = {name: text_of(getattr(c, name)) for name in names}
        return Info(
            **numbers,
            **texts,
            enabled=bool(c.enabled),
            reasons=reason_names(self._library, c.reasons),
            eos=tuple(c.eos[i] for i in range(c.n_eos)),
            certificate=from_struct(self._library, c.certificate),
        )

    def session(self) -> Session:
        """A session with caches of its own."""
        session = Session(self._library, self._pointer(), self)
        self._sessions.add(session)
        return session

    def certify(
        self,
        tokens: Sequence[int] | npt.NDArray[Any],
        *,
        window: int = 0,
        seed: int = 0,
        progress: Progress | None = None,
        sampling: Options | None = None,
        bounded: bool = False,
        bounded_rows: int = 0,
    ) -> Certificate:
        """Measures the target on this device over calibration ids; changes nothing.

        progress: called with (done, total), a true answer cancels with RuntimeFault. sampling: options under
        which rows that differ are compared, None for temperature 1; bounded: compare them even where the
        widths that a session needs agree bit for bit; bounded_rows: at so many positions, 0 for 1152.
        """
        ids = token_array(tokens)
        options, out = ffi.new("specc_certify_options *"), ffi.new("specc_certificate *")
        options.tokens, options.n_tokens, options.window, options.seed = (
            int_pointer(ids),
            ids.size,
            window,
            seed,
        )
        shaping = ffi.new("specc_options *")
        kept = fill_options(sampling or Options(), shaping)
        options.options, options.bounded, options.bounded_rows = shaping, int(bounded), bounded_rows
        raised: list[BaseException] = []
        if progress is not None:
            body = _progress(progress, raised)
            options.progress = call = ffi.callback("int(void *, int64_t, int64_t)", body, error=1)
        status = self._library.c.specc_certify(self._pointer(), options, out)
        if raised:
            raise raised[0]
        self._library.check(status)
        del kept
        if progress is not None:
            del call
        return from_struct(self._library, out[0])

    def apply(self, certificate: Certificate) -> None:
        """Puts a certificate in force for sessions made afterwards."""
        c = to_struct(self._library, certificate)
        self._library.check(self._library.c.specc_model_set_certificate(self._pointer(), c))

    def save_certificate(
        self, certificate: Certificate, folder: str | Path, report: Mapping[str, Any] | None = None
    ) -> Path:
        """Writes it atomically into the folder, bound to this engine and device; returns the file's path."""
        path = ffi.new("char[4096]")
        text = ffi.NULL if report is None else ffi.new("char[]", json.dumps(report, sort_keys=True).encode())
        self._library.check(
            self._library.c.specc_certificate_save(
                self._pointer(), to_struct(self._library, certificate), text, _path(folder), path, 4096
            )
        )
        return Path(text_of(path))

    def certificate_note(self, path: str | Path) -> tuple[bool, str]:
        """Whether the certificate file is for this engine on this device, and the sentence that says why."""
        note = ffi.new("char[512]")
        fits = self._library.c.specc_certificate_explain(self._pointer(), _path(path), note, 512)
        return bool(fits), text_of(note)

    def close(self) -> None:
        """Frees the sessions that are still open, then the model; closing twice is fine."""
        for session in list(self._sessions):
            session.close()
        self._c = None
        self._free()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _pointer(self) -> Any:
        if self._c is None:
            raise InputError("the model is closed; open it again")
        return self._c


def kernels() -> str:
    """Instructions that the CPU operators use here: "scalar", "avx2", "avx512-vnni", ..."""
    return text_of(library().c.specc_kernels())


def device(loaded: Library | None = None) -> tuple[str, str]:
    """Name of this CPU, and the SHA-256 of its model and flags that certificates are bound to."""
    loaded = loaded or library()
    name, fingerprint = ffi.new("char[256]"), ffi.new("char[256]")
    loaded.check(loaded.c.specc_device(name, 256, fingerprint, 256))
    return text_of(name), text_of(fingerprint)


def _free(loaded: Library, handle: Any, keep: list[Any]) -> None:
    """Frees the C model; `keep` holds what its parts point to until then."""
    loaded.c.specc_model_free(handle)
    keep.clear()


def _release(part: Any) -> None:
    """Frees a backend or drafter that no model took over."""
    if part != ffi.NULL and part.release != ffi.NULL:
        part.release(part.self)


def _progress(progress: Progress, raised: list[BaseException]) -> Callable[[Any, int, int], int]:
    """A C callback; an exception in it cancels the call and is raised by it."""

    def call(_user: Any, done: int, total: int) -> int:
        try:
            return int(bool(progress(done, total)))
        except BaseException as error:  # raised again by certify; nothing may pass through C
            raised.append(error)
            return 1

    return call


def _text_table(token_bytes: Sequence[bytes] | None, n_ids: int, parts: Any) -> list[Any]:
    """Fills parts.bytes and parts.offsets; returns the buffers behind them."""
    if token_bytes is None:
        return []
    if len(token_bytes) != n_ids:
        raise InputError(f"token_bytes has {len(token_bytes)} entries for {n_ids} ids; give one for each id")
    ends = np.cumsum([0, *map(len, token_bytes)]).tolist()
    data, offsets = ffi.new("uint8_t[]", b"".join(token_bytes) or b"\0"), ffi.new("uint32_t[]", ends)
    parts.bytes, parts.offsets = data, offsets
    return [data, offsets]


def _count(name: str, value: Any) -> int:
    """A whole number that fits int32; its range is the C core's business."""
    if not isinstance(value, (int, np.integer)) or not -(2**31) <= value < 2**31:
        raise InputError(f"{name} is {value!r}; it must be a whole number")
    return int(value)


def _gpu_libraries(folder: str | Path) -> list[Any]:
    """Paths of the TensorRT library and of the plugin provider that the bundle's engine needs; NULL for none.

    What is wrong with a manifest is the C core's to say.
    """
    try:
        engine = json.loads(Path(folder, "manifest.json").read_bytes())["engines"]["target"]
        backend, provider = engine.get("backend"), engine.get("provider")
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return [ffi.NULL, ffi.NULL]
    if isinstance(provider, dict) and provider.get("name") == "CUDAExecutionProvider":
        preload_cuda()
    tensorrt = (
        find_tensorrt_library(backend == "tensorrt-rtx") if str(backend).startswith("tensorrt") else None
    )
    return [_path(tensorrt), _path(find_provider_library() if provider else None)]


def _path(path: str | Path | None) -> Any:
    return ffi.NULL if path is None else ffi.new("char[]", str(path).encode("utf-8", "surrogateescape"))
