"""Counts the parameters of the usual parts of a layer."""

from __future__ import annotations

from dataclasses import dataclass, replace

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


def gated_mlp(hidden: int, inner: int, *, bias: bool = False) -> int:
    """Return the parameters of gate, up and down."""
    return 3 * hidden * inner + (2 * inner + hidden) * bias


@dataclass(frozen=True, slots=True)
class Experts:
    """A router and experts of gate, up and down."""

    hidden: int
    inner: int
    num: int
    num_chosen: int

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
