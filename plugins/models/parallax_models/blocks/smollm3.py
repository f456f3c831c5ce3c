"""SmolLM3 and EXAONE 4: some layers do not know positions."""

from __future__ import annotations

from dataclasses import replace

from parallax_backend_torch.api import Config, Layer, Look, Weights, build_normed
from parallax_models import smollm3
from parallax_models.blocks.decoder import Decoder

NORMS = ("", "post_attention_layernorm", "", "post_feedforward_layernorm")


class SmolLM3(Decoder):
    """See `parallax_backend_torch.api.Model`."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.have_rope = smollm3.read_ropes(self.config)

    def find_look(self, index: int) -> Look:
        """Return the options of attention in a layer."""
        found = super().find_look(index)
        return found if self.have_rope[index] else replace(found, rope=None)


class Exaone4(Decoder):
    """See `parallax_backend_torch.api.Model`."""

    def find_look(self, index: int) -> Look:
        """Return the options of attention in a layer: beside windows, those that see everything know no positions."""
        found = super().find_look(index)
        return found if found.window or not self.config.has("sliding_window") else replace(found, rope=None)

    def build_layer(self, index: int, weights: Weights) -> Layer:
        """Build a layer, with norms after its parts."""
        parts = self.build_attention(index, weights), self.build_mixer(index, weights)
        return build_normed(weights, (self.shape.eps, 0.0), NORMS, *parts)
