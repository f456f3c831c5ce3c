"""Grouped-query attention over pages: one product for queries, keys and values, one for outputs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from parallax_backend_torch.arithmetic import Norm, attend, place_heads, rotate, store
from parallax_backend_torch.config import Config
from parallax_backend_torch.kernels.attention import Pool, Rule
from parallax_backend_torch.kernels.linear import Packed
from parallax_backend_torch.rope import Rope
from parallax_backend_torch.step import LayerCache, SlotMapping, Step
from parallax_backend_torch.store import CacheSpec
from parallax_backend_torch.weights import Weights


@dataclass(frozen=True, slots=True)
class Heads:
    """The numbers of heads, and their width."""

    queries: int
    keys: int
    """The number of heads of keys, and of values."""
    width: int

    def keep(self, window: int = 0) -> CacheSpec:
        """Return the cache of a layer."""
        shape = self.keys, self.width
        return CacheSpec("window" if window else "full", (shape, shape), window)


def read_heads(config: Config) -> Heads:
    """Return the heads of a model, from settings that most families share."""
    num = config.count("num_attention_heads")
    width = config.count("head_dim", default=config.count("hidden_size") // num or 1)
    return Heads(num, config.count("num_key_value_heads", default=num), width)


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """The options of attention in which families differ."""

    rope: Rope
    window: int = 0
    """The number of tokens that a token sees, including itself; 0: all."""
    scale: float = 0.0
    """The factor of the scores; 0: 1 / sqrt(width)."""
    soft_cap: float = 0.0
    eps: float = 0.0
    """The eps of the norms of queries and keys, if the layer has them."""
    norm_offset: float = 0.0
    """See `arithmetic.Norm`."""
    is_gated: bool = False
    """Whether ``q_proj`` yields, after the query of each head, a gate of the same width for the output."""


class Attention:
    """Attention of one layer.

    Args:
        weights: with ``q_proj``, ``k_proj``, ``v_proj``, ``o_proj``, and perhaps ``q_norm``, ``k_norm`` and ``sinks``.
        heads: the numbers of heads.
        look: the other options.
    """

    is_steady = True
    """See `model.find_obstacle`."""

    def __init__(self, weights: Weights, heads: Heads, look: Look) -> None:
        self.heads, self.rope = heads, look.rope
        self.gates = heads.queries if look.is_gated else 0
        self.into = _build_gated(weights, heads) if look.is_gated else weights.make_linear("q_proj", "k_proj", "v_proj")
        self.back = weights.make_linear("o_proj")
        self.norms = [
            Norm(weights.read_vector(f"{name}.weight"), look.eps, look.norm_offset)
            for name in ("q_norm", "k_norm")
            if weights.has(f"{name}.weight")
        ]
        scale = look.scale or heads.width**-0.5
        self.rule = Rule(scale, look.window, look.soft_cap, narrow=weights.factory.narrow)
        if weights.has("sinks"):
            self.rule = replace(self.rule, sinks=weights.read_vector("sinks"))

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None, step: Step, cache: LayerCache) -> torch.Tensor:
        """Return the output plus ``residual``: [tokens, width of the model]."""
        return self.back.apply(self.look(self.into.apply(x), step, cache), residual)

    def look(self, mixed: torch.Tensor, step: Step, cache: LayerCache) -> torch.Tensor:
        """Return the results of all heads, [tokens, heads * width], from ``mixed``, the product with `into`."""
        heads, places = self.heads, cache.places
        assert isinstance(places, SlotMapping)
        mixed = mixed.unflatten(1, (-1, heads.width))
        queries, keys, values, gates = mixed.split((heads.queries, heads.keys, heads.keys, self.gates), dim=1)
        angles, pool = step.find_angles(self.rope), Pool(*cache.kept)
        if not self.gates and place_heads(mixed, self.norms, angles, pool, places.slots):
            return attend(queries, pool, places, self.rule).flatten(1)
        if self.norms:
            queries, keys = (norm(part) for norm, part in zip(self.norms, (queries, keys), strict=True))
            rotate(queries, angles)
            rotate(keys, angles)
        else:
            rotate(mixed[:, : heads.queries + heads.keys], angles)
        store(pool, keys, values, places)
        found = attend(queries, pool, places, self.rule)
        return (found * gates.sigmoid() if self.gates else found).flatten(1)


def _build_gated(weights: Weights, heads: Heads) -> Packed:
    """Return the product for queries, keys, values and gates; files store the query and the gate of a head together."""
    mixed = weights.read_plain("q_proj.weight").unflatten(0, (heads.queries, 2, heads.width))
    parts = [weights.read_plain(f"{name}.weight") for name in ("k_proj", "v_proj")]
    weight = torch.cat([mixed[:, 0].flatten(0, 1), *parts, mixed[:, 1].flatten(0, 1)])
    if (bias := weights.read_bias("q_proj", "k_proj", "v_proj")) is not None:
        queries, gates = bias[: 2 * heads.queries * heads.width].unflatten(0, (heads.queries, 2, -1)).unbind(1)
        bias = torch.cat([queries.flatten(), bias[2 * heads.queries * heads.width :], gates.flatten()])
    return weights.keep_linear(weight, bias)
