"""Step 3.5, and the text of Step 3.7: windows with more heads, gates of heads, clamped experts."""

from __future__ import annotations

from dataclasses import replace

import torch

from parallax_backend_torch.api import (
    FULL,
    SLIDING,
    Attention,
    CacheSpec,
    Clamp,
    ClampedMlp,
    Config,
    Experts,
    GatedMlp,
    GroupRoute,
    Heads,
    LayerCache,
    Look,
    Mixer,
    Step,
    Weights,
    build_clamped,
    make_rope,
)
from parallax_models import step3p5
from parallax_models.blocks.decoder import Decoder
from parallax_models.deepseek_v3 import list_sparse, read_experts


class GatedHeads:
    """Attention whose heads each have a gate, computed from the input of the layer.

    Args:
        weights: with ``g_proj``, and those of `Attention`.
        heads: the numbers of heads.
        look: the other options.
    """

    is_steady = True

    def __init__(self, weights: Weights, heads: Heads, look: Look) -> None:
        self._inner, self._gate = Attention(weights, heads, look), weights.make_linear("g_proj")

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None, step: Step, cache: LayerCache) -> torch.Tensor:
        """Return the output plus ``residual``: [tokens, width of the model]."""
        inner = self._inner
        found = inner.look(inner.into.apply(x), step, cache).unflatten(1, (inner.heads.queries, -1))
        return inner.back.apply((found * self._gate.apply(x).sigmoid()[..., None]).flatten(1), residual)


class Step3p5(Decoder):
    """See `parallax_backend_torch.api.Model`."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.shape = replace(self.shape, norm_offset=1.0)
        self.kinds = step3p5.read_kinds(self.config)
        width = self.heads.width
        self.look = replace(
            self.look, norm_offset=1.0, scale=self.config.number("query_pre_attn_scalar", float(width)) ** -0.5
        )
        self.ropes = {kind: make_rope(self.config, width, kind) for kind in (FULL, SLIDING)}

    def keep_layer(self, index: int) -> CacheSpec:
        """Return the cache of a layer: keys and values."""
        return self.find_heads(index).keep(self.windows[index])

    def find_heads(self, index: int) -> Heads:
        """Return the heads of a layer."""
        found = step3p5.read_heads(self.config, self.kinds[index])
        return replace(self.heads, queries=found.queries // found.width)

    def build_attention(self, index: int, weights: Weights) -> GatedHeads:
        """Build attention with gates."""
        return GatedHeads(weights.within("self_attn"), self.find_heads(index), self.find_look(index))

    def build_mixer(self, index: int, weights: Weights) -> Mixer:
        """Build experts and one that every token meets, or an MLP."""
        shared_limit = find_limit(self.config, "swiglu_limits_shared", index)
        if not list_sparse(self.config, step3p5.DENSE_LAYERS)[index]:
            return build_mlp(weights.within("mlp"), shared_limit)
        shared = build_mlp(weights.within("share_expert"), shared_limit)
        weights = weights.within("moe")
        route = GroupRoute(
            num_chosen=read_experts(self.config).num_chosen,
            correction=weights.read_vector("router_bias"),
            scale=self.config.number("moe_router_scaling_factor", 1.0),
        )
        clamp = Clamp(find_limit(self.config, "swiglu_limits", index), is_late=True)
        stacks = (weights.read_plain(f"{name}_proj.weight") for name in ("gate", "up", "down"))
        experts = [
            ClampedMlp(weights.keep_linear(torch.cat([gate, up]), None), weights.keep_linear(down, None), clamp)
            for gate, up, down in zip(*stacks, strict=True)
        ]
        router = weights.make_linear("gate", purpose="router")
        return Experts(router, experts, route, shared)


def find_limit(config: Config, name: str, index: int) -> float:
    """Return the limit of a layer's MLP; 0 in config.json means none."""
    limits = config.raw.get(name) or []
    return float(limits[index] or 0) if index < len(limits) else 0.0


def build_mlp(weights: Weights, limit: float) -> GatedMlp | ClampedMlp:
    """Return an MLP with a limit, or without."""
    return build_clamped(weights, Clamp(limit, is_late=True)) if limit else GatedMlp(weights)
