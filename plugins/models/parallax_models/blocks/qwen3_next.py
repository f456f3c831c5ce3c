"""Qwen3-Next: gated delta nets, every few layers gated attention, experts."""

from __future__ import annotations

from dataclasses import replace

from parallax_backend_torch.api import (
    FULL,
    Attention,
    CacheSpec,
    Config,
    DeltaNet,
    Experts,
    GatedMlp,
    Mixer,
    NetSizes,
    SoftmaxRoute,
    Weights,
    build_shared,
)
from parallax_models.blocks.decoder import Decoder
from parallax_models.qwen3_moe import has_experts, read_experts
from parallax_models.qwen3_next import read_kinds


class Qwen3Next(Decoder):
    """See `parallax_backend_torch.api.Model`."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.shape = replace(self.shape, norm_offset=1.0)
        self.look = replace(self.look, norm_offset=1.0, is_gated=True)
        self.kinds = read_kinds(self.config)
        self.sizes = NetSizes(
            num_keys=self.config.count("linear_num_key_heads"),
            num_values=self.config.count("linear_num_value_heads"),
            key=self.config.count("linear_key_head_dim"),
            value=self.config.count("linear_value_head_dim"),
            kernel=self.config.count("linear_conv_kernel_dim"),
        )

    def keep_layer(self, index: int) -> CacheSpec:
        """Return the cache of a layer: keys and values, or a state."""
        return self.heads.keep() if self.kinds[index] == FULL else self.sizes.keep()

    def build_attention(self, index: int, weights: Weights) -> Attention | DeltaNet:
        """Build attention with a gate on its output, or a delta net."""
        if self.kinds[index] != FULL:
            return DeltaNet(weights.within("linear_attn"), self.sizes, self.shape.eps)
        return Attention(weights.within("self_attn"), self.heads, self.look)

    def build_mixer(self, index: int, weights: Weights) -> Mixer:
        """Build experts and a shared one, or in some layers an MLP."""
        weights, is_sparse = weights.within("mlp"), has_experts(index, self.config)
        return build_routed(self.config, weights, is_normalised=True) if is_sparse else GatedMlp(weights)


def build_routed(config: Config, weights: Weights, *, is_normalised: bool) -> Experts:
    """Return experts and a shared one; shares sum to 1 as config.json says, or else ``is_normalised``."""
    experts, is_normalised = read_experts(config), config.flag("norm_topk_prob", default=is_normalised)
    return build_shared(weights, experts.num, SoftmaxRoute(experts.num_chosen, is_normalised))
