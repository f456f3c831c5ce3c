"""Kimi Linear: Kimi delta attention, every few layers latent attention without positions, experts."""

from __future__ import annotations

from parallax_backend_torch.api import (
    FULL,
    NUMBERED,
    CacheSpec,
    Config,
    GatedMlp,
    KimiDelta,
    KimiSizes,
    LatentAttention,
    Looker,
    Mixer,
    Weights,
    build_experts,
    build_groups,
)
from parallax_models import kimi_linear
from parallax_models.blocks.deepseek_v3 import LATENT_EPS, DeepseekV3
from parallax_models.deepseek_v3 import list_sparse, read_experts

PLACES = "block_sparse_moe", "mlp"
"""Where checkpoints have the MLP of a layer, and its experts."""


class KimiLinear(DeepseekV3):
    """See `parallax_backend_torch.api.Model`."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.kinds = kimi_linear.list_kinds(self.config)
        self.delta = read_delta(self.config)

    def keep_layer(self, index: int) -> CacheSpec:
        """Return the cache of a layer: a latent, or a state."""
        return self.sizes.keep() if self.kinds[index] == FULL else self.delta.keep()

    def build_attention(self, index: int, weights: Weights) -> Looker:
        """Build latent attention or Kimi delta attention."""
        weights = weights.within("self_attn")
        if self.kinds[index] == FULL:
            return LatentAttention(weights, self.sizes, None, self.scale, LATENT_EPS)
        return KimiDelta(weights, self.delta, self.shape.eps)

    def build_mixer(self, index: int, weights: Weights) -> Mixer:
        """Build experts, or in the first layers an MLP."""
        is_sparse = list_sparse(self.config, 1)[index]
        name = "gate" if is_sparse else "gate_proj"
        weights = weights.within(next((each for each in PLACES if weights.has(f"{each}.{name}.weight")), PLACES[0]))
        if not is_sparse:
            return GatedMlp(weights)
        experts = build_experts(weights.rename(**NUMBERED), read_experts(self.config).num)
        return build_groups(self.config, weights, self.make_route(weights), experts)


def read_delta(config: Config) -> KimiSizes:
    """Return the sizes of Kimi delta attention."""
    return KimiSizes(
        num_heads=config.count("linear_num_heads", default=32),
        width=config.count("linear_head_dim", default=128),
        kernel=config.count("linear_conv_kernel_dim", default=4),
        floor=config.number("linear_lower_bound", 0.0),
    )
