"""What a checkpoint says about itself, without weights."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelSpec:
    """Shape, special token ids and hashes of one checkpoint."""

    architecture: str
    vocab: int
    """Columns of the logits (rows of the LM head); may be more than `token_ids`."""
    token_ids: int
    """Ids that the tokenizer knows and the embedding has a row for."""
    layers: int
    hidden: int
    heads: int
    """Query heads of a layer."""
    kv_heads: int
    head_dim: int
    intermediate: int
    max_context: int
    tied: bool
    """Whether embedding and LM head are one weight."""
    eos: tuple[int, ...]
    bos: int | None
    parameters: int
    id_map_sha256: str
    """Hash of the map from token ids to strings."""
    weights_sha256: str
    revision: str | None
    licence: str | None
