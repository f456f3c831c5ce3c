"""Draws the gaps between requests."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence

from parallax_bench.request import BenchRequest


def make_gaps(num: int, rate: float, burstiness: float, seed: int) -> Iterator[float]:
    """Yield the seconds to wait before each of ``num`` requests.

    Args:
        num: the number of requests.
        rate: average requests per second; infinity sends all at once.
        burstiness: the shape of the gamma distribution of gaps. 1 is a Poisson process; below 1 is burstier, above 1
            more even.
        seed: seed of the random numbers.
    """
    if math.isinf(rate):
        yield from [0.0] * num
        return
    chance = random.Random(seed)  # noqa: S311 -- to be repeatable, not secret
    for _ in range(num):
        yield chance.gammavariate(burstiness, 1 / (rate * burstiness))


def follow_trace(requests: Sequence[BenchRequest], speed: float) -> Iterator[float]:
    """Yield the seconds to wait before each request of a trace, which is played ``speed`` times as fast."""
    before = requests[0].at or 0.0
    for request in requests:
        at = before if request.at is None else request.at
        yield (at - before) / speed
        before = at
