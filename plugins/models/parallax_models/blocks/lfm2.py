"""LFM2: short convolutions, and attention in some layers."""

from __future__ import annotations

from dataclasses import replace

from parallax_backend_torch.api import FULL, CacheSpec, Config, Decoder, Layer, Looker, ShortConv, Weights
from parallax_models.lfm2 import read_kinds

LAYER = {"input_layernorm": "operator_norm", "post_attention_layernorm": "ffn_norm", "mlp": "feed_forward"}
ATTENTION = {"o_proj": "out_proj", "q_norm": "q_layernorm", "k_norm": "k_layernorm"}


class Lfm2(Decoder):
    """See `parallax_backend_torch.api.Model`."""

    def __init__(self, config: Config) -> None:
        super().__init__(config.fill(rms_norm_eps=config.number("norm_eps", 1e-5)), is_tied=True)
        self.shape = replace(self.shape, norm="embedding_norm")
        self.kinds = read_kinds(config)

    def keep_layer(self, index: int) -> CacheSpec:
        """Return the cache of a layer: keys and values, or the last inputs of a convolution."""
        if self.kinds[index] == FULL:
            return self.heads.keep()
        return ShortConv.keep(self.config.count("conv_L_cache", default=3), self.shape.hidden_size)

    def build_attention(self, index: int, weights: Weights) -> Looker:
        """Build attention, or a short convolution."""
        if self.kinds[index] != FULL:
            return ShortConv(weights.within("conv"))
        return super().build_attention(index, weights.rename(**ATTENTION))

    def build_layer(self, index: int, weights: Weights) -> Layer:
        """Build a layer."""
        return super().build_layer(index, weights.rename(**LAYER, gate_proj="w1", up_proj="w3", down_proj="w2"))
