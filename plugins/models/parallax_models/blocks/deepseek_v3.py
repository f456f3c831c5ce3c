"""DeepSeek-V3 and R1: latent attention, shared and routed experts."""

from __future__ import annotations

from parallax_backend_torch.api import (
    CacheSpec,
    Config,
    GatedMlp,
    GroupRoute,
    LatentAttention,
    LatentSizes,
    Looker,
    Mixer,
    Weights,
    build_groups,
    make_rope,
    read_rope,
    scale_magnitude,
)
from parallax_core.api import Unsupported
from parallax_models.blocks.decoder import Decoder
from parallax_models.deepseek_v3 import list_sparse

LATENT_EPS = 1e-6
"""The eps of the norms of latents, whatever config.json says of the others."""


class DeepseekV3(Decoder):
    """See `parallax_backend_torch.api.Model`."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if not self.config.flag("rope_interleave", default=True):
            raise Unsupported("'rope_interleave' in config.json is false", "try another backend")
        self.sizes = LatentSizes(
            num_heads=self.config.count("num_attention_heads"),
            latent=self.config.count("kv_lora_rank"),
            plain=self.config.count("qk_nope_head_dim"),
            rotated=self.config.size("qk_rope_head_dim"),
            value=self.config.count("v_head_dim"),
        )
        self.rope = make_rope(self.config, self.sizes.rotated)
        self.scale = find_scale(self.config, self.sizes)

    def keep_layer(self, index: int) -> CacheSpec:  # noqa: ARG002 -- every layer is alike
        """Return the cache of a layer: a latent, and the part of a key with rope."""
        return self.sizes.keep()

    def build_attention(self, index: int, weights: Weights) -> Looker:  # noqa: ARG002 -- every layer is alike
        """Build attention."""
        return LatentAttention(weights.within("self_attn"), self.sizes, self.rope, self.scale, LATENT_EPS)

    def build_mixer(self, index: int, weights: Weights) -> Mixer:
        """Build experts, or in the first layers an MLP."""
        weights = weights.within("mlp")
        if not list_sparse(self.config)[index]:
            return GatedMlp(weights)
        return build_groups(self.config, weights, self.make_route(weights))

    def make_route(self, weights: Weights) -> GroupRoute:
        """Return what chooses experts."""
        return GroupRoute.read(self.config, weights)


def find_scale(config: Config, sizes: LatentSizes) -> float:
    """Return the factor of the scores; YaRN changes the temperature here instead of in cosines and sines."""
    scale, settings = float((sizes.plain + sizes.rotated) ** -0.5), read_rope(config)
    if settings.get("rope_type", "default") == "default" or not settings.get("mscale_all_dim"):
        return scale
    return scale * scale_magnitude(float(settings["factor"]), float(settings["mscale_all_dim"])) ** 2
