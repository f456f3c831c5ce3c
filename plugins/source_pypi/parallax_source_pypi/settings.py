"""Reads the settings of a model from a GGUF file, under the names of config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from parallax_formats.gguf import Fields, GgufFile, damaged
from parallax_source_pypi.architectures import ARCHITECTURES, NAMES
from parallax_source_pypi.errors import refuse
from parallax_source_pypi.rope import ROPE_KEYS, read_rope
from parallax_source_pypi.rows import Architecture

Json = dict[str, object]
COMMON = frozenset(
    [
        *("attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length"),
        *("attention.layer_norm_rms_epsilon", "block_count", "context_length", "embedding_length"),
        *("expert_count", "expert_used_count", "expert_feed_forward_length", "feed_forward_length", "vocab_size"),
        *ROPE_KEYS,
    ]
)
"""Settings that every architecture may have. Any that is not known might change the result, so it is refused."""
WINDOWS = ("attention.sliding_window", "attention.sliding_window_pattern")
FULL, SLIDING = "full_attention", "sliding_attention"
LARGE = {"gemma2": 46, "gemma3": 62}
"""The layers of the largest models of Gemma, where the width scales the scores, and not that of a head."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a model."""

    architecture: Architecture
    sizes: Mapping[str, int]
    """The sizes of tensors, by the names in `architectures`, and the number of ``layers``."""
    config: Json
    """The entries of config.json, but for those of the tokenizer and of dtypes."""


class Model:
    """A GGUF file, with typed access to the settings of its architecture.

    Raises:
        Unsupported: if the architecture is not known, or has a setting that is not.
    """

    def __init__(self, fields: Fields, file: GgufFile) -> None:
        self.fields, self.file = fields, file
        self.name = fields.text("general.architecture")
        if self.name not in NAMES:
            raise refuse(f"a GGUF model of the architecture {self.name!r}")
        self.architecture = ARCHITECTURES[self._choose()]
        one = self.architecture
        known = COMMON | one.settings.keys() | one.optional.keys() | set(one.spare)
        known |= set(WINDOWS if one.period else ())
        for key in fields.keys(f"{self.name}."):
            if key.removeprefix(f"{self.name}.") not in known:
                raise refuse(f"a {self.name} with the setting {key!r}")

    def _choose(self) -> str:
        """Return the key of `ARCHITECTURES`."""
        if self.name == "llama" and self.fields.integer("llama.expert_count", 0):
            return "llama with experts"
        if self.name == "deepseek2" and any(name.endswith("exp_probs_b.bias") for name in self.file.tensors):
            return "deepseek2 with corrections"
        return self.name

    def key(self, name: str) -> str:
        """Return a key of the architecture."""
        return f"{self.name}.{name}"

    def has(self, name: str) -> bool:
        """Whether the architecture has a setting."""
        return self.key(name) in self.fields

    def count(self, name: str, default: int | None = None) -> int:
        """Return a setting of at least 1."""
        return self.fields.count(self.key(name), default)

    def counts(self, name: str) -> list[int]:
        """Return a setting that may be one number for all layers, or one for each."""
        if isinstance(self.fields.value(self.key(name)), list):
            return self.fields.integers(self.key(name))
        return [self.fields.integer(self.key(name))]


def read_settings(fields: Fields, file: GgufFile) -> Settings:
    """Read the settings.

    Raises:
        Unsupported: if the model is of no known architecture, or has a setting that is not understood.
        ParallaxError: if a value is missing or invalid.
    """
    model = Model(fields, file)
    sizes = read_sizes(model)
    one = model.architecture
    config: Json = {
        "architectures": [one.model_class],
        "head_dim": sizes["head"],
        "hidden_act": "silu",
        "hidden_size": sizes["hidden"],
        "intermediate_size": sizes["inner"],
        "max_position_embeddings": model.count("context_length"),
        "model_type": one.model_type,
        "num_attention_heads": sizes["heads"],
        "num_hidden_layers": sizes["layers"],
        "num_key_value_heads": sizes["keys"] // sizes["head"],
        "rms_norm_eps": fields.real(model.key("attention.layer_norm_rms_epsilon")),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "use_cache": True,
        "vocab_size": sizes["vocab"],
        **one.fixed,
        **{flag: f"blk.0.{tensor}" in file.tensors for flag, tensor in one.flags.items()},
    }
    for source, target in {**one.settings, **one.optional}.items():
        if source in one.settings or model.has(source):
            config[target] = read_value(model, source)
    config |= read_windows(model, sizes)
    config |= read_rope(model, sizes, config)
    for change in CHANGES.get(model.name, ()):
        config |= change(model, sizes)
    return Settings(one, sizes, config)


def read_value(model: Model, name: str) -> object:
    """Return a setting that is a number, or true or false."""
    value = model.fields.value(model.key(name))
    return value if isinstance(value, bool) else model.fields.number(model.key(name))


