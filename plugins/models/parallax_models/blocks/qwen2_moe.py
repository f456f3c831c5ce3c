"""Qwen1.5 and Qwen2 with experts, and a shared one with a gate."""

from __future__ import annotations

from parallax_backend_torch.api import (
    Config,
    Decoder,
    GatedMlp,
    Mixer,
    SoftmaxRoute,
    Weights,
    build_shared,
)
from parallax_models.qwen2_moe import ADAPTER
from parallax_models.qwen3_moe import has_experts, read_experts


class Qwen2Moe(Decoder):
    """See `parallax_backend_torch.api.Model`."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.windows = ADAPTER.list_windows(config)

    def build_mixer(self, index: int, weights: Weights) -> Mixer:
        """Build experts and a shared one, or in some layers an MLP."""
        weights = weights.within("mlp")
        if not has_experts(index, self.config):
            return GatedMlp(weights)
        experts = read_experts(self.config)
        is_normalised = self.config.flag("norm_topk_prob", default=False)
        return build_shared(weights, experts.num, SoftmaxRoute(experts.num_chosen, is_normalised))
