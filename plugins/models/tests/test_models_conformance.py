"""The simplest family and one with experts, held to the contract of adapters by core's kit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from parallax_core.testing.model import ModelConformance, read_checkpoint, write_checkpoint
from parallax_models.plugin import parallax_register_models
from tests.support.checkpoints import save_family

SPECS = {spec.name: spec for spec in parallax_register_models()}
HIDDEN, HEADS, MIDDLE, EXPERTS, VOCAB = 32, 4 * 8, 48, 4, 97
CONFIG: Mapping[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": MIDDLE,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
}

Shapes = dict[str, tuple[int, ...]]


def make_attention() -> Shapes:
    return {
        "self_attn.q_proj.weight": (HEADS, HIDDEN),
        "self_attn.k_proj.weight": (HEADS // 2, HIDDEN),
        "self_attn.v_proj.weight": (HEADS // 2, HIDDEN),
        "self_attn.o_proj.weight": (HIDDEN, HEADS),
        "input_layernorm.weight": (HIDDEN,),
        "post_attention_layernorm.weight": (HIDDEN,),
    }


def make_mlp(prefix: str, middle: int) -> Shapes:
    up, down = (middle, HIDDEN), (HIDDEN, middle)
    return {f"{prefix}.{name}_proj.weight": down if name == "down" else up for name in ("gate", "up", "down")}


def make_model(layer: Shapes, *, is_tied: bool) -> Shapes:
    layers = {f"model.layers.{index}.{name}": shape for index in range(2) for name, shape in layer.items()}
    head: Shapes = {} if is_tied else {"lm_head.weight": (VOCAB, HIDDEN)}
    return {"model.embed_tokens.weight": (VOCAB, HIDDEN), **layers, "model.norm.weight": (HIDDEN,), **head}


class TestLlama(ModelConformance):
    spec = SPECS["llama"]
    refused = (("num_hidden_layers", "two"), ("vocab_size", 0), ("tie_word_embeddings", "yes"))

    def make_checkpoints(self, folder: Path) -> Sequence[Path]:
        layer = make_attention() | make_mlp("mlp", MIDDLE)
        named = {"architectures": ["LlamaForCausalLM"]}
        return [
            write_checkpoint(folder / f"tied {tied}", {**CONFIG, **named, "tie_word_embeddings": tied}, shapes)
            for tied, shapes in ((tied, make_model(layer, is_tied=tied)) for tied in (True, False))
        ]


class TestQwen3WithExperts(ModelConformance):
    spec = SPECS["qwen3_moe"]
    refused = (("num_experts_per_tok", 0), ("hidden_size", None))

    def make_checkpoints(self, folder: Path) -> Sequence[Path]:
        layer = make_attention() | {"self_attn.q_norm.weight": (8,), "self_attn.k_norm.weight": (8,)}
        layer |= {"mlp.gate.weight": (EXPERTS, HIDDEN)}
        for expert in range(EXPERTS):
            layer |= make_mlp(f"mlp.experts.{expert}", 16)
        experts = {"num_experts": EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
        config = {**CONFIG, **experts, "architectures": ["Qwen3MoeForCausalLM"], "tie_word_embeddings": False}
        return [write_checkpoint(folder / "model", config, make_model(layer, is_tied=False))]


class TestGemma4(ModelConformance):
    spec = SPECS["gemma4"]
    refused = (("num_kv_shared_layers", 7), ("num_kv_shared_layers", -1), ("head_dim", 0), ("sliding_window", "wide"))

    def make_checkpoints(self, folder: Path) -> Sequence[Path]:
        for kind in ("gemma4_text", "gemma4_moe"):
            save_family(kind, folder / kind)
        return [folder / kind for kind in ("gemma4_text", "gemma4_moe")]


class TestHyV4(ModelConformance):
    spec = SPECS["hy_v4"]
    refused = (
        ("hc_mult", -4),
        ("hc_mult", None),
        ("indexer_types", ["full"]),
        ("num_hidden_layers", 10**9),
        ("num_hidden_layers", -1),
        ("v_head_dim", "wide"),
    )

    def make_checkpoints(self, folder: Path) -> Sequence[Path]:
        save_family("hy_v4", folder)
        return [folder]


class TestQwen4Exp(ModelConformance):
    spec = SPECS["qwen4_exp"]
    refused = (
        ("ple_layer_ids", [3]),
        ("ple_layer_ids", [8]),
        ("indexer_kv_heads", 2),
        ("indexer_budget", 13),
        ("ngram_size", 1),
        ("ngram_vocab_size_base", 2**40),
        ("heads_per_ngram", 2**39),
        ("hc_count", 0),
    )

    def make_checkpoints(self, folder: Path) -> Sequence[Path]:
        save_family("qwen4_exp_text", folder)
        return [folder]


class TestGlm5Next(ModelConformance):
    spec = SPECS["glm5_next"]
    refused = (
        ("hc_mult", -1),
        ("index_topk", 13),
        ("indexer_types", ["full", "shared", *["full"] * 5]),
        ("indexer_types", [*["full"] * 5, "shared", "full"]),
        ("qk_rope_head_dim", 8),
        ("linear_num_heads", "many"),
    )

    def make_checkpoints(self, folder: Path) -> Sequence[Path]:
        save_family("glm5_next", folder)
        seen = read_checkpoint(folder)
        text = {name: shape for name, shape in seen.tensors.items() if not name.startswith("model.visual.")}
        return [write_checkpoint(folder / "text", seen.config, text)]


class TestKimiLinear(ModelConformance):
    spec = SPECS["kimi_linear"]
    refused = (("linear_head_dim", 0), ("layer_types", ["full_attention"]), ("kv_lora_rank", None))

    def make_checkpoints(self, folder: Path) -> Sequence[Path]:
        save_family("kimi_linear", folder)
        return [folder]

    def test_published_names_are_read_as_those_of_transformers(self, tmp_path: Path) -> None:
        """Settings under ``linear_attn_config``, and layers by their numbers from 1."""
        save_family("kimi_linear", tmp_path)
        config = read_checkpoint(tmp_path).config
        inner = {"full_attn_layers": [2, 6], "kda_layers": [1, 3, 4, 5, 7], "head_dim": 8, "num_heads": 4}
        old = {name: value for name, value in config.items() if name not in {"layer_types", "linear_head_dim"}}
        published = {**old, "linear_num_heads": 32, "linear_attn_config": {**inner, "short_conv_kernel_size": 4}}
        assert self.adapter.read_shape(published) == self.adapter.read_shape(config)


class TestLlama4(ModelConformance):
    spec = SPECS["llama4"]
    refused = (
        ("no_rope_layers", [1, 1]),
        ("layer_types", ["sliding_attention"] * 5),
        ("num_experts_per_tok", 0),
        ("moe_layers", "all"),
    )

    def make_checkpoints(self, folder: Path) -> Sequence[Path]:
        save_family("llama4_text", folder)
        return [folder]


class TestDeepseekV4(ModelConformance):
    spec = SPECS["deepseek_v4"]
    refused = (
        ("compress_rates", "many"),
        ("head_dim", None),
        ("hc_mult", 0),
        ("layer_types", ["full_attention"] * 5),
        ("mlp_layer_types", ["dense"] * 5),
        ("num_hidden_layers", 10**9),
        ("num_hidden_layers", -1),
        ("sliding_window", "wide"),
    )

    def make_checkpoints(self, folder: Path) -> Sequence[Path]:
        save_family("deepseek_v4", folder)
        return [folder]
