"""DeepSeek-V3.2 and GLM-5: latent attention to the tokens that an index chose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch.nn import functional

from parallax_backend_torch.api import (
    CacheSpec,
    Carried,
    Choice,
    Config,
    LatentAttention,
    LatentInput,
    LatentSizes,
    Layer,
    LayerCache,
    Packed,
    Pool,
    Rope,
    SlotMapping,
    Step,
    Weights,
    attend_chosen,
    find_longest,
    list_rows,
    rotate,
    split_pairs,
    split_tokens,
)
from parallax_models.blocks.deepseek_v3 import DeepseekV3
from parallax_models.glm_moe_dsa import CHOSEN, list_indexed

EPS = 1e-6
"""The eps of the norm of keys in the index."""


@dataclass(frozen=True, slots=True)
class IndexSizes:
    """The sizes of an index."""

    num_heads: int
    width: int
    """The width of its queries and keys."""
    num_chosen: int
    """The number of tokens that a token attends to."""
    eps: float = EPS
    """The eps of the norm of its keys."""


class Chooser(Protocol):
    """The index of one layer."""

    def store(self, given: LatentInput, step: Step, kept: torch.Tensor, places: SlotMapping) -> None:
        """Write the keys of the new tokens to their slots."""

    def choose(self, given: LatentInput, step: Step, kept: torch.Tensor, places: SlotMapping) -> torch.Tensor:
        """Return the positions of the best tokens for each token, from stored keys: int32 of shape [tokens, chosen].

        Missing ones are -1: all, if no token sees more than may be chosen.
        """


class Index:
    """The index of one layer: scores of earlier tokens (DeepSeek-V3.2-Exp, section 2.1).

    Args:
        weights: with ``wq_b``, ``wk``, ``k_norm`` and ``weights_proj``.
        sizes: its sizes.
        rope: the rope of its queries and keys.
        order: the numbers of a query or key as files store them, int64 of shape [width], rotated ones first.
    """

    def __init__(self, weights: Weights, sizes: IndexSizes, rope: Rope, order: torch.Tensor) -> None:
        self._sizes, self._rope = sizes, rope
        query = weights.read_plain("wq_b.weight").unflatten(0, (sizes.num_heads, -1))[:, order].flatten(0, 1)
        self._query: Packed = weights.keep_linear(query, None)
        self._key = weights.keep_linear(weights.read_plain("wk.weight")[order], None)
        self._scale, self._bias = (weights.read_vector(f"k_norm.{name}")[order] for name in ("weight", "bias"))
        self._shares = weights.make_linear("weights_proj", purpose="router")

    def store(self, given: LatentInput, step: Step, kept: torch.Tensor, places: SlotMapping) -> None:
        """Write the keys of the new tokens to their slots."""
        key = functional.layer_norm(
            self._key.apply(given.x).float(), (self._sizes.width,), self._scale, self._bias, self._sizes.eps
        )
        key = key[:, None]
        rotate(key, step.find_angles(self._rope))
        kept[places.slots] = key.to(kept.dtype)

    def choose(self, given: LatentInput, step: Step, kept: torch.Tensor, places: SlotMapping) -> torch.Tensor:
        """Return the positions of the best tokens; see `Chooser`."""
        sizes = self._sizes
        chosen = torch.full((len(given.x), sizes.num_chosen), -1, dtype=torch.int32, device=given.x.device)
        if find_longest(places) <= sizes.num_chosen:
            return chosen
        query = self._query.apply(given.narrow).unflatten(1, (sizes.num_heads, -1))
        rotate(query, step.find_angles(self._rope))
        shares = self._shares.apply(given.x).float() * sizes.num_heads**-0.5
        for row in list_rows(places, query.device):
            keys, number = kept[row.slots, 0].float(), min(sizes.num_chosen, len(row.slots))
            queries, weights = query[row.part].float(), shares[row.part]
            for part in split_tokens(len(queries), sizes.num_heads * len(keys)):
                scores = functional.relu(queries[part] @ keys.T * sizes.width**-0.5)
                total = (weights[part, None] @ scores)[:, 0]
                later = torch.arange(len(keys), device=keys.device) > row.positions[part, None]
                best = total.masked_fill(later, -torch.inf).topk(number, dim=-1)
                found = best.indices.masked_fill(best.values == -torch.inf, -1)
                chosen[row.part][part, :number] = found.to(torch.int32)
        return chosen


class IndexedAttention(LatentAttention):
    """Latent attention to the tokens that an index chose: of this layer, or the last one before that has some."""

    is_steady = False
    index: Chooser | None = None
    """None: that of an earlier layer."""

    def attend(self, given: LatentInput, query: torch.Tensor, step: Step, cache: LayerCache) -> torch.Tensor:
        """Return the attention of each query to chosen latents: [tokens, heads, width of a latent's key]."""
        places = cache.places
        assert isinstance(places, SlotMapping)
        if self.index is not None:
            self.index.store(given, step, cache.kept[1], places)
            step.shared[CHOSEN] = self.index.choose(given, step, cache.kept[1], places)
        chosen = step.shared[CHOSEN][:, None]
        if find_longest(places) <= chosen.shape[2]:
            return super().attend(given, query, step, cache)
        choices = [
            Choice(row.part, row.slots[chosen[row.part].clamp(min=0)], chosen[row.part] >= 0)
            for row in list_rows(places, query.device)
        ]
        return attend_chosen(query, Pool(cache.kept[0], cache.kept[0]), choices, self.rule)


@dataclass(frozen=True, eq=False, slots=True)
class ChoosingLayer:
    """A layer, and the plane of an index: it takes or gives it."""

    layer: Layer

    def __call__(self, carried: Carried, step: Step, cache: LayerCache) -> Carried:
        """Return the planes after the layer."""
        if CHOSEN in carried.others:
            step.shared[CHOSEN] = carried.others[CHOSEN]
        found = self.layer(carried, step, cache)
        return found.replace(found.hidden, **{CHOSEN: step.shared[CHOSEN]})


class DeepseekV32(DeepseekV3):
    """See `parallax_backend_torch.api.Model`."""

    attention: ClassVar[type[IndexedAttention]] = IndexedAttention

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.index = IndexSizes(
            config.count("index_n_heads"), config.count("index_head_dim"), config.count("index_topk")
        )
        self.have_index: Sequence[bool] = (True,) * self.shape.num_layers

    def keep_layer(self, index: int) -> CacheSpec:
        """Return the cache of a layer: a latent, the part of a key with rope, and a key in the index."""
        return keep_indexed(self.sizes, self.index.width if self.have_index[index] else 0)

    def build_attention(self, index: int, weights: Weights) -> IndexedAttention:
        """Build attention, with an index if the layer has one."""
        weights = weights.within("self_attn")
        made = self.attention(weights, self.sizes, self.rope, self.scale, self.shape.eps)
        if self.have_index[index]:
            made.index = Index(weights.within("indexer"), self.index, self.rope, self.order_index())
        return made

    def order_index(self) -> torch.Tensor:
        """Return the order of the numbers of a key in the index; see `Index`."""
        return torch.arange(self.index.width)


class GlmMoeDsa(DeepseekV32):
    """See `parallax_backend_torch.api.Model`."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.have_index = list_indexed(config)

    def order_index(self) -> torch.Tensor:
        """Return the order of the numbers of a key in the index: files store rotated pairs as neighbours."""
        order = super().order_index()
        return torch.cat([split_pairs(order[: self.rope.width], dim=0), order[self.rope.width :]])

    def build_layer(self, index: int, weights: Weights) -> Layer:
        """Build a layer."""
        layer = super().build_layer(index, weights)
        return layer if all(self.have_index) else ChoosingLayer(layer)


def keep_indexed(sizes: LatentSizes, width: int) -> CacheSpec:
    """Return the cache of a layer: a latent, and a key in the index if it has some width."""
    kept = sizes.keep()
    return CacheSpec(kept.kind, (*kept.shapes, (1, width))) if width else kept
