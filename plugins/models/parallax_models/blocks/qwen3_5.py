"""Qwen3.5 to 3.8: Qwen3-Next with experts in every layer, or in none."""

from __future__ import annotations

from parallax_backend_torch.api import GatedMlp, Mixer, SoftmaxRoute, Weights, build_shared
from parallax_models.blocks.qwen3_next import Qwen3Next
from parallax_models.qwen3_moe import read_experts


class Qwen35(Qwen3Next):
    """See `parallax_backend_torch.api.Model`."""

    def build_mixer(self, index: int, weights: Weights) -> Mixer:  # noqa: ARG002 -- every layer is alike
        """Build experts and a shared one, or an MLP."""
        weights = weights.within("mlp")
        if not self.config.has("num_experts"):
            return GatedMlp(weights)
        experts = read_experts(self.config)
        return build_shared(weights, experts.num, SoftmaxRoute(experts.num_chosen, is_normalised=True))
