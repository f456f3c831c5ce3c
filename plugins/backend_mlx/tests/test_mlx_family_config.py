"""Settings that model files of mlx-lm lack, or need: read as transformers means them, or refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from parallax_backend_mlx.backend import MlxBackend
from parallax_backend_mlx.family_config import fill_family, translate_family
from parallax_core.api import LayerRange, ParallaxError, StagePlan, Unsupported
from tests.support.checkpoints import REGULAR, save_family
from tests.support.families import TOLERANCE, Family, Trial, run_chunks, run_ragged

LINEAR, FULL, SLIDING = "linear_attention", "full_attention", "sliding_attention"
TRANSLATED = (
    *("deepseek_v2", "exaone4", "gemma4_moe", "gemma4_text", "glm_moe_dsa", "granitemoehybrid", "lfm2", "minimax_m2"),
    *("kimi_linear", "mistral3", "nemotron_h", "olmo3", "qwen3_5", "qwen3_5_moe_text", "qwen3_5_text"),
    *("step3p5", "step3p7"),
)
"""Families whose settings are translated."""


@pytest.mark.parametrize("kind", TRANSLATED)
def test_logits_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    family = Family(kind, tmp_path, MlxBackend(), **REGULAR.get(kind, {}))
    for cuts in ((), (family.legal[0], family.legal[-1])):
        with family.open_chain(cuts) as chain:
            run_chunks(trial := Trial(family, chain), 20, 7)
            run_ragged(trial, 30)
            assert trial.find_error() < TOLERANCE


@pytest.mark.parametrize(
    ("config", "changes"),
    [
        (
            {"model_type": "minimax_m2", "head_dim": 8, "partial_rotary_factor": 0.5},
            {"rotary_dim": 4, "shared_intermediate_size": 0},
        ),
        ({"model_type": "minimax_m2", "head_dim": 8, "rotary_dim": 2, "shared_intermediate_size": 6}, {}),
        ({"model_type": "exaone4", "layer_types": [SLIDING, FULL]}, {"sliding_window_pattern": "LG"}),
        ({"model_type": "exaone4", "layer_types": [FULL, FULL]}, {}),
        ({"model_type": "glm4_moe_lite", "mlp_layer_types": ["dense", "sparse"]}, {"first_k_dense_replace": 1}),
        ({"model_type": "qwen3_next", "layer_types": [LINEAR, LINEAR, FULL]}, {"full_attention_interval": 3}),
        ({"model_type": "qwen3_next", "layer_types": [LINEAR, LINEAR]}, {"full_attention_interval": 3}),
        ({"model_type": "llama", "layer_types": [SLIDING]}, {}),
        ({"model_type": "lfm2", "hidden_size": 8, "intermediate_size": 9}, {"block_dim": 8, "block_ff_dim": 9}),
        ({"model_type": "lfm2", "hidden_size": 8, "block_dim": 7}, {}),
        (
            {"model_type": "granitemoehybrid", "layer_types": [LINEAR, FULL]},
            {"layer_types": ["mamba", "attention"], "position_embedding_type": "nope"},
        ),
        ({"model_type": "granitemoehybrid", "position_embedding_type": "rope"}, {}),
        (
            {"model_type": "glm_moe_dsa", "scoring_func": "softmax", "topk_method": "greedy"},
            {"moe_layer_freq": 1},
        ),
        ({"model_type": "nemotron_h", "rope_parameters": {"rope_theta": 5.0}}, {"rope_parameters": None}),
        (
            {
                "model_type": "gemma4_text",
                "head_dim": 8,
                "layer_types": [SLIDING, FULL],
                "per_layer_config": {"1": {"head_dim": 16, "num_key_value_heads": 1}},
            },
            {"global_head_dim": 16, "num_global_key_value_heads": 1},
        ),
        ({"model_type": "gemma4_text", "head_dim": 8, "global_head_dim": 4}, {}),
        (
            {"model_type": "kimi_linear", "layer_types": [LINEAR, FULL, LINEAR], "linear_head_dim": 8},
            {"linear_attn_config": {"head_dim": 8, "num_heads": 32, "full_attn_layers": [2], "kda_layers": [1, 3]}},
        ),
        ({"model_type": "kimi_linear", "layer_types": [LINEAR], "linear_attn_config": {"kda_layers": [1]}}, {}),
        (
            {
                "model_type": "step3p5",
                "layer_types": [SLIDING, FULL],
                "num_hidden_layers": 4,
                "num_key_value_heads": 2,
                "num_sliding_attention_heads": 6,
                "rope_parameters": {
                    FULL: {"rope_type": "llama3", "rope_theta": 5.0, "partial_rotary_factor": 0.5},
                    SLIDING: {"rope_theta": 3.0},
                },
            },
            {
                "attention_other_setting": {"num_attention_groups": 2, "num_attention_heads": 6},
                "moe_layers_enum": "3",
                "num_attention_groups": 2,
                "partial_rotary_factors": [1.0, 0.5],
                "rope_parameters": None,
                "rope_scaling": {"rope_type": "llama3", "rope_theta": 5.0, "partial_rotary_factor": 0.5},
                "rope_theta": [3.0, 5.0],
                "yarn_only_types": [FULL],
            },
        ),
        ({"model_type": "step3p5", "moe_layers_enum": "1", "rope_theta": [5.0]}, {}),
        ({"model_type": "llama4_text", "layer_types": [FULL], "interleave_moe_layer_step": 0}, {}),
        (
            {"model_type": "x", "text_config": {"model_type": "qwen3_5_text", "layer_types": [LINEAR, FULL]}},
            {
                "text_config": {
                    "model_type": "qwen3_5_text",
                    "layer_types": [LINEAR, FULL],
                    "full_attention_interval": 2,
                }
            },
        ),
    ],
)
def test_settings_of_a_family_are_said_as_mlx_lm_reads_them(config: dict[str, Any], changes: dict[str, Any]) -> None:
    assert translate_family(config) == changes


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "qwen3_5_text", "layer_types": [FULL, LINEAR, FULL]}, "layer_types of qwen3_5_text"),
        ({"model_type": "glm4_moe_lite", "mlp_layer_types": ["sparse", "dense"]}, "mlp_layer_types of glm4_moe_lite"),
        ({"model_type": "glm_moe_dsa", "indexer_types": ["full", "shared"]}, "indexer_types of glm_moe_dsa"),
        ({"model_type": "granitemoehybrid", "mamba_n_groups": 2}, "mamba_n_groups of granitemoehybrid is 2"),
        ({"model_type": "step3p5", "head_dim": 8, "query_pre_attn_scalar": 9}, "query_pre_attn_scalar of step3p5"),
        ({"model_type": "falcon_h1", "key_multiplier": 0.5}, "key_multiplier of falcon_h1 is 0.5"),
        ({"model_type": "falcon_h1", "mamba_rms_norm": True, "mamba_n_groups": 2}, "mamba_n_groups of falcon_h1 is 2"),
        (
            {"model_type": "kimi_linear", "layer_types": [LINEAR], "linear_lower_bound": -5.0},
            "linear_lower_bound of kimi",
        ),
        ({"model_type": "llama4_text"}, "by moe_layers, this llama4_text has layers with experts"),
        (
            {"model_type": "llama4_text", "layer_types": ["chunked_attention"], "interleave_moe_layer_step": 0},
            "by layer_types, this llama4_text has layers that attend within chunks",
        ),
        ({"model_type": "qwen2_moe", "mlp_only_layers": [1]}, "by mlp_only_layers of qwen2_moe"),
        ({"model_type": "qwen2_moe", "decoder_sparse_step": 2}, "by decoder_sparse_step of qwen2_moe"),
        (
            {
                "model_type": "gemma4_text",
                "layer_types": [SLIDING, FULL],
                "per_layer_config": {"0": {"head_dim": 16}},
            },
            "per_layer_config of gemma4_text differs",
        ),
    ],
)
def test_settings_without_a_counterpart_are_refused(config: dict[str, Any], words: str) -> None:
    with pytest.raises(Unsupported, match=words):
        translate_family(config)


def test_rope_that_is_not_scaled_is_a_scaling_that_changes_nothing() -> None:
    assert fill_family({"model_type": "deepseek_v2"})["rope_scaling"]["factor"] == 1
    assert fill_family({"model_type": "deepseek_v2", "rope_scaling": {"factor": 2}}) == {}


def test_temperature_that_mlx_lm_does_not_compute_is_refused(tmp_path: Path) -> None:
    save_family("olmo3", tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config["rope_parameters"]["full_attention"]["attention_factor"] = 1.5
    path.write_text(json.dumps(config))
    with pytest.raises(Unsupported, match=r"attention_factor, which is 1\.5 in olmo3"):
        MlxBackend().open_stage(StagePlan(model=tmp_path))


@pytest.mark.parametrize(
    ("kind", "place", "value"),
    [
        ("gemma4_text", ("num_kv_shared_layers",), -1),
        ("step3p7", ("text_config", "rope_parameters", "full_attention"), "x"),
        ("step3p7", ("text_config", "mlp_layer_types"), 7),
    ],
)
def test_settings_that_make_no_sense_are_refused(kind: str, place: tuple[str, ...], value: Any, tmp_path: Path) -> None:
    save_family(kind, tmp_path)
    for path in tmp_path.glob("*.safetensors"):
        path.unlink()
    table = config = json.loads((tmp_path / "config.json").read_text())
    for name in place[:-1]:
        table = table[name]
    table[place[-1]] = value
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ParallaxError, match=r"config\.json"):
        MlxBackend().check_model(StagePlan(model=tmp_path, layers=LayerRange(0, 2)))
