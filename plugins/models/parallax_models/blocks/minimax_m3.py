"""MiniMax-M3, text: attention to the blocks of tokens that an index chose, and experts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch.nn import functional

from parallax_backend_torch.api import (
    NUMBERED,
    Attention,
    CacheSpec,
    Choice,
    ChosenAttention,
    Config,
    Experts,
    GroupRoute,
    LayerCache,
    Mixer,
    Norm,
    Rope,
    SeenRow,
    SlotMapping,
    Step,
    Weights,
    build_clamped,
    build_experts,
    find_longest,
    list_rows,
    rotate,
    split_tokens,
)
from parallax_models import minimax_m3
from parallax_models.blocks.decoder import Decoder
from parallax_models.blocks.gpt_oss import read_clamp
from parallax_models.deepseek_v3 import list_sparse
from parallax_models.mixtral import read_experts

INDEX = {"q_proj": "index_q_proj", "k_proj": "index_k_proj", "q_norm": "index_q_norm", "k_norm": "index_k_norm"}


@dataclass(frozen=True, slots=True)
class BlockSizes:
    """The sizes of an index of blocks."""

    num_heads: int
    """Its heads; each chooses for the queries that share a head of keys."""
    width: int
    block: int
    """The number of tokens in a block."""
    num_chosen: int
    """The number of blocks that a token attends to."""
    num_local: int
    """The number of them that are its own block, and those right before."""


class BlockIndex:
    """The index of one layer: the score of a block is the best of its tokens'.

    Args:
        weights: with ``q_proj``, ``k_proj``, ``q_norm`` and ``k_norm``.
        sizes: its sizes.
        rope: the rope of its queries and keys.
        eps: the eps of its norms.
    """

    def __init__(self, weights: Weights, sizes: BlockSizes, rope: Rope, eps: float) -> None:
        self.sizes, self._rope = sizes, rope
        self._query, self._key = weights.make_linear("q_proj"), weights.make_linear("k_proj")
        self._query_norm, self._key_norm = (Norm.read(weights, f"{name}_norm", eps, 1.0) for name in ("q", "k"))

    def __call__(self, x: torch.Tensor, step: Step, cache: LayerCache) -> list[Choice] | None:
        """Keep the keys of the new tokens, and return the tokens of the best blocks for each; None: all are chosen."""
        sizes, places, kept = self.sizes, cache.places, cache.kept[-1]
        assert isinstance(places, SlotMapping)
        key = self._key_norm(self._key.apply(x)[:, None])
        rotate(key, step.find_angles(self._rope))
        kept[places.slots] = key.to(kept.dtype)
        if find_longest(places) <= sizes.num_chosen * sizes.block:
            return None
        query = self._query_norm(self._query.apply(x).unflatten(1, (sizes.num_heads, -1)))
        rotate(query, step.find_angles(self._rope))
        return [self._choose_row(query[row.part].float(), row, kept) for row in list_rows(places, x.device)]

    def _choose_row(self, query: torch.Tensor, row: SeenRow, kept: torch.Tensor) -> Choice:
        sizes, keys = self.sizes, kept[row.slots, 0].float()
        within = torch.arange(sizes.block, device=keys.device)
        found, seen = [], []
        for part in split_tokens(len(query), sizes.num_heads * len(keys)):
            positions = row.positions[part, None, None]
            best = self._rank_blocks(query[part] @ keys.T, positions).topk(
                min(sizes.num_chosen, -(-len(keys) // sizes.block)), dim=-1
            )
            chosen = (best.indices[..., None] * sizes.block + within).flatten(2)
            is_chosen = (best.values > -torch.inf).repeat_interleave(sizes.block, dim=-1)
            seen.append(is_chosen & (chosen <= positions))
            found.append(row.slots[chosen.clamp(max=len(keys) - 1)])
        return Choice(row.part, torch.cat(found), torch.cat(seen))

    def _rank_blocks(self, scores: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the scores of blocks, [tokens, heads, blocks], from those of tokens."""
        sizes, count = self.sizes, scores.shape[-1]
        scores = scores.masked_fill(torch.arange(count, device=scores.device) > positions, -torch.inf)
        padded = functional.pad(scores, (0, -count % sizes.block), value=-torch.inf)
        ranks = padded.unflatten(-1, (-1, sizes.block)).amax(-1)
        local = (positions // sizes.block - torch.arange(sizes.num_local, device=scores.device)).clamp(min=0)
        return ranks.scatter(-1, local.expand(-1, sizes.num_heads, -1), torch.inf)


class MiniMaxM3(Decoder):
    """See `parallax_backend_torch.api.Model`."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.shape = replace(self.shape, norm_offset=1.0)
        self.look = replace(self.look, norm_offset=1.0)
        self.have_index = minimax_m3.list_indexed(self.config)
        self.have_experts = list_sparse(self.config)
        self.clamp = read_clamp(self.config)
        self.sizes = BlockSizes(
            num_heads=self.config.count("index_n_heads", default=4),
            width=self.config.count("index_head_dim", default=128),
            block=self.config.count("index_block_size", default=128),
            num_chosen=self.config.count("index_topk_blocks", default=16),
            num_local=self.config.size("index_local_blocks", 1),
        )

    def keep_layer(self, index: int) -> CacheSpec:
        """Return the cache of a layer: keys and values, and a key in the index if the layer has one."""
        kept = self.heads.keep()
        return CacheSpec(kept.kind, (*kept.shapes, (1, self.sizes.width))) if self.have_index[index] else kept

    def build_attention(self, index: int, weights: Weights) -> Attention:
        """Build attention, to chosen blocks or to all tokens."""
        weights = weights.within("self_attn")
        if not self.have_index[index] or self.look.rope is None:
            return Attention(weights, self.heads, self.look)
        chosen = BlockIndex(weights.rename(**INDEX), self.sizes, self.look.rope, self.look.eps)
        return ChosenAttention(weights, self.heads, self.look, chosen)

    def build_mixer(self, index: int, weights: Weights) -> Mixer:
        """Build experts and one that every token meets, or an MLP."""
        if not self.have_experts[index]:
            return build_clamped(weights.within("mlp"), self.clamp)
        experts, weights = read_experts(self.config), weights.within("block_sparse_moe")
        route = GroupRoute(
            num_chosen=experts.num_chosen,
            correction=weights.read_vector("e_score_correction_bias"),
            scale=self.config.number("routed_scaling_factor", 2.0),
        )
        router, shared = weights.make_linear("gate", purpose="router"), weights.within("shared_experts")
        made = build_experts(weights.rename(**NUMBERED), experts.num, clamp=self.clamp)
        return Experts(router, made, route, build_clamped(shared, self.clamp))
