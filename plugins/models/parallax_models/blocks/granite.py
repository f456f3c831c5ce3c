"""Granite 3 and 4: Llama with four factors, and in Granite 4 Mamba 2 and experts."""

from __future__ import annotations

from dataclasses import replace

from parallax_backend_torch.api import (
    CacheSpec,
    Config,
    Experts,
    GatedMlp,
    Layer,
    Looker,
    Mamba,
    MambaSizes,
    Mixer,
    SoftmaxRoute,
    Weights,
    build_experts,
    build_normed,
)
from parallax_models.blocks.decoder import Decoder
from parallax_models.granitemoehybrid import read_kinds, read_widths
from parallax_models.mixtral import read_experts
from parallax_models.weights import MambaWidths

STACKS = "input_linear.weight", "output_linear.weight"
NORMS = ("input_layernorm", "", "post_attention_layernorm", "")


class Granite(Decoder):
    """See `parallax_backend_torch.api.Model`."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.shape = replace(
            self.shape,
            embed_scale=self.config.number("embedding_multiplier", 1.0),
            logit_scale=1 / self.config.number("logits_scaling", 1.0),
        )
        self.look = replace(self.look, scale=self.config.number("attention_multiplier", 1.0))
        self.scale = self.config.number("residual_multiplier", 1.0)

    def build_layer(self, index: int, weights: Weights) -> Layer:
        """Build a layer."""
        parts = self.build_attention(index, weights), self.build_mixer(index, weights)
        return replace(build_normed(weights, (self.shape.eps, 0.0), NORMS, *parts), scale=self.scale)


class GraniteHybrid(Granite):
    """See `parallax_backend_torch.api.Model`."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if self.config.raw.get("position_embedding_type") != "rope":
            self.look = replace(self.look, rope=None)
        self.kinds = read_kinds(self.config)
        self.sizes = size_mamba(read_widths(self.config))

    def keep_layer(self, index: int) -> CacheSpec:
        """Return the cache of a layer: keys and values, or a state."""
        return self.heads.keep() if self.kinds[index] else self.sizes.keep()

    def build_attention(self, index: int, weights: Weights) -> Looker:
        """Build attention, or Mamba 2."""
        if self.kinds[index]:
            return super().build_attention(index, weights)
        return Mamba(weights.within("mamba"), self.sizes, self.shape.eps)

    def build_mixer(self, index: int, weights: Weights) -> Mixer:  # noqa: ARG002 -- every layer is alike
        """Build an MLP that every token meets, and experts if the model has some."""
        names = {"gate_proj": "input_linear", "up_proj": "input_linear", "down_proj": "output_linear"}
        shared = GatedMlp(weights.within("shared_mlp").rename(**names))
        if not self.config.size("num_local_experts", 8):
            return shared
        experts, weights = read_experts(self.config), weights.within("block_sparse_moe")
        made = build_experts(weights, experts.num, STACKS)
        route = SoftmaxRoute(experts.num_chosen, is_normalised=True)
        return Experts(weights.make_linear("router.layer", purpose="router"), made, route, shared)


def size_mamba(widths: MambaWidths) -> MambaSizes:
    """Return the sizes of Mamba 2, whose groups of heads are normalised by themselves."""
    groups = widths.keys // widths.state
    return MambaSizes(
        num_heads=widths.num,
        num_groups=groups,
        head=widths.inner // widths.num,
        state=widths.state,
        kernel=widths.kernel,
        norm_groups=groups,
    )
