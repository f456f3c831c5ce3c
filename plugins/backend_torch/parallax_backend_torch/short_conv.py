"""Short convolutions, and states of recurrent layers, on rows of any lengths."""

from __future__ import annotations

from typing import NamedTuple

import torch

from parallax_backend_torch.delta_rule import Tokens, run_sequence, run_single
from parallax_backend_torch.step import FlatBatch, LayerCache, Slots, Step
from parallax_backend_torch.store import CacheSpec
from parallax_backend_torch.weights import Weights


class Kernel(NamedTuple):
    """The weights of a convolution over tokens, each channel by itself."""

    weight: torch.Tensor
    """float32 of shape [tokens, channels], the newest token last."""
    bias: torch.Tensor | None
    step: int = 1
    """The distance between two of its tokens."""


def read_kernel(weights: Weights, step: int = 1) -> Kernel:
    """Return the kernel of a convolution with ``weight`` of shape [channels, 1, tokens], and perhaps ``bias``."""
    bias = weights.read_vector("bias") if weights.has("bias") else None
    return Kernel(weights.read_vector("weight")[:, 0].T.contiguous(), bias, step)


class ShortConv:
    """What combines tokens in LFM2: a gated convolution over a few tokens.

    Args:
        weights: with ``in_proj``, whose outputs are a gate before the convolution, one behind it, and its inputs;
            ``conv`` and ``out_proj``.
    """

    def __init__(self, weights: Weights) -> None:
        self._into, self._back = weights.make_linear("in_proj"), weights.make_linear("out_proj")
        self._kernel = read_kernel(weights.within("conv"))

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None, step: Step, cache: LayerCache) -> torch.Tensor:  # noqa: ARG002 -- of attention
        """Return the output plus ``residual``: [tokens, width of the model]."""
        assert isinstance(cache.places, Slots)
        before, after, inputs = self._into.apply(x).float().chunk(3, dim=1)
        found = convolve(before * inputs, self._kernel, cache.places, cache.kept[0])
        return self._back.apply((after * found).to(x.dtype), residual)

    @staticmethod
    def keep(kernel: int, width: int) -> CacheSpec:
        """Return the state of a layer: the last inputs of a convolution of ``kernel`` tokens."""
        return CacheSpec("state", ((kernel - 1, width),))


def convolve(inputs: torch.Tensor, kernel: Kernel, places: Slots, kept: torch.Tensor) -> torch.Tensor:
    """Return the convolution of each token with those before, [tokens, channels], and keep the last inputs.

    Args:
        inputs: float32 of shape [tokens, channels].
        kernel: its weights.
        places: the rows of the step.
        kept: the last inputs of each slot, [slots, (tokens - 1) * step, channels].
    """
    last = len(kernel.weight) - 1
    long, at = look_back(inputs, places, kept)
    found = long[at] * kernel.weight[last]
    for back in range(1, last + 1):
        found += long[at - back * kernel.step] * kernel.weight[last - back]
    return found if kernel.bias is None else found + kernel.bias


def look_back(
    inputs: torch.Tensor, places: Slots, kept: torch.Tensor, first: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the inputs of each row after its earlier ones, and keep the last ones.

    Args:
        inputs: of shape [tokens, ...].
        places: the rows of the step.
        kept: the last inputs of each slot, [slots, number, ...].
        first: in place of those before the first token of a sequence.

    Returns:
        All inputs of all rows, the earlier ones first, and the index of each token's own among them.
    """
    is_old = places.is_old.unflatten(0, (-1, *[1] * (kept.ndim - 1)))
    before = torch.where(is_old, kept[places.slots], first)
    at, starts = place_inputs(places.flat, kept.shape[1])
    long = inputs.new_empty((len(inputs) + starts.numel(), *inputs.shape[1:]))
    long[at] = inputs
    long[starts] = before
    places.put(kept, long[starts + torch.tensor(places.flat.counts, device=inputs.device)[:, None]])
    return long, at


def place_inputs(flat: FlatBatch, seen: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the indices of tokens when each row is preceded by ``seen`` earlier inputs.

    Returns:
        The index of each token, int64 of shape [tokens], and of each earlier input, int64 of shape [rows, seen].
    """
    counts = torch.tensor(flat.counts)
    at = torch.arange(sum(flat.counts)) + (flat.number + 1) * seen
    starts = counts.cumsum(0) - counts + torch.arange(len(counts)) * seen
    return at.to(flat.device), (starts[:, None] + torch.arange(seen)).to(flat.device)


def run_rows(tokens: Tokens, places: Slots, kept: torch.Tensor) -> torch.Tensor:
    """Return the delta rule's output for each token, [tokens, heads, value width], and keep the new states."""
    states = torch.where(places.is_old[:, None, None, None], kept[places.slots], 0.0)
    out, start = torch.empty_like(tokens.value), 0
    singles, rows = [], []
    for row, count in enumerate(places.flat.counts):
        if count == 1:
            singles.append(start)
            rows.append(row)
        else:
            part = slice(start, start + count)
            out[part], states[row] = run_sequence(tokens.pick(part), states[row])
        start += count
    if singles:
        where = torch.tensor(singles, device=out.device)
        out[where], states[rows] = run_single(tokens.pick(where), states[rows])
    places.put(kept, states)
    return out
