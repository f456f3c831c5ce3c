"""DeepSeek-V2 and V2.5: as V3, but for the choice of experts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from parallax_core.api import ConfigReader, LayerShape
from parallax_models import deepseek_v3
from parallax_models.family import Family


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers."""
    for layer in deepseek_v3.read_layers(settings):
        correction = layer.num_experts
        yield replace(layer, weights=layer.weights - correction, active_weights=layer.active_weights - correction)


ADAPTER = Family(read_layers)
