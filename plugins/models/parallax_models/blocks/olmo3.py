"""OLMo 3: norms after each part, and of all queries together; windows have their own rope."""

from __future__ import annotations

from parallax_backend_torch.api import FULL, SLIDING, Config, Layer, Weights, build_normed, make_rope
from parallax_models.blocks.decoder import Decoder

NORMS = ("", "post_attention_layernorm", "", "post_feedforward_layernorm")


class Olmo3(Decoder):
    """See `parallax_backend_torch.api.Model`."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        plain = self.config.fill(rope_scaling=None) if self.config.has("rope_scaling") else self.config
        self.ropes = {
            FULL: make_rope(self.config, self.heads.width, FULL),
            SLIDING: make_rope(plain, self.heads.width, SLIDING),
        }

    def build_layer(self, index: int, weights: Weights) -> Layer:
        """Build a layer."""
        parts = self.build_attention(index, weights), self.build_mixer(index, weights)
        return build_normed(weights, (self.shape.eps, 0.0), NORMS, *parts)
