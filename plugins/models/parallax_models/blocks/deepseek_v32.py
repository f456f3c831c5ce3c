"""DeepSeek-V3.2 and GLM-5: latent attention to the tokens that an index chose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch

from parallax_backend_torch.api import (
    CacheSpec,
    ChoosingLayer,
    Config,
    IndexedAttention,
    IndexSizes,
    Layer,
    TokenIndex,
    Weights,
    keep_indexed,
    split_pairs,
)
from parallax_models import glm_moe_dsa
from parallax_models.blocks.deepseek_v3 import LATENT_EPS, DeepseekV3


class DeepseekV32(DeepseekV3):
    """See `parallax_backend_torch.api.Model`."""

    attention: ClassVar[type[IndexedAttention]] = IndexedAttention

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.index = IndexSizes.read(self.config)
        self.have_index: Sequence[bool] = (True,) * self.shape.num_layers

    def keep_layer(self, index: int) -> CacheSpec:
        """Return the cache of a layer: a latent, the part of a key with rope, and a key in the index."""
        return keep_indexed(self.sizes, self.index.width if self.have_index[index] else 0)

    def build_attention(self, index: int, weights: Weights) -> IndexedAttention:
        """Build attention, with an index if the layer has one."""
        weights = weights.within("self_attn")
        made = self.attention(weights, self.sizes, self.rope, self.scale, LATENT_EPS)
        if self.have_index[index]:
            made.index = TokenIndex(weights.within("indexer"), self.index, self.rope, self.order_index())
        return made

    def order_index(self) -> torch.Tensor:
        """Return the order of the numbers of a key in the index; see `Index`."""
        return torch.arange(self.index.width)


class GlmMoeDsa(DeepseekV32):
    """See `parallax_backend_torch.api.Model`."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.have_index = glm_moe_dsa.list_indexed(self.config)

    def order_index(self) -> torch.Tensor:
        """Return the order of the numbers of a key in the index: files store rotated pairs as neighbours."""
        order = super().order_index()
        return torch.cat([split_pairs(order[: self.rope.width], dim=0), order[self.rope.width :]])

    def build_layer(self, index: int, weights: Weights) -> Layer:
        """Build a layer."""
        layer = super().build_layer(index, weights)
        return layer if all(self.have_index) else ChoosingLayer(layer)
