"""Reads the shape of a llama model from a GGUF file."""

from __future__ import annotations

from dataclasses import dataclass

from parallax_core.api import Unsupported
from parallax_formats.gguf import Fields, damaged

UNDERSTOOD = frozenset(
    "llama." + key
    for key in (
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.layer_norm_rms_epsilon",
        "attention.value_length",
        "block_count",
        "context_length",
        "embedding_length",
        "expert_count",
        "expert_used_count",
        "feed_forward_length",
        "rope.dimension_count",
        "rope.freq_base",
        "rope.scaling.type",
        "vocab_size",
    )
)
"""The settings of a llama that are understood. Any other might change the result, so it is refused."""

ARCHITECTURES = ("llama",)
"""The architectures that can be converted, as in ``general.architecture`` of a GGUF file."""
PRE_TOKENIZERS = ("smollm",)
"""The pre-tokenizers that can be rebuilt, as in ``tokenizer.ggml.pre`` of a GGUF file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LlamaShape:
    """The fields of config.json for a llama model, except its special tokens."""

    num_layers: int
    hidden_size: int
    inner_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    norm_eps: float
    rope_base: float
    tied: bool
    """Whether the head is tied to the embedding: the file has no ``output.weight``."""


def refuse(what: str) -> Unsupported:
    """Return the error for a model that cannot be converted exactly."""
    known = f"architecture {' or '.join(ARCHITECTURES)} and the pre-tokenizer {' or '.join(PRE_TOKENIZERS)}"
    hint = f"GGUF files of the {known} can be converted; serve another model from its safetensors files"
    return Unsupported(f"{what} cannot be converted", hint)


def read_shape(fields: Fields, *, tied: bool) -> LlamaShape:
    """Read the shape.

    Raises:
        Unsupported: if the model is not a plain llama.
        ParallaxError: if a value is missing or invalid.
    """
    check_family(fields)
    num_heads = fields.count("llama.attention.head_count")
    hidden_size = fields.count("llama.embedding_length")
    shape = LlamaShape(
        num_layers=fields.count("llama.block_count"),
        hidden_size=hidden_size,
        inner_size=fields.count("llama.feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=fields.count("llama.attention.head_count_kv", num_heads),
        head_dim=fields.count("llama.attention.key_length", hidden_size // num_heads),
        vocab_size=len(fields.texts("tokenizer.ggml.tokens")),
        context_length=fields.count("llama.context_length"),
        norm_eps=fields.real("llama.attention.layer_norm_rms_epsilon"),
        rope_base=fields.real("llama.rope.freq_base", 10000.0),
        tied=tied,
    )
    check_heads(fields, shape)
    return shape


def check_family(fields: Fields) -> None:
    """Refuse models other than llama, and llamas with experts, scaled rope or other unknown features."""
    family = fields.text("general.architecture")
    if family not in ARCHITECTURES:
        raise refuse(f"a GGUF model of the architecture {family!r}")
    if fields.integer("llama.expert_count", 0):
        raise refuse("a mixture of experts")
    scaling = fields.text("llama.rope.scaling.type", "none")
    if scaling != "none":
        raise refuse(f"a llama with rope scaling of the type {scaling!r}")
    for key in fields.keys("llama."):
        if key not in UNDERSTOOD:
            raise refuse(f"a llama with the setting {key!r}")


def check_heads(fields: Fields, shape: LlamaShape) -> None:
    """Check that heads, rope and vocabulary fit together."""
    if shape.head_dim % 2 or shape.num_heads % shape.num_kv_heads:
        heads = f"{shape.num_heads} heads over {shape.num_kv_heads} key heads of size {shape.head_dim}"
        raise damaged(f"{heads} do not fit together")
    for key in ("llama.attention.value_length", "llama.rope.dimension_count"):
        if fields.count(key, shape.head_dim) != shape.head_dim:
            raise refuse(f"a llama whose {key!r} is not its head size {shape.head_dim}")
    if fields.count("llama.vocab_size", shape.vocab_size) != shape.vocab_size:
        raise damaged(f"'llama.vocab_size' is not the number of its tokens, {shape.vocab_size}")
