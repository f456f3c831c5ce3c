"""Makes random checkpoints of many architectures, as transformers saves them: many small files with an index."""

from __future__ import annotations

import copy
import functools
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

from parallax_core.api import Part
from parallax_core.testing.model import read_checkpoint
from parallax_models.plugin import parallax_register_models

LAYERS = 4
FILE_BYTES = 12_000
INDEX = "model.safetensors.index.json"

THETA = {"rope_type": "default", "rope_theta": 250.0}
BASE: dict[str, Any] = {
    "bos_token_id": 1,
    "eos_token_id": 2,
    "head_dim": 8,
    "hidden_size": 32,
    "initializer_range": 0.3,
    "intermediate_size": 48,
    "max_position_embeddings": 256,
    "num_attention_heads": 4,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "rope_parameters": THETA,
    "vocab_size": 97,
}
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LINEAR = {
    "full_attention_interval": 2,
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 8,
}
SLIDING = ["sliding_attention", "full_attention"] * 2
KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"tie_word_embeddings": True},
    "qwen3_moe": EXPERTS,
    "gemma3_text": {
        "sliding_window": 4,
        "query_pre_attn_scalar": 8,
        "layer_types": SLIDING,
        "rope_parameters": {"full_attention": THETA | {"rope_theta": 5000.0}, "sliding_attention": THETA},
    },
    "gpt_oss": EXPERTS | {"sliding_window": 4, "layer_types": SLIDING},
    "deepseek_v3": EXPERTS
    | {
        "first_k_dense_replace": 1,
        "kv_lora_rank": 16,
        "n_group": 1,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_key_value_heads": 4,
        "q_lora_rank": None,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 8,
        "topk_group": 1,
        "v_head_dim": 8,
    },
    "qwen3_next": EXPERTS
    | LINEAR
    | {
        "shared_expert_intermediate_size": 16,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
    },
    "qwen3_5": LINEAR,
    "minimax_m2": EXPERTS | {"rotary_dim": 8, "shared_intermediate_size": 0},
    "mixtral": EXPERTS,
    "olmoe": EXPERTS,
    "qwen2_moe": EXPERTS | {"shared_expert_intermediate_size": 16},
    "granitemoe": EXPERTS,
}
YARN = {"rope_type": "yarn", "rope_theta": 250.0, "factor": 4.0, "original_max_position_embeddings": 64}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {
        "rope_parameters": THETA
        | {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        | {"original_max_position_embeddings": 32}
    },
    "qwen2": KINDS["qwen2"],
    "qwen3": KINDS["qwen3"],
    "qwen3_moe": EXPERTS | {"norm_topk_prob": True},
    "gemma3_text": {
        "sliding_window": 8,
        "query_pre_attn_scalar": 8,
        "layer_types": SLIDING,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5000.0},
            "sliding_attention": THETA,
        },
    },
    "gpt_oss": EXPERTS
    | {
        "layer_types": SLIDING,
        "rope_parameters": YARN | {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
        "sliding_window": 8,
    },
    "deepseek_v3": KINDS["deepseek_v3"]
    | {
        "n_group": 4,
        "num_local_experts": 8,
        "n_routed_experts": 8,
        "q_lora_rank": 12,
        "rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
        "routed_scaling_factor": 2.5,
        "topk_group": 2,
    },
    "qwen3_next": KINDS["qwen3_next"] | {"rope_parameters": THETA | {"partial_rotary_factor": 0.5}},
}
"""The configuration specific to each family, as in its published models."""

