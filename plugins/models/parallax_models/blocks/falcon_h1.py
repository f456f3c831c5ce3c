"""Falcon-H1: attention and Mamba 2 side by side in every layer, each with factors of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from parallax_backend_torch.api import (
    Attention,
    CacheSpec,
    Carried,
    Config,
    Expert,
    LayerCache,
    Mamba,
    Norm,
    Step,
    Weights,
)
from parallax_core.api import Unsupported
from parallax_models.blocks.decoder import Decoder
from parallax_models.blocks.granite import size_mamba
from parallax_models.granitemoehybrid import read_widths


@dataclass(frozen=True, slots=True)
class Factors:
    """The factors before and behind the parts of a layer."""

    into_attention: float
    behind_attention: float
    into_mamba: float
    behind_mamba: float
    behind_mlp: float


@dataclass(frozen=True, eq=False, slots=True)
class SideLayer:
    """Attention and Mamba 2 on the same input, then an MLP; each is added to the residual."""

    norms: tuple[Norm, Norm]
    attention: Attention
    mamba: Mamba
    mlp: Expert
    factors: Factors

    def __call__(self, carried: Carried, step: Step, cache: LayerCache) -> Carried:
        """Return the planes after the layer."""
        assert cache.beside is not None
        (before, between), factors, hidden = self.norms, self.factors, carried.hidden
        x = before(hidden)
        seen = self.attention(x * factors.into_attention, None, step, cache)
        found = self.mamba(x * factors.into_mamba, None, step, cache.beside)
        hidden = hidden + (seen * factors.behind_attention + found * factors.behind_mamba)
        return carried.replace(hidden + self.mlp(between(hidden)) * factors.behind_mlp)


class FalconH1(Decoder):
    """See `parallax_backend_torch.api.Model`."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        scale, multiply = self.heads.width**-0.5, self.config.number
        self.shape = replace(
            self.shape,
            norm="final_layernorm",
            embed_scale=multiply("embedding_multiplier", 1.0),
            logit_scale=multiply("lm_head_multiplier", 1.0),
        )
        self.look = replace(self.look, scale=scale * multiply("key_multiplier", 1.0))
        self.gate_factor, behind_mlp = read_factors(self.config, "mlp_multipliers", 2)
        self.factors = Factors(
            multiply("attention_in_multiplier", 1.0),
            multiply("attention_out_multiplier", 1.0),
            multiply("ssm_in_multiplier", 1.0),
            multiply("ssm_out_multiplier", 1.0),
            behind_mlp,
        )
        is_gated_last = self.config.flag("mamba_norm_before_gate", default=True)
        self.sizes = replace(size_mamba(read_widths(self.config)), is_gated_last=is_gated_last)
        least, most = self.config.raw.get("time_step_limit") or (0.0, math.inf)
        self.least_step = float(least)
        if isinstance(most, int | float) and math.isfinite(most):
            raise Unsupported(f"'time_step_limit' in config.json ends at {most!r}", "choose another backend")

    def keep_layer(self, index: int) -> CacheSpec:
        """Return the cache of a layer: keys and values, and a state beside them."""
        return replace(self.heads.keep(self.windows[index]), beside=self.sizes.keep())

    def build_layer(self, index: int, weights: Weights) -> SideLayer:
        """Build a layer."""
        eps = self.shape.eps
        return SideLayer(
            norms=(Norm.read(weights, "input_layernorm", eps), Norm.read(weights, "pre_ff_layernorm", eps)),
            attention=Attention(weights.within("self_attn"), self.heads, self.find_look(index)),
            mamba=self._build_mamba(weights.within("mamba")),
            mlp=self._build_mlp(weights.within("feed_forward")),
            factors=self.factors,
        )

    def _build_mamba(self, weights: Weights) -> Mamba:
        inner, keys, queries = self.sizes.parts
        widths = torch.tensor([inner, inner, keys, queries, self.sizes.num_heads])
        scales = torch.tensor(read_factors(self.config, "ssm_multipliers", len(widths))).repeat_interleave(widths)
        made = Mamba(weights, self.sizes, self.shape.eps, self.least_step)
        made.scales = weights.factory.make_vector(scales)
        return made

    def _build_mlp(self, weights: Weights) -> Expert:
        gate, up = (weights.read_plain(f"{name}_proj.weight") for name in ("gate", "up"))
        bias = weights.read_bias("gate_proj", "up_proj")
        if bias is not None:
            bias[: len(gate)] *= self.gate_factor
        into = weights.keep_linear(torch.cat([gate * self.gate_factor, up]), bias)
        return Expert(into, weights.make_linear("down_proj"))


def read_factors(config: Config, name: str, count: int) -> list[float]:
    """Return a list of ``count`` factors, which config.json may leave out: then all are 1.

    Raises:
        Unsupported: if there are more, or fewer.
    """
    found = config.raw.get(name) or [1.0] * count
    if not isinstance(found, list | tuple) or len(found) != count:
        raise Unsupported(f"{name!r} in config.json is {found!r}, not {count} numbers", "fetch the model again")
    return [float(each) for each in found]
