"""Sums up a simulation: latencies, throughput, goodput and how busy the nodes were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf
from typing import Any

from parallax_simulate.cluster import ClusterSimulation, RequestRecord

PERCENTILES = (50, 90, 95, 99)
MOST_REFUSED = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class LatencyLimits:
    """The limits that a request must keep to count for goodput."""

    max_ttft_s: float = inf
    max_token_s: float = inf


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulationReport:
    """The figures of a simulation. Times are in seconds of its virtual time."""

    num_requests: int
    num_finished: int
    num_refused: int
    refused: Sequence[Mapping[str, float]]
    """The first `MOST_REFUSED` of them: number, second, and tokens of prompt and output."""
    num_moved: int
    """Requests that went on on another pipeline after a loss."""
    num_losses: int
    duration_s: float
    """From the beginning to the last token."""
    tokens_per_s: float
    """Output tokens per second of the duration."""
    goodput_requests_per_s: float
    """Requests per second that kept the limits."""
    goodput_share: float
    """Their share of all requests."""
    ttft_s: Mapping[str, float]
    """To the first token: the mean, and percentiles by name, such as ``p50``."""
    token_s: Mapping[str, float]
    """Per token after the first."""
    request_s: Mapping[str, float]
    """From arrival to the last token."""
    utilisation: Mapping[str, float]
    """The share of the duration that stages compute: the mean, the least and the most."""

    def describe(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return asdict(self)


def make_report(simulation: ClusterSimulation, limits: LatencyLimits) -> SimulationReport:
    """Return the figures of a simulation that has run."""
    records = simulation.records
    done = [record for record in records if record.is_over]
    duration = max((record.last for record in done), default=0.0)
    good = sum(_is_good(record, limits) for record in done)
    busy = [each / duration if duration else 0.0 for stages in simulation.busy_s for each in stages]
    return SimulationReport(
        num_requests=len(records),
        num_finished=len(done),
        num_refused=sum(record.is_refused for record in records),
        refused=[_describe_refused(*each) for each in enumerate(records) if each[1].is_refused][:MOST_REFUSED],
        num_moved=sum(record.num_moves > 0 for record in records),
        num_losses=simulation.num_losses,
        duration_s=duration,
        tokens_per_s=sum(record.num_tokens for record in records) / duration if duration else 0.0,
        goodput_requests_per_s=good / duration if duration else 0.0,
        goodput_share=good / len(records) if records else 0.0,
        ttft_s=_sum_up([record.ttft_s for record in done]),
        token_s=_sum_up([record.token_s for record in done if record.arrival.output_tokens > 1]),
        request_s=_sum_up([record.last - record.arrival.at for record in done]),
        utilisation={
            "mean": sum(busy) / len(busy) if busy else 0.0,
            "least": min(busy, default=0.0),
            "most": max(busy, default=0.0),
        },
    )


def _describe_refused(number: int, record: RequestRecord) -> dict[str, float]:
    arrival = record.arrival
    return {"number": number, "at": arrival.at, "prompt": arrival.prompt_tokens, "output": arrival.output_tokens}


def _is_good(record: RequestRecord, limits: LatencyLimits) -> bool:
    return record.ttft_s <= limits.max_ttft_s and record.token_s <= limits.max_token_s


def _sum_up(values: Sequence[float]) -> dict[str, float]:
    """Return the mean and the percentiles of values by the nearest rank; empty without values."""
    if not values:
        return {}
    ordered = sorted(values)
    found = {f"p{each}": ordered[max(0, -(-each * len(ordered) // 100) - 1)] for each in PERCENTILES}
    return {"mean": sum(ordered) / len(ordered), **found}
