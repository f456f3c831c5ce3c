"""GPT-OSS."""

from __future__ import annotations

from collections.abc import Iterator

from parallax_core.api import ConfigReader, LayerShape
from parallax_models.family import Family
from parallax_models.sliding import FULL, SLIDING, slide_layers
from parallax_models.weights import Heads


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers: sliding and full in turn, attention with sinks, experts with biases."""
    heads, bias = Heads.read(settings), settings.flag("attention_bias", default=True)
    num_sinks = heads.queries // heads.width
    inner, num = settings.count("intermediate_size"), settings.count("num_local_experts", "num_experts")
    common = heads.projections(bias=bias, output_bias=bias) + num_sinks + 2 * heads.hidden + num * (heads.hidden + 1)
    expert = 3 * heads.hidden * inner + 2 * inner + heads.hidden
    num_active = settings.count("num_experts_per_tok", "experts_per_token")
    layer = LayerShape(
        kind="full",
        weights=common + num * expert,
        active_weights=common + num_active * expert,
        kv_width=2 * heads.values,
        num_experts=num,
        num_active_experts=num_active,
    )
    kinds = [FULL if index % 2 else SLIDING for index in range(settings.count("num_hidden_layers"))]
    yield from slide_layers(layer, settings, kinds)


ADAPTER = Family(read_layers)
