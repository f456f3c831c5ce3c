"""Hyper-connections (arXiv 2409.19606, 2512.24880): several streams in place of one residual.

Each part of a layer reads a mix of the streams, and its result is added to all of them, which are mixed with each other
in some families. All factors are computed from the streams, in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn import functional

from parallax_backend_torch.arithmetic import Norm
from parallax_backend_torch.config import Config
from parallax_backend_torch.mlp import Looker, Mixer
from parallax_backend_torch.step import Carried, LayerCache, Step
from parallax_backend_torch.weights import Weights


@dataclass(frozen=True, kw_only=True, slots=True)
class HyperRule:
    """How a family mixes its streams."""

    num: int
    """The number of streams."""
    norm_eps: float
    """The eps of the norm of all streams together."""
    eps: float
    """Added to the factors of the mix, and to the sums of rounds."""
    magnitude: float = 2.0
    """The largest factor of a part's result."""
    floor: float = 0.0
    """Added to the factors of a part's result."""
    rounds: int = 0
    """The rounds that make rows and columns of the matrix between streams sum to 1; 0: no stream meets another."""

    @classmethod
    def read(cls, config: Config, norm_eps: float) -> HyperRule:
        """Read the rule of families whose streams meet each other."""
        return cls(
            num=config.count("hc_mult"),
            norm_eps=norm_eps,
            eps=config.number("hc_eps", 1e-6),
            rounds=config.count("hc_sinkhorn_iters", default=20),
        )


class HyperFactors:
    """Computes factors from the streams of each token.

    Args:
        weights: with ``fn``, of shape [factors, streams * width], ``base`` and ``scale``.
        rule: how streams are mixed.
        sizes: the number of factors that share each number of ``scale``.
    """

    def __init__(self, weights: Weights, rule: HyperRule, sizes: Sequence[int]) -> None:
        self._matrix, self._base = weights.read_vector("fn"), weights.read_vector("base")
        self._scale = weights.read_vector("scale").repeat_interleave(torch.tensor(sizes, device=self._base.device))
        self._eps, self._sizes = rule.norm_eps, tuple(sizes)

    def __call__(self, streams: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return factors before their activation, float32 [tokens, size] each, from [tokens, streams, width]."""
        wide = streams.flatten(1).float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self._eps)
        found = functional.linear(normed, self._matrix) * self._scale + self._base
        return tuple(torch.split(found, self._sizes, dim=-1))


class HyperConnection:
    """The mixes before and after one part of a layer.

    Args:
        weights: as for `HyperFactors`: factors of the mix, of the result, and in families with rounds of the matrix.
        rule: how streams are mixed.
    """

    def __init__(self, weights: Weights, rule: HyperRule) -> None:
        sizes = (rule.num, rule.num, rule.num**2) if rule.rounds else (rule.num, rule.num)
        self._rule, self._factors = rule, HyperFactors(weights, rule, sizes)

    def __call__(self, streams: torch.Tensor, part: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """Return the streams after a part, [tokens, streams, width], which is given the mix: [tokens, width]."""
        rule = self._rule
        before, after, *between = self._factors(streams)
        found = part(mix_streams(streams, before.sigmoid() + rule.eps))
        shares = rule.magnitude * after.sigmoid() + rule.floor
        kept = streams.float()
        if between:
            kept = balance(between[0].unflatten(-1, (rule.num, rule.num)), rule).transpose(1, 2) @ kept
        return (shares[..., None] * found.float()[:, None] + kept).to(streams.dtype)


def build_connections(weights: Weights, rule: HyperRule) -> list[HyperConnection]:
    """Return the connections of attention and mixer, whose factors are ``hc_attn_fn``, ``hc_ffn_base`` and so on."""
    return [HyperConnection(name_factors(weights, f"hc_{part}"), rule) for part in ("attn", "ffn")]


def name_factors(weights: Weights, prefix: str) -> Weights:
    """Return the weights of `HyperFactors`, whose names in files begin with ``prefix``."""
    return weights.rename(**{short: f"{prefix}_{short}" for short in ("fn", "base", "scale")})


class HyperHead:
    """The mix after the last layer.

    Args:
        weights: as for `HyperFactors`.
        rule: how streams are mixed.
    """

    def __init__(self, weights: Weights, rule: HyperRule) -> None:
        self._eps, self._factors = rule.eps, HyperFactors(weights, rule, (rule.num,))

    def __call__(self, streams: torch.Tensor) -> torch.Tensor:
        """Return the hidden states, [tokens, width], from [tokens, streams, width]."""
        return mix_streams(streams, self._factors(streams)[0].sigmoid() + self._eps)


class StreamPart(Protocol):
    """A part of a layer on streams."""

    def __call__(self, streams: torch.Tensor, step: Step, cache: LayerCache) -> torch.Tensor:
        """Return the streams after the part: [tokens, streams, width]."""


class Connection(Protocol):
    """The mixes before and after a part that works on one stream."""

    def __call__(self, streams: torch.Tensor, part: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """Return the streams after a part, [tokens, streams, width], which is given the mix: [tokens, width]."""


@dataclass(frozen=True, eq=False, slots=True)
class HyperPart:
    """A part that works on a mix of the streams; see `StreamPart`."""

    connection: Connection
    norm: Norm | None
    """Of the mix; None: the mix itself is the input."""
    run: Callable[[torch.Tensor, Step, LayerCache], torch.Tensor]
    """Returns the result of the part: [tokens, width]."""

    def __call__(self, streams: torch.Tensor, step: Step, cache: LayerCache) -> torch.Tensor:
        """Return the streams after the part: [tokens, streams, width]."""
        return self.connection(streams, lambda x: self.run(self.norm(x) if self.norm else x, step, cache))


def build_parts(
    connections: Sequence[Connection], norms: Sequence[Norm | None], attention: Looker, mixer: Mixer
) -> list[HyperPart]:
    """Return attention and a mixer as parts on streams, each with its connection and its norm."""
    runs = (lambda x, step, cache: attention(x, None, step, cache)), (lambda x, *_: mixer(x, None))
    return [HyperPart(*each) for each in zip(connections, norms, runs, strict=True)]


@dataclass(frozen=True, eq=False, slots=True)
class HyperLayer:
    """A layer of parts between streams."""

    parts: Sequence[StreamPart]
    num_new: int = 0
    """In the first layer of the model, the number of streams, which all begin as the embedding."""
    head: Callable[[torch.Tensor], torch.Tensor] | None = None
    """In the last layer, what makes hidden states of the streams."""

    def __call__(self, carried: Carried, step: Step, cache: LayerCache) -> Carried:
        """Return the planes after the layer."""
        streams = carried.hidden
        if self.num_new:
            streams = streams[:, None].expand(-1, self.num_new, -1)
        for part in self.parts:
            streams = part(streams, step, cache)
        return carried.replace(self.head(streams) if self.head else streams)


def mix_streams(streams: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """Return the sum of streams, [tokens, width], each times its factor in [tokens, streams]."""
    return (factors[:, None] @ streams.float())[:, 0].to(streams.dtype)


def balance(scores: torch.Tensor, rule: HyperRule) -> torch.Tensor:
    """Return positive matrices whose rows and columns sum to 1 (Sinkhorn and Knopp): [tokens, streams, streams]."""
    found = scores.softmax(-1) + rule.eps
    found = found / (found.sum(-2, keepdim=True) + rule.eps)
    for _ in range(rule.rounds - 1):
        found = found / (found.sum(-1, keepdim=True) + rule.eps)
        found = found / (found.sum(-2, keepdim=True) + rule.eps)
    return found