ODD = {"num_hidden_layers": 5}
UNEVEN = [*SLIDING, "sliding_attention"]
GROUPS = {
    "first_k_dense_replace": 2,
    "moe_intermediate_size": 16,
    "n_group": 4,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "num_local_experts": 8,
    "routed_scaling_factor": 2.5,
    "topk_group": 2,
}
LATENT = {
    "kv_lora_rank": 16,
    "num_key_value_heads": 4,
    "q_lora_rank": 12,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
}
CHOOSING = {
    "index_head_dim": 16,
    "index_n_heads": 16,
    "index_topk": 13,
    "initializer_range": 0.15,
    "pad_token_id": None,  # its embedding would be 0, and all tokens would be equally good for it
}
"""An index that chooses tokens; with many heads, so that no scores are equal."""
PARTIAL = {"rope_parameters": THETA | {"partial_rotary_factor": 0.5}}
SHARING: dict[str, Any] = {
    "final_logit_softcapping": 30.0,
    "global_head_dim": 16,
    "hidden_activation": "gelu_pytorch_tanh",
    "layer_types": ["sliding_attention", *["sliding_attention", "full_attention"] * 3],
    "num_hidden_layers": 7,
    "rope_parameters": {
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000.0},
        "sliding_attention": THETA,
    },
    "sliding_window": 8,
    "tie_word_embeddings": True,
    "vocab_size_per_layer_input": 97,
}
"""Gemma 4; in the variant with shared keys, layer 5 reads those of layer 3, and layer 6 those of layer 4."""
MORE: dict[str, dict[str, Any]] = {
    "deepseek_v2": ODD | GROUPS | LATENT | {"topk_method": "group_limited_greedy"},
    "deepseek_v32": ODD | GROUPS | LATENT | CHOOSING,
    "deepseek_v4": ODD
    | {
        "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 32},
        "hc_sinkhorn_iters": 4,
        "head_dim": 16,
        "index_head_dim": 8,
        "index_n_heads": 16,
        "index_topk": 5,
        "initializer_range": 0.15,
        "layer_types": [
            *("heavily_compressed_attention", "compressed_sparse_attention", "sliding_attention"),
            *("compressed_sparse_attention", "heavily_compressed_attention"),
        ],
        "mlp_layer_types": ["hash_moe", "hash_moe", "moe", "moe", "moe"],
        "moe_intermediate_size": 16,
        "n_routed_experts": 6,
        "num_experts_per_tok": 2,
        "num_key_value_heads": 1,
        "o_groups": 2,
        "o_lora_rank": 6,
        "pad_token_id": None,
        "partial_rotary_factor": 0.5,
        "q_lora_rank": 12,
        "rope_parameters": None,
        "sliding_window": 8,
        "swiglu_limit": 0.5,
    },
    "ernie4_5": ODD | {"use_bias": True, "tie_word_embeddings": True},
    "ernie4_5_moe": ODD
    | {
        "moe_intermediate_size": 16,
        "moe_k": 2,
        "moe_layer_end_index": 3,
        "moe_layer_start_index": 1,
        "moe_num_experts": 4,
        "moe_num_shared_experts": 2,
    },
    "exaone4": ODD | {"layer_types": UNEVEN, "sliding_window": 8},
    "falcon_h1": ODD
    | {
        "attention_in_multiplier": 0.7,
        "attention_out_multiplier": 1.3,
        "embedding_multiplier": 3.0,
        "key_multiplier": 0.6,
        "lm_head_multiplier": 0.5,
        "mamba_d_head": 6,
        "mamba_d_ssm": 36,
        "mamba_d_state": 5,
        "mamba_n_groups": 2,
        "mamba_n_heads": 6,
        "mlp_multipliers": [0.8, 0.5],
        "ssm_in_multiplier": 1.25,
        "ssm_multipliers": [0.9, 0.25, 0.5, 0.7, 0.35],
        "ssm_out_multiplier": 0.4,
    },
    "gemma2": ODD
    | {
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 3.0,
        "layer_types": UNEVEN,
        "query_pre_attn_scalar": 8,
        "sliding_window": 8,
    },
    "glm4": ODD | PARTIAL | {"attention_bias": True},
    "glm4_moe": ODD | GROUPS | PARTIAL | {"attention_bias": True, "use_qk_norm": True},
    "glm4_moe_lite": ODD | GROUPS | LATENT | {"mlp_layer_types": ["dense", "sparse", "dense", "sparse", "sparse"]},
    "glm5_next": GROUPS
    | LATENT
    | CHOOSING
    | {
        "index_kpool": 4,
        "index_topk": 12,
        "indexer_types": ["full", "full", "shared", "full", "full", "full", "full"],
        "layer_types": [
            "linear_attention",
            *["indexed_attention"] * 2,
            *["linear_attention"] * 2,
            "indexed_attention",
            "linear_attention",
        ],
        "linear_head_dim": 8,
        "linear_num_heads": 4,
        "mlp_layer_types": ["dense", "dense", "sparse", "dense", *["sparse"] * 3],
        "num_hidden_layers": 7,
        "qk_rope_head_dim": 0,
        "swiglu_limit": 0.5,
    },
    "glm_moe_dsa": ODD
    | GROUPS
    | LATENT
    | CHOOSING
    | {"first_k_dense_replace": 1, "indexer_types": ["full", "shared", "full", "shared", "shared"]},
    "granite": ODD
    | {
        "attention_multiplier": 0.3,
        "embedding_multiplier": 3.0,
        "logits_scaling": 2.0,
        "residual_multiplier": 0.5,
        "tie_word_embeddings": True,
    },
    "granitemoehybrid": ODD
    | {
        "attention_multiplier": 0.3,
        "embedding_multiplier": 3.0,
        "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention", "full_attention"],
        "logits_scaling": 2.0,
        "mamba_d_head": 8,
        "mamba_d_state": 6,
        "mamba_expand": 2,
        "mamba_n_groups": 2,
        "mamba_n_heads": 8,
        "num_experts_per_tok": 2,
        "num_local_experts": 4,
        "residual_multiplier": 0.5,
        "shared_intermediate_size": 24,
    },
    "gemma4_text": SHARING
    | {"hidden_size_per_layer_input": 12, "num_kv_shared_layers": 2, "use_double_wide_mlp": True},
    "gemma4_moe": SHARING
    | {
        "attention_k_eq_v": True,
        "enable_moe_block": True,
        "hidden_size_per_layer_input": 0,
        "model_type": "gemma4_text",
        "moe_intermediate_size": 16,
        "num_experts": 4,
        "num_global_key_value_heads": 1,
        "top_k_experts": 2,
    },
    "hy_v4": ODD
    | LATENT
    | CHOOSING
    | {
        "indexer_types": ["full", "shared", "full", "shared", "full"],
        "mlp_layer_types": ["dense", "sparse", "dense", "sparse", "sparse"],
        "moe_intermediate_size": 16,
        "n_routed_experts": 6,
        "num_experts_per_tok": 3,
        "swiglu_limit": 0.5,
    },
    "hunyuan_v1_dense": ODD | {"rope_parameters": THETA | {"alpha": 3.0, "rope_type": "dynamic", "factor": 1.0}},
    "hunyuan_v1_moe": ODD | {"moe_topk": [2, 1, 2, 2, 1], "num_experts": 4},
    "kimi_linear": GROUPS
    | LATENT
    | {
        "layer_types": [
            "linear_attention",
            "full_attention",
            *["linear_attention"] * 3,
            "full_attention",
            "linear_attention",
        ],
        "linear_head_dim": 8,
        "linear_num_heads": 4,
        "mlp_layer_types": ["dense", "dense", *["sparse"] * 5],
        "num_hidden_layers": 7,
        "q_lora_rank": None,
    },
    "lfm2": ODD
    | {
        "block_auto_adjust_ff_dim": True,
        "block_multiple_of": 8,
        "layer_types": ["conv", "full_attention", "conv", "conv", "full_attention"],
        "tie_word_embeddings": True,
    },
    "lfm2_moe": ODD
    | EXPERTS
    | {
        "initializer_range": 0.15,
        "layer_types": ["conv", "full_attention", "conv", "conv", "full_attention"],
        "num_dense_layers": 2,
        "routed_scaling_factor": 1.5,
        "tie_word_embeddings": True,
    },
    "llama4_text": ODD
    | {
        "attention_bias": True,
        "attention_chunk_size": 12,
        "attn_scale": 0.5,
        "floor_scale": 8,
        "intermediate_size": 16,
        "intermediate_size_mlp": 40,
        "moe_layers": [1, 3, 4],
        "no_rope_layers": [1, 0, 1, 1, 0],
        "num_experts_per_tok": 2,
        "num_local_experts": 4,
    },
    "minimax_m2": ODD | EXPERTS | {"rotary_dim": 4},
    "minimax_m3_vl": ODD
    | PARTIAL
    | {
        "dense_intermediate_size": 40,
        "index_block_size": 4,
        "index_head_dim": 16,
        "index_local_blocks": 1,
        "index_n_heads": 2,
        "index_topk_blocks": 3,
        "initializer_range": 0.15,
        "intermediate_size": 16,
        "layer_types": ["full_attention", "minimax_m3_sparse", "full_attention", *["minimax_m3_sparse"] * 2],
        "mlp_layer_types": ["dense", "sparse", "dense", "sparse", "sparse"],
        "num_experts_per_tok": 2,
        "num_local_experts": 4,
        "pad_token_id": None,
        "rotary_dim": 4,
        "shared_intermediate_size": 24,
        "swiglu_limit": 0.5,
    },
    "ministral3": ODD
    | {
        "rope_parameters": THETA
        | {
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 4.0,
            "llama_4_scaling_beta": 0.1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 16,
            "rope_type": "yarn",
        },
        "sliding_window": None,
    },
    "mistral": ODD | {"sliding_window": 8},
    "mixtral": ODD | EXPERTS,
    "nemotron_h": {
        "initializer_range": 0.15,
        "layers_block_type": [
            *("linear_attention", "moe", "full_attention", "mlp", "linear_attention", "moe", "mlp", "full_attention"),
            "linear_attention",
        ],
        "mamba_head_dim": 8,
        "mamba_num_heads": 6,
        "moe_intermediate_size": 16,
        "moe_latent_size": 12,
        "moe_shared_expert_intermediate_size": 24,
        "n_group": 4,
        "n_groups": 2,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 9,
        "rescale_prenorm_residual": False,
        "routed_scaling_factor": 2.5,
        "ssm_state_size": 6,
        "time_step_min": 1e-9,  # transformers has this limit for prompts alone
        "topk_group": 2,
    },
    "olmo3": ODD
    | {
        "layer_types": UNEVEN,
        "rope_parameters": {
            "full_attention": THETA
            | {
                "attention_factor": 1.1386294,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
                "rope_type": "yarn",
            },
            "sliding_attention": THETA,
        },
        "sliding_window": 8,
    },
    "phi3": ODD | PARTIAL | {"sliding_window": 8},
    "qwen2_moe": ODD
    | EXPERTS
    | {"mlp_only_layers": [1], "norm_topk_prob": False, "shared_expert_intermediate_size": 24},
    "qwen3_5_moe_text": ODD
    | {"initializer_range": 0.15}
    | EXPERTS
    | LINEAR
    | PARTIAL
    | {
        "layer_types": [*["linear_attention"] * 3, "full_attention", "linear_attention"],
        "shared_expert_intermediate_size": 16,
    },
    "qwen3_5_text": ODD
    | LINEAR
    | PARTIAL
    | {"layer_types": ["linear_attention", "full_attention", *["linear_attention"] * 2, "full_attention"]},
    "qwen4_exp_text": EXPERTS
    | LINEAR
    | PARTIAL
    | {
        "hc_lowrank": 6,
        "heads_per_ngram": 2,
        "indexer_budget": 12,
        "indexer_compress_ratio": 4,
        "indexer_head_dim": 16,
        "indexer_kv_heads": 1,
        "indexer_n_heads": 16,
        "initializer_range": 0.15,
        "layer_types": [
            *["linear_attention"] * 2,
            "full_attention",
            *["linear_attention"] * 2,
            *["full_attention"] * 2,
        ],
        "make_ngram_vocab_size_divisible_by": 8,
        "ngram_vocab_size_base": 50,
        "num_hidden_layers": 7,
        "output_gate_type": "sigmoid",
        "pad_token_id": None,
        "ple_embed_dim": 16,
        "ple_layer_ids": [2, 4],
        "shared_expert_intermediate_size": 16,
        "split_ngram_parts": 3,
    },
    "seed_oss": ODD | {"attention_out_bias": True, "mlp_bias": True},
    "step3p7": ODD
    | {
        "initializer_range": 0.15,
        "layer_types": UNEVEN,
        "mlp_layer_types": ["dense", "sparse", "sparse", "dense", "sparse"],
        "moe_intermediate_size": 16,
        "moe_router_scaling_factor": 2.5,
        "n_routed_experts": 6,
        "num_experts_per_tok": 3,
        "num_sliding_attention_heads": 6,
        "rope_parameters": {
            "full_attention": THETA | {"partial_rotary_factor": 0.5, "rope_theta": 5000.0},
            "sliding_attention": THETA,
        },
        "share_expert_dim": 24,
        "sliding_window": 8,
        "swiglu_limits": [0.0, 0.02, 0.0, 0.0, 0.05],
        "swiglu_limits_shared": [0.1, 0.0, 0.02, 0.0, 0.05],
    },
    "smollm3": ODD | {"no_rope_layers": [1, 1, 0, 1, 0], "tie_word_embeddings": True},
}
MORE |= {kind: MORE[f"{kind}_text"] for kind in ("qwen3_5", "qwen3_5_moe", "qwen4_exp")} | {"mistral3": MORE["mistral"]}
"""The configuration of further families, irregular in all they may be."""
QWEN_EYES = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_heads": 2,
    "num_position_embeddings": 4,
    "out_hidden_size": 32,
    "patch_size": 4,
}
SEEING: dict[str, dict[str, Any]] = {
    "glm5_next": {
        "depth": 1,
        "hidden_size": 16,
        "image_size": 28,
        "intermediate_size": 16,
        "num_heads": 2,
        "out_hidden_size": 32,
        "patch_size": 14,
        "projection_intermediate_size": 16,
    },
    "minimax_m3_vl": {
        "hidden_size": 16,
        "image_size": 28,
        "intermediate_size": 16,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
    },
    "mistral3": {
        "head_dim": 8,
        "hidden_size": 16,
        "image_size": 28,
        "intermediate_size": 16,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "patch_size": 14,
    },
    "qwen3_5": QWEN_EYES,
    "qwen3_5_moe": QWEN_EYES,
    "qwen4_exp": QWEN_EYES,
    "step3p7": {
        "hidden_size": 16,
        "image_size": 28,
        "max_position_embeddings": 4,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "patch_size": 14,
    },
}
"""The configuration of what sees, in models of `MORE` whose text model is a part."""
FUSED = {"qwen3_5_moe"}
"""Models that are published with the experts of a layer in two tensors."""
EXPERT = re.compile(r"(.*\.mlp\.experts\.)(\d+)\.")
"""Matches the name of a tensor of one expert."""
SERVED = FAMILIES | MORE
"""Families with an adapter and blocks."""
PERIOD = {
    "full_attention_interval": 2,
    "layer_types": [*["linear_attention", "full_attention"] * 2, "linear_attention"],
}
REGULAR: dict[str, dict[str, Any]] = {
    "gemma2": {"sliding_window": 256},
    "glm4_moe_lite": {"mlp_layer_types": ["dense", "dense", "sparse", "sparse", "sparse"]},
    # With 13 tokens to choose, two scores would differ by less than float32 keeps.
    "glm_moe_dsa": {"indexer_types": ["full"] * 5, "index_topk": 12},
    "granitemoehybrid": {"mamba_n_groups": 1},
    "mistral": {"sliding_window": 256},
    "mistral3": {"sliding_window": 256},
    "phi3": {"sliding_window": 256},
    "qwen2_moe": {"mlp_only_layers": []},
    **dict.fromkeys(("qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text"), PERIOD),
}
"""Changes to families whose irregular settings have no counterpart in the model files of mlx-lm."""
OTHERS: dict[str, dict[str, Any]] = {
    "cohere": {"logit_scale": 0.25},
    "olmo": {"clip_qkv": 1.5},
    "olmo2": {},
    "starcoder2": {"head_dim": None, "hidden_act": "gelu_pytorch_tanh", "sliding_window": None, "use_bias": True},
}
"""Models of families without an adapter."""


