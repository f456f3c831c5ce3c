"""What transformers writes into config.json reaches mlx-lm, or is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from parallax_backend_mlx.checkpoint import read_checkpoint, read_json
from parallax_backend_mlx.config import normalise
from parallax_backend_mlx.loading import load_network
from parallax_backend_mlx.model_file import find_classes, list_fields
from parallax_backend_mlx.window import limit_context
from parallax_core.api import StagePlan, Unsupported

PLAIN = frozenset(["rope_theta", "rope_scaling", "partial_rotary_factor", "tie_word_embeddings"])
NATIVE = PLAIN | {"rope_parameters"}
GEMMA = PLAIN | {"rope_local_base_freq", "sliding_window_pattern"}
THETA = {"rope_theta": 5e5, "rope_type": "default"}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
NESTED = {"full_attention": {"rope_theta": 1e6, "rope_type": "default"}, "sliding_attention": {"rope_theta": 1e4}}

CASES: list[tuple[dict[str, Any], frozenset[str], dict[str, Any]]] = [
    ({}, PLAIN, {}),
    ({"rope_theta": 5e5}, PLAIN, {}),
    ({"rope_parameters": None, "rope_theta": 5e5}, PLAIN, {}),
    ({"rope_parameters": THETA}, PLAIN, {"rope_theta": 5e5, "rope_scaling": None}),
    ({"rope_parameters": THETA, "rope_theta": 1e4}, PLAIN, {"rope_theta": 5e5, "rope_scaling": None}),
    ({"rope_parameters": {"rope_theta": 5e5}}, PLAIN, {"rope_theta": 5e5, "rope_scaling": None}),
    ({"rope_parameters": {"rope_theta": 1e4}}, frozenset(), {}),
    ({"rope_parameters": {"rope_theta": 5e5}}, frozenset(["rotary_emb_base"]), {"rotary_emb_base": 5e5}),
    (
        {"rope_parameters": {**THETA, "partial_rotary_factor": 0.5}},
        PLAIN,
        {"rope_theta": 5e5, "partial_rotary_factor": 0.5, "rope_scaling": None},
    ),
    (
        {"rope_parameters": {**LLAMA3, "rope_theta": 5e5}, "max_position_embeddings": 4096},
        PLAIN,
        {
            "rope_theta": 5e5,
            "rope_scaling": {**LLAMA3, "type": "llama3", "original_max_position_embeddings": 4096},
        },
    ),
    (
        {"rope_parameters": {"type": "linear", "factor": 2.0}},
        PLAIN,
        {"rope_scaling": {"type": "linear", "rope_type": "linear", "factor": 2.0}},
    ),
    (
        {"rope_parameters": {**THETA, "mrope_section": [2, 3, 3]}},
        PLAIN,
        {
            "rope_theta": 5e5,
            "rope_scaling": {"rope_type": "default", "type": "default", "mrope_section": [2, 3, 3]},
        },
    ),
    ({"rope_parameters": THETA}, NATIVE, {"rope_theta": 5e5}),
    ({"rope_parameters": THETA, "rope_theta": 1.0}, NATIVE, {}),
    ({"rope_parameters": NESTED}, NATIVE, {}),
    (
        {"rope_parameters": {"full_attention": THETA, "sliding_attention": THETA}},
        PLAIN,
        {"rope_parameters": None, "rope_theta": 5e5, "rope_scaling": None},
    ),
    (
        {"rope_parameters": NESTED, "model_type": "gemma3_text"},
        GEMMA,
        {"rope_theta": 1e6, "rope_scaling": None, "rope_local_base_freq": 1e4},
    ),
    (
        {"layer_types": ["sliding_attention", "full_attention"] * 3, "model_type": "gemma3_text"},
        GEMMA,
        {"sliding_window_pattern": 2},
    ),
    ({"num_local_experts": 8}, PLAIN | {"num_experts"}, {"num_experts": 8}),
]

REFUSED: list[tuple[dict[str, Any], frozenset[str], str]] = [
    ({"rope_parameters": NESTED, "model_type": "olmo3"}, PLAIN, "differ between layer types"),
    ({"rope_parameters": {"rope_type": "spiral"}}, PLAIN, "spiral"),
    ({"rope_parameters": THETA}, frozenset(), "rope_theta 500000"),
    ({"rope_parameters": {**THETA, "partial_rotary_factor": 0.5}}, frozenset(["rope_theta"]), "partial_rotary_factor"),
    ({"rope_parameters": LLAMA3}, frozenset(["rope_theta"]), "llama3"),
    ({"rope_parameters": THETA, "rope_scaling": {"type": "linear", "factor": 2.0}}, PLAIN, "differ"),
    ({"rope_parameters": LLAMA3, "rope_scaling": {**LLAMA3, "factor": 4.0}}, PLAIN, "differ"),
    (
        {
            "rope_parameters": {"full_attention": THETA, "sliding_attention": {"rope_type": "linear", "factor": 2.0}},
            "model_type": "gemma3_text",
        },
        GEMMA,
        "gemma3_text",
    ),
    (
        {"layer_types": ["full_attention", "full_attention", "sliding_attention"], "model_type": "gemma3_text"},
        GEMMA,
        "no period",
    ),
    ({"rope_parameters": "x"}, PLAIN, "'rope_parameters' in config.json is 'x'"),
    ({"quantization_config": ["gguf"]}, PLAIN, "'quantization_config' in config.json is"),
    ({"model_type": "llama", "hidden_act": "gelu"}, PLAIN, "hidden_act of this model is 'gelu'"),
    ({"model_type": "gemma2", "hidden_activation": "silu"}, PLAIN, "computes gelu_pytorch_tanh"),
]


@pytest.mark.parametrize(("config", "fields", "changes"), CASES)
def test_config_is_said_in_the_words_of_mlx_lm(
    config: dict[str, Any], fields: frozenset[str], changes: dict[str, Any]
) -> None:
    config = {"tie_word_embeddings": True} | config
    assert normalise(config, fields, frozenset()) == changes
    inner = normalise({"text_config": config}, fields, frozenset())
    assert inner == ({"text_config": config | changes} if changes else {})


@pytest.mark.parametrize(("config", "fields", "words"), REFUSED)
def test_config_without_certain_meaning_is_refused(config: dict[str, Any], fields: frozenset[str], words: str) -> None:
    with pytest.raises(Unsupported, match=words) as caught:
        normalise(config, fields, frozenset())
    assert caught.value.hint
    with pytest.raises(Unsupported, match=words):
        normalise({"text_config": config}, fields, frozenset())


def test_activation_that_is_computed_or_read_is_taken() -> None:
    config = {"model_type": "llama", "hidden_act": "silu", "tie_word_embeddings": True}
    assert normalise(config, PLAIN, frozenset()) == {}
    assert normalise(config | {"hidden_act": "gelu"}, PLAIN | {"hidden_act"}, frozenset()) == {}


def test_model_with_a_head_of_its_own_is_not_tied() -> None:
    assert normalise({}, PLAIN, frozenset(["lm_head.weight"])) == {"tie_word_embeddings": False}
    assert normalise({}, PLAIN, frozenset()) == {"tie_word_embeddings": True}
    assert normalise({"tie_word_embeddings": True}, PLAIN, frozenset(["lm_head.weight"])) == {}


def test_theta_reaches_the_rotary_embedding_of_the_loaded_model(llama: Path) -> None:
    config = read_json(llama / "config.json")
    assert "rope_theta" not in config
    model_slice, _ = load_network(StagePlan(model=llama), read_checkpoint(llama).tensors)
    assert model_slice.model.layers[0].self_attn.rope.base == config["rope_parameters"]["rope_theta"] == 250.0


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen2", "qwen3", "gemma3_text", "qwen3_moe", "smollm3"])
def test_known_architectures_read_their_theta(name: str) -> None:
    assert "rope_theta" in list_fields({"model_type": name})


def test_text_part_of_a_larger_model_is_looked_into() -> None:
    assert "rope_local_base_freq" in list_fields({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}})


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "nosuch"}, "'nosuch'"),
        ({"model_type": "cache.sub"}, "'cache.sub'"),
        ({}, "'None'"),
        ({"model_type": "llama", "model_file": "mine.py"}, "mine.py"),
        ({"model_type": "phi3small"}, "crashes on .*'phi3small'"),
        ({"model_type": "olmo"}, "model file 'olmo' needs what is not installed"),
    ],
)
def test_unknown_architecture_is_named(config: dict[str, Any], words: str) -> None:
    with pytest.raises(Unsupported, match=words):
        find_classes(config)


def test_architecture_is_found_by_its_other_names() -> None:
    assert find_classes({"model_type": "mistral"})[0].__module__ == "mlx_lm.models.llama"
    special = {"model_type": "bailing_hybrid", "architectures": "BailingMoeV3ForCausalLM"}
    assert find_classes(special)[0].__module__ == "mlx_lm.models.bailing_moe_v3"


SLIDE, FULL = "sliding_attention", "full_attention"


@pytest.mark.parametrize(
    ("config", "slides", "length"),
    [
        ({}, [False, False], 100),
        ({"sliding_window": None}, [False, False], 100),
        ({"sliding_window": 8}, [False, False], 8),
        ({"sliding_window": 200}, [False, False], 100),
        ({"sliding_window": 8, "use_sliding_window": False}, [False, False], 100),
        ({"sliding_window": 8, "layer_types": [FULL, FULL]}, [False, False], 100),
        ({"sliding_window": 8, "layer_types": [SLIDE, FULL]}, [False, False], 8),
        ({"sliding_window": 8, "layer_types": [SLIDE, FULL]}, [True, False], 100),
    ],
)
def test_context_ends_where_an_ignored_window_would_begin(
    config: dict[str, Any], slides: list[bool], length: int
) -> None:
    assert limit_context(config, slides, 100) == length


def test_windows_in_other_layers_are_refused() -> None:
    with pytest.raises(Unsupported, match="sliding windows"):
        limit_context({"sliding_window": 8, "layer_types": [SLIDE, FULL]}, [False, True], 100)
