"""MiniMax-M3, text: an index of the blocks of tokens that each token attends to, and experts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from parallax_core.api import ConfigReader, LayerShape
from parallax_models.deepseek_v3 import DENSE, SPARSE, list_sparse
from parallax_models.dense import Dense
from parallax_models.family import Family
from parallax_models.mixtral import read_experts
from parallax_models.sliding import FULL
from parallax_models.weights import Heads, add_weights, gated_mlp

INDEXED = "minimax_m3_sparse"
NAMES = {
    "sparse_num_index_heads": "index_n_heads",
    "sparse_index_dim": "index_head_dim",
    "sparse_block_size": "index_block_size",
    "sparse_topk_blocks": "index_topk_blocks",
    "sparse_local_block": "index_local_blocks",
}
"""The names under ``sparse_attention_config`` in published files, and those of transformers."""


def unify(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return settings with the names and forms of transformers, whichever config.json has."""
    reader = ConfigReader(settings)
    sparse = reader.table("sparse_attention_config")
    found = {**settings, **{new: sparse[old] for old, new in NAMES.items() if old in sparse}, "hidden_act": "silu"}
    forms = {
        "layer_types": (sparse.get("sparse_attention_freq"), INDEXED, FULL),
        "mlp_layer_types": (settings.get("moe_layer_freq"), SPARSE, DENSE),
    }
    for name, (flags, yes, no) in forms.items():
        if isinstance(flags, list) and not reader.has(name):
            found[name] = [yes if flag else no for flag in flags]
    return found


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers; a token's cache has its key in the index, too, where there is one."""
    plain, experts = Dense(bias=None, head_norms="each").read_attention(settings), read_experts(settings)
    dense = gated_mlp(experts.hidden, settings.count("dense_intermediate_size"))
    shared = gated_mlp(experts.hidden, settings.count("shared_intermediate_size")) + experts.num
    for has_index, is_sparse in zip(list_indexed(settings), list_sparse(settings), strict=True):
        layer = add_index(settings, plain) if has_index else plain
        yield experts.join(layer, shared) if is_sparse else add_weights(layer, dense)


def add_index(settings: ConfigReader, layer: LayerShape) -> LayerShape:
    """Return a layer with an index added."""
    num, width = settings.count("index_n_heads"), settings.count("index_head_dim")
    extra = settings.count("hidden_size") * (num + 1) * width + 2 * width
    flops = 4 * Heads.read(settings).queries + 2 * num * width
    return add_weights(layer, extra, kv_width=layer.kv_width + width, context_flops=flops)


def list_indexed(settings: ConfigReader) -> tuple[bool, ...]:
    """Return whether each layer has an index."""
    kinds = settings.list_words("layer_types", (FULL, INDEXED), [FULL] * settings.count("num_hidden_layers"))
    return tuple(kind == INDEXED for kind in kinds)


ADAPTER = Family(read_layers, unify=unify, turns_part=True)
