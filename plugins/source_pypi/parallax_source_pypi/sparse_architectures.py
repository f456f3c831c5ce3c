"""The architectures of GGUF files whose layers have experts; see `architectures`."""

from __future__ import annotations

from dataclasses import replace

from parallax_source_pypi.dense_architectures import ERNIE, LLAMA, QWEN2
from parallax_source_pypi.rows import (
    EXPERT_SIZE,
    EXPERTS,
    HEAD_NORMS,
    HEADS,
    NORMS,
    NUM_EXPERTS,
    QKV,
    ROUTED,
    SHARED,
    SOME_MLP,
    Architecture,
    parse_rows,
)

LATENT = """
attn_norm        input_layernorm               hidden
ffn_norm         post_attention_layernorm      hidden
attn_q?          self_attn.q_proj              *,hidden
attn_q_a?        self_attn.q_a_proj            *,hidden
attn_q_a_norm?   self_attn.q_a_layernorm       *
attn_q_b?        self_attn.q_b_proj            *,*
attn_kv_a_mqa    self_attn.kv_a_proj_with_mqa  *,hidden
attn_kv_a_norm   self_attn.kv_a_layernorm      *
attn_kv_b?       self_attn.kv_b_proj           *,*
attn_k_b?        self_attn.kv_b_proj           *,*,*        join_latent
attn_v_b?        self_attn.kv_b_proj           *,*,*        joined
attn_output      self_attn.o_proj              hidden,*
"""
DEEPSEEK2 = Architecture(
    model_class="DeepseekV2ForCausalLM",
    model_type="deepseek_v2",
    layer=parse_rows(LATENT + SOME_MLP + EXPERTS + SHARED),
    settings={
        "attention.kv_lora_rank": "kv_lora_rank",
        "leading_dense_block_count": "first_k_dense_replace",
        "rope.dimension_count": "qk_rope_head_dim",
        "expert_count": "n_routed_experts",
        "expert_used_count": "num_experts_per_tok",
        "expert_shared_count": "n_shared_experts",
    }
    | EXPERT_SIZE,
    optional={
        "attention.q_lora_rank": "q_lora_rank",
        "expert_weights_scale": "routed_scaling_factor",
        "expert_weights_norm": "norm_topk_prob",
        "expert_group_count": "n_group",
        "expert_group_used_count": "topk_group",
    },
    fixed={"moe_layer_freq": 1, "rope_interleave": True},
    spare=("expert_gating_func", "attention.key_length_mla", "attention.value_length_mla", "nextn_predict_layers"),
)
SPARSE_ARCHITECTURES: dict[str, Architecture] = {
    "llama with experts": replace(
        LLAMA,
        model_class="MixtralForCausalLM",
        model_type="mixtral",
        layer={name: row for name, row in LLAMA.layer.items() if name not in ("ffn_gate", "ffn_up", "ffn_down")}
        | parse_rows("""
        ffn_gate_inp   block_sparse_moe.gate           experts,hidden
        ffn_gate_exps  block_sparse_moe.experts.{}.w1  experts,inner,hidden  split
        ffn_up_exps    block_sparse_moe.experts.{}.w3  experts,inner,hidden  split
        ffn_down_exps  block_sparse_moe.experts.{}.w2  experts,hidden,inner  split
        """),
        settings={"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"},
        flags={},
        biases=(),
    ),
    "qwen2moe": replace(
        QWEN2,
        model_class="Qwen2MoeForCausalLM",
        model_type="qwen2_moe",
        layer=ROUTED
        | parse_rows("""
        ffn_gate_inp_shexp  mlp.shared_expert_gate       hidden          row
        ffn_gate_shexp      mlp.shared_expert.gate_proj  *,hidden
        ffn_up_shexp        mlp.shared_expert.up_proj    *,hidden
        ffn_down_shexp      mlp.shared_expert.down_proj  hidden,*
        """),
        settings=NUM_EXPERTS | EXPERT_SIZE,
        optional={"expert_shared_feed_forward_length": "shared_expert_intermediate_size"},
        fixed={"norm_topk_prob": False, "decoder_sparse_step": 1, "mlp_only_layers": []},
        spare=("expert_shared_count",),
    ),
    "qwen3moe": Architecture(
        model_class="Qwen3MoeForCausalLM",
        model_type="qwen3_moe",
        layer=ROUTED | HEAD_NORMS,
        settings=NUM_EXPERTS | EXPERT_SIZE,
        fixed={"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []},
    ),
    "deepseek2": DEEPSEEK2,
    "deepseek2 with corrections": replace(
        DEEPSEEK2,
        model_class="DeepseekV3ForCausalLM",
        model_type="deepseek_v3",
        layer=DEEPSEEK2.layer | parse_rows("exp_probs_b? mlp.gate.e_score_correction_bias experts bias"),
        fixed=DEEPSEEK2.fixed | {"n_group": 1, "topk_group": 1},
    ),
    "gpt-oss": Architecture(
        model_class="GptOssForCausalLM",
        model_type="gpt_oss",
        layer=parse_rows(
            HEADS
            + """
        attn_norm            input_layernorm           hidden
        post_attention_norm  post_attention_layernorm  hidden
        attn_sinks           self_attn.sinks           heads                  bare
        ffn_gate_inp         mlp.router                experts,hidden
        ffn_gate_exps        mlp.experts.gate_up_proj  experts,expert,hidden  join_halves
        ffn_up_exps          mlp.experts.gate_up_proj  experts,expert,hidden  joined
        ffn_down_exps        mlp.experts.down_proj     experts,hidden,expert  turn_experts
        """
        ),
        biases=(*QKV, "attn_output", "ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"),
        settings={
            "attention.sliding_window": "sliding_window",
            "expert_count": "num_local_experts",
            "expert_used_count": "num_experts_per_tok",
            "expert_feed_forward_length": "intermediate_size",
        },
        fixed={"attention_bias": True},
        period=2,
    ),
    "ernie4_5-moe": replace(
        ERNIE,
        model_class="Ernie4_5_MoeForCausalLM",
        model_type="ernie4_5_moe",
        layer=parse_rows(NORMS + HEADS + SOME_MLP + EXPERTS + SHARED)
        | parse_rows("exp_probs_b? mlp.moe_statics.e_score_correction_bias experts bias_row"),
        settings={
            "expert_count": "moe_num_experts",
            "expert_used_count": "moe_k",
            "interleave_moe_layer_step": "moe_layer_interval",
            "leading_dense_block_count": "moe_layer_start_index",
        }
        | EXPERT_SIZE,
        optional={"expert_shared_count": "moe_num_shared_experts"},
        spare=("expert_shared_feed_forward_length",),
    ),
}
