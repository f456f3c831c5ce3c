"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1), on the latents themselves.

The cache of a token is its latent and the part of its key with rope. The matrices from a latent to keys and values are
applied to queries and results instead, so the latent is the key, and the value, of all heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from parallax_backend_torch.arithmetic import Norm, attend, rotate, store
from parallax_backend_torch.kernels.attention import Pool, Rule
from parallax_backend_torch.rope import Rope, split_pairs
from parallax_backend_torch.step import LayerCache, SlotMapping, Step
from parallax_backend_torch.store import CacheSpec
from parallax_backend_torch.weights import Weights


@dataclass(frozen=True, slots=True)
class LatentSizes:
    """The widths of heads and latents."""

    num_heads: int
    latent: int
    plain: int
    """The width of the part of a query without rope."""
    rotated: int
    value: int

    def keep(self) -> CacheSpec:
        """Return the cache of a layer."""
        return CacheSpec("latent", ((1, self.latent + self.rotated),))


@dataclass(frozen=True, eq=False, slots=True)
class LatentInput:
    """What queries are computed from."""

    x: torch.Tensor
    """The input of the layer, [tokens, width of the model]."""
    narrow: torch.Tensor
    """The latents of queries, [tokens, rank]; ``x`` itself in models without them."""


class LatentAttention:
    """Attention of one layer.

    Args:
        weights: the weights of the layer's attention, with ``sinks`` and ``gate_proj`` if the family has them.
        sizes: the widths of heads and latents.
        rope: the rope; None: attention does not know positions.
        scale: the factor of the scores.
        eps: the eps of the norms.
    """

    is_steady = True
    """See `model.find_obstacle`."""
    is_paired: ClassVar[bool] = True
    """Whether files store rotated pairs as neighbours; their rows are then reordered to halves when they are loaded."""

    def __init__(self, weights: Weights, sizes: LatentSizes, rope: Rope | None, scale: float, eps: float) -> None:
        sinks = weights.read_vector("sinks") if weights.has("sinks") else None
        self._sizes, self._rope, self.rule = sizes, rope if sizes.rotated else None, Rule(scale, sinks=sinks)
        self._gate = weights.make_linear("gate_proj") if weights.has("gate_proj.weight") else None
        self._narrow = weights.make_linear("q_a_proj") if weights.has("q_a_proj.weight") else None
        self._narrow_norm = Norm(weights.read_vector("q_a_layernorm.weight"), eps) if self._narrow else None
        query = weights.read_plain("q_b_proj.weight" if self._narrow else "q_proj.weight")
        heads = query.unflatten(0, (sizes.num_heads, -1))
        halves = self._order(heads[:, sizes.plain :], dim=1)
        self._query = weights.keep_linear(torch.cat([heads[:, : sizes.plain], halves], dim=1).flatten(0, 1), None)
        down = weights.read_plain("kv_a_proj_with_mqa.weight")
        bias = weights.read_bias("kv_a_proj_with_mqa")
        order = torch.arange(len(down))
        order[sizes.latent :] = self._order(order[sizes.latent :], dim=0)
        self._down = weights.keep_linear(down[order], None if bias is None else bias[order])
        self._norm = Norm(weights.read_vector("kv_a_layernorm.weight"), eps)
        up = weights.read_plain("kv_b_proj.weight").unflatten(0, (sizes.num_heads, -1))
        keys, values = up.split((sizes.plain, sizes.value), dim=1)
        self._keys, self._values = (weights.keep_stack(part) for part in (keys, values.transpose(1, 2)))
        self._back = weights.make_linear("o_proj")

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None, step: Step, cache: LayerCache) -> torch.Tensor:
        """Return the output plus ``residual``: [tokens, width of the model]."""
        sizes, places = self._sizes, cache.places
        assert isinstance(places, SlotMapping)
        if self._narrow is not None and self._narrow_norm is not None:
            given = LatentInput(x, self._narrow_norm(self._narrow.apply(x)))
        else:
            given = LatentInput(x, x)
        heads = self._query.apply(given.narrow)
        plain, turned = heads.unflatten(1, (sizes.num_heads, -1)).split((sizes.plain, sizes.rotated), dim=-1)
        query = torch.cat([multiply_heads(plain, self._keys), turned], dim=-1)
        latent, key = self._down.apply(x).split((sizes.latent, sizes.rotated), dim=-1)
        kept = torch.cat([self._norm(latent), key], dim=-1)[:, None]
        if self._rope is not None:
            for each in (query, kept):
                rotate_tail(each, sizes.rotated, step.find_angles(self._rope))
        pool = Pool(cache.kept[0], cache.kept[0])
        store(pool, kept, kept, places)
        found = self.attend(given, query, step, cache)[..., : sizes.latent]
        found = multiply_heads(found, self._values).flatten(1)
        if self._gate is not None:
            found = found * self._gate.apply(x).sigmoid()
        return self._back.apply(found, residual)

    def _order(self, rotated: torch.Tensor, dim: int) -> torch.Tensor:
        return split_pairs(rotated, dim) if self.is_paired and self._rope is not None else rotated

    def attend(self, given: LatentInput, query: torch.Tensor, step: Step, cache: LayerCache) -> torch.Tensor:  # noqa: ARG002 -- of an index
        """Return the attention of each query to latents, those of the step among them: [tokens, heads, width of a key].

        Args:
            given: what the queries were computed from.
            query: [tokens, heads, width of a key].
            step: the inputs of all layers.
            cache: the cache of this layer.
        """
        assert isinstance(cache.places, SlotMapping)
        return attend(query, Pool(cache.kept[0], cache.kept[0]), cache.places, self.rule)


def multiply_heads(x: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
    """Multiply each head by its own matrix: [tokens, heads, in] by [heads, in, out]."""
    return torch.bmm(x.transpose(0, 1), matrices).transpose(0, 1).contiguous()


def rotate_tail(x: torch.Tensor, width: int, angles: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Rotate the last ``width`` numbers of each head in place: [tokens, heads, ...]."""
    tail = x[..., -width:].contiguous()
    rotate(tail, angles)
    x[..., -width:] = tail
