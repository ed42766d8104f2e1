"""One session: generations one after another over one set of caches."""

from __future__ import annotations

import weakref
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from specc.errors import InputError, SpeccError
from specc.runtime._ffi import Library, ffi
from specc.runtime.certificate import reason_names
from specc.runtime.request import int_pointer, request_from, to_struct, token_array

FINISH = (None, "stop", "length", "cancelled")
Ids = Sequence[int] | npt.NDArray[Any]
COUNTERS = (
    "target_calls",
    "draft_calls",
    "prefill_calls",
    "rounds",
    "rounds_proposing",
    "rounds_paused",
    "proposed",
    "accepted",
    "emitted",
    "seconds",
    "target_seconds",
    "draft_seconds",
    "prefill_seconds",
    "target_length",
    "draft_length",
)


@dataclass(frozen=True, eq=False)
class Decision:
    """One judged slot of a round (struct specc_decision); numbers that decided nothing are None."""

    position: int  # of the emitted token among prompt and output
    drafted: int | None  # the proposed id
    emitted: int  # the id of this place
    accepted: bool  # the proposed id is the emitted one
    p_drafted: float | None
    q_drafted: float | None  # 1 for one-hot
    p_emitted: float
    u: float | None  # accepted when u * q < p
    draw: float | None  # drew the emitted id from p or (p - q)+
    q: npt.NDArray[np.float64] | None  # [n_ids] what the id was drawn from; None: one-hot


@dataclass(frozen=True)
class Event:
    """What one step did: a prompt chunk or a round."""

    tokens: tuple[int, ...]  # committed by this step
    text: str  # whole UTF-8 that may be shown
    proposed: int
    accepted: int  # of those proposed, before an end token or a limit cut the round
    drafted: tuple[int, ...]  # [proposed]
    finished: str | None  # None, "stop", "length" or "cancelled"
    prefill: bool
    decisions: tuple[Decision, ...] = ()  # after Session.trace


@dataclass(frozen=True)
class Result:
    """A whole generation."""

    tokens: list[int]  # output only
    text: str
    finish_reason: str
    seed: int
    stats: dict[str, Any]


