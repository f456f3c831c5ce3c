"""The cost of the layers of a model that move between stages."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LayerCosts:
    """The cost of each layer of a model."""

    weights: tuple[int, ...]
    """The time for a token, in any unit; the last layer's includes the output head."""
    sizes: tuple[int, ...]
    """The memory of the layer's weights, in bytes; 0: unknown."""
    illegal: frozenset[int] = frozenset()
    """The layers with which no stage may begin."""
