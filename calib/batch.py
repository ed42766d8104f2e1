"""Continuous batching on the float module: one static KV cache, a new prompt as soon as a slot is free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from specc.exporter.module_view import swap_attention

ATTENTION = "specc_batch"
PREFILL_PROMPTS = 8
"""Most prompts prefilled in one call: more of them would need more padding."""


@dataclass(frozen=True)
class AnswerRequest:
    """One prompt and how to answer it; temperature 0 is argmax."""

    ids: tuple[int, ...]
    temperature: float
    limit: int
    """Most new tokens."""


@dataclass(frozen=True)
class Answer:
    """New ids, the end token included, and the hidden states of prompt and answer after the final norm."""

    ids: list[int]
    hidden: torch.Tensor
    """fp16 [len(prompt) + len(ids) - 1, H]; row i is what the LM head multiplies to predict id i + 1."""


@dataclass
class SlotCache:
    """KV cache of all slots, [slots, kv_heads, capacity, head_dim] a layer, and the slots of this call."""

    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    rows: torch.Tensor
    """int64 [b]: slots of this call."""
    lengths: torch.Tensor
    """int64 [b]: valid entries of those slots before this call; all 0 in a prefill."""
    mask: torch.Tensor | None = None
    """bool [b, 1, 1, T] of a decode call; None in a prefill."""


@dataclass
class RunningSequence:
    """A sequence in its slot."""

    index: int
    """Of its request."""
    request: AnswerRequest
    generated: list[int] = field(default_factory=list)
    hidden: list[torch.Tensor] = field(default_factory=list)


class Batch:
    """Answers prompts with a Hugging Face module; the module's attention is swapped while `answer` runs."""

    def __init__(self, model: Any, slots: int, capacity: int, eos: Sequence[int]) -> None:
        """`slots` sequences at a time of at most `capacity` tokens, each of which ends with one of `eos`."""
        config = model.config
        heads = config.num_key_value_heads
        dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        weight = next(model.parameters())
        shape = (slots, heads, capacity, dim)
        keys, values = ([weight.new_zeros(shape) for _ in range(config.num_hidden_layers)] for _ in range(2))
        self.model, self.eos, self.device, self.n_slots = model, frozenset(eos), weight.device, slots
        self.capacity, self.cache = capacity, SlotCache(keys, values, torch.arange(0), torch.arange(0))

    def answer(self, requests: Sequence[AnswerRequest], seed: int) -> list[Answer]:
        """The answer to each prompt; which tokens are drawn depends on the requests and the seed alone."""
        generator = torch.Generator().manual_seed(seed)
        waiting = sorted(range(len(requests)), key=lambda i: len(requests[i].ids), reverse=True)
        running: dict[int, RunningSequence] = {}
        answers: dict[int, Answer] = {}
        with torch.inference_mode(), swap_attention(self.model.config, ATTENTION, self.attend):
            while waiting or running:
                free = [slot for slot in range(self.n_slots) if slot not in running][:PREFILL_PROMPTS]
                if waiting and free:
                    taken = [waiting.pop(0) for _ in free[: len(waiting)]]
                    stepped = {
                        slot: RunningSequence(i, requests[i]) for slot, i in zip(free, taken, strict=False)
                    }
                    logits = self.prefill(stepped)
                    running.update(stepped)
                else:
                    stepped = dict(sorted(running.items()))
                    logits = self.decode(stepped)
                self.append_tokens(stepped, logits, running, answers, generator)
        return [answers[i] for i in range(len(requests))]

    def prefill(self, new: dict[int, RunningSequence]) -> torch.Tensor:
        """Put prompts into their slots; logits after the last token of each, [b, vocab]."""
        lengths = [len(sequence.request.ids) for sequence in new.values()]
        ids = torch.zeros(len(new), max(lengths), dtype=torch.int64)
        for row, sequence in enumerate(new.values()):
            ids[row, : lengths[row]] = torch.tensor(sequence.request.ids)
        self.cache.rows = torch.tensor(list(new), device=self.device)
        self.cache.lengths, self.cache.mask = torch.zeros_like(self.cache.rows), None
        position = torch.arange(ids.shape[1]).expand_as(ids)
        return self.call(list(new.values()), ids, position, lengths)

    def decode(self, running: dict[int, RunningSequence]) -> torch.Tensor:
        """Put one more token into every slot; logits [b, vocab]."""
        sequences = list(running.values())
        lengths = torch.tensor([len(s.request.ids) + len(s.generated) - 1 for s in sequences])
        ids = torch.tensor([[s.generated[-1]] for s in sequences])
        self.cache.rows = torch.tensor(list(running), device=self.device)
        self.cache.lengths = lengths.to(self.device)
        visible = torch.arange(int(lengths.max()) + 1) <= lengths[:, None]
        self.cache.mask = visible[:, None, None].to(self.device)
        return self.call(sequences, ids, lengths[:, None], [1] * len(ids))

    def call(
        self,
        sequences: Sequence[RunningSequence],
        ids: torch.Tensor,
        position: torch.Tensor,
        lengths: Sequence[int],
    ) -> torch.Tensor:
        """Logits [b, vocab] after the last of each row's first `lengths` ids; ids and position are [b, R]."""
        hidden = self.model.base_model(
            input_ids=ids.to(self.device), position_ids=position.to(self.device), use_cache=False
        ).last_hidden_state
        for row, (sequence, length) in enumerate(zip(sequences, lengths, strict=True)):
            sequence.hidden.append(hidden[row, :length].to("cpu", torch.float16))
        last = torch.tensor(lengths, device=self.device) - 1
        rows = hidden[torch.arange(len(ids), device=self.device), last]
        logits: torch.Tensor = self.model.get_output_embeddings()(rows)
        return logits

    def append_tokens(
        self,
        stepped: dict[int, RunningSequence],
        logits: torch.Tensor,
        running: dict[int, RunningSequence],
        answers: dict[int, Answer],
        generator: torch.Generator,
    ) -> None:
        """Append each sequence's next token; a sequence that ends becomes an answer and leaves its slot."""
        temperatures = [sequence.request.temperature for sequence in stepped.values()]
        tokens = sample_tokens(logits, temperatures, generator)
        for (slot, sequence), token in zip(stepped.items(), tokens, strict=True):
            sequence.generated.append(token)
            request, count = sequence.request, len(sequence.generated)
            is_full = len(request.ids) + count >= self.capacity
            if token in self.eos or count >= request.limit or is_full:
                answers[sequence.index] = Answer(sequence.generated, torch.cat(sequence.hidden))
                del running[slot]

    def attend(
        self, module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: Any = None, **_: Any
    ) -> tuple[torch.Tensor, None]:
        """The attention function of every layer, as transformers calls it."""
        keys, values = self.cache.keys[module.layer_idx], self.cache.values[module.layer_idx]
        return attend_slots(self.cache, keys, values, query, key, value, scaling), None


