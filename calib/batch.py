"""Many answers at a time from the float module: one static cache, a new prompt as soon as one ends."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface

ATTENTION = "specc_batch"
READ = 8
"""Most prompts read in one call, so that few rows are padding."""


@dataclass(frozen=True)
class Ask:
    """One prompt [ids] and how to go on from it; temperature 0 is argmax."""

    ids: tuple[int, ...]
    temperature: float
    limit: int
    """Most new tokens."""


@dataclass(frozen=True)
class Answer:
    """New ids, the end token included, and the final normalised hidden states of prompt and answer."""

    ids: list[int]
    hidden: torch.Tensor
    """fp16 [len(prompt) + len(ids) - 1, H]; row i is what the head multiplies to predict id i + 1."""


@dataclass
class Slots:
    """Keys and values of every slot, fp [slots, kv_heads, capacity, head_dim] a layer, and what a call does."""

    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    rows: torch.Tensor
    """Slots of this call, int64 [b]."""
    lengths: torch.Tensor
    """Valid entries of those slots before this call, int64 [b]; all 0 while prompts are read."""
    mask: torch.Tensor | None = None
    """Of a decode call, bool [b, 1, 1, T]."""


@dataclass
class Running:
    """A sequence in its slot."""

    index: int
    ask: Ask
    out: list[int] = field(default_factory=list)
    features: list[torch.Tensor] = field(default_factory=list)


class Batch:
    """Answers prompts with a Hugging Face module; the module's attention is swapped while `answer` runs."""

    def __init__(self, model: Any, slots: int, capacity: int, eos: Sequence[int]) -> None:
        config = model.config
        heads = config.num_key_value_heads
        dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        like = next(model.parameters())
        shape = (slots, heads, capacity, dim)
        keys, values = ([like.new_zeros(shape) for _ in range(config.num_hidden_layers)] for _ in range(2))
        self.model, self.eos, self.device, self.size = model, frozenset(eos), like.device, slots
        self.capacity, self.slots = capacity, Slots(keys, values, torch.arange(0), torch.arange(0))

    def answer(
        self, asks: Sequence[Ask], seed: int, tell: Callable[[int], None] = lambda tokens: None
    ) -> list[Answer]:
        """What follows each prompt; `tell` hears how many tokens a step made."""
        draws = torch.Generator().manual_seed(seed)
        waiting = sorted(range(len(asks)), key=lambda i: len(asks[i].ids), reverse=True)
        running: dict[int, Running] = {}
        done: dict[int, Answer] = {}
        with torch.inference_mode(), attention_swapped(self.model.config, self.slots):
            while waiting or running:
                free = [slot for slot in range(self.size) if slot not in running][:READ]
                if waiting and free:
                    taken = [waiting.pop(0) for _ in free[: len(waiting)]]
                    new = {slot: Running(i, asks[i]) for slot, i in zip(free, taken, strict=False)}
                    logits = self.read(new)
                    running.update(new)
                    self.settle(new, logits, running, done, draws)
                    continue
                if running:
                    stepped = dict(sorted(running.items()))
                    logits = self.step(stepped)
                    tell(len(stepped))
                    self.settle(stepped, logits, running, done, draws)
        return [done[i] for i in range(len(asks))]

    def read(self, new: dict[int, Running]) -> torch.Tensor:
        """Put prompts into their slots; logits after the last token of each, [b, vocab]."""
        lengths = [len(item.ask.ids) for item in new.values()]
        ids = torch.zeros(len(new), max(lengths), dtype=torch.int64)
        for row, item in enumerate(new.values()):
            ids[row, : lengths[row]] = torch.tensor(item.ask.ids)
        self.slots.rows = torch.tensor(list(new), device=self.device)
        self.slots.lengths, self.slots.mask = torch.zeros_like(self.slots.rows), None
        position = torch.arange(ids.shape[1]).expand_as(ids)
        return self.call(list(new.values()), ids, position, lengths)

    def step(self, running: dict[int, Running]) -> torch.Tensor:
        """One more token into every slot; logits [b, vocab]."""
        items = running.values()
        lengths = torch.tensor([len(item.ask.ids) + len(item.out) - 1 for item in items])
        ids = torch.tensor([[item.out[-1]] for item in items])
        self.slots.rows, self.slots.lengths = (
            torch.tensor(list(running), device=self.device),
            lengths.to(self.device),
        )
        seen = torch.arange(int(lengths.max()) + 1) <= lengths[:, None]
        self.slots.mask = seen[:, None, None].to(self.device)
        return self.call(list(items), ids, lengths[:, None], [1] * len(ids))

    def call(
        self, items: Sequence[Running], ids: torch.Tensor, position: torch.Tensor, lengths: Sequence[int]
    ) -> torch.Tensor:
        """The module over [b, R] ids, of which the first `lengths` count; logits after the last, [b, vocab]."""
        hidden = self.model.base_model(
            input_ids=ids.to(self.device), position_ids=position.to(self.device), use_cache=False
        ).last_hidden_state
        for row, (item, length) in enumerate(zip(items, lengths, strict=True)):
            item.features.append(hidden[row, :length].to("cpu", torch.float16))
        last = torch.tensor(lengths, device=self.device) - 1
        rows = hidden[torch.arange(len(ids), device=self.device), last]
        logits: torch.Tensor = self.model.get_output_embeddings()(rows)
        return logits

    def settle(
        self,
        stepped: dict[int, Running],
        logits: torch.Tensor,
        running: dict[int, Running],
        done: dict[int, Answer],
        draws: torch.Generator,
    ) -> None:
        """Append each sequence's next token; those that end leave their slot."""
        heat = [item.ask.temperature for item in stepped.values()]
        for (slot, item), token in zip(stepped.items(), choose(logits, heat, draws), strict=True):
            item.out.append(token)
            full = len(item.ask.ids) + len(item.out) >= self.capacity
            if token in self.eos or len(item.out) >= item.ask.limit or full:
                done[item.index] = Answer(item.out, torch.cat(item.features))
                del running[slot]


