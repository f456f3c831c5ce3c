"""GPT-OSS."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from parallax_core.api import ConfigReader, LayerShape
from parallax_models.family import Family
from parallax_models.sliding import list_periodic, slide_layers
from parallax_models.weights import Heads


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers: sliding and full in turn, attention with sinks, experts with biases."""
    heads, bias = Heads.read(settings), settings.flag("attention_bias", default=True)
    num_sinks = heads.queries // heads.width
    inner, num = settings.count("intermediate_size"), settings.count("num_local_experts", "num_experts")
    common = heads.projections(bias=bias, output_bias=bias) + num_sinks + 2 * heads.hidden + num * (heads.hidden + 1)
    expert = 3 * heads.hidden * inner + 2 * inner + heads.hidden
    num_active = settings.count("num_experts_per_tok", "experts_per_token")
    active = common + num_active * expert
    layer = replace(
        heads.layer(common + num * expert), active_weights=active, num_experts=num, num_active_experts=num_active
    )
    yield from slide_layers(layer, settings, list_periodic(settings, 2))


ADAPTER = Family(read_layers)
