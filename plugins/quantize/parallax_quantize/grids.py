"""The numbers that a format has for a group of weights, and which of them is nearest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

SHRINKS = tuple(1 - step / 32 for step in range(16))
"""The shares of the range of a group that are tried as the range of its grid."""
NORM = 2.4
"""The power of an error that the range of a group is chosen by (arXiv 2210.17323, as its authors' code has it)."""
FEW_BITS = 4
"""With more, errors are too small to look for a better grid than that between the ends."""
HQQ_STEPS, HQQ_NORM, HQQ_BETA, HQQ_GROWTH = 20, 0.7, 10.0, 1.01
"""The constants of half-quadratic quantisation, as its authors publish them."""
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
"""The magnitudes of 4-bit floats (OCP Microscaling Formats 1.0)."""
E8M0_BIAS, LARGEST_EXPONENT = 127, 2
"""The bias of a scale in E8M0; 4 is the largest power of two among `E2M1`."""


@dataclass(frozen=True, slots=True)
class Fitted:
    r"""Grids of groups: a weight is scale * number + low."""

    scale: torch.Tensor
    r"""float32 [\*]."""
    low: torch.Tensor
    r"""float32 [\*]."""


class Grid(Protocol):
    """What a format can store of a group."""

    @property
    def bits(self) -> int:
        """The bits of a code."""

    @property
    def group(self) -> int:
        """Inputs of a group."""

    def fit(self, groups: torch.Tensor, importance: torch.Tensor | None = None) -> Fitted:
        r"""Return the grid of each group, with all rounding of the format.

        Args:
            groups: float32 [\*, inputs].
            importance: of an error's square at each input, float32 like ``groups``, or fewer dimensions; None: equal.
        """

    def encode(self, values: torch.Tensor, fitted: Fitted) -> torch.Tensor:
        r"""Return the nearest codes, uint8, of values [\*, inputs]."""

    def decode(self, codes: torch.Tensor, fitted: Fitted) -> torch.Tensor:
        r"""Return the weights of codes [\*, inputs] in float32."""

    def list_bases(self, codes: torch.Tensor, fitted: Fitted) -> tuple[torch.Tensor, ...]:
        r"""Return what weights of codes [\*, inputs] are sums of, float32 like them; empty: of nothing that is free."""

    def store(self, shares: Sequence[torch.Tensor], fitted: Fitted) -> Fitted:
        r"""Return the grids [\*] by the share of each of `list_bases`, with all rounding of the format."""


@dataclass(frozen=True, slots=True)
class AffineGrid:
    """Codes from 0 on, evenly spaced between two ends."""

    bits: int
    group: int
    dtype: torch.dtype
    """Of scale and low, as they are stored."""
    has_integer_zero: bool = False
    """Whether ``low`` is a whole number of scales, from ``1 - 2**bits`` to 0, as in compressed-tensors."""
    finds_zero: bool = False
    """Whether `fit` moves the zero as HQQ does, for weights that are rounded one by one."""

    @property
    def top(self) -> int:
        """The largest code."""
        return int(2**self.bits - 1)

    def fit(self, groups: torch.Tensor, importance: torch.Tensor | None = None) -> Fitted:
        """See `Grid.fit`."""
        low, high = groups.amin(-1), groups.amax(-1)
        if self.has_integer_zero:
            low, high = low.clamp(max=0), high.clamp(min=0)
        best = self._round(low, high)
        if self.bits > FEW_BITS:
            return best
        if self.finds_zero:
            return self._move_zeros(groups, best)
        least = self._measure(groups, best, importance)
        for ends in _list_ranges(low, high):
            tried = self._round(*ends)
            error = self._measure(groups, tried, importance)
            is_less = error < least
            least = torch.where(is_less, error, least)
            pairs = ((tried.scale, best.scale), (tried.low, best.low))
            best = Fitted(*(torch.where(is_less, new, old) for new, old in pairs))
        return best

    def encode(self, values: torch.Tensor, fitted: Fitted) -> torch.Tensor:
        """See `Grid.encode`."""
        places = (values - fitted.low[..., None]) * invert(fitted.scale)[..., None]
        return places.round_().clamp_(0, self.top).to(torch.uint8)

    def decode(self, codes: torch.Tensor, fitted: Fitted) -> torch.Tensor:
        """See `Grid.decode`."""
        return codes * fitted.scale[..., None] + fitted.low[..., None]

    def list_bases(self, codes: torch.Tensor, fitted: Fitted) -> tuple[torch.Tensor, ...]:
        """See `Grid.list_bases`."""
        if self.has_integer_zero:
            return (codes - self._find_zeros(fitted)[..., None],)
        return codes.float(), torch.ones(codes.shape)

    def store(self, shares: Sequence[torch.Tensor], fitted: Fitted) -> Fitted:
        """See `Grid.store`."""
        scale = shares[0].clamp(min=0).to(self.dtype).float()
        if self.has_integer_zero:
            return Fitted(scale, -self._find_zeros(fitted) * scale)
        return Fitted(scale, shares[1].to(self.dtype).float())

    def _find_zeros(self, fitted: Fitted) -> torch.Tensor:
        return (-fitted.low * invert(fitted.scale)).round()

    def _round(self, low: torch.Tensor, high: torch.Tensor) -> Fitted:
        """Return the grid between two ends as it can be stored."""
        scale = ((high - low) / self.top).to(self.dtype).float()
        if self.has_integer_zero:
            return Fitted(scale, (low * invert(scale)).round().clamp(-self.top, 0) * scale)
        return Fitted(scale, low.to(self.dtype).float())

    def _measure(self, groups: torch.Tensor, fitted: Fitted, importance: torch.Tensor | None) -> torch.Tensor:
        error = self.decode(self.encode(groups, fitted), fitted) - groups
        return (error.abs_().pow_(NORM) if importance is None else error.square_().mul_(importance)).sum(-1)

    def _move_zeros(self, groups: torch.Tensor, fitted: Fitted) -> Fitted:
        """Return grids with the zeros that half-quadratic quantisation finds (Badri and Shaji, 2023)."""
        low, beta = fitted.low, HQQ_BETA
        for _ in range(HQQ_STEPS):
            kept = self.encode(groups, Fitted(fitted.scale, low)) * fitted.scale[..., None]
            error = groups - kept - low[..., None]
            size = error.abs()
            outliers = error.sign() * (size - size.clamp(min=1e-8).pow(HQQ_NORM - 1) / beta).clamp(min=0)
            low, beta = (groups - outliers - kept).mean(-1), beta * HQQ_GROWTH
        return self._round(low, low + fitted.scale * self.top)


@dataclass(frozen=True, slots=True)
class FloatGrid:
    """MXFP4: floats of 4 bits, and a power of two for each group of 32 (OCP Microscaling Formats 1.0)."""

    bits: int = 4
    group: int = 32

    def fit(self, groups: torch.Tensor, importance: torch.Tensor | None = None) -> Fitted:  # noqa: ARG002
        """See `Grid.fit`: of the power by the largest weight, and the one below and above it, that of least error."""
        exponent = groups.abs().amax(-1).clamp(min=torch.finfo(torch.float32).tiny).log2().floor() - LARGEST_EXPONENT
        tried = torch.stack([exponent - 1, exponent, exponent + 1]).clamp(-E8M0_BIAS, E8M0_BIAS)
        scales = torch.exp2(tried)
        zero = torch.zeros_like(scales[0])
        errors = [self._measure(groups, Fitted(scale, zero)) for scale in scales]
        best = torch.stack(errors).argmin(0, keepdim=True)
        return Fitted(scales.gather(0, best)[0], zero)

    def encode(self, values: torch.Tensor, fitted: Fitted) -> torch.Tensor:
        """See `Grid.encode`."""
        places = values * invert(fitted.scale)[..., None]
        middles = (E2M1[1:] + E2M1[:-1]) / 2
        return torch.bucketize(places.abs(), middles).to(torch.uint8) + 8 * (places < 0).to(torch.uint8)

    def decode(self, codes: torch.Tensor, fitted: Fitted) -> torch.Tensor:
        """See `Grid.decode`."""
        return torch.cat([E2M1, -E2M1])[codes.long()] * fitted.scale[..., None]

    def list_bases(self, codes: torch.Tensor, fitted: Fitted) -> tuple[torch.Tensor, ...]:  # noqa: ARG002
        """See `Grid.list_bases`: scales are powers of two."""
        return ()

    def store(self, shares: Sequence[torch.Tensor], fitted: Fitted) -> Fitted:  # noqa: ARG002
        """See `Grid.store`."""
        return fitted

    def _measure(self, groups: torch.Tensor, fitted: Fitted) -> torch.Tensor:
        return (self.decode(self.encode(groups, fitted), fitted) - groups).square_().sum(-1)


def _list_ranges(low: torch.Tensor, high: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield shorter ranges: on both sides, and on either one."""
    for shrink in SHRINKS[1:]:
        cut = (high - low) * (1 - shrink)
        yield low * shrink, high * shrink
        yield low + cut, high
        yield low, high - cut


def invert(scale: torch.Tensor) -> torch.Tensor:
    """Return 1 / scale, or 0 where the scale is 0."""
    return torch.where(scale > 0, 1 / scale, 0)
