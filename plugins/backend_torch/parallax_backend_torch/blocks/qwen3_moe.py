"""Qwen3 with experts."""

from __future__ import annotations

from parallax_backend_torch.blocks.qwen3 import Qwen3
from parallax_backend_torch.config import Config
from parallax_backend_torch.decoder_layer import PlainLayer, WholeLayer, build_plain
from parallax_backend_torch.experts import Experts, SoftmaxRoute, build_experts, count_experts, has_experts
from parallax_backend_torch.mlp import GatedMlp, Mixer
from parallax_backend_torch.weights import Weights


class Qwen3Moe(Qwen3):
    """See `parallax_backend_torch.model.Model`."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._config = config
        is_normalised = config.flag("norm_topk_prob", default=False)
        self._route = SoftmaxRoute(config.count("num_experts_per_tok"), is_normalised)

    def build_mixer(self, index: int, weights: Weights) -> Mixer:
        """Build experts, or in some layers an MLP."""
        if not has_experts(self._config, index):
            return GatedMlp(weights)
        router = weights.make_linear("gate", purpose="router")
        return Experts(router, build_experts(weights, count_experts(self._config)), self._route)

    def build_layer(self, index: int, weights: Weights) -> PlainLayer | WholeLayer:
        """Build a layer."""
        attention = self.build_attention(index, weights.within("self_attn"))
        return build_plain(
            weights, (self.shape.eps, self.shape.norm_offset), attention, self.build_mixer(index, weights.within("mlp"))
        )
