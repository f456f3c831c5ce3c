"""Opens the metrics and traces of a server."""

from __future__ import annotations

import asyncio
from functools import partial

from parallax_core.api import Dialect
from parallax_core.api.dialect import ServedModels, ServerOptions
from parallax_observe.loop_lag import watch_lag
from parallax_observe.metrics import ServerMetrics, make_router
from parallax_observe.tracing import OtelTracer


def open_dialect(models: ServedModels, options: ServerOptions) -> Dialect:
    """Return the route of the metrics, and what measures for it.

    Raises:
        ParallaxError: if there is a collector for traces, and OpenTelemetry is not installed.
    """
    tracer = OtelTracer(options.otlp_endpoint) if options.otlp_endpoint else None
    metrics = ServerMetrics(models, tracer)
    return Dialect(
        routers=(make_router(metrics),),
        meter=metrics,
        run=partial(_watch_lag, models, metrics),
        close=partial(asyncio.to_thread, tracer.close) if tracer else None,
    )


async def _watch_lag(models: ServedModels, metrics: ServerMetrics) -> None:
    """Measure the event loop once the server is ready: before, modules and models are loaded."""
    await models.started.wait()
    await watch_lag(metrics.note_lag)
