"""Collects metrics and shows them in Prometheus's format; docs/reference/metrics.md explains them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import fastapi
from fastapi.responses import Response
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from parallax_core.api import Delta, Engine, EngineStats, Finish, Measured, needs_role
from parallax_core.api.deployment import Described
from parallax_core.api.dialect import ERROR_TYPES, ServedModels, describe_errors
from parallax_observe.tracing import Tracer

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
SHORT_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)

COUNTERS = {
    "steps": "Steps run.",
    "prompt_tokens": "Tokens of the prompts of requests that were begun.",
    "cached_tokens": "Of these, tokens that a cache held.",
    "output_tokens": "Tokens drawn.",
    "preemptions": "Requests that gave way and were computed again.",
    "requests_replayed": "Times that a request was computed again after the loss of a stage.",
    "requests_lost": "Requests that ended because a stage was lost.",
}
GAUGES = {"running": "Requests on the stages.", "waiting": "Requests that wait."}


disable_created_metrics()  # type: ignore[no-untyped-call]  # rarely used, and they double the output


class ServerMetrics:
    """The metrics of one server, and its tracer if traces are enabled; a `ServerMeter`."""

    def __init__(self, models: ServedModels, tracer: Tracer | None = None) -> None:
        self.tracer = tracer
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "parallax_requests", "Generation requests, by how they ended.", ["outcome"], registry=self.registry
        )
        self.errors = Counter(
            "parallax_errors", "Errors that clients were told, by type.", ["type"], registry=self.registry
        )
        for kind in ERROR_TYPES:
            self.errors.labels(kind)
        self.first_token = self._histogram("time_to_first_token", "From arrival to the first token.", SECONDS)
        self.inter_token = self._histogram("inter_token", "Between tokens of one answer.", SHORT_SECONDS)
        self.whole = self._histogram("request", "From arrival to the end.", SECONDS)
        self.queued = self._histogram("queue", "From arrival to the first step.", SECONDS)
        self.prefill = self._histogram("prefill", "From the first step to the first token.", SECONDS)
        self.decode = self._histogram("decode", "From the first token to the end.", SECONDS)
        self.computing = self._histogram("stages", "Of prefill and decode, computing on stages.", SECONDS)
        self.hops = self._histogram("hops", "Of prefill and decode, on the way to stages and back.", SECONDS)
        self.sampling = self._histogram("sampling", "Of computing on stages, choosing tokens.", SECONDS)
        self.recovery = self._histogram("recovery", "Of a request, waiting for a lost stage to be replaced.", SECONDS)
        self.detokenize = self._histogram("detokenize", "Turning tokens into text.", SHORT_SECONDS)
        self.loop_lag = self._histogram("loop_lag", "How late the event loop was.", SHORT_SECONDS)
        self.worst_loop_lag = Gauge(
            "parallax_loop_lag_worst_seconds", "The longest since the server was ready.", registry=self.registry
        )
        self._worst_lag = 0.0
        self.registry.register(EngineCollector(models))

    def note_lag(self, seconds: float) -> None:
        """Record a lag of the event loop."""
        self.loop_lag.observe(seconds)
        if seconds > self._worst_lag:
            self._worst_lag = seconds
            self.worst_loop_lag.set(seconds)

    def count_error(self, kind: str) -> None:
        """Count an error that a client gets, as a response or at the end of a stream."""
        self.errors.labels(kind).inc()

    def begin(self, arrived: float, parent: str) -> RequestMetrics:
        """Begin to measure a request; see `ServerMeter.begin`."""
        return RequestMetrics(self, arrived, parent)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"parallax_{name}_seconds", text, buckets=buckets, registry=self.registry)


@dataclass(slots=True)
class RequestMetrics:
    """Measures one request."""

    server_metrics: ServerMetrics
    arrived: float
    parent: str
    _last: dict[int, float] = field(default_factory=dict)

    def note(self, delta: Delta) -> None:
        """Record a delta on its arrival."""
        now = time.monotonic()
        if delta.tokens:
            if not self._last:
                self.server_metrics.first_token.observe(now - self.arrived)
            elif delta.index in self._last:
                for _ in delta.tokens:
                    self.server_metrics.inter_token.observe((now - self._last[delta.index]) / len(delta.tokens))
            self._last[delta.index] = now
        if delta.finish is not None:
            self._end(delta.finish, now)

    def abandon(self) -> None:
        """Count the request as abandoned by its client."""
        self.server_metrics.requests.labels("abandoned").inc()

    def _end(self, finish: Finish, now: float) -> None:
        self.server_metrics.requests.labels(finish.reason).inc()
        self.server_metrics.whole.observe(now - self.arrived)
        if (timing := finish.timing) is not None:
            self.server_metrics.queued.observe(timing.queued_s)
            self.server_metrics.prefill.observe(timing.prefill_s)
            self.server_metrics.decode.observe(timing.decode_s)
            self.server_metrics.computing.observe(sum(timing.stages_s))
            self.server_metrics.hops.observe(sum(timing.hops_s))
            self.server_metrics.sampling.observe(timing.sampling_s)
            self.server_metrics.detokenize.observe(timing.detokenize_s)
            for pause in timing.pauses:
                self.server_metrics.recovery.observe(pause.took_s)
        if self.server_metrics.tracer is not None:
            self.server_metrics.tracer.record(now - self.arrived, finish, self.parent)


class EngineCollector(Collector):
    """Reads the statistics of engines, and what other plugins collect, whenever metrics are requested."""

    def __init__(self, models: ServedModels) -> None:
        self._models = models

    def describe(self) -> Iterable[Metric]:
        """Return no metric: other plugins add theirs at any time."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics of all replicas of all models, and those of other plugins."""
        engines = [(service.model_id, service.engine) for service in self._models.services]
        stats = [(model, str(rank), each) for model, engine in engines for rank, each in list_ranked(engine)]
        for name, text in COUNTERS.items():
            counter = CounterMetricFamily(f"parallax_{name}", text, labels=["model", "replica"])
            for model, rank, each in stats:
                counter.add_metric([model, rank], getattr(each, name))
            yield counter
        for name, text in GAUGES.items():
            gauge = GaugeMetricFamily(f"parallax_requests_{name}", text, labels=["model", "replica"])
            for model, rank, each in stats:
                gauge.add_metric([model, rank], getattr(each, name))
            yield gauge
        yield from _collect_pools(stats)
        yield from _collect_losses(engines)
        for collector in self._models.collectors:
            yield from collector.collect()