def save_random(kind: str, folder: Path, file_bytes: int = FILE_BYTES) -> None:
    """Save a random model of architecture ``kind``, in files of at most ``file_bytes`` bytes or one tensor."""
    _save_model("qwen3_5_text" if kind == "qwen3_5" else kind, KINDS[kind], folder, file_bytes)
    if kind == "qwen3_5":  # mlx-lm knows it as the text part of a larger model
        path = folder / "config.json"
        path.write_text(json.dumps({"model_type": kind, "text_config": json.loads(path.read_text())}))


def save_family(kind: str, folder: Path, **changes: Any) -> None:
    """Save a random model of one of `FAMILIES` or `OTHERS` in ``folder``, with some settings changed."""
    _save_model(kind, (SERVED | OTHERS)[kind] | changes, folder, FILE_BYTES)


def load_reference(folder: Path) -> Any:
    """Return the model in ``folder`` loaded by transformers in float64; its float32 is less exact than the backends."""
    kind = json.loads((folder / "config.json").read_text())["model_type"]
    # Transformers 5.19 caps the scores of Gemma 2 in its eager attention only.
    eager = {"attn_implementation": "eager"} if kind == "gemma2" else {}
    with _silence():
        model = find_class(kind).from_pretrained(folder, dtype=torch.float64, **eager).eval()
        model.set_experts_implementation("eager")  # other implementations lack float64
    return model


