"""Which GGUF architectures are read, and what each of their metadata keys means for the Hugging Face
configuration.

Every key under the architecture's name changes what llama.cpp computes, so each one is either translated,
or checked to
be neutral, or the file is refused with the key's name. Sources: the key constants of the `gguf` package and
the model classes of llama.cpp's converter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specc.errors import InputError

Metadata = Mapping[str, Any]


@dataclass(frozen=True)
class Architecture:
    """One GGUF architecture as a Hugging Face model type."""

    model_type: str
    keys: Mapping[str, str] = field(default_factory=dict)
    """Further metadata keys (without the architecture's name) and the configuration keys that they become."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Configuration values that every model of the architecture has."""
    permuted: bool = False
    """Rows of query and key weights lie in llama.cpp's order: the two rotary halves of a head in turns."""
    norm_offset: float = 0.0
    """What the converter added to every RMS norm weight (Gemma computes with 1 + weight)."""
    bias_option: str | None = None
    """The configuration key that gives the attention projections biases; None: the module decides."""
    mlp_bias_option: str | None = None
    local_rope_theta: float | None = None
    """Rotary base of the layers with a window, where it is not `rope.freq_base`."""


COMMON_KEYS = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
HANDLED_KEYS = {
    "vocab_size",  # the embedding's rows decide
    "attention.value_length",  # must equal key_length
    "rope.dimension_count",  # must equal head_dim
    "rope.freq_base",
    "rope.freq_base_swa",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",  # says how the model was trained
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scale_linear",  # the spelling before rope.scaling.*
    "attention.sliding_window_pattern",
}
NEUTRAL_VALUES: Mapping[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attention.sliding_window": (0,),
    "attn_logit_softcapping": (0.0,),
    "embedding_scale": (0.0, 1.0),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "final_logit_softcapping": (0.0,),
    "leading_dense_block_count": (0,),
    "logit_scale": (0.0, 1.0),
    "nextn_predict_layers": (0,),
    "pooling_type": (0,),
    "residual_scale": (0.0, 1.0),
    "rope.scaling.attn_factor": (1.0,),
    "rope.scaling.yarn_attn_factor": (1.0,),
    "rope.scaling.yarn_ext_factor": (1.0, -1.0),
    "tensor_data_layout": ("Meta AI original pth",),
    "use_parallel_residual": (False,),
}
"""Keys that may stand there as long as they change nothing."""

ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture("llama", permuted=True, bias_option="attention_bias", mlp_bias_option="mlp_bias"),
    "qwen2": Architecture("qwen2"),
    "qwen3": Architecture("qwen3", bias_option="attention_bias"),
    "gemma": Architecture("gemma", norm_offset=1.0, bias_option="attention_bias"),
    "gemma2": Architecture(
        "gemma2",
        keys={
            "attention.sliding_window": "sliding_window",
            "attn_logit_softcapping": "attn_logit_softcapping",
            "final_logit_softcapping": "final_logit_softcapping",
        },
        norm_offset=1.0,
        bias_option="attention_bias",
    ),
    "gemma3": Architecture(
        "gemma3_text",
        keys={"attention.sliding_window": "sliding_window"},
        norm_offset=1.0,
        bias_option="attention_bias",
        local_rope_theta=10000.0,
    ),
    "smollm3": Architecture(
        "smollm3", permuted=True, bias_option="attention_bias", mlp_bias_option="mlp_bias"
    ),
    "granite": Architecture(
        "granite",
        keys={
            "attention.scale": "attention_multiplier",
            "embedding_scale": "embedding_multiplier",
            "logit_scale": "logits_scaling",
            "residual_scale": "residual_multiplier",
        },
        permuted=True,
        bias_option="attention_bias",
        mlp_bias_option="mlp_bias",
    ),
    "olmo2": Architecture("olmo2", bias_option="attention_bias"),
}
GEMMA_LARGE = {"gemma2": 46, "gemma3": 62}
"""Number of layers of the 27B models, whose attention is scaled by hidden_size / heads instead of
head_dim.
"""


def find_architecture(metadata: Metadata, name: str) -> Architecture:
    """The architecture of a GGUF file called `name`. Raises InputError for a file of another kind or
    architecture.
    """
    kind = str(metadata.get("general.type", "model"))
    if kind != "model":
        raise InputError(f"The GGUF file {name} holds a {kind}, not a model; name the model's own GGUF file.")
    architecture = metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise InputError(
            f"The GGUF file {name} holds architecture {architecture!r}; {', '.join(ARCHITECTURES)} can be "
            "read, or use the safetensors folder of the same model."
        )
    return ARCHITECTURES[str(architecture)]


