"""The adapter held to the contract by Parallax's own kit, with the tensors that transformers gives such a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from parallax_core.testing.model import ModelConformance, write_checkpoint
from parallax_model_olmo2.plugin import parallax_register_models

[SPEC] = parallax_register_models()
CONFIG = {
    "architectures": ["Olmo2ForCausalLM"],
    "attention_bias": False,
    "hidden_size": 32,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "vocab_size": 97,
}
LAYER = {
    "mlp.down_proj": (32, 48),
    "mlp.gate_proj": (48, 32),
    "mlp.up_proj": (48, 32),
    "post_attention_layernorm": (32,),
    "post_feedforward_layernorm": (32,),
    "self_attn.k_norm": (16,),
    "self_attn.k_proj": (16, 32),
    "self_attn.o_proj": (32, 32),
    "self_attn.q_norm": (32,),
    "self_attn.q_proj": (32, 32),
    "self_attn.v_proj": (16, 32),
}
ENDS = {"lm_head.weight": (97, 32), "model.embed_tokens.weight": (97, 32), "model.norm.weight": (32,)}


class TestOlmo2(ModelConformance):
    spec = SPEC
    refused = (("num_hidden_layers", "two"), ("vocab_size", 0), ("tie_word_embeddings", "yes"), ("hidden_size", None))

    def make_checkpoints(self, folder: Path) -> Sequence[Path]:
        layers = {f"model.layers.{index}.{name}.weight": shape for index in range(2) for name, shape in LAYER.items()}
        tied = {name: shape for name, shape in ENDS.items() if name != "lm_head.weight"}
        return [
            write_checkpoint(folder / "tied", {**CONFIG, "tie_word_embeddings": True}, layers | tied),
            write_checkpoint(folder / "untied", {**CONFIG, "tie_word_embeddings": False}, layers | ENDS),
        ]
