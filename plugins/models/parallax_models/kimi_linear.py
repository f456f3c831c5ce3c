"""Kimi Linear: Kimi delta attention, every few layers latent attention without positions, experts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from parallax_core.api import ConfigReader, LayerShape
from parallax_models.deepseek_v3 import add_mlp, list_sparse, read_latent
from parallax_models.family import Family
from parallax_models.qwen3_next import DELTA_FLOPS, LINEAR
from parallax_models.sliding import FULL

NAMES = {
    "model_max_length": "max_position_embeddings",
    "moe_renormalize": "norm_topk_prob",
    "num_expert_group": "n_group",
    "num_experts": "n_routed_experts",
    "num_experts_per_token": "num_experts_per_tok",
    "num_shared_experts": "n_shared_experts",
}
"""The names in published files, and those of DeepSeek for the same."""
UNREAD: Mapping[str, Any] = {"rope_parameters": None, "rope_scaling": None, "tie_word_embeddings": False}
"""What transformers' code does not read: attention knows no positions, and the head has weights of its own."""
INNER = {
    "gate_lower_bound": "linear_lower_bound",
    "head_dim": "linear_head_dim",
    "num_heads": "linear_num_heads",
    "short_conv_kernel_size": "linear_conv_kernel_dim",
}
"""The names under ``linear_attn_config`` in published files, and those of transformers."""


def unify(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return settings with the names of DeepSeek and of transformers, whichever config.json has."""
    found = {**settings, **UNREAD}
    found |= {new: settings[old] for old, new in NAMES.items() if settings.get(old) is not None}
    inner = ConfigReader(settings).table("linear_attn_config")
    found |= {new: inner[old] for old, new in INNER.items() if inner.get(old) is not None}
    numbers = inner.get("full_attn_layers")
    if isinstance(numbers, list) and not settings.get("layer_types"):
        count = ConfigReader(settings).count("num_hidden_layers")
        found["layer_types"] = [FULL if number in numbers else LINEAR for number in range(1, count + 1)]
    return found


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers."""
    for kind, is_sparse in zip(list_kinds(settings), list_sparse(settings, 1), strict=True):
        yield add_mlp(settings, read_delta(settings) if kind == LINEAR else read_latent(settings), is_sparse=is_sparse)


def list_kinds(settings: ConfigReader) -> tuple[str, ...]:
    """Return the kind of each layer."""
    default = [LINEAR if index % 4 or not index else FULL for index in range(settings.count("num_hidden_layers"))]
    return settings.list_words("layer_types", (FULL, LINEAR), default)


def read_delta(settings: ConfigReader) -> LayerShape:
    """Return a layer with Kimi delta attention (arXiv 2510.26692), without its MLP."""
    hidden, num, width, kernel = (
        settings.count("hidden_size"),
        settings.count("linear_num_heads", default=32),
        settings.count("linear_head_dim", default=128),
        settings.count("linear_conv_kernel_dim", default=4),
    )
    inner = num * width
    weights = hidden * (4 * inner + 2 * width + num) + 2 * width * inner + inner * (3 * kernel + 1) + num + width
    state = 3 * inner * (kernel - 1) + inner * width
    weights += 2 * hidden
    flops = DELTA_FLOPS * inner * width
    return LayerShape(kind="state", weights=weights, active_weights=weights, state_width=state, state_flops=flops)


ADAPTER = Family(read_layers, unify=unify)