def read_sizes(model: Model) -> dict[str, int]:
    """Return the sizes of the tensors, checked to fit together."""
    heads, hidden = model.count("attention.head_count"), model.count("embedding_length")
    kv_heads = max(model.counts("attention.head_count_kv")) if model.has("attention.head_count_kv") else heads
    head = model.count("attention.key_length", max(1, hidden // heads))
    vocab = len(model.fields.texts("tokenizer.ggml.tokens"))
    inner = max(model.counts("feed_forward_length")) if model.has("feed_forward_length") else 0
    layers = model.count("block_count")
    if layers > len(model.file.tensors):
        raise damaged(f"it has no tensors for {layers} layers")
    if head % 2 or kv_heads < 1 or heads % kv_heads:
        raise damaged(f"{heads} heads over {kv_heads} key heads of size {head} do not fit together")
    if model.name != "deepseek2" and model.count("attention.value_length", head) != head:
        raise refuse(f"a {model.name} whose {model.key('attention.value_length')!r} is not its head size {head}")
    if model.count("vocab_size", vocab) != vocab:
        raise damaged(f"{model.key('vocab_size')!r} is not the number of its tokens, {vocab}")
    expert = model.count("expert_feed_forward_length", inner or 1)
    return {
        "both": 2 * inner,
        "expert": expert,
        "experts": model.count("expert_count") if model.has("expert_count") else 0,
        "fused": (heads + 2 * kv_heads) * head,
        "head": head,
        "heads": heads,
        "hidden": hidden,
        "inner": inner or expert,
        "kernel": model.count("shortconv.l_cache", 1),
        "keys": kv_heads * head,
        "layers": layers,
        "queries": heads * head,
        "vocab": vocab,
    }


def read_windows(model: Model, sizes: Mapping[str, int]) -> Json:
    """Return which layers have windows."""
    period = model.architecture.period
    if not period:
        return {}
    if not model.has("attention.sliding_window"):
        return {"layer_types": [FULL] * sizes["layers"], "sliding_window": None}
    slides = [bool((layer + 1) % period) for layer in range(sizes["layers"])]
    if model.has("attention.sliding_window_pattern"):
        slides = [bool(each) for each in model.counts("attention.sliding_window_pattern")]
        if len(slides) != sizes["layers"]:
            raise refuse(f"a {model.name} whose windows are given by {len(slides)} values for its layers")
    return {"layer_types": [SLIDING if each else FULL for each in slides]}


def describe_gemma(model: Model, sizes: Mapping[str, int]) -> Json:
    """Return the scale and the caps of scores."""
    is_large = sizes["layers"] == LARGE[model.name]
    scale = sizes["hidden"] // sizes["heads"] if is_large else sizes["head"]
    caps = ("attn_logit_softcapping", "final_logit_softcapping")
    absent: Json = {cap: None for cap in caps if not model.has(cap)} if model.name == "gemma3" else {}
    return {"query_pre_attn_scalar": scale, **absent}


def describe_latent(model: Model, sizes: Mapping[str, int]) -> Json:
    """Return the sizes of latent attention, and how experts are chosen.

    llama.cpp stores them as one key head as wide as the latent; older files have the sizes of each head instead.
    """
    rotated = model.count("rope.dimension_count")
    wide = model.count("attention.key_length_mla", model.count("attention.key_length"))
    value = model.count("attention.value_length_mla", model.count("attention.value_length"))
    if wide <= rotated:
        raise damaged(f"keys of {wide} have no room for {rotated} that rope rotates")
    found: Json = {
        "head_dim": rotated,
        "num_key_value_heads": sizes["heads"],
        "q_lora_rank": None,
        "qk_nope_head_dim": wide - rotated,
        "v_head_dim": value,
        "norm_topk_prob": model.fields.flag(model.key("expert_weights_norm")),
    }
    if model.has("attention.q_lora_rank"):
        found["q_lora_rank"] = model.count("attention.q_lora_rank")
    if not model.has("expert_weights_scale"):
        found["routed_scaling_factor"] = 1.0
    is_grouped = model.fields.integer(model.key("expert_group_count"), 1) > 1
    if model.architecture.model_type == "deepseek_v2":
        found["topk_method"] = "group_limited_greedy" if is_grouped else "greedy"
    return found


def describe_kinds(model: Model, sizes: Mapping[str, int]) -> Json:
    """Return the layers of LFM2 that are convolutions: those without heads of keys."""
    counts = model.counts("attention.head_count_kv")
    counts = counts * sizes["layers"] if len(counts) == 1 else counts
    if len(counts) != sizes["layers"]:
        raise damaged(f"'lfm2.attention.head_count_kv' has {len(counts)} values for {sizes['layers']} layers")
    eps = model.fields.real(model.key("attention.layer_norm_rms_epsilon"))
    return {"layer_types": [FULL if count else "conv" for count in counts], "norm_eps": eps}


def describe_dense(model: Model, sizes: Mapping[str, int]) -> Json:  # noqa: ARG001 -- as the others
    """Return the last layer of ERNIE with experts."""
    return {"moe_layer_end_index": sizes["layers"] - 1}


Change = Callable[[Model, Mapping[str, int]], Json]
CHANGES: Mapping[str, tuple[Change, ...]] = {
    "gemma2": (describe_gemma,),
    "gemma3": (describe_gemma,),
    "deepseek2": (describe_latent,),
    "lfm2": (describe_kinds,),
    "ernie4_5-moe": (describe_dense,),
}
"""What config.json has besides, by architecture."""
