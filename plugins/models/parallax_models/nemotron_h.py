"""Nemotron-H and Nemotron 3: each layer is Mamba 2, attention, an MLP or experts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from parallax_core.api import ConfigReader, LayerShape, Unsupported
from parallax_models.family import Family
from parallax_models.weights import Heads, MambaWidths, add_weights

MAMBA, ATTENTION, MLP, MOE = "linear_attention", "full_attention", "mlp", "moe"
LETTERS = {"M": MAMBA, "*": ATTENTION, "-": MLP, "E": MOE}
"""The letters for the kinds of layers in ``hybrid_override_pattern``."""
WORDS = {"mamba": MAMBA, "attention": ATTENTION} | {kind: kind for kind in LETTERS.values()}
"""The words for them in ``layers_block_type``, those before transformers 5 first."""


def unify(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return settings with the names of other families; the head has weights of its own, whatever config.json says."""
    reader = ConfigReader(settings)
    eps, count = reader.number("layer_norm_epsilon", 1e-5), len(read_kinds(reader))
    return {**settings, "num_hidden_layers": count, "rms_norm_eps": eps, "tie_word_embeddings": False}


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers; MLPs and experts keep nothing of a sequence."""
    hidden = settings.count("hidden_size")
    for kind in read_kinds(settings):
        yield add_weights(read_layer(settings, kind), hidden)


def read_layer(settings: ConfigReader, kind: str) -> LayerShape:
    """Return a layer of a kind without its norm."""
    match kind:
        case "linear_attention":
            conv_bias, bias = settings.flag("use_conv_bias", default=True), settings.flag("use_bias", default=False)
            return read_widths(settings).layer(conv_bias=conv_bias, bias=bias)
        case "full_attention":
            heads = Heads.read(settings)
            return heads.layer(heads.projections())
        case "moe":
            return read_experts(settings)
    return keep_nothing(count_mlp(settings, settings.count("hidden_size"), settings.count("intermediate_size")))


def read_kinds(settings: ConfigReader) -> tuple[str, ...]:
    """Return the kind of each layer, by words or by a string of letters; their number is that of the layers."""
    pattern, words = settings.raw.get("hybrid_override_pattern"), settings.raw.get("layers_block_type")
    given = [LETTERS.get(letter) for letter in pattern] if isinstance(pattern, str) else []
    if isinstance(words, list):
        given = [WORDS.get(word) for word in words if isinstance(word, str)]
    kinds = tuple(kind for kind in given if kind)
    if not kinds or len(kinds) < len(given):
        message = f"'layers_block_type' in config.json is {words or pattern!r}, not the kinds of the layers"
        raise Unsupported(message, "fetch the model again")
    return kinds


def keep_nothing(weights: int) -> LayerShape:
    """Return a layer of ``weights`` parameters without a cache."""
    return LayerShape(kind="full", weights=weights, active_weights=weights)


def count_mlp(settings: ConfigReader, width: int, inner: int) -> int:
    """Return the parameters of up and down."""
    return 2 * width * inner + (width + inner) * settings.flag("mlp_bias", default=False)


def read_widths(settings: ConfigReader) -> MambaWidths:
    """Return the widths of Mamba 2."""
    num, state = settings.count("mamba_num_heads"), settings.count("ssm_state_size")
    return MambaWidths(
        hidden=settings.count("hidden_size"),
        num=num,
        inner=num * settings.count("mamba_head_dim"),
        keys=settings.count("n_groups") * state,
        state=state,
        kernel=settings.count("conv_kernel", default=4),
    )


def read_experts(settings: ConfigReader) -> LayerShape:
    """Return a layer with experts, between projections to a narrower width and back if ``moe_latent_size`` is set."""
    hidden, num = settings.count("hidden_size"), settings.count("n_routed_experts")
    width = settings.count("moe_latent_size", default=hidden)
    shared = count_mlp(settings, hidden, settings.count("moe_shared_expert_intermediate_size")) + (hidden + 1) * num
    if settings.has("moe_latent_size"):
        shared += count_mlp(settings, hidden, width)
    expert = 2 * width * settings.count("moe_intermediate_size")
    chosen = settings.count("num_experts_per_tok")
    layer = keep_nothing(shared + num * expert)
    return replace(layer, active_weights=shared + chosen * expert, num_experts=num, num_active_experts=chosen)


ADAPTER = Family(read_layers, unify=unify)
