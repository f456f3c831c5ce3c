"""Computes the figures of a run from its results."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from parallax_bench.request import BenchResult
from parallax_core.api import ParallaxError

PERCENTILES = (50, 90, 99)
LIMITED = ("ttft", "tpot", "itl", "e2e")
"""The times that may have limits; of ``itl``, the longest gap of an answer counts."""


class Spread(msgspec.Struct, frozen=True):
    """The distribution of a time over requests, in milliseconds."""

    mean: float
    p50: float
    p90: float
    p99: float


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a run."""

    requests: int
    failed: int
    seconds: float
    """Seconds from the first request to the end of the last answer."""
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    goodput_per_s: float | None
    """Requests per second that met every limit; None without limits."""
    within: dict[str, float]
    """For each limit, the share of requests that met it; those that failed did not."""
    ttft_ms: Spread | None
    tpot_ms: Spread | None
    itl_ms: Spread | None
    e2e_ms: Spread | None
    errors: dict[str, int]
    """The number of requests by error."""


def summarize(results: Sequence[BenchResult], limits: dict[str, float]) -> Summary:
    """Return the figures of a run; ``limits`` are in milliseconds, by the names of `parse_limits`."""
    good = [each for each in results if not each.error]
    begin = min((each.sent for each in results), default=0.0)
    seconds = max((each.last or each.sent for each in results), default=0.0) - begin or 1e-9
    errors: dict[str, int] = {}
    for each in results:
        if each.error:
            errors[each.error] = errors.get(each.error, 0) + 1
    prompt, output = sum(each.prompt_tokens for each in good), sum(each.output_tokens for each in good)
    return Summary(
        requests=len(results),
        failed=len(results) - len(good),
        seconds=seconds,
        prompt_tokens=prompt,
        cached_tokens=sum(each.cached_tokens for each in good),
        output_tokens=output,
        requests_per_s=len(good) / seconds,
        output_tokens_per_s=output / seconds,
        total_tokens_per_s=(prompt + output) / seconds,
        goodput_per_s=_count(good, limits) / seconds if limits else None,
        within={name: _count(good, {name: limit}) / len(results) for name, limit in limits.items() if results},
        ttft_ms=spread([each.ttft for each in good]),
        tpot_ms=spread([each.tpot for each in good]),
        itl_ms=spread([gap for each in good for gap in each.gaps]),
        e2e_ms=spread([each.e2e for each in good]),
        errors=errors,
    )


def spread(seconds: Sequence[float | None]) -> Spread | None:
    """Return the distribution of times, in milliseconds; None without times."""
    values = sorted(1000 * value for value in seconds if value is not None)
    if not values:
        return None
    return Spread(statistics.fmean(values), *(percentile(values, rank) for rank in PERCENTILES))


def percentile(ordered: Sequence[float], rank: float) -> float:
    """Return a percentile by linear interpolation between the two nearest values."""
    place = (len(ordered) - 1) * rank / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def parse_limits(text: str) -> dict[str, float]:
    """Parse limits such as ``ttft=500,tpot=50``, in milliseconds.

    Raises:
        ParallaxError: naming the part that is not a limit.
    """
    limits = {}
    for part in filter(None, text.replace(" ", "").split(",")):
        name, _, value = part.partition("=")
        if name not in LIMITED or not value.replace(".", "", 1).isdecimal():
            hint = "write --slo ttft=500,tpot=50,itl=200,e2e=5000, or some of these, in milliseconds"
            raise ParallaxError(f"{part!r} is not a limit", hint)
        limits[name] = float(value)
    return limits


def _count(results: Sequence[BenchResult], limits: dict[str, float]) -> int:
    return sum(_meets(each, limits) for each in results)


def _meets(result: BenchResult, limits: dict[str, float]) -> bool:
    """Whether every time is within its limit; a time that the answer lacks, as tpot of one token, is met."""
    times = {"ttft": result.ttft, "tpot": result.tpot, "itl": max(result.gaps, default=None), "e2e": result.e2e}
    return all(1000 * value <= limit for name, limit in limits.items() if (value := times[name]) is not None)
