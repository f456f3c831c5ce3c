"""Llama 4, text: attention to the chunk of a token, or to all without positions, and experts."""

from __future__ import annotations

from collections.abc import Iterator

from parallax_core.api import ConfigReader, LayerShape, Unsupported
from parallax_models.dense import Dense
from parallax_models.family import Family
from parallax_models.sliding import FULL
from parallax_models.weights import Experts, add_weights, gated_mlp

CHUNKED = "chunked_attention"


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers; those of chunks keep all tokens, of which a later one may see few."""
    layer, sparse = Dense().read_attention(settings), list_sparse(settings)
    experts = Experts.read(settings, "intermediate_size", "num_local_experts")
    list_kinds(settings)
    for index in range(settings.count("num_hidden_layers")):
        if index in sparse:
            yield experts.join(layer, gated_mlp(experts.hidden, experts.inner))
        else:
            yield add_weights(layer, gated_mlp(experts.hidden, settings.count("intermediate_size_mlp")))


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
