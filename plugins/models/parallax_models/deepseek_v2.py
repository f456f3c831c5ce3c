"""DeepSeek-V2 and V2.5: as V3, but for the choice of experts."""

from __future__ import annotations

from collections.abc import Iterator

from parallax_core.api import ConfigReader, LayerShape
from parallax_models import deepseek_v3
from parallax_models.family import Family
from parallax_models.weights import add_weights


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers, without corrections of routers."""
    for layer in deepseek_v3.read_layers(settings):
        yield add_weights(layer, -layer.num_experts)


ADAPTER = Family(read_layers)
