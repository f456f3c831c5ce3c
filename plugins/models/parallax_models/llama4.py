"""Llama 4, text: attention to the chunk of a token, or to all without positions, and experts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from parallax_core.api import ConfigReader, LayerShape, Unsupported
from parallax_models.family import Family
from parallax_models.sliding import FULL
from parallax_models.weights import Experts, Heads, gated_mlp

CHUNKED = "chunked_attention"


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers; those of chunks keep all tokens, of which a later one may see few."""
    heads, bias = Heads.read(settings), settings.flag("attention_bias", default=False)
    layer = heads.layer(heads.projections(bias=bias, output_bias=bias) + 2 * heads.hidden)
    experts, sparse = read_experts(settings), list_sparse(settings)
    list_kinds(settings)
    for index in range(settings.count("num_hidden_layers")):
        if index in sparse:
            yield experts.join(layer, gated_mlp(heads.hidden, experts.inner))
        else:
            weights = layer.weights + gated_mlp(heads.hidden, settings.count("intermediate_size_mlp"))
            yield replace(layer, weights=weights, active_weights=weights)


def read_experts(settings: ConfigReader) -> Experts:
    """Return the experts of a layer that has some."""
    return Experts(
        hidden=settings.count("hidden_size"),
        inner=settings.count("intermediate_size"),
        num=settings.count("num_local_experts"),
        num_chosen=settings.count("num_experts_per_tok"),
    )


def list_sparse(settings: ConfigReader) -> tuple[int, ...]:
    """Return the layers that have experts."""
    if settings.has("moe_layers"):
        return settings.list_numbers("moe_layers")
    step = settings.count("interleave_moe_layer_step", default=1)
    return tuple(range(step - 1, settings.count("num_hidden_layers"), step))


def list_rotated(settings: ConfigReader) -> tuple[bool, ...]:
    """Return whether each layer knows positions.

    Raises:
        Unsupported: if config.json does not tell it of each layer.
    """
    count, period = settings.count("num_hidden_layers"), settings.count("no_rope_layer_interval", default=4)
    flags = settings.list_numbers("no_rope_layers") or [(index + 1) % period for index in range(count)]
    if len(flags) != count:
        message = f"'no_rope_layers' in config.json is of {len(flags)} layers, not of {count}"
        raise Unsupported(message, "fetch the model again")
    return tuple(map(bool, flags))


def list_kinds(settings: ConfigReader) -> tuple[str, ...]:
    """Return the kind of attention of each layer."""
    default = [CHUNKED if is_rotated else FULL for is_rotated in list_rotated(settings)]
    return settings.list_words("layer_types", (FULL, CHUNKED), default)


ADAPTER = Family(read_layers)
