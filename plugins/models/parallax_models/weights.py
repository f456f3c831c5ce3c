"""Counts the parameters of the usual parts of a layer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from parallax_core.api import ConfigReader, LayerShape, PoolKind

MAMBA_FLOPS = 5
"""FLOPs of a token for each number of the state of Mamba 2: it decays, is written, and is read."""


@dataclass(frozen=True, slots=True)
class Heads:
    """The widths of grouped-query attention."""

    hidden: int
    queries: int
    """Query heads times their width."""
    values: int
    """Key and value heads times their width; half of a token's cache."""
    width: int

    @classmethod
    def read(cls, settings: ConfigReader) -> Heads:
        """Read the settings, which have the same names in most families."""
        hidden, num = settings.count("hidden_size"), settings.count("num_attention_heads")
        width = settings.count("head_dim", default=hidden // num or 1)
        return cls(hidden, num * width, settings.count("num_key_value_heads", default=num) * width, width)

    def layer(self, weights: int, window: int = 0) -> LayerShape:
        """Return a layer of grouped-query attention with ``weights`` parameters."""
        kind: PoolKind = "window" if window else "full"
        return LayerShape(kind=kind, weights=weights, active_weights=weights, kv_width=2 * self.values, window=window)

    def projections(self, *, bias: bool = False, output_bias: bool = False) -> int:
        """Return the parameters of the projections to queries, keys and values, and of the output projection."""
        weights = 2 * self.hidden * (self.queries + self.values)
        return weights + (self.queries + 2 * self.values) * bias + self.hidden * output_bias


@dataclass(frozen=True, kw_only=True, slots=True)
class MambaWidths:
    """The widths of Mamba 2 (arXiv 2405.21060)."""

    hidden: int
    num: int
    """The number of heads."""
    inner: int
    """Heads times the width of their values."""
    keys: int
    """Groups of heads times the width of their keys."""
    state: int
    """The width of a key."""
    kernel: int
    """The number of tokens that the convolution sees."""

    def layer(self, *, conv_bias: bool, bias: bool, has_norm: bool = True) -> LayerShape:
        """Return a layer of Mamba 2 alone, whose state is the last inputs of the convolution, and matrices."""
        channels = self.inner + 2 * self.keys
        into = self.inner + channels + self.num
        weights = (self.hidden + bias) * into + (self.inner + bias) * self.hidden
        weights += channels * (self.kernel + conv_bias) + 3 * self.num + self.inner * has_norm
        matrices = self.inner * self.state
        return LayerShape(
            kind="state",
            weights=weights,
            active_weights=weights,
            state_width=channels * (self.kernel - 1) + matrices,
            state_flops=MAMBA_FLOPS * matrices,
        )


def gated_mlp(hidden: int, inner: int, *, bias: bool = False) -> int:
    """Return the parameters of gate, up and down."""
    return 3 * hidden * inner + (2 * inner + hidden) * bias


def add_weights(layer: LayerShape, weights: int, **changes: Any) -> LayerShape:  # noqa: ANN401 -- fields of any type
    """Return a layer with ``weights`` parameters more, all of which a token meets, and other fields changed."""
    total, active = layer.weights + weights, layer.active_weights + weights
    return replace(layer, weights=total, active_weights=active, **changes)


def count_mlp(settings: ConfigReader) -> int:
    """Return the parameters of the MLP of a layer without experts."""
    hidden, inner = settings.count("hidden_size"), settings.count("intermediate_size")
    return gated_mlp(hidden, inner, bias=settings.flag("mlp_bias", default=False))


@dataclass(frozen=True, slots=True)
class Experts:
    """A router and experts of gate, up and down."""

    hidden: int
    inner: int
    num: int
    num_chosen: int

    @classmethod
    def read(cls, settings: ConfigReader, inner: str = "moe_intermediate_size", *num: str) -> Experts:
        """Read the settings; ``inner`` and ``num`` are the names of the width of an expert, and of their number."""
        return cls(
            hidden=settings.count("hidden_size"),
            inner=settings.count(inner),
            num=settings.count(*(num or ("num_experts", "num_local_experts"))),
            num_chosen=settings.count("num_experts_per_tok"),
        )

    def join(self, layer: LayerShape, extra: int = 0) -> LayerShape:
        """Return a layer with these experts added, and ``extra`` parameters for what every token meets beside them."""
        return replace(
            layer,
            weights=layer.weights + self.all + extra,
            active_weights=layer.active_weights + self.active + extra,
            num_experts=self.num,
            num_active_experts=self.num_chosen,
        )

    @property
    def router(self) -> int:
        """Parameters of the router, without bias."""
        return self.hidden * self.num

    @property
    def all(self) -> int:
        """Parameters of router and experts."""
        return self.router + self.num * gated_mlp(self.hidden, self.inner)

    @property
    def active(self) -> int:
        """Parameters active for a token."""
        return self.router + self.num_chosen * gated_mlp(self.hidden, self.inner)


def share_experts(settings: ConfigReader, layer: LayerShape) -> LayerShape:
    """Return a layer with experts added, and a shared one with its gate."""
    hidden, inner = settings.count("hidden_size"), settings.count("shared_expert_intermediate_size")
    return Experts.read(settings).join(layer, gated_mlp(hidden, inner) + hidden)
