"""Qwen3 with experts."""

from __future__ import annotations

from parallax_backend_torch.api import Config, Experts, GatedMlp, Mixer, SoftmaxRoute, Weights, build_experts
from parallax_models.blocks.decoder import Decoder
from parallax_models.qwen3_moe import has_experts, read_experts


class Qwen3Moe(Decoder):
    """See `parallax_backend_torch.api.Model`."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.experts = read_experts(self.config)
        self.route = SoftmaxRoute(self.experts.num_chosen, self.config.flag("norm_topk_prob", default=False))

    def build_mixer(self, index: int, weights: Weights) -> Mixer:
        """Build experts, or in some layers an MLP."""
        weights = weights.within("mlp")
        if not has_experts(index, self.config):
            return GatedMlp(weights)
        router = weights.make_linear("gate", purpose="router")
        return Experts(router, build_experts(weights, self.experts.num), self.route)
