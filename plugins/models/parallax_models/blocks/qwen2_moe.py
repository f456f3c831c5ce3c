"""Qwen1.5 and Qwen2 with experts, and a shared one with a gate."""

from __future__ import annotations

from parallax_backend_torch.api import GatedMlp, Mixer, Weights
from parallax_models.blocks.decoder import Decoder
from parallax_models.blocks.qwen3_next import build_routed
from parallax_models.qwen3_moe import has_experts


class Qwen2Moe(Decoder):
    """See `parallax_backend_torch.api.Model`."""

    def build_mixer(self, index: int, weights: Weights) -> Mixer:
        """Build experts and a shared one, or in some layers an MLP."""
        weights, is_sparse = weights.within("mlp"), has_experts(index, self.config)
        return build_routed(self.config, weights, is_normalised=False) if is_sparse else GatedMlp(weights)
