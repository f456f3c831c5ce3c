"""ERNIE 4.5, with experts or without."""

from __future__ import annotations

from dataclasses import replace

import torch

from parallax_backend_torch.api import Config, Experts, GatedMlp, GroupRoute, Mixer, Weights, build_experts
from parallax_models.blocks.decoder import Decoder
from parallax_models.ernie4_5 import read_experts


class Ernie45(Decoder):
    """See `parallax_backend_torch.api.Model`."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.look = replace(self.look, is_paired=True)

    def build_mixer(self, index: int, weights: Weights) -> Mixer:
        """Build experts, or in some layers an MLP."""
        weights = weights.within("mlp")
        experts = read_experts(self.config, index)
        if experts is None:
            return GatedMlp(weights)
        route = GroupRoute(
            num_chosen=experts.num_chosen,
            correction=weights.read_vector("moe_statics.e_score_correction_bias").flatten(),
            score=lambda scores: torch.softmax(scores, dim=-1),
        )
        router, made = weights.make_linear("gate", purpose="router"), build_experts(weights, experts.num)
        has_shared = weights.has("shared_experts.gate_proj.weight")
        return Experts(router, made, route, GatedMlp(weights.within("shared_experts")) if has_shared else None)
