"""The families that are written as GGUF files: their settings, and what is done to their tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import gguf
import torch

from parallax_core.api import Unsupported

Json = Mapping[str, Any]
HINT = "--for mlx writes it as a folder"


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """A family of models as llama.cpp has it."""

    name: str
    """The architecture."""
    turns: bool = False
    """Whether rope rotates neighbours there, so that rows of queries and keys change places."""
    scales: Mapping[str, str] = field(default_factory=dict)
    """Settings that are numbers, by their names in config.json."""


MULTIPLIERS = {
    "attention_multiplier": "attention.scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
}
KINDS: Mapping[str, Kind] = {
    "llama": Kind(name="llama", turns=True),
    "mistral": Kind(name="llama", turns=True),
    "qwen2": Kind(name="qwen2"),
    "qwen3": Kind(name="qwen3"),
    "smollm3": Kind(name="smollm3", turns=True),
    "granite": Kind(name="granite", turns=True, scales=MULTIPLIERS),
    "seed_oss": Kind(name="seed_oss"),
    "mixtral": Kind(name="llama", turns=True),
    "qwen3_moe": Kind(name="qwen3moe"),
    "gpt_oss": Kind(name="gpt-oss"),
}
"""By ``model_type``."""
WINDOWED = "gpt_oss"
"""The model in which every second layer has a window."""
ROPELESS_STEP = 4
"""Every how many layers llama.cpp leaves out rope in SmolLM3."""
PLAIN_ROPE = ("default", "linear", "yarn", "llama3")


def find_kind(config: Json) -> Kind:
    """Return the family of a model.

    Raises:
        Unsupported: if it is none of those that are written, or has a setting that is not.
    """
    name = str(config.get("model_type"))
    if name not in KINDS:
        raise Unsupported(f"models of the type {name!r} are not written as GGUF; {', '.join(KINDS)} are", HINT)
    act, rope = config.get("hidden_act", "silu"), read_rope(config).get("rope_type", "default")
    layers = range(config["num_hidden_layers"])
    without_rope = [int((layer + 1) % ROPELESS_STEP > 0) for layer in layers]
    by_turns = [("sliding_attention", "full_attention")[layer % 2] for layer in layers]
    reasons = {
        "with a sliding window": name != WINDOWED and has_window(name, config),
        "with windows elsewhere than in every second layer": name == WINDOWED
        and config.get("layer_types", by_turns) != by_turns,
        f"whose MLPs have {act}": act != "silu",
        "with layers without experts": config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1,
        "with other layers without rope than every fourth": name == "smollm3"
        and config.get("no_rope_layers", without_rope) != without_rope,
        f"with rope of the type {rope!r}": rope not in PLAIN_ROPE,
    }
    if reason := next((reason for reason, is_so in reasons.items() if is_so), None):
        raise Unsupported(f"a {name} {reason} is not written as GGUF", HINT)
    return KINDS[name]


def has_window(name: str, config: Json) -> bool:
    """Return whether some layers of a model look at the latest tokens only."""
    is_used = config.get("sliding_window") and config.get("use_sliding_window", name in {"mistral", "mixtral"})
    return bool(is_used) and "sliding_attention" in (config.get("layer_types") or ["sliding_attention"])


def read_rope(config: Json) -> dict[str, Any]:
    """Return the settings of rope, in whichever of its two forms config.json has them."""
    found = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    found.setdefault("rope_type", found.pop("type", "default"))
    found.setdefault("rope_theta", config.get("rope_theta", 10000.0))
    return found


def count_head(config: Json) -> int:
    """Return the numbers of a head."""
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def add_settings(writer: gguf.GGUFWriter, kind: Kind, config: Json) -> None:
    """Add the settings of a model."""
    heads, head = config["num_attention_heads"], count_head(config)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.get("num_key_value_heads") or heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_rope_dimension_count(head)
    rope = read_rope(config)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        trained = rope.get("original_max_position_embeddings") or config["max_position_embeddings"]
        writer.add_rope_scaling_orig_ctx_len(trained)
    add_experts(writer, config)
    for name, key in kind.scales.items():
        writer.add_float32(f"{kind.name}.{key}", config.get(name, 1.0))


def add_experts(writer: gguf.GGUFWriter, config: Json) -> None:
    """Add the settings of experts, and of the windows of gpt-oss, if a model has them."""
    if count := config.get("num_local_experts") or config.get("num_experts"):
        writer.add_expert_count(count)
        writer.add_expert_used_count(config["num_experts_per_tok"])
        size = "moe_intermediate_size" if config.get("model_type") == "qwen3_moe" else "intermediate_size"
        writer.add_expert_feed_forward_length(config[size])
    if config.get("model_type") == WINDOWED:
        writer.add_sliding_window(config["sliding_window"])


def make_tables(config: Json) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield what the frequencies of rope are divided by, if that is a table: as Llama 3 scales it."""
    rope = read_rope(config)
    if rope["rope_type"] != "llama3":
        return
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    width = count_head(config)
    waves = 2 * math.pi * rope["rope_theta"] ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
    share = ((rope["original_max_position_embeddings"] / waves - low) / (high - low)).clamp(0, 1)
    yield "rope_freqs.weight", (1 / ((1 - share) / rope["factor"] + share)).float()


def turn(kind: Kind, name: str, tensor: torch.Tensor, config: Json) -> torch.Tensor:
    """Return a tensor, by its name in transformers, with its rows in the order of llama.cpp."""
    module = name.rpartition(".")[0].rpartition(".")[2]
    if not kind.turns or module not in ("q_proj", "k_proj"):
        return tensor
    heads = config["num_attention_heads"]
    heads = heads if module == "q_proj" else config.get("num_key_value_heads") or heads
    return tensor.unflatten(0, (heads, 2, -1)).transpose(1, 2).reshape(tensor.shape)
