"""Llama, and models of the same structure."""

from __future__ import annotations

from parallax_backend_torch.config import Config
from parallax_backend_torch.decoder_layer import PlainLayer, WholeLayer, build_plain
from parallax_backend_torch.heads import Attention, Look, read_heads
from parallax_backend_torch.mlp import GatedMlp
from parallax_backend_torch.model import check_choice, read_shape
from parallax_backend_torch.rope import make_rope
from parallax_backend_torch.store import CacheSpec
from parallax_backend_torch.weights import Weights


class Llama:
    """See `parallax_backend_torch.model.Model`."""

    def __init__(self, config: Config) -> None:
        check_choice(config, "hidden_act", "silu")
        self.shape = read_shape(config)
        self._heads = read_heads(config)
        self._rope = make_rope(config, self._heads.width)

    def keep_layer(self, index: int) -> CacheSpec:  # noqa: ARG002 -- every layer is alike
        """Return the cache of a layer: keys and values."""
        return self._heads.keep()

    def build_attention(self, weights: Weights) -> Attention:
        """Build full attention."""
        return Attention(weights, self._heads, Look(rope=self._rope))

    def build_layer(self, index: int, weights: Weights) -> PlainLayer | WholeLayer:  # noqa: ARG002 -- every layer is alike
        """Build a layer."""
        attention = self.build_attention(weights.within("self_attn"))
        return build_plain(
            weights, (self.shape.eps, self.shape.norm_offset), attention, GatedMlp(weights.within("mlp"))
        )
