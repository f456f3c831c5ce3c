"""Mixes several residual streams by gates for each part of a layer, and shares its result out to them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from parallax_backend_torch.weights import Weights


class StreamNorm:
    """A norm of each stream of a token, with weights of its own, stored as their difference from 1.

    Args:
        weights: with ``NAME.weight``, of shape [streams * width].
        name: the name of the norm.
        num: the number of streams.
        eps: see `Norm`.
    """

    def __init__(self, weights: Weights, name: str, num: int, eps: float) -> None:
        self._weight, self._eps = weights.read_vector(f"{name}.weight").unflatten(0, (num, -1)) + 1, eps

    def __call__(self, streams: torch.Tensor) -> torch.Tensor:
        """Normalise [tokens, streams, width], in float32."""
        wide = streams.float()
        return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self._eps) * self._weight


class StreamGate:
    """Mixes the streams of a token into the input of a part of a layer, and gives its result a share in each.

    Args:
        weights: with ``hc_norm``, ``input_mix_weight_down`` and ``_up``, and, but after the layers,
            ``block_inject_weight``.
        num: the number of streams.
        eps: the eps of the norm.
    """

    def __init__(self, weights: Weights, num: int, eps: float) -> None:
        self._norm = StreamNorm(weights, "hc_norm", num, eps)
        self._down, self._up = (weights.make_linear(f"input_mix_weight_{name}") for name in ("down", "up"))
        has_part = weights.has("block_inject_weight.weight")
        self._shares = weights.make_linear("block_inject_weight", purpose="router") if has_part else None

    def mix(self, streams: torch.Tensor) -> torch.Tensor:
        """Return the mix of [tokens, streams, width]: [tokens, width]."""
        return self._mix(streams, self._norm(streams))

    def __call__(self, streams: torch.Tensor, part: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """Return the streams with the results of a part of a layer added, both [tokens, streams, width]."""
        assert self._shares is not None, "it is in a layer"
        normed = self._norm(streams)
        scores = self._shares.apply(normed.flatten(1).to(streams.dtype)).float() / streams.shape[1]
        shares = (2 * scores.sigmoid()).to(streams.dtype)
        return streams + part(self._mix(streams, normed))[:, None] * shares[..., None]

    def _mix(self, streams: torch.Tensor, normed: torch.Tensor) -> torch.Tensor:
        narrow = self._down.apply(normed.flatten(1).to(streams.dtype)) / streams.shape[1]
        gates = self._up.apply(functional.silu(narrow)).float().sigmoid()
        return (gates.view_as(normed) * normed).mean(1).to(streams.dtype)
