"""The layers of OLMo 2 for the backend ``torch``, of its parts.

Their norms come after attention and MLP, and queries and keys are normalised over all heads together.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from parallax_backend_torch.api import (
    CacheSpec,
    Carried,
    Config,
    GatedMlp,
    Heads,
    LayerCache,
    Norm,
    Pool,
    Rope,
    Rule,
    SlotMapping,
    Step,
    Weights,
    attend,
    check_choice,
    make_rope,
    read_heads,
    read_shape,
    rotate,
    store,
)


class Attention:
    """Attention of one layer."""

    def __init__(self, weights: Weights, heads: Heads, rope: Rope, eps: float) -> None:
        self.heads, self.rope, self.rule = heads, rope, Rule(heads.width**-0.5)
        self.into, self.back = weights.make_linear("q_proj", "k_proj", "v_proj"), weights.make_linear("o_proj")
        self.query_norm, self.key_norm = (Norm(weights.read_vector(f"{name}_norm.weight"), eps) for name in "qk")

    def __call__(self, x: torch.Tensor, step: Step, cache: LayerCache) -> torch.Tensor:
        """Return what attention gives: [tokens, width of the model]."""
        keys_width = self.heads.keys * self.heads.width
        mixed = self.into.apply(x).split((self.heads.queries * self.heads.width, keys_width, keys_width), dim=1)
        queries, keys, values = (part.unflatten(1, (-1, self.heads.width)) for part in self._normalize(*mixed))
        angles = step.find_angles(self.rope)
        rotate(queries, angles)
        rotate(keys, angles)
        pool, places = Pool(*cache.kept), cache.places
        assert isinstance(places, SlotMapping)
        store(pool, keys, values, places)
        return self.back.apply(attend(queries, pool, places, self.rule).flatten(1))

    def _normalize(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.query_norm(queries), self.key_norm(keys), values


@dataclass(frozen=True, eq=False, slots=True)
class Layer:
    """A layer."""

    attention: Attention
    attention_norm: Norm
    mlp: GatedMlp
    mlp_norm: Norm

    def __call__(self, carried: Carried, step: Step, cache: LayerCache) -> Carried:
        """Return the planes after the layer: hidden states alone."""
        hidden = carried.hidden + self.attention_norm(self.attention(carried.hidden, step, cache))
        return carried.replace(hidden + self.mlp_norm(self.mlp(hidden, None)))


class Olmo2:
    """See `parallax_backend_torch.api.Model`."""

    def __init__(self, config: Config) -> None:
        check_choice(config, "hidden_act", "silu")
        self.shape = read_shape(config)
        self._heads = read_heads(config)
        self._rope = make_rope(config, self._heads.width)

    def keep_layer(self, index: int) -> CacheSpec:  # noqa: ARG002 -- every layer is alike
        """Return what a layer remembers: keys and values."""
        return self._heads.keep()

    def build_layer(self, index: int, weights: Weights) -> Layer:  # noqa: ARG002 -- every layer is alike
        """Build a layer."""
        eps = self.shape.eps
        attention = Attention(weights.within("self_attn"), self._heads, self._rope, eps)
        attention_norm, mlp_norm = (
            Norm(weights.read_vector(f"post_{name}_layernorm.weight"), eps) for name in ("attention", "feedforward")
        )
        return Layer(attention, attention_norm, GatedMlp(weights.within("mlp")), mlp_norm)
