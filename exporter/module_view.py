"""Views of a Hugging Face module: the same parameters with other parts or another attention, the module
unchanged.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any

from transformers import AttentionInterface, AttentionMaskInterface

AttentionFunction = Callable[..., tuple[Any, None]]
"""(module, query, key, value, mask, scaling=...) -> (output [b, rows, heads, dim], None), as transformers
calls it.
"""


def copy_shallow(module: Any) -> Any:
    """A new module object over the same parameters and children.

    Its children can be replaced on their own.
    """
    view = copy.copy(module)
    view.__dict__["_modules"] = dict(module._modules)
    return view


def make_no_mask(*_: Any, **__: Any) -> None:
    """The mask of an attention that knows by position what a row may see."""


@contextlib.contextmanager
def swap_attention(
    config: Any,
    name: str,
    attend: AttentionFunction,
    layers: int | None = None,
    make_mask: Callable[..., Any] = make_no_mask,
) -> Iterator[None]:
    """Every layer calls `attend`, registered as `name`, with the mask of `make_mask`, while the block runs.

    `layers` is written into the configuration for the block where the module has another number of layers.
    """
    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, make_mask)
    before = config._attn_implementation, config.num_hidden_layers
    config._attn_implementation = name
    config.num_hidden_layers = before[1] if layers is None else layers
    try:
        yield
    finally:
        config._attn_implementation, config.num_hidden_layers = before
