"""Step 3.5, and the text of Step 3.7: windows with more heads, gates of heads, clamped experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch.nn import functional

from parallax_backend_torch.api import (
    FULL,
    SLIDING,
    Attention,
    CacheSpec,
    Config,
    Decoder,
    Experts,
    GatedMlp,
    GroupRoute,
    Heads,
    LayerCache,
    Look,
    Mixer,
    Packed,
    Step,
    Weights,
    make_rope,
)
from parallax_models import step3p5
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


@dataclass(frozen=True, slots=True)
class ClampedMlp:
    """Gate, up and down; the gate is clamped after its activation, from above, and up from both sides."""

    into: Packed
    """The rows of gate, then those of up."""
    back: Packed
    limit: float
    """Infinite: no limit."""

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Return the output plus ``residual``: [tokens, width]."""
        gate, up = self.into.apply(x).chunk(2, dim=1)
        gate, up = functional.silu(gate).clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        return self.back.apply(gate * up, residual)


class Step3p5(Decoder):
    """See `parallax_backend_torch.api.Model`."""

    def __init__(self, config: Config) -> None:
        config = Config(step3p5.unify(config.fill(rms_norm_eps=1e-5).raw))
        super().__init__(config)
        self.shape = replace(self.shape, norm_offset=1.0)
        self.kinds = step3p5.read_kinds(config)
        self.windows = step3p5.ADAPTER.list_windows(config)
        width = self.heads.width
        self.look = replace(
            self.look, norm_offset=1.0, scale=config.number("query_pre_attn_scalar", float(width)) ** -0.5
        )
        self.ropes = {kind: make_rope(config, width, kind) for kind in (FULL, SLIDING)}

    def keep_layer(self, index: int) -> CacheSpec:
        """Return the cache of a layer: keys and values."""
        return self.find_heads(index).keep(self.windows[index])

    def find_heads(self, index: int) -> Heads:
        """Return the heads of a layer."""
        found = step3p5.read_heads(self.config, self.kinds[index])
        return replace(self.heads, queries=found.queries // found.width)

    def find_look(self, index: int) -> Look:
        """Return the options of attention in a layer, with the rope of its kind."""
        return replace(super().find_look(index), rope=self.ropes[self.kinds[index]])

    def build_attention(self, index: int, weights: Weights) -> GatedHeads:
        """Build attention with gates."""
        return GatedHeads(weights.within("self_attn"), self.find_heads(index), self.find_look(index))

    def build_mixer(self, index: int, weights: Weights) -> Mixer:
        """Build experts and one that every token meets, or an MLP."""
        shared_limit = find_limit(self.config, "swiglu_limits_shared", index)
        if not list_sparse(self.config, step3p5.DENSE_LAYERS)[index]:
            return build_clamped(weights.within("mlp"), shared_limit)
        shared = build_clamped(weights.within("share_expert"), shared_limit)
        weights = weights.within("moe")
        route = GroupRoute(
            num_chosen=read_experts(self.config).num_chosen,
            correction=weights.read_vector("router_bias"),
            scale=self.config.number("moe_router_scaling_factor", 1.0),
        )
        limit = find_limit(self.config, "swiglu_limits", index)
        stacks = (weights.read_plain(f"{name}_proj.weight") for name in ("gate", "up", "down"))
        experts: list[Callable[[torch.Tensor], torch.Tensor]] = [
            ClampedMlp(weights.keep_linear(torch.cat([gate, up]), None), weights.keep_linear(down, None), limit)
            for gate, up, down in zip(*stacks, strict=True)
        ]
        router = weights.make_linear("gate", purpose="router")
        return Experts(router, experts, route, lambda x: shared(x, None))


def find_limit(config: Config, name: str, index: int) -> float:
    """Return the limit of a layer's MLP; 0 in config.json means none."""
    limits = config.raw.get(name) or []
    return float(limits[index] or torch.inf) if index < len(limits) else torch.inf


def build_clamped(weights: Weights, limit: float) -> Mixer:
    """Return an MLP with a limit, or without."""
    if limit == torch.inf:
        return GatedMlp(weights)
    return ClampedMlp(weights.make_linear("gate_proj", "up_proj"), weights.make_linear("down_proj"), limit)
