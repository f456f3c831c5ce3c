"""Smooths the measurements of a link."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from itertools import islice
from math import isfinite

KEPT = 15
"""Samples that are kept: a stutter shorter than half of them changes nothing."""


@dataclass(frozen=True, slots=True)
class LinkSample:
    """One measurement of a link."""

    round_trip_s: float
    """Seconds for a small message and its answer."""
    large_s: float = 0.0
    """Seconds for a large message and its small answer; 0: not measured."""
    large_bytes: int = 0
    """The bytes of the large message beyond those of the small one."""

    @property
    def bandwidth(self) -> float | None:
        """Bytes per second; None if it was not measured, or if the large message took no longer than a small one."""
        more_s = self.large_s - self.round_trip_s
        return self.large_bytes / more_s if self.large_bytes and more_s > 0 else None


@dataclass(frozen=True, slots=True)
class LinkEstimate:
    """The median round trip and bandwidth of the last samples, each None before the first."""

    round_trips: tuple[float, ...] = ()
    """In seconds, the oldest first."""
    bandwidths: tuple[float, ...] = ()
    """In bytes per second, the oldest first."""

    @property
    def round_trip_s(self) -> float | None:
        """The median round trip, in seconds."""
        return statistics.median_low(self.round_trips) if self.round_trips else None

    @property
    def bandwidth(self) -> float | None:
        """The median bandwidth, in bytes per second."""
        return statistics.median_low(self.bandwidths) if self.bandwidths else None

    def add(self, sample: LinkSample) -> LinkEstimate:
        """Return the estimate with one more sample; times that are not finite or below 0 are left out."""
        found = self
        if isfinite(sample.round_trip_s) and sample.round_trip_s >= 0:
            found = replace(found, round_trips=_append(found.round_trips, sample.round_trip_s))
            if (bandwidth := sample.bandwidth) and isfinite(bandwidth):
                found = replace(found, bandwidths=_append(found.bandwidths, bandwidth))
        return found

    def needs_bandwidth(self, every: int) -> bool:
        """Return whether the next sample should have a large message: the first, and then each of ``every``."""
        return not self.bandwidths or len(self.round_trips) % every == 0


def _append(values: tuple[float, ...], value: float) -> tuple[float, ...]:
    kept = (*values, value)
    return tuple(islice(kept, max(0, len(kept) - KEPT), None))
