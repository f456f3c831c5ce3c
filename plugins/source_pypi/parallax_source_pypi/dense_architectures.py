"""The architectures of GGUF files whose layers have no experts; see `architectures`."""

from __future__ import annotations

from dataclasses import replace

from parallax_source_pypi.rows import (
    AFTER,
    DENSE,
    ENDS_LESS_1,
    GEMMA,
    GEMMA_HEAD_NORMS,
    HEAD_NORMS,
    HEADS,
    LINEAR,
    NORMS,
    QKV,
    TURNED,
    Architecture,
    parse_rows,
)

LLAMA = Architecture(
    model_class="LlamaForCausalLM",
    model_type="llama",
    layer=DENSE | TURNED,
    biases=LINEAR,
    flags={"attention_bias": "attn_q.bias", "mlp_bias": "ffn_up.bias"},
    fixed={"attention_dropout": 0.0, "initializer_range": 0.02, "pretraining_tp": 1},
)
QWEN2 = Architecture(model_class="Qwen2ForCausalLM", model_type="qwen2", layer=DENSE, biases=QKV)
GEMMA2 = Architecture(
    model_class="Gemma2ForCausalLM",
    model_type="gemma2",
    layer=GEMMA,
    ends=ENDS_LESS_1,
    settings={"attention.sliding_window": "sliding_window"},
    optional={
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
    },
    fixed={"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"},
    period=2,
)
ERNIE = Architecture(
    model_class="Ernie4_5ForCausalLM",
    model_type="ernie4_5",
    layer=DENSE,
    biases=LINEAR,
    flags={"use_bias": "attn_q.bias"},
)
LFM2 = """
attn_norm            operator_norm           hidden
ffn_norm             ffn_norm                hidden
attn_q?              self_attn.q_proj        queries,hidden
attn_k?              self_attn.k_proj        keys,hidden
attn_v?              self_attn.v_proj        keys,hidden
attn_output?         self_attn.out_proj      hidden,queries
attn_q_norm?         self_attn.q_layernorm   head
attn_k_norm?         self_attn.k_layernorm   head
shortconv.conv?      conv.conv               hidden,kernel   middle
shortconv.in_proj?   conv.in_proj            *,hidden
shortconv.out_proj?  conv.out_proj           hidden,hidden
ffn_gate             feed_forward.w1         inner,hidden
ffn_up               feed_forward.w3         inner,hidden
ffn_down             feed_forward.w2         hidden,inner
"""
DENSE_ARCHITECTURES: dict[str, Architecture] = {
    "llama": LLAMA,
    "qwen2": QWEN2,
    "qwen3": Architecture(model_class="Qwen3ForCausalLM", model_type="qwen3", layer=DENSE | HEAD_NORMS),
    "gemma2": GEMMA2,
    "gemma3": replace(
        GEMMA2,
        model_class="Gemma3ForCausalLM",
        model_type="gemma3_text",
        layer=GEMMA | GEMMA_HEAD_NORMS,
        period=6,
    ),
    "phi3": Architecture(
        model_class="Phi3ForCausalLM",
        model_type="phi3",
        layer=parse_rows(
            NORMS
            + """
        attn_qkv     self_attn.qkv_proj  fused,hidden
        attn_output  self_attn.o_proj    hidden,queries
        ffn_up       mlp.gate_up_proj    both,hidden
        ffn_down     mlp.down_proj       hidden,inner
        """
        ),
        optional={"attention.sliding_window": "sliding_window"},
        spare=("rope.scaling.attn_factor",),
    ),
    "granite": Architecture(
        model_class="GraniteForCausalLM",
        model_type="granite",
        layer=DENSE | TURNED,
        biases=LINEAR,
        flags={"attention_bias": "attn_q.bias", "mlp_bias": "ffn_up.bias"},
        settings={
            "attention.scale": "attention_multiplier",
            "embedding_scale": "embedding_multiplier",
            "residual_scale": "residual_multiplier",
            "logit_scale": "logits_scaling",
        },
    ),
    "olmo2": Architecture(
        model_class="Olmo3ForCausalLM",
        model_type="olmo3",
        layer=AFTER | parse_rows("attn_q_norm self_attn.q_norm queries\nattn_k_norm self_attn.k_norm keys"),
        optional={"attention.sliding_window": "sliding_window"},
        period=4,
    ),
    "smollm3": replace(
        LLAMA,
        model_class="SmolLM3ForCausalLM",
        model_type="smollm3",
        fixed={"no_rope_layer_interval": 4, "use_sliding_window": False},
    ),
    "glm4": Architecture(
        model_class="Glm4ForCausalLM",
        model_type="glm4",
        layer=parse_rows(
            HEADS
            + """
        attn_norm            input_layernorm            hidden
        post_attention_norm  post_self_attn_layernorm   hidden
        ffn_norm             post_attention_layernorm   hidden
        post_ffw_norm        post_mlp_layernorm         hidden
        ffn_up               mlp.gate_up_proj           both,hidden
        ffn_down             mlp.down_proj              hidden,inner
        """
        ),
        biases=QKV,
        flags={"attention_bias": "attn_q.bias"},
    ),
    "exaone4": Architecture(
        model_class="Exaone4ForCausalLM",
        model_type="exaone4",
        layer=AFTER | HEAD_NORMS,
        optional={"attention.sliding_window": "sliding_window"},
        period=4,
    ),
    "ernie4_5": ERNIE,
    "hunyuan-dense": Architecture(
        model_class="HunYuanDenseV1ForCausalLM",
        model_type="hunyuan_v1_dense",
        layer=DENSE
        | parse_rows("attn_q_norm self_attn.query_layernorm head\nattn_k_norm self_attn.key_layernorm head"),
    ),
    "lfm2": Architecture(
        model_class="Lfm2ForCausalLM",
        model_type="lfm2",
        layer=parse_rows(LFM2),
        ends=parse_rows("token_embd model.embed_tokens vocab,hidden\ntoken_embd_norm model.embedding_norm hidden"),
        settings={"shortconv.l_cache": "conv_L_cache"},
        fixed={"block_auto_adjust_ff_dim": False, "conv_bias": False},
    ),
    "seed_oss": Architecture(
        model_class="SeedOssForCausalLM",
        model_type="seed_oss",
        layer={name: row for name, row in DENSE.items() if name != "ffn_norm"}
        | parse_rows("post_attention_norm post_attention_layernorm hidden"),
        biases=LINEAR,
        flags={
            "attention_bias": "attn_q.bias",
            "attention_out_bias": "attn_output.bias",
            "mlp_bias": "ffn_up.bias",
        },
    ),
}
