"""DeepSeek-V4: windows beside compressed tokens, experts by token id at first, between four streams."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from parallax_core.api import ConfigReader, LayerShape, Part, TokenUse
from parallax_models.deepseek_v3 import read_experts
from parallax_models.sliding import SLIDING
from parallax_models.streams import StreamFamily, spread
from parallax_models.weights import gated_mlp

SPARSE, HEAVY = "compressed_sparse_attention", "heavily_compressed_attention"
KINDS = SLIDING, SPARSE, HEAVY
RATIOS = {0: SLIDING, 4: SPARSE, 128: HEAVY}
"""The kinds of layers by the number of tokens that become one, as published files have them."""
HASHED, ROUTED = "hash_moe", "moe"
NUM_HASHED = 3
PAGE = 16
"""Tokens of a page, of which at least one entry is kept."""
RATES = {SPARSE: ("compress_rate_csa", 4), HEAVY: ("compress_rate_hca", 128)}
"""The setting with the number of tokens that become one, for each kind, and its default."""
NAMES = re.compile(r"(embed|head)\.weight|norm\.weight|hc_head_(?:fn|base|scale)")
"""Matches the names outside the layers in published files."""


def unify(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return settings with the names and forms of transformers, whichever config.json has."""
    reader, found = ConfigReader(settings), dict(settings)
    count = reader.count("num_hidden_layers")
    if reader.has("compress_ratios") and not reader.has("layer_types"):
        found["layer_types"] = [RATIOS.get(rate, str(rate)) for rate in reader.list_numbers("compress_ratios")[:count]]
    rates = reader.table("compress_rates")
    found |= {name: rates[kind] for kind, (name, _) in RATES.items() if kind in rates and not reader.has(name)}
    return found


def list_kinds(settings: ConfigReader) -> tuple[str, ...]:
    """Return the kind of each layer."""
    count = settings.count("num_hidden_layers")
    return settings.list_words("layer_types", KINDS, [SPARSE if at % 2 and at > 1 else HEAVY for at in range(count)])


def list_hashed(settings: ConfigReader) -> tuple[bool, ...]:
    """Return whether each layer chooses experts by token id."""
    count, hashed = settings.count("num_hidden_layers"), settings.size("num_hash_layers", NUM_HASHED)
    default = [HASHED if index < hashed else ROUTED for index in range(count)]
    return tuple(word == HASHED for word in settings.list_words("mlp_layer_types", (HASHED, ROUTED), default))


def read_rate(settings: ConfigReader, kind: str) -> int:
    """Return the number of tokens that become one in a layer of a kind; 0: none do."""
    name, default = RATES.get(kind, ("", 0))
    return settings.count(name, default=default) if name else 0


def find_window(settings: ConfigReader, kind: str) -> int:
    """Return the number of tokens of which a layer keeps more than entries."""
    needed = read_rate(settings, kind) * (2 if kind == SPARSE else 1)
    return max(settings.count("sliding_window"), needed)


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers."""
    return spread(settings, _read_parts(settings), num_scales=3)


def _read_parts(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers, without streams."""
    hidden, experts = settings.count("hidden_size"), read_experts(settings)
    shared = gated_mlp(hidden, experts.inner) + 2 * hidden
    for kind, is_hashed in zip(list_kinds(settings), list_hashed(settings), strict=True):
        layer = experts.join(_count_attention(settings, kind), shared)
        choice = experts.num_chosen * settings.count("vocab_size") if is_hashed else experts.num
        yield replace(
            layer,
            weights=layer.weights + choice,
            active_weights=layer.active_weights + (experts.num_chosen if is_hashed else experts.num),
            tokens=TokenUse() if is_hashed else None,
        )


def _count_attention(settings: ConfigReader, kind: str) -> LayerShape:
    """Return the part of a layer that combines tokens."""
    hidden, width, rank = (settings.count(name) for name in ("hidden_size", "head_dim", "q_lora_rank"))
    num, narrow, groups = (settings.count(name) for name in ("num_attention_heads", "o_lora_rank", "o_groups"))
    weights = hidden * rank + rank + rank * num * width + hidden * width + width
    weights += num * width * narrow + groups * narrow * hidden + num
    rate, raw, long = read_rate(settings, kind), 0, 0
    for entry in _list_entries(settings, kind):
        rows = 2 if kind == SPARSE else 1
        weights += rows * entry * (2 * hidden + rate) + entry
        raw, long = raw + 2 * rows * entry, long + -(-entry // min(rate, PAGE))
    if kind == SPARSE:
        heads, index = settings.count("index_n_heads"), settings.count("index_head_dim")
        weights += rank * heads * index + hidden * heads
    return LayerShape(
        kind="window",
        weights=weights,
        active_weights=weights,
        kv_width=width + raw,
        long_width=long,
        window=find_window(settings, kind),
    )


def _list_entries(settings: ConfigReader, kind: str) -> list[int]:
    """Return the widths of the entries of a layer: those it attends to, and those of its index."""
    width = settings.count("head_dim")
    return {SPARSE: [width, settings.count("index_head_dim")], HEAVY: [width]}.get(kind, [])


class DeepseekV4(StreamFamily):
    """The adapter: published files have names of their own outside the layers."""

    @staticmethod
    def find_part(tensor: str) -> Part:
        """Return where a tensor belongs; see `parallax_core.api.ModelAdapter`."""
        if found := NAMES.fullmatch(tensor):
            return "before" if found[1] == "embed" else "after"
        return StreamFamily.find_part(tensor)


ADAPTER = DeepseekV4(read_layers, unify=unify, turns_part=True)
