"""The architectures of GGUF files that tests make models of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.support.checkpoints import THETA

LLAMA3 = THETA | {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
EVEN = {"num_hidden_layers": 5, "intermediate_size": 64, "moe_intermediate_size": 32}
"""Sizes of whole blocks."""


@dataclass(frozen=True, kw_only=True)
class Kin:
    """An architecture, with a model of it."""

    family: str
    """The kind of model of `checkpoints`."""
    name: str
    """As llama.cpp names it."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    turns: bool = False
    """Whether llama.cpp rotates neighbours, and its conversion moves rows of queries and keys."""
    adds_1: bool = False
    """Whether its conversion adds 1 to norms."""


FULL5 = ["full_attention"] * 5
PARTIAL = THETA | {"partial_rotary_factor": 0.5}
LONG = THETA | {
    "rope_type": "longrope",
    "long_factor": [1.5, 2.5],
    "short_factor": [1.0, 1.25],
    "original_max_position_embeddings": 64,
    "partial_rotary_factor": 0.5,
}
YARN = THETA | {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
GROUPS = {"moe_intermediate_size": 32}
KIN = (
    Kin(family="llama", name="llama", changes={"rope_parameters": LLAMA3, "attention_bias": True}, turns=True),
    Kin(family="mistral", name="llama", changes={"sliding_window": None}, turns=True),
    Kin(family="mixtral", name="llama", changes={"sliding_window": None}, turns=True),
    Kin(family="qwen2", name="qwen2", changes={"rope_parameters": YARN, "use_sliding_window": False}),
    Kin(family="qwen3", name="qwen3"),
    Kin(family="qwen2_moe", name="qwen2moe", changes={"mlp_only_layers": [], "shared_expert_intermediate_size": 64}),
    Kin(family="qwen3_moe", name="qwen3moe"),
    Kin(
        family="gemma2",
        name="gemma2",
        changes={"layer_types": [*["sliding_attention", "full_attention"] * 2, "sliding_attention"]},
        adds_1=True,
    ),
    Kin(
        family="gemma3_text",
        name="gemma3",
        changes={
            "layer_types": ["sliding_attention"] * 5,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
        adds_1=True,
    ),
    Kin(
        family="phi3", name="phi3", changes={"rope_parameters": LONG, "partial_rotary_factor": 0.5, "sliding_window": 8}
    ),
    Kin(family="granite", name="granite", turns=True),
    Kin(
        family="olmo3",
        name="olmo2",
        changes={"layer_types": FULL5, "sliding_window": None, "rope_parameters": {"full_attention": THETA}},
    ),
    Kin(family="smollm3", name="smollm3", changes={"no_rope_layers": [1, 1, 1, 0, 1]}, turns=True),
    Kin(family="glm4", name="glm4"),
    Kin(family="deepseek_v2", name="deepseek2", changes=GROUPS | {"topk_method": "greedy", "n_group": 1}),
    Kin(family="deepseek_v3", name="deepseek2", changes=GROUPS),
    Kin(
        family="gpt_oss",
        name="gpt-oss",
        changes={"layer_types": [*["sliding_attention", "full_attention"] * 2, "sliding_attention"]},
    ),
    Kin(
        family="exaone4",
        name="exaone4",
        changes={"layer_types": [*["sliding_attention"] * 3, "full_attention", "sliding_attention"]},
    ),
    Kin(family="ernie4_5", name="ernie4_5"),
    Kin(family="ernie4_5_moe", name="ernie4_5-moe", changes={"moe_layer_end_index": 4}),
    Kin(family="hunyuan_v1_dense", name="hunyuan-dense"),
    Kin(family="lfm2", name="lfm2", changes={"block_auto_adjust_ff_dim": False}),
    Kin(family="seed_oss", name="seed_oss"),
)
