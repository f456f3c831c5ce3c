"""A gated delta net: a short convolution, then the gated delta rule, on rows of any lengths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

from parallax_backend_torch.arithmetic import Norm
from parallax_backend_torch.delta_rule import Tokens
from parallax_backend_torch.kernels.linear import Packed
from parallax_backend_torch.short_conv import convolve, read_kernel, run_rows
from parallax_backend_torch.step import LayerCache, Slots, Step
from parallax_backend_torch.store import CacheSpec
from parallax_backend_torch.weights import Weights

EPS = 1e-6
"""Added to the squared length of queries and keys."""


@dataclass(frozen=True, slots=True)
class NetSizes:
    """The sizes of a gated delta net."""

    num_keys: int
    """Heads of queries and keys."""
    num_values: int
    """Heads of values; a multiple of those of keys."""
    key: int
    value: int
    kernel: int
    """The number of tokens that the convolution sees."""

    @property
    def parts(self) -> tuple[int, int, int, int, int, int]:
        """The widths of a token's projections: queries, keys, values, gates of the output, betas and decays."""
        keys, values = self.num_keys * self.key, self.num_values * self.value
        return keys, keys, values, values, self.num_values, self.num_values

    @property
    def channels(self) -> int:
        """The channels of the convolution."""
        return sum(self.parts[:3])

    def keep(self) -> CacheSpec:
        """Return the state of a layer: the last inputs of the convolution, and a matrix for each head."""
        return CacheSpec("state", ((self.kernel - 1, self.channels), (self.num_values, self.key, self.value)))


class DeltaNet:
    """The gated delta net of one layer.

    Args:
        weights: the weights of the net.
        sizes: the sizes of its parts.
        eps: the eps of the norm of its output.
        gate: the activation function of the gate of its output.
    """

    def __init__(
        self,
        weights: Weights,
        sizes: NetSizes,
        eps: float,
        gate: Callable[[torch.Tensor], torch.Tensor] = functional.silu,
    ) -> None:
        self._sizes, self._gate = sizes, gate
        self._into = _build_into(weights, sizes)
        self._kernel = read_kernel(weights.within("conv1d"))
        self._decay = -weights.read_vector("A_log").exp()
        self._shift = weights.read_vector("dt_bias")
        self._norm = Norm(weights.read_vector("norm.weight"), eps)
        self._back = weights.make_linear("out_proj")

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None, step: Step, cache: LayerCache) -> torch.Tensor:  # noqa: ARG002 -- of attention
        """Return the output plus ``residual``: [tokens, width of the model]."""
        sizes, places = self._sizes, cache.places
        assert isinstance(places, Slots)
        mixed = self._into.apply(x)
        inputs, gates, betas, decays = mixed.float().split((sizes.channels, *sizes.parts[3:]), dim=1)
        mixed = functional.silu(convolve(inputs, self._kernel, places, cache.kept[0]))
        query, key, value = mixed.split(sizes.parts[:3], dim=1)
        tokens = Tokens(
            self._spread(query) * sizes.key**-0.5,
            self._spread(key),
            value.unflatten(1, (sizes.num_values, -1)),
            self._decay * functional.softplus(decays + self._shift),
            betas.sigmoid(),
        )
        found = self._norm(run_rows(tokens, places, cache.kept[1]))
        found = found * self._gate(gates.unflatten(1, (sizes.num_values, -1)))
        return self._back.apply(found.flatten(1).to(x.dtype), residual)

    def _spread(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise each head of queries or keys to length 1, and repeat it for the heads of values that share it."""
        heads = x.unflatten(1, (self._sizes.num_keys, -1))
        heads = heads * torch.rsqrt(heads.square().sum(-1, keepdim=True) + EPS)
        return heads.repeat_interleave(self._sizes.num_values // self._sizes.num_keys, dim=1)


def _build_into(weights: Weights, sizes: NetSizes) -> Packed:
    """Return the product for all parts of a token; each is contiguous, though files may store them head by head."""
    if weights.has("in_proj_qkv.weight"):
        return weights.make_linear("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
    each = sizes.num_values // sizes.num_keys
    mixed = weights.read_plain("in_proj_qkvz.weight").unflatten(0, (sizes.num_keys, -1))
    wide = mixed.split((sizes.key, sizes.key, each * sizes.value, each * sizes.value), dim=1)
    narrow = weights.read_plain("in_proj_ba.weight").unflatten(0, (sizes.num_keys, -1)).split((each, each), dim=1)
    return weights.keep_linear(torch.cat([part.flatten(0, 1) for part in (*wide, *narrow)]), None)
