"""Mamba 2 (arXiv 2405.21060): a short convolution, then states that decay and add to themselves."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from parallax_backend_torch.arithmetic import Norm
from parallax_backend_torch.delta_rule import Tokens
from parallax_backend_torch.short_conv import convolve, read_kernel, run_rows
from parallax_backend_torch.step import LayerCache, Slots, Step
from parallax_backend_torch.store import CacheSpec
from parallax_backend_torch.weights import Weights


@dataclass(frozen=True, slots=True)
class MambaSizes:
    """The sizes of a Mamba 2 layer."""

    num_heads: int
    num_groups: int
    """Groups of heads that share keys and queries."""
    head: int
    """The width of a head's values."""
    state: int
    """The width of keys and queries."""
    kernel: int
    """The number of tokens that the convolution sees."""
    norm_groups: int = 1
    """The parts of the output that are normalised by themselves."""
    is_gated_last: bool = False
    """Whether the output is normalised before its gate."""

    @property
    def parts(self) -> tuple[int, int, int]:
        """The widths of what is convolved: values, keys and queries."""
        return self.num_heads * self.head, self.num_groups * self.state, self.num_groups * self.state

    def keep(self) -> CacheSpec:
        """Return the state of a layer: the last inputs of the convolution, and a matrix for each head."""
        return CacheSpec("state", ((self.kernel - 1, sum(self.parts)), (self.num_heads, self.state, self.head)))


class Mamba:
    """The Mamba 2 of one layer.

    Args:
        weights: with ``in_proj``, ``conv1d``, ``dt_bias``, ``A_log``, ``D`` and ``out_proj``, and perhaps ``norm``.
        sizes: the sizes of its parts.
        eps: the eps of the norm of its output.
        least_step: the least step of time.
    """

    def __init__(self, weights: Weights, sizes: MambaSizes, eps: float, least_step: float = 0.0) -> None:
        self._sizes, self._least_step = sizes, least_step
        self._into, self._back = weights.make_linear("in_proj"), weights.make_linear("out_proj")
        self._kernel = read_kernel(weights.within("conv1d"))
        self._decay, self._shift = -weights.read_vector("A_log").exp(), weights.read_vector("dt_bias")
        self._skip = weights.read_vector("D")[:, None]
        self._weight = weights.read_vector("norm.weight") if weights.has("norm.weight") else None
        self._norm = Norm.plain(weights, sizes.num_heads * sizes.head // sizes.norm_groups, eps)
        self.scales: torch.Tensor | None = None
        """Factors of what ``in_proj`` gives, float32 of shape [numbers]; None: 1."""

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None, step: Step, cache: LayerCache) -> torch.Tensor:  # noqa: ARG002 -- of attention
        """Return the output plus ``residual``: [tokens, width of the model]."""
        sizes, places = self._sizes, cache.places
        assert isinstance(places, Slots)
        width = sizes.num_heads * sizes.head
        mixed = self._into.apply(x).float()
        mixed = mixed if self.scales is None else mixed * self.scales
        gates, inputs, steps = mixed.split((width, sum(sizes.parts), sizes.num_heads), dim=1)
        mixed = functional.silu(convolve(inputs, self._kernel, places, cache.kept[0]))
        values, keys, queries = mixed.split(sizes.parts, dim=1)
        values = values.unflatten(1, (sizes.num_heads, -1))
        steps = functional.softplus(steps + self._shift).clamp(min=self._least_step)
        tokens = Tokens(self._share(queries), self._share(keys), values * steps[..., None], steps * self._decay, None)
        found = run_rows(tokens, places, cache.kept[1]) + values * self._skip
        gates, found = functional.silu(gates), found.flatten(1)
        found = self._normalise(found) * gates if sizes.is_gated_last else self._normalise(found * gates)
        return self._back.apply(found.to(x.dtype), residual)

    def _normalise(self, found: torch.Tensor) -> torch.Tensor:
        """Return the output, [tokens, heads * head], normalised by parts if the layer has a norm."""
        if self._weight is None:
            return found
        return self._norm(found.unflatten(1, (self._sizes.norm_groups, -1))).flatten(1) * self._weight

    def _share(self, x: torch.Tensor) -> torch.Tensor:
        """Repeat keys or queries for the heads that share them: [tokens, heads, state]."""
        sizes = self._sizes
        return x.unflatten(1, (sizes.num_groups, -1)).repeat_interleave(sizes.num_heads // sizes.num_groups, dim=1)
