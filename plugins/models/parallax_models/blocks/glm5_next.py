"""GLM-5.3-Flash: four streams, Kimi delta attention, and latent attention to the blocks of an index."""

from __future__ import annotations

import torch

from parallax_backend_torch.api import (
    FULL,
    CacheSpec,
    ChoosingLayer,
    Clamp,
    Config,
    Experts,
    HyperLayer,
    HyperRule,
    IndexedAttention,
    IndexSizes,
    KimiDelta,
    Layer,
    Looker,
    Mixer,
    Norm,
    SeenRow,
    TokenIndex,
    Weights,
    build_clamped,
    build_connections,
    build_experts,
    build_parts,
    choose_blocks,
    keep_indexed,
)
from parallax_models import glm5_next
from parallax_models.blocks.deepseek_v3 import DeepseekV3
from parallax_models.blocks.kimi_linear import read_delta
from parallax_models.deepseek_v3 import list_sparse, read_experts


class PoolIndex(TokenIndex):
    """The index of one layer: a block has one key, the mean of its tokens' by weights of each number.

    Args:
        weights: with those of `TokenIndex`, and what gives the weights of a mean.
        sizes: its sizes; it chooses whole blocks.
        block: the number of tokens in a block.
    """

    def __init__(self, weights: Weights, sizes: IndexSizes, block: int) -> None:
        super().__init__(weights, sizes, None, torch.arange(sizes.width))
        self._block, self._places = block, weights.read_vector("index_kpool_compress_ape")

    def read_key(self, weights: Weights, order: torch.Tensor) -> torch.Tensor:  # noqa: ARG002 -- of a rope
        """Return the matrix of keys, and of what gives their weights: [2 * width, width of the model]."""
        return torch.cat([weights.read_plain("wk.weight"), weights.read_plain("index_kpool_compress_gate")])

    @property
    def num_chosen(self) -> int:
        """The most positions that are chosen for a token: whole blocks, and those after the last one."""
        return self.sizes.num_chosen + self._block - 1

    def read_keys(self, row: SeenRow, kept: torch.Tensor) -> torch.Tensor:
        """Return the keys of the whole blocks of a row: [blocks, width]."""
        size = self._block
        blocks = kept[row.slots[: len(row.slots) // size * size], 0].float().unflatten(0, (-1, size))
        keys, gates = blocks.chunk(2, dim=-1)
        return ((gates + self._places).softmax(1) * keys).sum(1)

    def pick(self, scores: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the positions of the tokens of the best blocks."""
        return choose_blocks(scores, positions, self._block, self.sizes.num_chosen // self._block)


class Glm5Next(DeepseekV3):
    """See `parallax_backend_torch.api.Model`."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.kinds, self.borrowing = glm5_next.list_kinds(self.config), glm5_next.list_borrowing(self.config)
        self.delta = read_delta(self.config)
        self.index, self.rule = IndexSizes.read(self.config), HyperRule.read(self.config, self.shape.eps)

    def keep_layer(self, index: int) -> CacheSpec:
        """Return the cache of a layer: a state; or a latent, and in the index a key and what gives its weights."""
        if self.kinds[index] != FULL:
            return self.delta.keep()
        return keep_indexed(self.sizes, 0 if self.borrowing[index] else 2 * self.index.width)

    def build_attention(self, index: int, weights: Weights) -> Looker:
        """Build Kimi delta attention, or latent attention with an index of its own or of the layer before."""
        weights = weights.within("self_attn")
        if self.kinds[index] != FULL:
            return KimiDelta(weights, self.delta, self.shape.eps)
        made = IndexedAttention(weights, self.sizes, None, self.scale, self.shape.eps)
        if not self.borrowing[index]:
            made.index = PoolIndex(weights.within("indexer"), self.index, self.config.count("index_kpool"))
        return made

    def build_mixer(self, index: int, weights: Weights) -> Mixer:
        """Build clamped experts, or in the first layers an MLP."""
        weights, clamp = weights.within("mlp"), Clamp(self.config.number("swiglu_limit", 10.0))
        if not list_sparse(self.config, 3)[index]:
            return build_clamped(weights, clamp)
        router, route = weights.make_linear("gate", purpose="router"), self.make_route(weights)
        experts = build_experts(weights, read_experts(self.config).num, clamp=clamp)
        return Experts(router, experts, route, build_clamped(weights.within("shared_experts"), clamp))

    def build_layer(self, index: int, weights: Weights) -> Layer:
        """Build a layer between streams."""
        attention, mixer = self.build_attention(index, weights), self.build_mixer(index, weights)
        norms = [Norm.read(weights, f"{name}_layernorm", self.shape.eps) for name in ("input", "post_attention")]
        layer = HyperLayer(
            parts=build_parts(build_connections(weights, self.rule), norms, attention, mixer),
            num_new=0 if index else self.rule.num,
            head=(lambda streams: streams.mean(1)) if index + 1 == self.shape.num_layers else None,
        )
        is_shared = self.borrowing[index] or any(self.borrowing[index + 1 : index + 2])
        return ChoosingLayer(layer) if is_shared else layer
