"""Every number of every family, compared with checkpoints that transformers wrote."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

from parallax_core.api import Part, Unsupported
from parallax_core.testing.model import read_checkpoint
from parallax_models.plugin import parallax_register_models
from tests.support.checkpoints import MORE, SEEING, save_family

BASE: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LATENT = {
    "n_routed_experts": 4,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "kv_lora_rank": 8,
    "q_lora_rank": 12,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "num_key_value_heads": 4,
    "head_dim": 4,
}
STATES = EXPERTS | {
    "shared_expert_intermediate_size": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 4,
}
SLIDING = {"sliding_window": 8}

CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("llama", "llama", {"tie_word_embeddings": True}),
    ("llama", "llama", {"attention_bias": True, "mlp_bias": True}),
    ("qwen2", "qwen2", {}),
    ("qwen2", "qwen2", SLIDING | {"use_sliding_window": True, "max_window_layers": 2}),
    ("qwen3", "qwen3", {"attention_bias": True}),
    ("qwen3_moe", "qwen3_moe", EXPERTS | {"mlp_only_layers": [2]}),
    ("qwen3_moe", "qwen3_moe", EXPERTS | {"decoder_sparse_step": 2}),
    ("gemma3", "gemma3_text", SLIDING),
    ("gpt_oss", "gpt_oss", SLIDING | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    ("deepseek_v3", "deepseek_v3", LATENT),
    ("deepseek_v3", "deepseek_v3", LATENT | {"q_lora_rank": None, "attention_bias": True}),
    ("qwen3_next", "qwen3_next", STATES),
    ("qwen3_next", "qwen3_next", STATES | {"mlp_only_layers": [1]}),
]

ROUTED = {"deepseek_v2", "deepseek_v32", "hy_v4", "minimax_m2", "minimax_m3_vl", "mixtral", "nemotron_h", "step3p7"}
ROUTED |= {"deepseek_v4", "glm5_next", "kimi_linear", "llama4_text", "qwen4_exp", "qwen4_exp_text"}
"""Model types with experts, though their names do not say so."""
SEES = r"(?:model\.)?(?:vision_|vit_|visual|multi_modal|patch_merge)"
"""Matches the names of tensors of what sees."""
BY_ARCHITECTURE = {name: spec for spec in parallax_register_models() for name in spec.architectures}
SPECS = {spec.name: spec for spec in parallax_register_models()}
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def read_sizes(path: Path) -> dict[str, int]:
    """Return the number of elements of every tensor in a safetensors file."""
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return {name: math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}


@pytest.mark.parametrize(("name", "kind", "changes"), CASES, ids=[f"{n}-{i}" for i, (n, _, _) in enumerate(CASES)])
def test_shape_weighs_what_the_checkpoint_does(name: str, kind: str, changes: dict[str, Any], tmp_path: Path) -> None:
    model: Any = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **(BASE | changes)), dtype=torch.float32)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"][0] in SPECS[name].architectures
    adapter = SPECS[name].adapter.load()
    shape = adapter.read_shape(config)
    weights: Counter[Part] = Counter()
    for tensor, size in read_sizes(tmp_path / "model.safetensors").items():
        weights[adapter.find_part(tensor)] += size
    wanted: dict[Part, int] = {index: layer.weights for index, layer in enumerate(shape.layers)}
    assert weights == wanted | {"before": shape.before_weights, "after": shape.after_weights}
    assert all(layer.active_weights <= layer.weights for layer in shape.layers)


@pytest.mark.parametrize("kind", MORE)
def test_shape_of_further_families_is_that_of_their_checkpoint(kind: str, tmp_path: Path) -> None:
    save_family(kind, tmp_path)
    checkpoint = read_checkpoint(tmp_path)
    adapter = BY_ARCHITECTURE[checkpoint.config["architectures"][0]].adapter.load()
    shape = adapter.read_shape(checkpoint.config)
    weights: Counter[Part] = Counter()
    for tensor, stored in checkpoint.tensors.items():
        if kind not in SEEING or not re.match(SEES, tensor):
            weights[adapter.find_part(tensor)] += math.prod(stored)
    wanted: dict[Part, int] = {index: layer.weights for index, layer in enumerate(shape.layers)}
    shared = weights.pop("every", 0)
    extra = {part: size - weights[part] for part, size in wanted.items() if size != weights[part]}
    assert sum(extra.values()) == shared
    assert weights == {part: size - extra.get(part, 0) for part, size in wanted.items()} | {
        "before": shape.before_weights,
        "after": shape.after_weights,
    }
    assert all(0 < layer.active_weights <= layer.weights for layer in shape.layers)
    assert {layer.window for layer in shape.layers} <= {0, 8} | ({32} if kind == "deepseek_v4" else set())
    experts = {(layer.num_experts, layer.num_active_experts) for layer in shape.layers}
    assert all(layer.active_weights < layer.weights for layer in shape.layers if layer.num_experts)
    assert (experts == {(0, 0)}) == ("moe" not in kind and kind not in ROUTED)


@pytest.mark.parametrize(("name", "kind", "changes"), CASES, ids=[f"{n}-{i}" for i, (n, _, _) in enumerate(CASES)])
def test_shape_keeps_what_the_cache_of_transformers_does(name: str, kind: str, changes: dict[str, Any]) -> None:
    config = AutoConfig.for_model(kind, **(BASE | changes))
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    shape = SPECS[name].adapter.load().read_shape(config.to_dict())
    num = 6
    with torch.no_grad():
        cache = model(torch.arange(num)[None], use_cache=True).past_key_values
    for layer, kept in zip(shape.layers, cache.layers, strict=True):
        assert layer.window == (8 if "Sliding" in type(kept).__name__ else 0)
        if layer.kind in {"full", "window"}:
            assert layer.kv_width * num == kept.keys.numel() + kept.values.numel()
    assert {layer.kind for layer in shape.layers} <= {"full", "window", "latent", "state"}


def test_state_of_a_delta_net_is_what_transformers_keeps() -> None:
    config = AutoConfig.for_model("qwen3_next", **(BASE | STATES))
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    shape = SPECS["qwen3_next"].adapter.load().read_shape(config.to_dict())
    with torch.no_grad():
        kept = model(torch.arange(6)[None], use_cache=True).past_key_values.layers[0]
    kernel = config.linear_conv_kernel_dim
    [inputs], [states] = kept.conv_states.values(), kept.recurrent_states.values()
    assert inputs.shape[-1] == kernel  # one column more than the next step needs
    assert shape.layers[0].state_width == inputs.numel() // kernel * (kernel - 1) + states.numel()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, "no 'hidden_size'"),
        ({"num_hidden_layers": "4"}, "'num_hidden_layers' in config.json is '4'"),
        ({"num_hidden_layers": True}, "a whole number"),
        ({"layer_types": ["full_attention"]}, "as long as there are layers"),
        ({"layer_types": ["chunked_attention"] * 4}, "chunked_attention"),
        ({"tie_word_embeddings": 1}, "true or false"),
        ({"vocab_size": -1}, "from 1 to"),
        ({"num_hidden_layers": 10**12}, "from 1 to 10000"),
    ],
)
def test_setting_that_makes_no_sense_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        SPECS["qwen3"].adapter.load().read_shape(BASE | changes)


@pytest.mark.parametrize(
    ("family", "names"),
    [
        ("gemma3", {"sliding_window_pattern": "_sliding_window_pattern"}),
        ("gpt_oss", {"num_local_experts": "num_experts", "num_experts_per_tok": "experts_per_token"}),
    ],
)
def test_other_names_that_backends_read_are_read_here(family: str, names: dict[str, str]) -> None:
    adapter = SPECS[family].adapter.load()
    config = BASE | SLIDING | dict.fromkeys(names, 2)
    renamed = {names.get(name, name): value for name, value in config.items()}
    assert adapter.read_shape(renamed) == adapter.read_shape(config)


def test_tensor_of_nowhere_is_refused() -> None:
    adapter = SPECS["llama"].adapter.load()
    assert adapter.find_part("model.layers.17.mlp.up_proj.weight") == 17
    assert adapter.find_part("model.language_model.layers.3.mlp.up_proj.weight") == 3
    assert adapter.find_part("language_model.model.embed_tokens.weight") == "before"
    assert adapter.find_part("lm_head.weight") == "after"
    with pytest.raises(Unsupported, match="rotary"):
        adapter.find_part("rotary.inv_freq")


def test_summary_of_every_family_is_a_line() -> None:
    assert all(spec.summary and "\n" not in spec.summary for spec in SPECS.values())
    assert transformers.__version__
