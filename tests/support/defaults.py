"""Writes what the families take for settings that config.json leaves out: ``python -m tests.support.defaults``."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from transformers import AutoConfig

import parallax_models.defaults
from tests.support.checkpoints import SERVED

PATH = Path(parallax_models.defaults.__file__).with_name("defaults.json")
WORDS = """
attention_bias attention_chunk_size attention_in_multiplier attention_k_eq_v attention_multiplier
attention_out_multiplier attn_scale block_auto_adjust_ff_dim block_ffn_dim_multiplier block_multiple_of
compress_rope_theta conv_L_cache conv_bias conv_kernel embedding_multiplier enable_moe_block first_k_dense_replace
floor_scale hc_count hc_eps hc_lowrank hc_magnitude hc_mult hc_sinkhorn_iters head_dim heads_per_ngram
hidden_size_per_layer_input index_block_size index_head_dim index_kpool index_kpool_always_select_tail
index_local_blocks index_n_heads index_topk index_topk_blocks indexer_budget indexer_compress_ratio indexer_head_dim
indexer_kv_heads indexer_n_heads key_multiplier layer_norm_epsilon linear_conv_kernel_dim linear_head_dim
linear_lower_bound linear_num_heads lm_head_multiplier logits_scaling make_ngram_vocab_size_divisible_by
mamba_conv_bias mamba_d_conv mamba_d_state mamba_expand mamba_n_groups mamba_n_heads mamba_norm_before_gate
mamba_proj_bias mamba_rms_norm max_window_layers mlp_bias moe_layer_interval moe_layer_start_index moe_num_experts
moe_num_shared_experts moe_router_scaling_factor moe_topk n_group n_shared_experts ngram_size ngram_vocab_size_base
norm_eps norm_topk_prob num_dense_layers num_key_value_heads num_kv_shared_layers output_gate_type
ple_conv_kernel_size projectors_bias q_lora_rank qk_rope_head_dim qkv_bias query_pre_attn_scalar residual_multiplier
rms_norm_eps routed_scaling_factor scoring_func seed sliding_window ssm_in_multiplier ssm_out_multiplier
swiglu_alpha swiglu_limit tie_word_embeddings topk_group topk_method use_bias use_conv_bias use_double_wide_mlp
use_expert_bias use_qk_norm use_sliding_window vocab_size_per_layer_input
"""
"""The settings that may be left out: those that say how wide a model is are not among them, but for its heads."""
UNNAMED: dict[str, dict[str, Any]] = {
    "glm4_moe_lite": {"first_k_dense_replace": 1},
    "glm5_next_text": {"first_k_dense_replace": 3},
    "hy_v4": {"first_k_dense_replace": 1, "index_topk_freq": 4},
}
"""Defaults that transformers has in the code of a class, and not as its fields."""
UNREAD = ("head_dim", "num_key_value_heads")
"""Settings that latent attention does not read."""
SCALED = ("gemma3_text", "gemma4_text", "gpt_oss", "ministral3")
"""Types whose rope is scaled, or differs between layers, if config.json says nothing of it."""


def list_defaults() -> dict[str, dict[str, Any]]:
    """Return the defaults of each type of model, of its text, by the names of the settings."""
    kinds = [settings.get("model_type", kind) for kind, settings in SERVED.items()]
    made = [AutoConfig.for_model(kind).get_text_config() for kind in kinds]
    return {each.model_type: read_defaults(each) | UNNAMED.get(each.model_type, {}) for each in made}


def read_defaults(made: Any) -> dict[str, Any]:
    """Return the defaults of a config of transformers that nobody changed."""
    fields = {each.name: each.default for each in dataclasses.fields(made) if each.name in WORDS.split()}
    for name in UNREAD if hasattr(made, "kv_lora_rank") else ():
        fields.pop(name, None)
    rope = made.to_dict().get("rope_parameters") or {}
    found = fields | {"rope_theta": made.default_theta, "partial_rotary_factor": rope.get("partial_rotary_factor")}
    plain = {name: value for name, value in sorted(found.items()) if isinstance(value, bool | int | float | str)}
    return plain | ({"rope_parameters": rope} if made.model_type in SCALED else {})


if __name__ == "__main__":
    PATH.write_text(json.dumps(list_defaults(), indent=1, sort_keys=True) + "\n", encoding="utf-8")
