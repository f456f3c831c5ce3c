"""Opens the metrics, traces, requests and log of a server."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from parallax_core.api import Dialect
from parallax_core.api.deployment import Described
from parallax_core.api.dialect import ServedModels, ServerOptions
from parallax_observe.log_routes import make_log_router
from parallax_observe.log_store import STORE, LogHandler
from parallax_observe.loop_lag import watch_lag
from parallax_observe.metrics import ServerMetrics, make_router
from parallax_observe.request_feed import Progress
from parallax_observe.request_record import RECORD
from parallax_observe.request_routes import make_request_router
from parallax_observe.tracing import OtelTracer


def open_dialect(models: ServedModels, options: ServerOptions) -> Dialect:
    """Return the routes of the metrics, the requests and the log, and what measures for them.

    Raises:
        ParallaxError: if there is a collector for traces, and OpenTelemetry is not installed.
    """
    tracer = OtelTracer(options.otlp_endpoint) if options.otlp_endpoint else None
    metrics, handler = ServerMetrics(models, tracer), LogHandler(STORE)
    logging.getLogger().addHandler(handler)
    return Dialect(
        routers=(
            make_router(metrics),
            make_request_router(RECORD, partial(_find_running, models)),
            make_log_router(STORE),
        ),
        meter=metrics,
        run=partial(_watch_lag, models, metrics),
        close=partial(_close, handler, tracer),
    )


async def _close(handler: logging.Handler, tracer: OtelTracer | None) -> None:
    logging.getLogger().removeHandler(handler)
    if tracer is not None:
        await asyncio.to_thread(tracer.close)


async def _watch_lag(models: ServedModels, metrics: ServerMetrics) -> None:
    """Measure the event loop once the server is ready: before, modules and models are loaded."""
    await models.started.wait()
    await watch_lag(metrics.note_lag)


def _find_running(models: ServedModels) -> Progress:
    """Return how far the requests of each model are whose engine tells."""
    engines: dict[str, object] = {each.model_id: each.engine for each in models.services}
    replicas = {name: engine.describe() for name, engine in engines.items() if isinstance(engine, Described)}
    told = {name: [each.running for each in found] for name, found in replicas.items()}
    return {
        name: {each.id: each for running in found for each in running or ()}
        for name, found in told.items()
        if None not in found
    }
