"""What families with several streams in place of one residual share (hyper-connections)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from parallax_core.api import ConfigReader, LayerShape, ModelShape, Part, Plane
from parallax_models.family import PREFIX, Family
from parallax_models.weights import add_weights

HIDDEN = "hidden"
BETWEEN = 3
"""Scales of the factors before a part, after it, and between the streams."""
HEAD = re.compile(rf"{PREFIX}(?:model\.)?(?:hc_pre\.)?hc_head[._]")
"""Matches the names of the tensors of what makes one stream of all, after the layers."""


def count_factors(settings: ConfigReader, num: int, num_scales: int) -> int:
    """Return the parameters of what computes ``num`` factors from all streams of a token."""
    return num * settings.count("hc_mult") * settings.count("hidden_size") + num + num_scales


def spread(settings: ConfigReader, layers: Iterable[LayerShape], *, num_scales: int) -> Iterator[LayerShape]:
    """Yield layers that give streams, the last one the sum of them, with the factors of the mixes of two parts.

    Args:
        settings: the model's settings.
        layers: the layers on one stream.
        num_scales: 2; or 3, where a matrix mixes the streams with each other.
    """
    num, hidden, made = settings.count("hc_mult"), settings.count("hidden_size"), list(layers)
    between = num**2 if num_scales == BETWEEN else 0
    extra = 2 * count_factors(settings, 2 * num + between, num_scales)
    plane = Plane(HIDDEN, (num, hidden))
    for index, layer in enumerate(made):
        others = tuple(each for each in layer.gives if each.name != HIDDEN)
        gives = () if index == len(made) - 1 else (plane, *others)
        yield add_weights(layer, extra, gives=gives, state_flops=layer.state_flops + 4 * between * hidden)


@dataclass(frozen=True, slots=True)
class StreamFamily(Family):
    """An adapter of layers with streams, and tensors ``hc_head`` after them."""

    def read_shape(self, config: Mapping[str, Any]) -> ModelShape:
        """Read the shape of a model; see `parallax_core.api.ModelAdapter`."""
        settings = self.read_settings(config)
        shape = Family.read_shape(self, config)
        head = count_factors(settings, settings.count("hc_mult"), 1)
        return replace(shape, after_weights=shape.after_weights + head)

    @staticmethod
    def find_part(tensor: str) -> Part:
        """Return where a tensor belongs; see `parallax_core.api.ModelAdapter`."""
        return "after" if HEAD.match(tensor) else Family.find_part(tensor)
