"""Kimi delta attention (arXiv 2510.26692): a gated delta net whose states decay by the channel."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from parallax_backend_torch.arithmetic import Norm
from parallax_backend_torch.delta_net import EPS
from parallax_backend_torch.delta_rule import Tokens
from parallax_backend_torch.short_conv import Kernel, convolve, read_kernel, run_rows
from parallax_backend_torch.step import LayerCache, Slots, Step
from parallax_backend_torch.store import CacheSpec
from parallax_backend_torch.weights import Weights

PARTS = "q", "k", "v"


@dataclass(frozen=True, slots=True)
class KimiSizes:
    """The sizes of Kimi delta attention."""

    num_heads: int
    width: int
    """Of queries, keys and values of a head."""
    kernel: int
    """The number of tokens that the convolution sees."""
    floor: float = 0.0
    """The least logarithm of a decay, which is this times a sigmoid; 0: none, and it is a softplus."""

    def keep(self) -> CacheSpec:
        """Return the state of a layer: the last inputs of the convolution, and a matrix for each head."""
        channels = len(PARTS) * self.num_heads * self.width
        return CacheSpec("state", ((self.kernel - 1, channels), (self.num_heads, self.width, self.width)))


class KimiDelta:
    """The Kimi delta attention of one layer.

    Args:
        weights: with projections and kernels of queries, keys and values, ``q_proj`` and ``q_conv1d`` and so on;
            ``f_a_proj`` and ``f_b_proj`` of decays, ``g_a_proj`` and ``g_b_proj`` of gates; ``b_proj``, ``dt_bias``,
            ``A_log``, ``o_norm`` and ``o_proj``.
        sizes: the sizes of its parts.
        eps: the eps of the norm of its output.
    """

    def __init__(self, weights: Weights, sizes: KimiSizes, eps: float) -> None:
        self._sizes = sizes
        names = (*(f"{name}_proj" for name in PARTS), "f_a_proj", "g_a_proj", "b_proj")
        self._into = weights.make_linear(*names)
        self._decay, self._gate = weights.make_linear("f_b_proj"), weights.make_linear("g_b_proj")
        kernels = [read_kernel(weights.within(f"{name}_conv1d")) for name in PARTS]
        self._kernel = Kernel(torch.cat([kernel.weight for kernel in kernels], dim=1), None)
        self._rate = weights.read_vector("A_log").exp().view(-1, 1)
        self._shift = weights.read_vector("dt_bias").view(sizes.num_heads, -1)
        self._norm, self._back = Norm(weights.read_vector("o_norm.weight"), eps), weights.make_linear("o_proj")

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None, step: Step, cache: LayerCache) -> torch.Tensor:  # noqa: ARG002 -- of attention
        """Return the output plus ``residual``: [tokens, width of the model]."""
        sizes, places = self._sizes, cache.places
        assert isinstance(places, Slots)
        inner = sizes.num_heads * sizes.width
        widths = (len(PARTS) * inner, sizes.width, sizes.width, sizes.num_heads)
        inputs, decays, gates, betas = self._into.apply(x).split(widths, dim=1)
        mixed = functional.silu(convolve(inputs.float(), self._kernel, places, cache.kept[0]))
        query, key, value = mixed.unflatten(1, (len(PARTS), sizes.num_heads, -1)).unbind(1)
        tokens = Tokens(
            _shorten(query) * sizes.width**-0.5,
            _shorten(key),
            value,
            self._find_decay(self._decay.apply(decays.contiguous()).float()),
            betas.float().sigmoid(),
        )
        gates = self._gate.apply(gates.contiguous()).float().unflatten(1, (sizes.num_heads, -1))
        found = self._norm(run_rows(tokens, places, cache.kept[1])) * gates.sigmoid()
        return self._back.apply(found.flatten(1).to(x.dtype), residual)

    def _find_decay(self, raw: torch.Tensor) -> torch.Tensor:
        """Return the logarithms of the decays of channels, [tokens, heads, width], from what projections give."""
        shifted = raw.unflatten(1, (self._sizes.num_heads, -1)) + self._shift
        if self._sizes.floor:
            return self._sizes.floor * (self._rate * shifted).sigmoid()
        return -self._rate * functional.softplus(shifted)


def _shorten(x: torch.Tensor) -> torch.Tensor:
    """Return queries or keys of length 1: [tokens, heads, width]."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + EPS)