def find_class(kind: str) -> Any:
    """Return the class of transformers that makes models of ``kind``."""
    return AutoModelForImageTextToText if kind in SEEING else AutoModelForCausalLM


def make_config(kind: str) -> dict[str, Any]:
    """Return the config.json of a small model of one of `SERVED`, without what sees."""
    settings = copy.deepcopy(BASE | SERVED[kind])
    name = settings.pop("model_type", kind)
    made = AutoConfig.for_model(name, **({"text_config": settings} if kind in SEEING else settings))
    named = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES if kind in SEEING else MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    found = json.loads(json.dumps(made.to_dict(), default=str)) | {"architectures": [named[name]]}
    return {key: value for key, value in found.items() if key != "vision_config"}


def make_model(kind: str, changes: dict[str, Any]) -> Any:
    """Return a random model of ``kind`` in float32, with `BASE` settings but for ``changes``."""
    torch.manual_seed(0)
    settings = copy.deepcopy(BASE | changes)
    if kind in SEEING:
        eyes = {name: settings["hidden_size"] for name in SEEING[kind] if name == "out_hidden_size"}
        settings = {"text_config": settings, "vision_config": SEEING[kind] | eyes}
    made = AutoConfig.for_model(settings.pop("model_type", kind), **settings)
    with _silence():
        return find_class(kind).from_config(made, dtype=torch.float32).eval()


