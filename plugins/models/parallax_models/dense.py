"""Layers of grouped-query attention and an MLP, in which families differ by biases, norms and windows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from parallax_core.api import ConfigReader, LayerShape
from parallax_models.sliding import slide_layers
from parallax_models.weights import Heads, add_weights, count_mlp


@dataclass(frozen=True, kw_only=True, slots=True)
class Dense:
    """Yields the layers of a model, by the fields that differ from Llama."""

    bias: bool | None = False
    """Whether queries, keys and values have biases unless ``attention_bias`` says; None: never."""
    output_bias: str = "attention_bias"
    """The setting by which the output of attention has a bias; empty: never."""
    norms: int = 2
    """The number of norms of the width of the model."""
    head_norms: Literal["", "each", "all"] = ""
    """The norms of queries and keys: one for each head, or of all heads together."""
    window: Callable[[ConfigReader], int] | None = None
    """Returns the window of every layer, 0 for none."""
    kinds: Callable[[ConfigReader], Sequence[str]] | None = None
    """Returns the kind of each layer where ``layer_types`` does not; None: all are as ``window`` says."""

    def __call__(self, settings: ConfigReader) -> Iterator[LayerShape]:
        """Yield the layers."""
        layer = add_weights(self.read_attention(settings), count_mlp(settings))
        if self.kinds is not None:
            yield from slide_layers(layer, settings, self.kinds(settings))
        else:
            yield from [layer] * settings.count("num_hidden_layers")

    def read_attention(self, settings: ConfigReader) -> LayerShape:
        """Return a layer without its MLP."""
        heads, has_bias = Heads.read(settings), self.bias is not None
        bias = has_bias and settings.flag("attention_bias", default=bool(self.bias))
        output_bias = has_bias and bool(self.output_bias) and settings.flag(self.output_bias, default=False)
        norms = {"": 0, "each": 2 * heads.width, "all": heads.queries + heads.values}[self.head_norms]
        weights = heads.projections(bias=bias, output_bias=output_bias) + norms + self.norms * heads.hidden
        return heads.layer(weights, self.window(settings) if self.window else 0)