def sample_tokens(
    logits: torch.Tensor, temperatures: Sequence[float], generator: torch.Generator
) -> list[int]:
    """One token a row: argmax at temperature 0, else one uniform number through the cumulative sum."""
    tokens = logits.argmax(-1).cpu()
    rows = [row for row, temperature in enumerate(temperatures) if temperature > 0]
    if rows:
        divisors = torch.tensor([temperatures[row] for row in rows])[:, None]
        sums = torch.softmax(logits[rows].float().cpu() / divisors, -1).cumsum(-1)
        u = torch.rand(len(rows), 1, generator=generator) * sums[:, -1:]
        tokens[rows] = torch.searchsorted(sums, u, right=True)[:, 0].clamp(max=logits.shape[-1] - 1)
    return [int(token) for token in tokens]


def attend_slots(
    cache: SlotCache,
    keys: torch.Tensor,
    values: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float | None,
) -> torch.Tensor:
    """query [b, heads, R, dim] -> [b, R, heads, dim]; key and value are written at each slot's length."""
    batch, heads, rows, dim = query.shape
    groups = heads // key.shape[1]
    if cache.mask is None:
        keys[cache.rows, :, :rows], values[cache.rows, :, :rows] = key, value
        out = scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scaling, enable_gqa=groups > 1
        )
        return out.transpose(1, 2)
    keys[cache.rows, :, cache.lengths], values[cache.rows, :, cache.lengths] = key[:, :, 0], value[:, :, 0]
    total = cache.mask.shape[-1]
    uses_all_slots = batch == keys.shape[0]
    k, v = (t[:, :, :total] if uses_all_slots else t[cache.rows, :, :total] for t in (keys, values))
    grouped = query.reshape(batch, -1, groups, dim)
    mask = cache.mask.expand(batch, 1, groups, total)
    out = scaled_dot_product_attention(grouped, k, v, attn_mask=mask, scale=scaling)
    return out.reshape(batch, 1, heads, dim)
