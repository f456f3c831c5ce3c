"""Mistral, Ministral 3 and Mixtral."""

from __future__ import annotations

from dataclasses import replace

from parallax_backend_torch.api import (
    NUMBERED,
    Config,
    Decoder,
    Experts,
    SoftmaxRoute,
    Warmth,
    Weights,
    build_experts,
    read_rope,
)
from parallax_models.mistral import read_window
from parallax_models.mixtral import read_experts


class Mistral(Decoder):
    """See `parallax_backend_torch.api.Model`."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.windows = (read_window(config),) * self.shape.num_layers
        rope = read_rope(config)
        if rope.get("llama_4_scaling_beta"):
            beta, trained = (float(rope[name]) for name in ("llama_4_scaling_beta", "original_max_position_embeddings"))
            self.look = replace(self.look, warm=Warmth(beta, trained))


class Mixtral(Decoder):
    """See `parallax_backend_torch.api.Model`."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.windows = (config.size("sliding_window", 0),) * self.shape.num_layers

    def build_mixer(self, index: int, weights: Weights) -> Experts:  # noqa: ARG002 -- every layer is alike
        """Build experts."""
        experts = read_experts(self.config)
        weights = weights.within("block_sparse_moe").rename(**NUMBERED)
        router = weights.make_linear("gate", purpose="router")
        return Experts(
            router, build_experts(weights, experts.num), SoftmaxRoute(experts.num_chosen, is_normalised=True)
        )
