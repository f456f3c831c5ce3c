"""The shape of OLMo 2 (OLMo team 2024), read from its config.json, and which tensor belongs to which layer.

It is built as Llama is, but for its norms: they come after attention and MLP instead of before them, and queries and
keys have one each, over all heads together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from parallax_core.api import LayerShape, ModelShape, Part, Unsupported

LAYER = re.compile(r"model\.layers\.(\d+)\.")
BEFORE, AFTER = "model.embed_tokens.weight", ("model.norm.weight", "lm_head.weight")


class Olmo2:
    """See `parallax_core.api.ModelAdapter`."""

    def read_shape(self, config: Mapping[str, Any]) -> ModelShape:
        """Read the shape; every number comes from a setting that is checked, and named if it makes no sense."""
        hidden, inner, vocab = (read_count(config, f"{name}_size") for name in ("hidden", "intermediate", "vocab"))
        num = read_count(config, "num_attention_heads")
        shared = read_count(config, "num_key_value_heads", num)
        dim = read_count(config, "head_dim", hidden // num or 1)
        queries, keys = num * dim, shared * dim
        attention = 2 * hidden * (queries + keys) + read_flag(config, "attention_bias") * (queries + 2 * keys + hidden)
        norms = queries + keys + 2 * hidden
        weights = attention + norms + 3 * hidden * inner
        layer = LayerShape(kind="full", weights=weights, active_weights=weights, kv_width=2 * keys)
        is_tied = read_flag(config, "tie_word_embeddings")
        return ModelShape(
            hidden_size=hidden,
            vocab_size=vocab,
            context_length=read_count(config, "max_position_embeddings"),
            num_heads=num,
            num_kv_heads=shared,
            head_dim=dim,
            layers=(layer,) * read_count(config, "num_hidden_layers"),
            before_weights=vocab * hidden,
            after_weights=hidden + (0 if is_tied else vocab * hidden),
            is_tied=is_tied,
        )

    def find_part(self, tensor: str) -> Part:
        """Return where a tensor belongs."""
        if found := LAYER.match(tensor):
            return int(found[1])
        if tensor == BEFORE:
            return "before"
        if tensor in AFTER:
            return "after"
        raise Unsupported(f"OLMo 2 has no tensor {tensor!r}", "fetch the model again")


def read_count(config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """Return a setting that is a whole number, from 1 to 2**24."""
    value = default if config.get(name) is None else config[name]
    if type(value) is not int or not 1 <= value <= 2**24:
        raise Unsupported(f"{name!r} in config.json is {value!r}, not a whole number", "fetch the model again")
    return value


def read_flag(config: Mapping[str, Any], name: str) -> bool:
    """Return a setting that is true or false; it is false where it is missing."""
    value = config.get(name, False)
    if type(value) is not bool:
        raise Unsupported(f"{name!r} in config.json is {value!r}, not true or false", "fetch the model again")
    return value


ADAPTER = Olmo2()
