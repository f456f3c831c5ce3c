"""SmolLM3: some layers do not know positions."""

from __future__ import annotations

from collections.abc import Iterator

from parallax_core.api import ConfigReader, LayerShape
from parallax_models.family import Family
from parallax_models.sliding import FULL, SLIDING, slide_layers
from parallax_models.weights import Heads, gated_mlp


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers; those without positions may have a sliding window."""
    heads, bias = Heads.read(settings), settings.flag("attention_bias", default=False)
    mlp = gated_mlp(heads.hidden, settings.count("intermediate_size"), bias=settings.flag("mlp_bias", default=False))
    layer = heads.layer(heads.projections(bias=bias, output_bias=bias) + mlp + 2 * heads.hidden)
    slides = settings.flag("use_sliding_window", default=False) and settings.has("sliding_window")
    kinds = [FULL if has_rope or not slides else SLIDING for has_rope in read_ropes(settings)]
    yield from slide_layers(layer, settings, kinds)


def read_ropes(settings: ConfigReader) -> tuple[bool, ...]:
    """Return whether each layer knows positions; every fourth does not, unless config.json differs."""
    interval = settings.count("no_rope_layer_interval", default=4)
    default = [(index + 1) % interval != 0 for index in range(settings.count("num_hidden_layers"))]
    given = settings.list_numbers("no_rope_layers")[: len(default)]
    return tuple(map(bool, given)) if len(given) == len(default) else tuple(default)


ADAPTER = Family(read_layers, is_tied=True)
