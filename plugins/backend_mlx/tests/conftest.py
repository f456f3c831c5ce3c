"""Tiny random checkpoints in the real file format."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parallax_backend_mlx.runtime import mx

Weights = dict[str, mx.array]

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "head_dim": 8,
    "hidden_act": "silu",
    "hidden_size": 32,
    "intermediate_size": 48,
    "max_position_embeddings": 1024,
    "model_type": "llama",
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_theta": 250.0, "rope_type": "default"},
    "tie_word_embeddings": True,
    "vocab_size": 97,
}


def make_weights(config: dict[str, Any], seed: int) -> Weights:
    """Return weights large enough that attention, and so positions, matter."""
    key = mx.random.key(seed)
    width, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, values = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], width), "model.norm.weight": (width,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], width)
    for index in range(config["num_hidden_layers"]):
        layer = f"model.layers.{index}"
        shapes |= {
            f"{layer}.input_layernorm.weight": (width,),
            f"{layer}.post_attention_layernorm.weight": (width,),
            f"{layer}.self_attn.q_proj.weight": (queries, width),
            f"{layer}.self_attn.k_proj.weight": (values, width),
            f"{layer}.self_attn.v_proj.weight": (values, width),
            f"{layer}.self_attn.o_proj.weight": (width, queries),
            f"{layer}.mlp.gate_proj.weight": (inner, width),
            f"{layer}.mlp.up_proj.weight": (inner, width),
            f"{layer}.mlp.down_proj.weight": (width, inner),
        }
    weights: Weights = {}
    for name, shape in shapes.items():
        key, part = mx.random.split(key)
        weights[name] = (
            1 + mx.random.normal(shape, key=part) * 0.1
            if len(shape) == 1
            else (mx.random.normal(shape, key=part) * (0.3 if "embed" not in name else 1.0))
        )
    return weights


@pytest.fixture(scope="session")
def make_llama(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that writes a Llama checkpoint with some settings changed."""

    def make(seed: int = 0, **changes: Any) -> Path:
        config = LLAMA | changes
        folder = tmp_path_factory.mktemp("llama")
        (folder / "config.json").write_text(json.dumps(config))
        mx.save_safetensors(str(folder / "model.safetensors"), make_weights(config, seed), {"format": "pt"})
        return folder

    return make


@pytest.fixture(scope="session")
def llama(make_llama: Callable[..., Path]) -> Path:
    """A Llama checkpoint nobody writes into."""
    return make_llama()