def read_config_values(
    metadata: Metadata, tensors: Mapping[str, tuple[int, ...]], name: str
) -> dict[str, Any]:
    """The Hugging Face configuration of a GGUF file, as keyword arguments of its configuration class.

    `tensors`: dimensions of every tensor, fastest first. Raises InputError for a key that is not understood.
    """
    architecture = find_architecture(metadata, name)
    if "token_embd.weight" not in tensors:
        raise InputError(
            f"The GGUF file {name} holds no token_embd.weight (a vocabulary, or a later part of a split "
            "model); name the file that holds the whole model."
        )
    if int(metadata.get("split.count", 1)) > 1:
        raise InputError(
            f"The GGUF file {name} is one of {metadata['split.count']} parts; join them with "
            "llama-gguf-split --merge and name the joined file."
        )
    prefix = f"{metadata['general.architecture']}."
    own = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}
    check_keys(own, architecture, name, prefix)
    translated = {**COMMON_KEYS, **architecture.keys}
    config = {translated[key]: value for key, value in own.items() if key in translated}
    check_required(config, prefix, name)
    config.setdefault("num_key_value_heads", config["num_attention_heads"])
    config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    check_head_dim(own, config, prefix, name)
    config["vocab_size"] = tensors["token_embd.weight"][1]
    config["tie_word_embeddings"] = "output.weight" not in tensors
    config["rope_parameters"] = read_rope_parameters(own, architecture, prefix, name)
    for option, tensor in (
        (architecture.bias_option, "blk.0.attn_q.bias"),
        (architecture.mlp_bias_option, "blk.0.ffn_up.bias"),
    ):
        if option is not None:
            config[option] = tensor in tensors
    if architecture.model_type in ("gemma2", "gemma3_text"):
        config["query_pre_attn_scalar"] = read_query_scalar(metadata, config)
    no_ids = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))  # the tokenizer decides
    return {**no_ids, **architecture.config, **config}


def check_keys(own: Metadata, architecture: Architecture, name: str, prefix: str) -> None:
    """Refuse a key that is neither translated nor handled nor neutral."""
    for key, value in own.items():
        if key in COMMON_KEYS or key in architecture.keys or key in HANDLED_KEYS:
            continue
        if key in NEUTRAL_VALUES and value in NEUTRAL_VALUES[key]:
            continue
        raise InputError(
            f"The GGUF file {name} has {prefix}{key} = {shorten(value)}, which this importer does not "
            "carry over; use the safetensors folder of the same model."
        )


def check_required(config: Mapping[str, Any], prefix: str, name: str) -> None:
    """Refuse a file without the numbers that every decoder has, or with one value a layer."""
    back = {value: key for key, value in COMMON_KEYS.items()}
    for key in ("hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads"):
        if key not in config:
            raise InputError(f"The GGUF file {name} lacks the key {prefix}{back[key]}; fetch a whole file.")
    for key, value in config.items():
        if isinstance(value, list):
            raise InputError(
                f"The GGUF file {name} gives {prefix}{back.get(key, key)} layer by layer "
                f"({shorten(value)}), which is not supported; all layers must have one shape."
            )


def check_head_dim(own: Metadata, config: Mapping[str, Any], prefix: str, name: str) -> None:
    """Keys, values and rotary angles must have one width: partial rotary is not read from a GGUF."""
    for key in ("attention.value_length", "rope.dimension_count"):
        if own.get(key, config["head_dim"]) != config["head_dim"]:
            raise InputError(
                f"The GGUF file {name} has {prefix}{key} = {own[key]} and heads of {config['head_dim']}, "
                "which is not supported; use the safetensors folder of the same model."
            )


def read_rope_parameters(own: Metadata, architecture: Architecture, prefix: str, name: str) -> dict[str, Any]:
    """Rotary parameters as transformers names them; raises InputError for a scaling that is not known."""
    theta = float(own.get("rope.freq_base", 10000.0))
    kind = str(own.get("rope.scaling.type", "none"))
    factor = float(own.get("rope.scaling.factor", own.get("rope.scale_linear", 1.0)) or 1.0)
    if "rope.scale_linear" in own and "rope.scaling.type" not in own and factor != 1.0:
        kind = "linear"
    parameters: dict[str, Any] = {"rope_type": "default", "rope_theta": theta}
    if kind == "linear" and factor != 1.0:
        parameters |= {"rope_type": "linear", "factor": factor}
    elif kind == "yarn":
        parameters |= {"rope_type": "yarn", "factor": factor} | read_yarn_parameters(own, prefix, name)
    elif kind not in ("none", "linear"):
        raise InputError(
            f"The GGUF file {name} has {prefix}rope.scaling.type = {kind!r}; none, linear and yarn can be "
            "read."
        )
    if architecture.local_rope_theta is None:
        if "rope.freq_base_swa" in own:
            raise InputError(f"The GGUF file {name} has {prefix}rope.freq_base_swa, which is not understood.")
        return parameters
    local = float(own.get("rope.freq_base_swa", architecture.local_rope_theta))
    return {
        "full_attention": parameters,
        "sliding_attention": {"rope_type": "default", "rope_theta": local},
    }


def read_yarn_parameters(own: Metadata, prefix: str, name: str) -> dict[str, Any]:
    """What YaRN (Peng et al. 2023, arXiv 2309.00071) needs besides its factor."""
    original = own.get("rope.scaling.original_context_length")
    if original is None:
        raise InputError(
            f"The GGUF file {name} scales its rotary positions by YaRN and lacks "
            f"{prefix}rope.scaling.original_context_length; fetch a whole file."
        )
    betas = {f"beta_{end}": own.get(f"rope.scaling.yarn_beta_{end}") for end in ("fast", "slow")}
    found = {key: float(value) for key, value in betas.items() if value is not None}
    return {"original_max_position_embeddings": int(original), **found}


def read_query_scalar(metadata: Metadata, config: Mapping[str, Any]) -> int:
    """What Gemma divides the squared attention scale by: head_dim, except in the 27B models."""
    if config["num_hidden_layers"] == GEMMA_LARGE[str(metadata["general.architecture"])]:
        return int(config["hidden_size"]) // int(config["num_attention_heads"])
    return int(config["head_dim"])


def shorten(value: Any) -> str:
    """A value for a sentence."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
