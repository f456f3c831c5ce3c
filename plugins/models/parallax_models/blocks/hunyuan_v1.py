"""Hunyuan 1, with experts or without: rope before the norms of queries and keys."""

from __future__ import annotations

from dataclasses import replace

from parallax_backend_torch.api import (
    Config,
    Experts,
    GatedMlp,
    Looker,
    Mixer,
    SoftmaxRoute,
    Weights,
    build_experts,
    read_heads,
    read_rope,
)
from parallax_models.blocks.decoder import Decoder
from parallax_models.hunyuan_v1 import read_experts


class HunyuanV1(Decoder):
    """See `parallax_backend_torch.api.Model`."""

    def __init__(self, config: Config) -> None:
        super().__init__(stretch_base(config))
        self.look = replace(self.look, norms_last=True)

    def build_attention(self, index: int, weights: Weights) -> Looker:
        """Build attention."""
        return super().build_attention(index, weights.rename(q_norm="query_layernorm", k_norm="key_layernorm"))

    def build_mixer(self, index: int, weights: Weights) -> Mixer:
        """Build experts and an MLP that every token meets, or the MLP alone."""
        weights = weights.within("mlp")
        experts = read_experts(self.config, index)
        if experts is None:
            return GatedMlp(weights)
        shared = GatedMlp(weights.within("shared_mlp"))
        router, made = weights.make_linear("gate.wg", purpose="router"), build_experts(weights, experts.num)
        return Experts(router, made, SoftmaxRoute(experts.num_chosen, is_normalised=True), shared)


def stretch_base(config: Config) -> Config:
    """Return the settings with a plain rope whose base is stretched by ``alpha``, as ``dynamic`` means in Hunyuan."""
    rope = dict(read_rope(config))
    if rope.get("rope_type") != "dynamic" or not rope.get("alpha"):
        return config
    width = read_heads(config).width
    rope["rope_theta"] *= rope["alpha"] ** (width / (width - 2))
    return Config({**config.raw, "rope_parameters": rope | {"rope_type": "default"}})
