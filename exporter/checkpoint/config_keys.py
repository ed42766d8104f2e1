"""What a folder's config.json says: read by transformers, every key known to it, neutral, or refused by
name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from specc.errors import InputError
from specc.exporter.checkpoint.weights import read_json

INFORMATION = frozenset(
    """
    _name_or_path architectures auto_map cache_implementation dtype finetuning_task gradient_checkpointing
    id2label inference_config is_llama_config label2id language library_name license max_shard_size model_name
    model_type name_or_path neuron pipeline_tag pretrained_model_name_or_path problem_type quantization_config
    revision tags task_specific_params tokenizer_class torch_dtype torchscript transformers.js_config
    transformers_version unsloth_fixed unsloth_training unsloth_version use_bfloat16 use_cache use_flash_attn
    use_flash_attention_2
    bad_words_ids begin_suppress_tokens decoder_start_token_id diversity_penalty do_sample early_stopping
    encoder_no_repeat_ngram_size exponential_decay_length_penalty forced_bos_token_id forced_eos_token_id
    length_penalty max_length min_length no_repeat_ngram_size num_beam_groups num_beams num_return_sequences
    output_scores prefix remove_invalid_values repetition_penalty return_dict_in_generate sep_token_id
    suppress_tokens temperature tf_legacy_loss top_k top_p typical_p
    """.split()
)
"""Keys that say how a model was made, is shown or sampled from, and change no logits. Quantized checkpoints
are judged by check_quantization.
"""
HANDLED = frozenset(
    """
    head_dim partial_rotary_factor rope_local_base_freq rope_parameters rope_scaling rope_theta
    sliding_window_pattern text_config
    """.split()
)
"""Spellings that transformers takes without listing them; head_dim is held against the module by probe."""
DECODER_NUMBERS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
)
NEUTRAL: tuple[Any, ...] = (None, False, 0, 0.0, "", [], {}, ())


def check_config_keys(config: Mapping[str, Any], known: frozenset[str], name: str) -> None:
    """Raise InputError for a key that neither the configuration class nor this page knows and that is not
    neutral.

    `known`: the names that the configuration class of the model understands. `name`: the folder's, for the
    sentence.
    """
    for key, value in config.items():
        if key in known or key in INFORMATION or key in HANDLED or key.startswith("_"):
            continue
        if any(value is neutral or value == neutral for neutral in NEUTRAL):
            continue
        raise InputError(
            f"The key {key!r} of {name}/config.json is {str(value)[:60]!r}, and transformers does not know "
            f"it for model_type {config.get('model_type')!r}; if it changes nothing in what the model "
            "computes, take it out."
        )


def check_quantization(config: Mapping[str, Any], name: str) -> None:
    """Refuse a checkpoint whose weights are quantized already, by the name of the method."""
    settings = config.get("quantization_config") or config.get("compression_config")
    if not settings:
        return
    method = (
        settings.get("quant_method") or settings.get("format") if isinstance(settings, dict) else settings
    )
    raise InputError(
        f"The checkpoint folder {name} is quantized already ({method}), which is not read yet; name the "
        "original 16-bit checkpoint, or a GGUF file."
    )


def read_config(folder: Path) -> Any:
    """The configuration of a decoder as transformers reads it, under the names that its attribute map gives.

    Raises InputError for a model type that is not known, a key that is not understood, an encoder or a
    multimodal model.
    """
    from transformers import AutoConfig

    try:
        with quiet_transformers():
            config: Any = AutoConfig.from_pretrained(folder, local_files_only=True)
    except (ValueError, KeyError, OSError, TypeError, AttributeError) as error:
        raise InputError(
            f"The configuration of {folder.name} cannot be read by transformers: {first_sentence(error)}; "
            "name the folder of a decoder that transformers supports without code of its own."
        ) from None
    kinds = [key for key in ("vision_config", "audio_config", "encoder", "decoder") if hasattr(config, key)]
    if kinds or getattr(config, "is_encoder_decoder", False):
        raise InputError(
            f"The checkpoint folder {folder.name} ({config.model_type}) is no decoder of text alone; save "
            "its text decoder by itself and name that folder."
        )
    lacking = [name for name in DECODER_NUMBERS if not isinstance(getattr(config, name, None), int)]
    if lacking:
        raise InputError(
            f"The configuration of {folder.name} ({config.model_type}) has no {', '.join(lacking)}: it is "
            "no decoder with attention, which is what is supported."
        )
    known = {*type(config)().to_dict(), *config.attribute_map}
    check_config_keys(read_json(folder / "config.json"), frozenset(known), folder.name)
    return config


def read_intermediate_size(config: Any) -> int:
    """Width of the feed-forward block; GPT-2 and its kin leave it open and mean four times the hidden
    size.
    """
    for name in ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size"):
        if isinstance(value := getattr(config, name, None), int):
            return value
    return 4 * int(config.hidden_size)


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """No loading report of transformers on the terminal: what it says becomes our error."""
    from transformers.utils import logging as transformers_logging

    logging: Any = transformers_logging
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def first_sentence(error: BaseException) -> str:
    """The first line of an error's text, without its last full stop, at most 200 characters."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).rstrip(".")[:200]
