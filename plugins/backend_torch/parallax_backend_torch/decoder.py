"""A model of plain layers, as Llama has them; the base of families that differ from it in a few parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from parallax_backend_torch.config import FULL, SLIDING, Config
from parallax_backend_torch.decoder_layer import build_plain
from parallax_backend_torch.heads import Attention, Look, read_heads
from parallax_backend_torch.mlp import GatedMlp, Looker, Mixer
from parallax_backend_torch.model import Layer, check_choice, read_shape
from parallax_backend_torch.rope import Rope, make_rope
from parallax_backend_torch.store import CacheSpec
from parallax_backend_torch.weights import Weights


class Decoder:
    """Llama, and models of the same structure; see `model.Model`.

    A family is a subclass that sets other attributes after ``super().__init__``, or overrides what builds a part.

    Args:
        config: the settings of the model.
        is_tied: whether the head is tied to the embedding if config.json does not say.
    """

    activation: ClassVar[str] = "silu"
    """The only activation of the family, as config.json names it."""

    def __init__(self, config: Config, *, is_tied: bool = False) -> None:
        check_choice(config, "hidden_act", self.activation)
        self.config = config
        self.shape = read_shape(config, is_tied=is_tied)
        self.heads = read_heads(config)
        self.look = Look(rope=make_rope(config, self.heads.width), eps=self.shape.eps)
        """The options of attention in every layer, apart from `windows`."""
        self.windows: Sequence[int] = (0,) * self.shape.num_layers
        """The number of tokens that a token of each layer sees, including itself; 0: all."""

        self.ropes: Mapping[str, Rope] = {}
        """The rope of layers with `FULL` attention, and of those with `SLIDING`; empty: that of `look`."""

    def keep_layer(self, index: int) -> CacheSpec:
        """Return the cache of a layer: keys and values."""
        return self.heads.keep(self.windows[index])

    def find_look(self, index: int) -> Look:
        """Return the options of attention in a layer."""
        window = self.windows[index]
        return replace(self.look, window=window, rope=self.ropes.get(SLIDING if window else FULL, self.look.rope))

    def build_attention(self, index: int, weights: Weights) -> Looker:
        """Build what combines tokens, from the weights of the layer."""
        return Attention(weights.within("self_attn"), self.heads, self.find_look(index))

    def build_mixer(self, index: int, weights: Weights) -> Mixer:  # noqa: ARG002 -- every layer is alike
        """Build what works on each token, from the weights of the layer."""
        return GatedMlp(weights.within("mlp"))

    def build_layer(self, index: int, weights: Weights) -> Layer:
        """Build a layer."""
        attention, mixer = self.build_attention(index, weights), self.build_mixer(index, weights)
        return build_plain(weights, (self.shape.eps, self.shape.norm_offset), attention, mixer)