def choose(logits: torch.Tensor, heat: Sequence[float], draws: torch.Generator) -> list[int]:
    """A token a row: argmax where the temperature is 0, else drawn by one uniform number through the running sum."""
    out = logits.argmax(-1).cpu()
    drawn = [row for row, t in enumerate(heat) if t > 0]
    if drawn:
        t = torch.tensor([heat[row] for row in drawn])[:, None]
        sums = torch.softmax(logits[drawn].float().cpu() / t, -1).cumsum(-1)
        u = torch.rand(len(drawn), 1, generator=draws) * sums[:, -1:]
        out[drawn] = torch.searchsorted(sums, u, right=True)[:, 0].clamp(max=logits.shape[-1] - 1)
    return [int(token) for token in out]


@contextlib.contextmanager
def attention_swapped(config: Any, slots: Slots) -> Iterator[None]:
    """Every layer's attention reads and writes `slots` while the block runs."""

    def attend(
        module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: Any = None, **_: Any
    ) -> Any:
        keys, values = slots.keys[module.layer_idx], slots.values[module.layer_idx]
        return attention(slots, keys, values, query, key, value, scaling), None

    AttentionInterface.register(ATTENTION, attend)
    AttentionMaskInterface.register(ATTENTION, lambda *_, **__: None)
    before = config._attn_implementation
    config._attn_implementation = ATTENTION
    try:
        yield
    finally:
        config._attn_implementation = before


def attention(
    slots: Slots,
    keys: torch.Tensor,
    values: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float | None,
) -> torch.Tensor:
    """query [b, heads, R, dim] -> [b, R, heads, dim]; key and value are put behind each slot's length."""
    batch, heads, rows, dim = query.shape
    groups = heads // key.shape[1]
    if slots.mask is None:
        keys[slots.rows, :, :rows], values[slots.rows, :, :rows] = key, value
        out = scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scaling, enable_gqa=groups > 1
        )
        return out.transpose(1, 2)
    keys[slots.rows, :, slots.lengths], values[slots.rows, :, slots.lengths] = key[:, :, 0], value[:, :, 0]
    total = slots.mask.shape[-1]
    every = batch == keys.shape[0]
    k, v = (t[:, :, :total] if every else t[slots.rows, :, :total] for t in (keys, values))
    grouped = query.reshape(batch, -1, groups, dim)
    mask = slots.mask.expand(batch, 1, groups, total)
    out = scaled_dot_product_attention(grouped, k, v, attn_mask=mask, scale=scaling)
    return out.reshape(batch, 1, heads, dim)
