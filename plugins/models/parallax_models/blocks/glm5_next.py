"""GLM-5.3-Flash: four streams, Kimi delta attention, and latent attention to the blocks of an index."""

from __future__ import annotations

import torch
from torch.nn import functional

from parallax_backend_torch.api import (
    FULL,
    CacheSpec,
    Config,
    Experts,
    HyperConnection,
    HyperLayer,
    HyperPart,
    HyperRule,
    KimiDelta,
    LatentInput,
    Layer,
    Looker,
    Mixer,
    Norm,
    SlotMapping,
    Step,
    Weights,
    choose_blocks,
    find_longest,
    list_rows,
    split_tokens,
)
from parallax_models import glm5_next
from parallax_models.blocks.clamped import ClampedMlp, clamp_experts
from parallax_models.blocks.deepseek_v3 import DeepseekV3, read_route
from parallax_models.blocks.deepseek_v32 import ChoosingLayer, IndexedAttention, IndexSizes, keep_indexed
from parallax_models.blocks.kimi_linear import read_delta
from parallax_models.deepseek_v3 import list_sparse

FACTORS = "fn", "base", "scale"


class PoolIndex:
    """The index of one layer: a block has one key, the mean of its tokens' by weights of each number; see `Index`.

    Args:
        weights: with ``wq_b``, ``wk``, ``k_norm``, ``weights_proj``, and what gives the weights of a mean.
        sizes: its sizes; it chooses whole blocks.
        block: the number of tokens in a block.
    """

    def __init__(self, weights: Weights, sizes: IndexSizes, block: int) -> None:
        self._sizes, self._block = sizes, block
        self._query = weights.make_linear("wq_b")
        both = weights.read_plain("wk.weight"), weights.read_plain("index_kpool_compress_gate")
        self._into = weights.keep_linear(torch.cat(both), None)
        self._places = weights.read_vector("index_kpool_compress_ape")
        self._scale, self._bias = (weights.read_vector(f"k_norm.{name}") for name in ("weight", "bias"))
        self._shares = weights.make_linear("weights_proj", purpose="router")

    def store(self, given: LatentInput, step: Step, kept: torch.Tensor, places: SlotMapping) -> None:  # noqa: ARG002 -- of a rope
        """Write the keys of the new tokens, and what gives their weights, to their slots."""
        keys, gates = self._into.apply(given.x).float().chunk(2, dim=1)
        keys = functional.layer_norm(keys, (self._sizes.width,), self._scale, self._bias, self._sizes.eps)
        kept[places.slots] = torch.cat([keys, gates], dim=1)[:, None].to(kept.dtype)

    def choose(self, given: LatentInput, step: Step, kept: torch.Tensor, places: SlotMapping) -> torch.Tensor:  # noqa: ARG002 -- of a rope
        """Return the positions of the tokens of the best blocks for each token: int32 of shape [tokens, chosen]."""
        sizes, size = self._sizes, self._block
        num = sizes.num_chosen // size
        chosen = torch.full((len(given.x), num * size + size - 1), -1, dtype=torch.int32, device=given.x.device)
        if find_longest(places) // size <= num:
            return chosen
        query = self._query.apply(given.narrow).unflatten(1, (sizes.num_heads, -1)).float()
        shares = self._shares.apply(given.x).float() * sizes.num_heads**-0.5
        for row in list_rows(places, query.device):
            blocks = kept[row.slots[: len(row.slots) // size * size], 0].float().unflatten(0, (-1, size))
            keys, gates = blocks.chunk(2, dim=-1)
            means = ((gates + self._places).softmax(1) * keys).sum(1)
            queries, weights = query[row.part], shares[row.part]
            for part in split_tokens(len(queries), sizes.num_heads * len(means)):
                scores = functional.relu(queries[part] @ means.T * sizes.width**-0.5)
                total = (weights[part, None] @ scores)[:, 0]
                chosen[row.part][part] = choose_blocks(total, row.positions[part], size, num).to(torch.int32)
        return chosen


class Glm5Next(DeepseekV3):
    """See `parallax_backend_torch.api.Model`."""

    def __init__(self, config: Config) -> None:
        config = Config(glm5_next.unify(config.raw))
        super().__init__(config)
        self.kinds, self.borrowing = glm5_next.list_kinds(config), glm5_next.list_borrowing(config)
        self.delta = read_delta(config)
        self.index = IndexSizes(
            config.count("index_n_heads"), config.count("index_head_dim"), config.count("index_topk")
        )
        self.rule = HyperRule(
            num=config.count("hc_mult"),
            norm_eps=self.shape.eps,
            eps=config.number("hc_eps", 1e-6),
            rounds=config.count("hc_sinkhorn_iters", default=20),
        )

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
        weights = weights.within("mlp")
        if not list_sparse(self.config, 3)[index]:
            return self._build_mlp(weights)
        router, route = weights.make_linear("gate", purpose="router"), read_route(self.config, weights)
        shared = self._build_mlp(weights.within("shared_experts"))
        return Experts(router, clamp_experts(self.config, weights), route, shared)

    def build_layer(self, index: int, weights: Weights) -> Layer:
        """Build a layer between streams."""
        attention, mixer = self.build_attention(index, weights), self.build_mixer(index, weights)
        norms = (
            Norm(weights.read_vector(f"{name}.weight"), self.shape.eps)
            for name in ("input_layernorm", "post_attention_layernorm")
        )
        mixes = (
            HyperConnection(weights.rename(**{each: f"hc_{part}_{each}" for each in FACTORS}), self.rule)
            for part in ("attn", "ffn")
        )
        runs = (lambda x, step, cache: attention(x, None, step, cache)), (lambda x, *_: mixer(x, None))
        layer = HyperLayer(
            parts=[HyperPart(*each) for each in zip(mixes, norms, runs, strict=True)],
            num_new=0 if index else self.rule.num,
            head=(lambda streams: streams.mean(1)) if index + 1 == self.shape.num_layers else None,
        )
        is_shared = self.borrowing[index] or any(self.borrowing[index + 1 : index + 2])
        return ChoosingLayer(layer) if is_shared else layer

    def _build_mlp(self, weights: Weights) -> ClampedMlp:
        into, back = weights.make_linear("gate_proj", "up_proj"), weights.make_linear("down_proj")
        return ClampedMlp(into, back, self.config.number("swiglu_limit", 10.0))
