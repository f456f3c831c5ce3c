"""GLM-4, dense, and GLM-4.5 to 4.7 with experts."""

from __future__ import annotations

from dataclasses import replace

from parallax_backend_torch.api import (
    Config,
    GatedMlp,
    GroupRoute,
    Layer,
    Mixer,
    Weights,
    build_groups,
    build_normed,
)
from parallax_models.blocks.decoder import Decoder
from parallax_models.deepseek_v3 import list_sparse

NORMS = ("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm")


class Glm4(Decoder):
    """See `parallax_backend_torch.api.Model`."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.look = replace(self.look, is_paired=True)

    def build_layer(self, index: int, weights: Weights) -> Layer:
        """Build a layer, with norms before its parts and after them."""
        mlp = GatedMlp(weights.within("mlp").rename(gate_proj="gate_up_proj", up_proj="gate_up_proj"))
        return build_normed(weights, (self.shape.eps, 0.0), NORMS, self.build_attention(index, weights), mlp)


class Glm4Moe(Decoder):
    """See `parallax_backend_torch.api.Model`."""

    def build_mixer(self, index: int, weights: Weights) -> Mixer:
        """Build experts, or in the first layers an MLP."""
        weights = weights.within("mlp")
        if not list_sparse(self.config, 1)[index]:
            return GatedMlp(weights)
        return build_groups(self.config, weights, GroupRoute.read(self.config, weights))
