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


@contextlib.contextmanager
def swap_attention(
    config: Any, name: str, attend: AttentionFunction, layers: int | None = None
) -> Iterator[None]:
    """Every layer calls `attend`, registered as `name`, while the block runs; the mask it gets is None.

    `layers` is written into the configuration for the block where the module has another number of layers.
    """
    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, lambda *_, **__: None)
    before = config._attn_implementation, config.num_hidden_layers
    config._attn_implementation = name
    config.num_hidden_layers = before[1] if layers is None else layers
    try:
        yield
    finally:
        config._attn_implementation, config.num_hidden_layers = before