def _save_model(kind: str, changes: dict[str, Any], folder: Path, file_bytes: int) -> None:
    model = make_model(kind, changes)
    roughen(model)
    with _silence():
        model.save_pretrained(folder, max_shard_size=file_bytes)
    if kind in FUSED:
        fuse_experts(folder)


def roughen(model: Any) -> None:
    """Add noise to parameters that would be all ones or zeros, and choose the experts of each token id at random."""
    for parameter in model.parameters():
        if parameter.ndim == 1 or parameter.min() == parameter.max():  # as those of norms
            parameter.data += 0.1 * torch.randn_like(parameter)
    for name, buffer in model.named_buffers():
        if name.endswith(("bias", "layer_scalar")):  # added to the scores of experts, or the factor of a layer
            buffer.add_(0.1 * torch.randn_like(buffer))
        if name.endswith("tid2eid"):  # the experts of each token id, which would all be the first
            buffer.copy_(torch.rand(len(buffer), model.config.n_routed_experts).argsort(-1)[:, : buffer.shape[1]])


def fuse_experts(folder: Path) -> None:
    """Store the experts of a layer as two tensors, as some models are published; in one file."""
    files = sorted(folder.glob("*.safetensors"))
    tensors = {name: tensor for file in files for name, tensor in load_file(file).items()}
    for path in (*files, folder / INDEX):
        path.unlink()
    experts = sorted((int(found[2]), found[1], name) for name in tensors if (found := EXPERT.match(name)))
    for prefix in {prefix for _, prefix, _ in experts}:
        parts = [f"{prefix}{number}." for number in range(max(number for number, *_ in experts) + 1)]
        halves = [[tensors[f"{part}{name}_proj.weight"] for name in ("gate", "up")] for part in parts]
        tensors[f"{prefix}gate_up_proj"] = torch.stack([torch.cat(each) for each in halves])
        tensors[f"{prefix}down_proj"] = torch.stack([tensors[f"{part}down_proj.weight"] for part in parts])
    for *_, name in experts:
        del tensors[name]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def find_tensors(folder: Path, start: int, stop: int) -> set[str]:
    """Return the names of a stage's tensors in ``folder``, according to the adapter of its family."""
    checkpoint = read_checkpoint(folder)
    named = set(checkpoint.config["architectures"])
    [spec] = [spec for spec in parallax_register_models() if named.intersection(spec.architectures)]
    adapter = spec.adapter.load()
    wanted: set[Part] = set(range(start, stop))
    if start == 0 or (stop == LAYERS and adapter.read_shape(checkpoint.config).is_tied):
        wanted.add("before")
    if stop == LAYERS:
        wanted.add("after")
    wanted.add("every")
    return {name for name in checkpoint.tensors if adapter.find_part(name) in wanted}


@contextmanager
def _silence() -> Iterator[None]:
    """Keep transformers from drawing progress bars and from logging every default it fills in."""
    transformers.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity_warning()
    transformers.logging.enable_progress_bar()


@functools.cache
def find_layer(tensor: str) -> int | None:
    """Return the layer of a tensor, or None for tensors before or after the layers."""
    found = re.search(r"layers\.(\d+)\.", tensor)
    return int(found[1]) if found else None
