"""DeepSeek-V2 and V2.5: latent attention as in V3, and experts chosen by their probability."""

from __future__ import annotations

import torch

from parallax_backend_torch.api import Config, GroupRoute, Weights
from parallax_models.blocks.deepseek_v3 import DeepseekV3

METHODS = ("greedy", "group_limited_greedy")


class DeepseekV2(DeepseekV3):
    """See `parallax_backend_torch.api.Model`."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.in_groups = self.config.choose(METHODS, "topk_method", default=METHODS[0]) == METHODS[1]

    def make_route(self, weights: Weights) -> GroupRoute:  # noqa: ARG002 -- it has no weights
        """Return what chooses experts."""
        config = self.config
        return GroupRoute(
            num_chosen=config.count("num_experts_per_tok"),
            num_groups=config.count("n_group", default=1) if self.in_groups else 1,
            num_chosen_groups=config.count("topk_group", default=1),
            is_normalised=False,
            scale=config.number("routed_scaling_factor", 1.0),
            score=lambda scores: torch.softmax(scores, dim=-1),
            num_best=1,
        )
