"""LFM2, with experts or without: short convolutions, and attention in some layers."""

from __future__ import annotations

from dataclasses import replace

from parallax_backend_torch.api import (
    FULL,
    NUMBERED,
    CacheSpec,
    Config,
    Experts,
    GatedMlp,
    GroupRoute,
    Layer,
    Looker,
    Mixer,
    ShortConv,
    Weights,
    build_experts,
)
from parallax_models import lfm2
from parallax_models.blocks.decoder import Decoder
from parallax_models.qwen3_moe import read_experts

LAYER = {"input_layernorm": "operator_norm", "post_attention_layernorm": "ffn_norm", "mlp": "feed_forward"}
ATTENTION = {"o_proj": "out_proj", "q_norm": "q_layernorm", "k_norm": "k_layernorm"}


class Lfm2(Decoder):
    """See `parallax_backend_torch.api.Model`."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.shape = replace(self.shape, norm="embedding_norm")
        self.kinds = lfm2.read_kinds(self.config)

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
        return super().build_layer(index, weights.rename(**LAYER, **NUMBERED))


class Lfm2Moe(Lfm2):
    """See `parallax_backend_torch.api.Model`."""

    def build_mixer(self, index: int, weights: Weights) -> Mixer:
        """Build experts, or in the first layers an MLP."""
        config, weights = self.config, weights.within("mlp")
        if index < config.size("num_dense_layers", 2):
            return GatedMlp(weights)
        experts = read_experts(config)
        has_correction = config.flag("use_expert_bias", default=True)
        route = GroupRoute(
            num_chosen=experts.num_chosen,
            correction=weights.read_vector("expert_bias") if has_correction else None,
            is_normalised=config.flag("norm_topk_prob", default=True),
            scale=config.number("routed_scaling_factor", 1.0),
            eps=1e-6,
        )
        return Experts(weights.make_linear("gate", purpose="router"), build_experts(weights, experts.num), route)
