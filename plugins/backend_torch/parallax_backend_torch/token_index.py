"""Latent attention to the tokens that an index chose, which layers may share (DeepSeek-V3.2-Exp)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from parallax_backend_torch.arithmetic import rotate
from parallax_backend_torch.config import Config
from parallax_backend_torch.kernels.attention import Pool
from parallax_backend_torch.kernels.linear import Packed
from parallax_backend_torch.latent import LatentAttention, LatentInput, LatentSizes
from parallax_backend_torch.model import Layer
from parallax_backend_torch.rope import Rope
from parallax_backend_torch.sparse import Choice, SeenRow, attend_chosen, find_longest, list_rows, score_keys
from parallax_backend_torch.step import Carried, LayerCache, SlotMapping, Step
from parallax_backend_torch.store import CacheSpec
from parallax_backend_torch.weights import Weights

CHOSEN = "chosen"
"""The plane of the positions that the index of a layer chose for each token, -1 for none."""
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

    @classmethod
    def read(cls, config: Config, eps: float = EPS) -> IndexSizes:
        """Read the settings."""
        return cls(config.count("index_n_heads"), config.count("index_head_dim"), config.count("index_topk"), eps)


class TokenIndex:
    """The index of one layer: scores of earlier tokens by keys of its own.

    Args:
        weights: with ``wq_b``, ``wk``, ``k_norm`` and ``weights_proj``.
        sizes: its sizes.
        rope: the rope of its queries and keys; None: they do not know positions.
        order: the numbers of a query or key as files store them, int64 of shape [width], rotated ones first.
    """

    def __init__(self, weights: Weights, sizes: IndexSizes, rope: Rope | None, order: torch.Tensor) -> None:
        self.sizes, self._rope = sizes, rope
        query = weights.read_plain("wq_b.weight").unflatten(0, (sizes.num_heads, -1))[:, order].flatten(0, 1)
        self._query: Packed = weights.keep_linear(query, None)
        self._key = weights.keep_linear(self.read_key(weights, order), None)
        self._scale, self._bias = (weights.read_vector(f"k_norm.{name}")[order] for name in ("weight", "bias"))
        self._shares = weights.make_linear("weights_proj", purpose="router")

    def read_key(self, weights: Weights, order: torch.Tensor) -> torch.Tensor:
        """Return the matrix of what is computed of each token to be kept: [numbers, width of the model]."""
        return weights.read_plain("wk.weight")[order]

    @property
    def num_chosen(self) -> int:
        """The most positions that are chosen for a token."""
        return self.sizes.num_chosen

    def store(self, given: LatentInput, step: Step, kept: torch.Tensor, places: SlotMapping) -> None:
        """Write the keys of the new tokens to their slots."""
        numbers = self._key.apply(given.x).float()
        width = self.sizes.width
        key = functional.layer_norm(numbers[:, :width], (width,), self._scale, self._bias, self.sizes.eps)
        self._turn(key[:, None], step)
        kept[places.slots] = torch.cat([key, numbers[:, width:]], dim=1)[:, None].to(kept.dtype)

    def choose(self, given: LatentInput, step: Step, kept: torch.Tensor, places: SlotMapping) -> torch.Tensor:
        """Return the positions of the best tokens for each token, from what is stored: int32 of shape [tokens, chosen].

        Missing ones are -1: all, if no token sees more than may be chosen.
        """
        sizes = self.sizes
        chosen = torch.full((len(given.x), self.num_chosen), -1, dtype=torch.int32, device=given.x.device)
        if find_longest(places) <= sizes.num_chosen:
            return chosen
        query = self._query.apply(given.narrow).unflatten(1, (sizes.num_heads, -1))
        self._turn(query, step)
        shares = self._shares.apply(given.x).float() * sizes.num_heads**-0.5
        for row in list_rows(places, query.device):
            for part, scores in score_keys(query[row.part], shares[row.part], self.read_keys(row, kept)):
                found = self.pick(scores, row.positions[part])
                chosen[row.part][part, : found.shape[1]] = found.to(torch.int32)
        return chosen

    def read_keys(self, row: SeenRow, kept: torch.Tensor) -> torch.Tensor:
        """Return the keys of a row, [keys, width], from what is stored by slot."""
        return kept[row.slots, 0]

    def pick(self, scores: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the positions of what is best by the scores of keys, [tokens, keys], for tokens at ``positions``."""
        later = torch.arange(scores.shape[1], device=scores.device) > positions[:, None]
        best = scores.masked_fill(later, -torch.inf).topk(min(self.num_chosen, scores.shape[1]), dim=-1)
        return best.indices.masked_fill(best.values == -torch.inf, -1)

    def _turn(self, x: torch.Tensor, step: Step) -> None:
        if self._rope is not None:
            rotate(x, step.find_angles(self._rope))


class IndexedAttention(LatentAttention):
    """Latent attention to the tokens that an index chose: of this layer, or the last one before that has some."""

    is_steady = False
    index: TokenIndex | None = None
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


def keep_indexed(sizes: LatentSizes, width: int) -> CacheSpec:
    """Return the cache of a layer: a latent, and a key in the index if it has some width."""
    kept = sizes.keep()
    return CacheSpec(kept.kind, (*kept.shapes, (1, width))) if width else kept
