"""Mistral, Ministral 3 and Mixtral."""

from __future__ import annotations

from dataclasses import replace

from parallax_backend_torch.api import (
    Config,
    Experts,
    SoftmaxRoute,
    Warmth,
    Weights,
    build_experts,
    find_mixtral,
    read_rope,
)
from parallax_models.blocks.decoder import Decoder
from parallax_models.mixtral import read_experts


class Mistral(Decoder):
    """See `parallax_backend_torch.api.Model`."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        rope = Config(read_rope(self.config))
        if beta := rope.number("llama_4_scaling_beta", 0.0):
            trained = rope.number("original_max_position_embeddings", self.shape.context_length)
            self.look = replace(self.look, warm=Warmth(beta, trained))


class Mixtral(Decoder):
    """See `parallax_backend_torch.api.Model`."""

    def build_mixer(self, index: int, weights: Weights) -> Experts:  # noqa: ARG002 -- every layer is alike
        """Build experts."""
        experts = read_experts(self.config)
        weights = find_mixtral(weights)
        router = weights.make_linear("gate", purpose="router")
        return Experts(
            router, build_experts(weights, experts.num), SoftmaxRoute(experts.num_chosen, is_normalised=True)
        )
