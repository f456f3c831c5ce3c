"""Phi-3 and Phi-4: Llama with fused matrices."""

from __future__ import annotations

from parallax_backend_torch.api import Layer, Weights
from parallax_models.blocks.decoder import Decoder

NAMES = dict.fromkeys(("q_proj", "k_proj", "v_proj"), "qkv_proj") | {"gate_proj": "gate_up_proj"}


class Phi3(Decoder):
    """See `parallax_backend_torch.api.Model`."""

    def build_layer(self, index: int, weights: Weights) -> Layer:
        """Build a layer."""
        return super().build_layer(index, weights.rename(**NAMES, up_proj="gate_up_proj"))
