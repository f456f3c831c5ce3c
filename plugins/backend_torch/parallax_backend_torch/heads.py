"""Grouped-query attention over pages: one product for queries, keys and values, one for outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from parallax_backend_torch.arithmetic import Norm, attend, place_heads, rotate, store
from parallax_backend_torch.config import HINT, Config
from parallax_backend_torch.kernels.attention import Pool, Rule
from parallax_backend_torch.kernels.linear import Packed
from parallax_backend_torch.rope import Rope, split_pairs
from parallax_backend_torch.sparse import Choice, attend_chosen
from parallax_backend_torch.step import LayerCache, SlotMapping, Step
from parallax_backend_torch.store import CacheSpec
from parallax_backend_torch.weights import Weights
from parallax_core.api import Unsupported


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


@dataclass(frozen=True, slots=True)
class Warmth:
    """The factor of queries, which grows by the logarithm of the position; see `Look.warm`."""

    scale: float
    unit: float
    """The number of tokens for which it stays the same."""
    first: float = 0.0
    """The number of the first token."""

    def __call__(self, positions: torch.Tensor) -> torch.Tensor:
        """Return the factor at each position."""
        return 1 + self.scale * torch.log1p(torch.floor((positions + self.first) / self.unit))


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """The options of attention in which families differ."""

    rope: Rope | None
    """None: attention does not know positions."""
    window: int = 0
    """The number of tokens that a token sees, including itself; 0: all."""
    scale: float = 0.0
    """The factor of the scores; 0: 1 / sqrt(width)."""
    soft_cap: float = 0.0
    eps: float = 0.0
    """The eps of the norms of queries and keys, if the layer has them."""
    norm_offset: float = 0.0
    """See `arithmetic.Norm`."""
    norms_last: bool = False
    """Whether rope comes before the norms of queries and keys."""
    is_gated: bool = False
    """Whether ``q_proj`` yields, after the query of each head, a gate of the same width for the output."""
    is_paired: bool = False
    """Whether files store the two numbers of a rotated pair as neighbours."""
    warm: Callable[[torch.Tensor], torch.Tensor] | None = None
    """Returns the factor of the queries at each position, both of shape [tokens]; None: 1."""


class Attention:
    """Attention of one layer.

    Args:
        weights: with ``q_proj``, ``k_proj``, ``v_proj``, ``o_proj``, and perhaps ``sinks``, and ``q_norm`` and
            ``k_norm``: of one head, or of all heads together.
        heads: the numbers of heads.
        look: the other options.
    """

    is_steady = True
    """See `model.find_obstacle`."""

    def __init__(self, weights: Weights, heads: Heads, look: Look) -> None:
        self.heads, self.rope, self._look = heads, look.rope, look
        self.gates = heads.queries if look.is_gated else 0
        self.into = _build_into(weights, heads, look)
        if self.into.out_features != (wanted := (heads.queries + 2 * heads.keys + self.gates) * heads.width):
            numbers = "'num_attention_heads', 'num_key_value_heads' and 'head_dim' in config.json"
            found = f"queries, keys and values of a layer have {self.into.out_features} rows"
            raise Unsupported(f"{found}, and by {numbers} {wanted}", HINT)
        self.back = weights.make_linear("o_proj")
        self.norms = [
            Norm(weights.read_vector(f"{name}.weight"), look.eps, look.norm_offset)
            for name in ("q_norm", "k_norm")
            if weights.has(f"{name}.weight")
        ]
        has_wide = any(len(norm.weight) > heads.width for norm in self.norms)
        self.is_plain = not (self.gates or has_wide or look.norms_last or look.warm or look.rope is None)
        """Whether kernels for norms of each head, then rope, do all that is done to queries and keys."""
        scale = look.scale or heads.width**-0.5
        self.rule = Rule(scale, look.window, look.soft_cap, narrow=weights.factory.narrow)
        if weights.has("sinks"):
            self.rule = replace(self.rule, sinks=weights.read_vector("sinks"))

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None, step: Step, cache: LayerCache) -> torch.Tensor:
        """Return the output plus ``residual``: [tokens, width of the model]."""
        return self.back.apply(self.look(self.into.apply(x), step, cache), residual)

    def look(
        self, mixed: torch.Tensor, step: Step, cache: LayerCache, choices: Sequence[Choice] | None = None
    ) -> torch.Tensor:
        """Return the results of all heads, [tokens, heads * width].

        Args:
            mixed: the product with `into`.
            step: the inputs of all layers.
            cache: keys and values.
            choices: the tokens that each token attends to; None: as the options say.
        """
        heads, places = self.heads, cache.places
        assert isinstance(places, SlotMapping)
        mixed = mixed.unflatten(1, (-1, heads.width))
        queries, keys, values, gates = mixed.split((heads.queries, heads.keys, heads.keys, self.gates), dim=1)
        angles, pool = step.find_angles(self.rope) if self.rope else None, Pool(*cache.kept)
        if self.is_plain and angles and place_heads(mixed, self.norms, angles, pool, places.slots):
            return attend(queries, pool, places, self.rule).flatten(1)
        if not self.norms and angles:
            rotate(mixed[:, : heads.queries + heads.keys], angles)
        elif self.norms:
            parts = zip((queries, keys), self.norms, strict=True)
            queries, keys = (self._turn(part, norm, angles) for part, norm in parts)
        if self._look.warm:
            queries = queries * self._look.warm(step.positions)[:, None, None].to(queries.dtype)
        store(pool, keys, values, places)
        if choices is None:
            found = attend(queries, pool, places, self.rule)
        else:
            found = attend_chosen(queries, pool, choices, self.rule)
        return (found * gates.sigmoid() if self.gates else found).flatten(1)

    def _turn(self, x: torch.Tensor, norm: Norm, angles: tuple[torch.Tensor, torch.Tensor] | None) -> torch.Tensor:
        """Return queries or keys, normalised and rotated in the order of the family: [tokens, heads, width]."""
        if angles and self._look.norms_last:
            x = x.contiguous()
            rotate(x, angles)
        is_wide = len(norm.weight) > self.heads.width
        x = norm(x.flatten(1)).unflatten(1, (-1, self.heads.width)) if is_wide else norm(x)
        if angles and not self._look.norms_last:
            rotate(x, angles)
        return x


def _build_into(weights: Weights, heads: Heads, look: Look) -> Packed:
    """Return the product for queries, keys, values and gates, with the rotated pairs of a head half its width apart."""
    if look.is_gated:
        return _build_gated(weights, heads)
    names = "q_proj", "k_proj", "v_proj"
    if not look.is_paired or look.rope is None:
        return weights.make_linear(*names)
    weight, bias = torch.cat([weights.read_plain(f"{name}.weight") for name in names]), weights.read_bias(*names)
    order = torch.arange(len(weight)).unflatten(0, (-1, heads.width))
    turned = order[: heads.queries + heads.keys, : look.rope.width]
    turned.copy_(split_pairs(turned, dim=1))
    order = order.flatten()
    return weights.keep_linear(weight[order], None if bias is None else bias[order])


def _build_gated(weights: Weights, heads: Heads) -> Packed:
    """Return the product for queries, keys, values and gates; files store the query and the gate of a head together."""
    mixed = weights.read_plain("q_proj.weight").unflatten(0, (heads.queries, 2, heads.width))
    parts = [weights.read_plain(f"{name}.weight") for name in ("k_proj", "v_proj")]
    weight = torch.cat([mixed[:, 0].flatten(0, 1), *parts, mixed[:, 1].flatten(0, 1)])
    if (bias := weights.read_bias("q_proj", "k_proj", "v_proj")) is not None:
        queries, gates = bias[: 2 * heads.queries * heads.width].unflatten(0, (heads.queries, 2, -1)).unbind(1)
        bias = torch.cat([queries.flatten(), bias[2 * heads.queries * heads.width :], gates.flatten()])
    return weights.keep_linear(weight, bias)
