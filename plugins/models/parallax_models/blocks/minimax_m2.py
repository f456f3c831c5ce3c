"""MiniMax-M2: experts, and norms of all queries and keys together."""

from __future__ import annotations

from parallax_backend_torch.api import Experts, GroupRoute, Weights, build_experts, find_mixtral
from parallax_models.blocks.decoder import Decoder
from parallax_models.mixtral import read_experts


class MiniMaxM2(Decoder):
    """See `parallax_backend_torch.api.Model`."""

    def build_mixer(self, index: int, weights: Weights) -> Experts:  # noqa: ARG002 -- every layer is alike
        """Build experts."""
        experts = read_experts(self.config)
        weights = find_mixtral(weights)
        route = GroupRoute(num_chosen=experts.num_chosen, correction=weights.read_vector("e_score_correction_bias"))
        return Experts(weights.make_linear("gate", purpose="router"), build_experts(weights, experts.num), route)
