"""The JSON files of a standard model folder."""

from __future__ import annotations

import math
from collections.abc import Mapping

from parallax_formats.gguf import Fields
from parallax_source_pypi.settings import Settings
from parallax_source_pypi.tokenizer import SpecialIds

Json = dict[str, object]
SAMPLING = {
    "temperature": ("temp", math.inf),
    "top_k": ("top_k", math.inf),
    "top_p": ("top_p", 1),
    "min_p": ("min_p", 1),
    "repetition_penalty": ("penalty_repeat", math.inf),
}
"""Sampling fields of generation_config.json, their names in GGUF files, and their largest sensible values."""


def model_config(settings: Settings, specials: SpecialIds, dtype: str, types: Mapping[str, str]) -> Json:
    """Return config.json.

    It gives both ``dtype`` and ``torch_dtype``, two names of the same setting, since readers know one or the other.

    Args:
        settings: those of the model.
        specials: the tokens with a meaning.
        dtype: the dtype that holds the tensors.
        types: the types of tensors that are blocks, by name.
    """
    blocks: Json = {"quantization_config": {"quant_method": "gguf", "types": dict(types)}} if types else {}
    return {
        **settings.config,
        "bos_token_id": specials.bos,
        "dtype": dtype,
        "eos_token_id": specials.eos,
        "pad_token_id": specials.pad,
        "torch_dtype": dtype,
        **blocks,
    }


def generation_config(fields: Fields, specials: SpecialIds) -> Json:
    """Return generation_config.json: the end-of-text tokens, and the sampling that the model's authors recommend.

    Few GGUF files have the latter.
    """
    ends = sorted({specials.eos, specials.turn} - {None}, key=lambda end: end != specials.eos)
    return {
        "bos_token_id": specials.bos,
        "eos_token_id": ends if len(ends) > 1 else specials.eos,
        "pad_token_id": specials.pad,
        **recommended_sampling(fields),
    }


def recommended_sampling(fields: Fields) -> Json:
    """Return the recommendations of a GGUF file under ``general.sampling``, by the names of generation_config.json.

    To llama.cpp, a value out of range means that a filter is off; such a value is left out.
    """
    values = {name: fields.number(f"general.sampling.{key}", 0) for name, (key, _) in SAMPLING.items()}
    return {name: value for name, value in values.items() if 0 < value <= SAMPLING[name][1]}


def tokenizer_config(fields: Fields, settings: Settings, specials: SpecialIds) -> Json:
    """Return tokenizer_config.json."""
    tokens = fields.texts("tokenizer.ggml.tokens")
    named = {"bos": specials.bos, "eos": specials.eos, "pad": specials.pad, "unk": specials.unknown}
    config: Json = {f"{name}_token": tokens[number] for name, number in named.items() if number is not None}
    config |= {
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": settings.config["max_position_embeddings"],
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    template = chat_template(fields)
    return config | {"chat_template": template} if template else config


def chat_template(fields: Fields) -> str:
    """Return the chat template, in Jinja; empty if missing."""
    return fields.text("tokenizer.chat_template", "")
