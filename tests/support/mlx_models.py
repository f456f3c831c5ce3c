"""Small models of mlx-lm with random weights, without checkpoints."""

from __future__ import annotations

from typing import Any

from parallax_backend_mlx.model_file import find_classes
from parallax_backend_mlx.runtime import Module

RWKV7 = {
    "model_type": "rwkv7",
    "norm_eps": 1e-5,
    "a_low_rank_dim": 8,
    "v_low_rank_dim": 8,
    "gate_low_rank_dim": 8,
    "decay_low_rank_dim": 8,
}
"""Its first layer gives more than hidden states to the others."""
AFM7 = {"model_type": "afm7", "hidden_dim": 32, "num_layers": 4, "num_kv_reuse_layers": 2, "num_heads": 4} | {
    "num_kv_heads": 2
}
"""Its layers are in two lists."""


def make_model(config: dict[str, Any]) -> Module:
    """Return a small model of mlx-lm with random weights."""
    shared = {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_attention_heads": 4,
        "num_hidden_layers": 4,
        "num_key_value_heads": 4,
        "head_dim": 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1000,
        "vocab_size": 97,
    }
    model_class, arguments_class = find_classes(config)
    model: Module = model_class(arguments_class.from_dict(shared | config))  # type: ignore[attr-defined]
    return model
