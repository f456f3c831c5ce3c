"""Tiny random checkpoints in the real file format."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parallax_backend_mlx.model_file import find_classes
from parallax_backend_mlx.runtime import flatten_tree, mx

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


TINY: dict[str, dict[str, Any]] = {
    "llama": {
        "model_type": "llama",
        "num_hidden_layers": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "rope_theta": 250.0,
        "tie_word_embeddings": True,
    },
    "gemma3_text": {
        "model_type": "gemma3_text",
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
        "num_hidden_layers": 4,
        "num_key_value_heads": 1,
        "query_pre_attn_scalar": 8,
        "rope_theta": 250.0,
        "sliding_window": 6,
        "sliding_window_pattern": 3,
    },
    "gemma2": {
        "model_type": "gemma2",
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "query_pre_attn_scalar": 8,
        "rms_norm_eps": 1e-5,
    },
    "qwen3_next": {
        "model_type": "qwen3_next",
        "decoder_sparse_step": 1,
        "full_attention_interval": 2,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 8,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_value_head_dim": 8,
        "mlp_only_layers": [],
        "moe_intermediate_size": 16,
        "norm_topk_prob": True,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 4,
        "num_key_value_heads": 2,
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-5,
        "rope_theta": 250.0,
        "shared_expert_intermediate_size": 16,
    },
    "deepseek_v3": {
        "model_type": "deepseek_v3",
        "first_k_dense_replace": 1,
        "kv_lora_rank": 8,
        "moe_intermediate_size": 16,
        "n_group": 1,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 3,
        "num_key_value_heads": 4,
        "q_lora_rank": 12,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "rope_theta": 250.0,
        "topk_group": 1,
        "v_head_dim": 8,
    },
}
"""What makes each of these architectures what it is, in a model with the sizes of `SMALL`."""
SMALL: dict[str, Any] = {
    "head_dim": 8,
    "hidden_size": 32,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
    "num_attention_heads": 4,
    "vocab_size": 97,
}


def fill_model(config: dict[str, Any], seed: int) -> Weights:
    """Return weights for a model of mlx-lm, large enough that every part of it matters."""
    model_class, args_class = find_classes(config)
    model = model_class(args_class.from_dict(config))  # type: ignore[attr-defined]
    key, weights = mx.random.key(seed), {}
    for name, array in flatten_tree(model.parameters()):
        key, part = mx.random.split(key)
        noise = mx.random.normal(array.shape, key=part)
        is_norm = array.ndim == 1 and not name.endswith(("A_log", "dt_bias", "e_score_correction_bias"))
        weights[name] = array + noise * 0.1 if is_norm else noise * (1.0 if "embed_tokens" in name else 0.3)
    return weights


@pytest.fixture(scope="session")
def make_tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that writes a tiny random checkpoint of one of the architectures in `TINY`."""

    @functools.cache
    def make(name: str, **changes: Any) -> Path:
        config = {"architectures": [name], **SMALL, **TINY[name], **changes}
        folder = tmp_path_factory.mktemp(name)
        (folder / "config.json").write_text(json.dumps(config))
        mx.save_safetensors(str(folder / "model.safetensors"), fill_model(config, 0), {"format": "mlx"})
        return folder

    return make


@pytest.fixture(scope="session")
def llama(make_llama: Callable[..., Path]) -> Path:
    """A Llama checkpoint nobody writes into."""
    return make_llama()
