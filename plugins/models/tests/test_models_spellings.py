"""A config.json with the names of its authors, or of older releases of transformers, gives the same model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parallax_core.api import Unsupported
from parallax_models import minimax_m3
from tests.support.checkpoints import SLIDING, THETA
from tests.support.families import TOLERANCES, Family, Trial, run_chunks
from tests.support.published import spell_step, unwrap
from tests.support.torch_backend import TorchBackend

Json = dict[str, Any]
LONG = {
    "long_factor": [2.0, 3.0, 5.0, 9.0],
    "original_max_position_embeddings": 64,
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.3, 1.6],
}
LONG_PHI: Json = {
    "original_max_position_embeddings": 64,
    "rope_parameters": THETA | LONG,
    "sliding_window": None,
}
LLAMA3 = {"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 32}
YARN = {"factor": 4.0, "original_max_position_embeddings": 64, "rope_type": "yarn"}
WARM = {"rope_parameters": THETA | YARN | {"mscale": 0.7, "mscale_all_dim": 1.3}}
HALF = {"rope_parameters": THETA | {"partial_rotary_factor": 0.5}}
TIED = {"tie_word_embeddings": True}
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def scale_rope(config: Json) -> Json:
    """Return settings with rope as before transformers 5."""
    rope = dict(config["rope_parameters"])
    kept = {name: value for name, value in config.items() if name != "rope_parameters"}
    kept |= {name: rope.pop(name) for name in ("rope_theta", "partial_rotary_factor") if name in rope}
    kind = rope.pop("rope_type", "default")
    return kept | {"rope_scaling": None if kind == "default" else {"type": kind, **rope}}


def spell_minimax(config: Json) -> Json:
    """Return the settings of MiniMax-M3 with the names of its authors."""
    indexed = [int(kind != "full_attention") for kind in config["layer_types"]]
    sparse = {old: config[new] for old, new in minimax_m3.NAMES.items()} | {"sparse_attention_freq": indexed}
    gone = {*minimax_m3.NAMES.values(), "layer_types", "mlp_layer_types"}
    found = {name: value for name, value in config.items() if name not in gone}
    flags = [int(kind == "sparse") for kind in config["mlp_layer_types"]]
    return found | {"moe_layer_freq": flags, "sparse_attention_config": sparse}


def spell_gemma3(config: Json) -> Json:
    """Return the settings of Gemma 3 with a base for each kind of layer."""
    ropes = config["rope_parameters"]
    full = {name: value for name, value in ropes["full_attention"].items() if name != "rope_theta"}
    return {name: value for name, value in config.items() if name != "rope_parameters"} | {
        "rope_local_base_freq": ropes["sliding_attention"]["rope_theta"],
        "rope_scaling": full,
        "rope_theta": ropes["full_attention"]["rope_theta"],
    }


def spell_nemotron(config: Json) -> Json:
    """Return the settings of Nemotron-H with a letter for each layer."""
    letters = {"linear_attention": "M", "full_attention": "*", "mlp": "-", "moe": "E"}
    kinds = config["layers_block_type"]
    kept = {name: value for name, value in config.items() if name != "layers_block_type"}
    return kept | {"hybrid_override_pattern": "".join(letters[kind] for kind in kinds)}


def spell_gemma4(config: Json) -> Json:
    """Return the settings of Gemma 4 with a width for layers that see everything, in a model that sees."""
    text = {name: value for name, value in config.items() if name not in {"architectures", "per_layer_config"}}
    text["global_head_dim"] = 16
    return {"architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4", "text_config": text}


CASES: dict[str, tuple[str, Json, Callable[[Json], Json]]] = {
    "gemma 3 before transformers 5": ("gemma3_text", {}, spell_gemma3),
    "gemma 4 as published": ("gemma4_text", {}, spell_gemma4),
    "glm before transformers 5": ("glm4_moe", {}, scale_rope),
    "gpt-oss before transformers 5": ("gpt_oss", {}, scale_rope),
    "latents before transformers 5": ("deepseek_v3", {}, scale_rope),
    "latents whose norms have an eps of their own": ("glm_moe_dsa", {"rms_norm_eps": 0.01}, dict),
    "linear": ("llama", {"rope_parameters": THETA | {"factor": 4.0, "rope_type": "linear"}}, scale_rope),
    "llama 3": ("llama", {"rope_parameters": THETA | LLAMA3 | {"rope_type": "llama3"}}, scale_rope),
    "minimax as published": (
        "minimax_m3_vl",
        {},
        lambda config: spell_minimax(unwrap(config, "MiniMaxM3VLForCausalLM")),
    ),
    "minimax wrapped": (
        "minimax_m3_vl",
        {},
        lambda config: {**config, "text_config": spell_minimax(config["text_config"])},
    ),
    "nemotron with letters": ("nemotron_h", {}, spell_nemotron),
    "phi with longrope": ("phi3", LONG_PHI, dict),
    "phi before transformers 5": ("phi3", LONG_PHI, scale_rope),
    "qwen 3.5 without eyes": ("qwen3_5", {}, lambda config: unwrap(config, "Qwen3_5ForCausalLM")),
    "step as published": ("step3p7", {}, lambda config: spell_step(unwrap(config, "Step3p5ForCausalLM"))),
    "step wrapped": ("step3p7", {}, lambda config: {**config, "text_config": spell_step(config["text_config"])}),
    "a head that is not tied, whatever is said": ("kimi_linear", TIED, dict),
    "a head that is not tied, in nemotron": ("nemotron_h", TIED, dict),
    "a share of heads that is not read": ("llama", HALF, dict),
    "a share of heads that is not read, before transformers 5": ("mistral", HALF, scale_rope),
    "a share of heads that is not read, of windows": (
        "olmo3",
        {"rope_parameters": dict.fromkeys(SLIDING, HALF["rope_parameters"])},
        dict,
    ),
    "a range of yarn that is not read": (
        "olmo3",
        {"rope_parameters": dict.fromkeys(SLIDING, THETA | YARN | {"truncate": False, "beta_fast": 8.0})},
        dict,
    ),
    "yarn where no position is known": ("kimi_linear", WARM, dict),
    "yarn where no position is known, between streams": ("glm5_next", WARM, dict),
    "yarn whose scores are warmer": ("hy_v4", WARM, dict),
    "yarn of a share of heads": (
        "minimax_m3_vl",
        {"rope_parameters": THETA | YARN | {"partial_rotary_factor": 0.5}},
        dict,
    ),
    "yarn, and a width that is not read": ("minimax_m3_vl", {"rope_parameters": THETA | YARN}, dict),
    "yarn": ("qwen2", {"rope_parameters": THETA | YARN}, scale_rope),
}
"""A model type, changes to its settings, and how they were spelled."""


@pytest.mark.parametrize("case", CASES)
def test_settings_in_other_words_give_the_same_model(case: str, tmp_path: Path) -> None:
    kind, changes, spell = CASES[case]
    family = Family(kind, tmp_path, TorchBackend(), **changes)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(spell(json.loads(path.read_text()))))
    with family.open_chain((2,)) as chain:
        run_chunks(trial := Trial(family, chain), 40, 7)
        assert trial.find_error() < TOLERANCES.get(kind, 1e-4)


def test_context_of_longrope_ends_where_its_factors_change(tmp_path: Path) -> None:
    family = Family("phi3", tmp_path, TorchBackend(), **LONG_PHI)
    with family.open_chain(()) as chain:
        assert chain.first.context_length == 64


@pytest.mark.parametrize(
    ("rope", "words"),
    [
        ({"rope_type": "linear"}, "no 'factor'"),
        ({"rope_type": "yarn"}, "no 'factor'"),
        ({"rope_type": "llama3", "factor": 8.0}, "no 'low_freq_factor'"),
        ({"rope_type": "longrope", "short_factor": [1.0]}, "'short_factor' of the rope"),
        ({"rope_type": "dynamic", "factor": 2.0}, "type 'dynamic'"),
        ({"partial_rotary_factor": []}, r"'partial_rotary_factor' of the rope in config.json is \[\], not"),
        ({"partial_rotary_factor": 10**9}, "'partial_rotary_factor' of the rope in config.json is 1000000000, above 1"),
        ({"rope_theta": 10**400}, "'rope_theta' of the rope"),
    ],
)
def test_rope_with_a_setting_that_is_missing_or_wrong_is_refused_by_its_name(
    rope: Json, words: str, tmp_path: Path
) -> None:
    family = Family("phi3", tmp_path, TorchBackend())
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rope_parameters": THETA | rope}))
    with pytest.raises(Unsupported, match=words):
        family.open_chain(())


def test_heads_that_the_checkpoint_does_not_have_are_refused(tmp_path: Path) -> None:
    family = Family("ernie4_5", tmp_path, TorchBackend())
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_key_value_heads": None}))
    with pytest.raises(Unsupported, match=r"have 64 rows, and by .* 'num_key_value_heads' .* 96"):
        family.open_chain(())