class Session:
    """Made by Model.session(). Belongs to one thread at a time; `cancel` may be called from any thread.

    >>> from specc import Model
    >>> with Model.open("bundle") as model, model.session() as session:
    ...     for event in session.generate([72, 105], temperature=0.8, seed=1, max_new_tokens=8):
    ...         piece = event.text  # whole UTF-8, may be shown at once
    ...     result = session.run([72, 105], temperature=0.8, seed=1, max_new_tokens=8)
    >>> len(result.tokens), result.finish_reason
    (8, 'length')
    """

    def __init__(self, library: Library, model: Any, owner: object) -> None:
        pointer = ffi.new("specc_session **")
        library.check(library.c.specc_session_create(model, pointer))
        self._library, self._c, self._owner = library, pointer[0], owner
        self._generation = 0
        info = _info(library, model)
        self._k_max, self._n_ids, self._vocab = int(info.k_max), int(info.n_ids), int(info.vocab)
        self._traced = False
        self._free = weakref.finalize(self, _free, library, pointer[0], owner)

    def generate(self, ids: Ids, **options: Any) -> Generator[Event, None, None]:
        """Starts a generation (errors are raised here) and iterates over its events.

        ids: prompt, 1 to context - 1 token ids. options: fields of specc.runtime.Request. Leaving the
        iterator early cancels; the session can then start another generation.
        """
        self._start(ids, options)
        return self._events(self._generation)

    def run(self, ids: Ids, *, text: bool = True, **options: Any) -> Result:
        """A whole generation, with no Python in the token loop if text is False (text is then "")."""
        if text:
            events = list(self.generate(ids, **options))
            return self._result("".join(event.text for event in events), events[-1].finished or "length")
        self._start(ids, options)
        self._library.check(self._library.c.specc_session_run(self._pointer(), ffi.NULL, ffi.NULL))
        return self._result("", self.stats["finish_reason"])

    def trials(self, ids: Ids, n_trials: int, rounds: int = 1, **options: Any) -> npt.NDArray[np.int32]:
        """Single rounds (or some in a row) of one prompt for law tests; trial t has seed `seed` + t.

        Gives [n_trials, rounds, 2 + 2 k_max + 1]: proposed, accepted, drafted [k_max], emitted [k_max + 1];
        -1 pads.
        """
        request, keep = to_struct(self._library, request_from(options))
        prompt = token_array(ids)
        out = np.full((n_trials, rounds, 3 + 2 * self._k_max), -1, np.int32)
        self._library.check(
            self._library.c.specc_trials(
                self._pointer(), request, int_pointer(prompt), prompt.size, rounds, n_trials, int_pointer(out)
            )
        )
        del keep
        return out

    def trace(self, on: bool = True) -> None:
        """Whether events carry the decisions of their round."""
        self._library.check(self._library.c.specc_session_trace(self._pointer(), int(on)))
        self._traced = on

    def rows(self, ids: Ids, past: int, width: int, wanted: bool = True) -> npt.NDArray[np.float32]:
        """Logits [n, vocab] of ids [n] at places past, past + 1, ... in one call of `width` rows.

        wanted False: fills the cache only and gives [0, vocab]. Places before `past` hold from earlier calls.
        A generation that is under way ends.
        """
        tokens = token_array(ids)
        out = np.empty((tokens.size if wanted else 0, self._vocab), np.float32)
        pointer = ffi.cast("float *", out.ctypes.data) if wanted else ffi.NULL
        self._library.check(
            self._library.c.specc_session_score(
                self._pointer(), int_pointer(tokens), tokens.size, past, width, pointer
            )
        )
        self._generation += 1
        return out

    def cancel(self) -> None:
        """Ends the running generation within one engine call; from any thread."""
        self._library.c.specc_session_cancel(self._pointer())

    @property
    def seed(self) -> int:
        """Seed of the current generation; the same seed and request repeat it."""
        return int(self._library.c.specc_session_seed(self._pointer()))

    @property
    def tokens(self) -> list[int]:
        """Output ids committed so far."""
        prompt, count = ffi.new("int32_t *"), ffi.new("int32_t *")
        ids = self._library.c.specc_session_tokens(self._pointer(), prompt, count)
        return [ids[i] for i in range(prompt[0], count[0])]

    @property
    def stats(self) -> dict[str, Any]:
        """Counters of the current generation (specc_stats); accepted_length[n]: rounds that accepted n."""
        out = ffi.new("specc_stats *")
        self._library.check(self._library.c.specc_session_stats(self._pointer(), out))
        stats: dict[str, Any] = {name: getattr(out, name) for name in COUNTERS}
        stats["accepted_length"] = list(out.accepted_length)
        stats["finish_reason"] = FINISH[out.finished]
        stats["enabled"], stats["reasons"] = bool(out.enabled), list(reason_names(self._library, out.reasons))
        return stats

    def close(self) -> None:
        """Frees the session; closing twice is fine."""
        self._c = None
        self._free()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, ids: Ids, options: dict[str, Any]) -> None:
        request, keep = to_struct(self._library, request_from(options))
        prompt = token_array(ids)
        c = self._library.c
        self._library.check(c.specc_session_start(self._pointer(), request, int_pointer(prompt), prompt.size))
        self._generation += 1
        del keep

    def _events(self, generation: int) -> Generator[Event, None, None]:
        """Steps until finished; an iterator left early cancels its own generation and no other."""
        finished = False
        try:
            while not finished:
                if generation != self._generation:
                    raise InputError(
                        "this generation ended when the session began another; iterate over that one"
                    )
                event = self._step()
                finished = event.finished is not None
                yield event
        except SpeccError:
            finished = True
            raise
        finally:
            if not finished and generation == self._generation and self._c is not None:
                self._end_early()

    def _end_early(self) -> None:
        """Cancels the generation and takes the step that reports it."""
        self.cancel()
        self._library.c.specc_session_step(self._pointer(), ffi.new("specc_event *"))

    def _step(self) -> Event:
        out = ffi.new("specc_event *")
        self._library.check(self._library.c.specc_session_step(self._pointer(), out))
        return Event(
            tokens=tuple(ffi.unpack(out.tokens, out.n_tokens)) if out.n_tokens else (),
            text=bytes(ffi.buffer(out.text, out.n_text)).decode("utf-8", "replace") if out.n_text else "",
            proposed=out.proposed,
            accepted=out.accepted,
            drafted=tuple(ffi.unpack(out.drafted, out.proposed)) if out.proposed else (),
            finished=FINISH[out.finished],
            prefill=bool(out.prefill),
            decisions=self._decisions() if self._traced and not out.prefill and out.n_tokens else (),
        )

    def _decisions(self) -> tuple[Decision, ...]:
        count = ffi.new("int32_t *")
        found = self._library.c.specc_session_decisions(self._pointer(), count)
        return tuple(_decision(found[i], self._n_ids) for i in range(count[0]))

    def _result(self, text: str, finish: str) -> Result:
        return Result(self.tokens, text, finish, self.seed, self.stats)

    def _pointer(self) -> Any:
        if self._c is None:
            raise InputError("the session is closed; make another one with Model.session()")
        return self._c


def _info(library: Library, model: Any) -> Any:
    """A specc_model_info *."""
    info = ffi.new("specc_model_info *")
    library.check(library.c.specc_model_info_get(model, info))
    return info


def _decision(c: Any, n_ids: int) -> Decision:
    """Copies a specc_decision."""
    judged = c.drafted >= 0
    q = None if c.q == ffi.NULL else np.frombuffer(bytes(ffi.buffer(c.q, 8 * n_ids)), np.float64)
    return Decision(
        c.position,
        c.drafted if judged else None,
        c.emitted,
        bool(c.accepted),
        c.p_drafted if judged else None,
        c.q_drafted if judged else None,
        c.p_emitted,
        None if c.u < 0 else c.u,
        None if c.draw < 0 else c.draw,
        q,
    )


def _free(library: Library, pointer: Any, owner: object) -> None:
    """Frees the C session; `owner` keeps the model alive until then."""
    library.c.specc_session_free(pointer)
    del owner