def list_stats(engine: Engine) -> tuple[EngineStats, ...]:
    """Return the statistics of an engine's replicas; empty without statistics or before it is ready."""
    return engine.stats() if isinstance(engine, Measured) else ()


def list_ranked(engine: Engine) -> Iterator[tuple[int, EngineStats]]:
    """Yield the statistics of an engine's replicas, each with its rank."""
    stats = list_stats(engine)
    ranks = [each.rank for each in engine.describe()] if isinstance(engine, Described) else range(len(stats))
    yield from zip(ranks, stats, strict=False)  # an engine may have no statistics


def _collect_pools(stats: Iterable[tuple[str, str, EngineStats]]) -> Iterator[Metric]:
    labels = ["model", "replica", "stage", "kind"]
    used = GaugeMetricFamily("parallax_pages_used", "Pages that sequences hold, running or stored.", labels=labels)
    total = GaugeMetricFamily("parallax_pages_total", "Pages there are.", labels=labels)
    for model, rank, each in stats:
        for pool in each.pools:
            place = [model, rank, str(pool.stage), pool.kind]
            used.add_metric(place, pool.used)
            total.add_metric(place, pool.total)
    yield used
    yield total


def _collect_losses(engines: Iterable[tuple[str, Engine]]) -> Iterator[Metric]:
    losses = CounterMetricFamily("parallax_stage_losses", "Stages lost.", labels=["model", "replica"])
    restarts = CounterMetricFamily(
        "parallax_stage_restarts", "Stages taken over by another process.", labels=["model", "replica", "stage"]
    )
    for model, engine in engines:
        for each in engine.describe() if isinstance(engine, Described) else ():
            losses.add_metric([model, str(each.rank)], each.num_losses)
            for stage in each.stages:
                restarts.add_metric([model, str(each.rank), str(stage.stage)], stage.restarts)
    yield losses
    yield restarts


def make_router(server_metrics: ServerMetrics) -> fastapi.APIRouter:
    """Return the route that shows ``server_metrics``."""
    router = fastapi.APIRouter()

    text: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}

    @router.get("/metrics", response_class=Response, responses=text | describe_errors(401, 403))
    @needs_role("metrics")
    async def metrics() -> Response:
        """Show the metrics in Prometheus's text format."""
        # On the event loop, which changes the metrics.
        return Response(generate_latest(server_metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return router
