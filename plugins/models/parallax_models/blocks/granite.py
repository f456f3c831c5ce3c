"""Granite 3 and 4, dense: Llama with four factors."""

from __future__ import annotations

from dataclasses import replace

from parallax_backend_torch.api import Config, Decoder, Layer, Weights, build_normed

NORMS = ("input_layernorm", "", "post_attention_layernorm", "")


class Granite(Decoder):
    """See `parallax_backend_torch.api.Model`."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.shape = replace(
            self.shape,
            embed_scale=config.number("embedding_multiplier", 1.0),
            logit_scale=1 / config.number("logits_scaling", 1.0),
        )
        self.look = replace(self.look, scale=config.number("attention_multiplier", 1.0))
        self.scale = config.number("residual_multiplier", 1.0)

    def build_layer(self, index: int, weights: Weights) -> Layer:
        """Build a layer."""
        parts = self.build_attention(index, weights), self.build_mixer(index, weights)
        return replace(build_normed(weights, (self.shape.eps, 0.0), NORMS, *parts), scale=self.scale)
