"""How late the event loop is, by a measure and in the metrics."""

from __future__ import annotations

import asyncio
import time

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from parallax_core.api.dialect import ServedModels
from parallax_observe.loop_lag import watch_lag
from parallax_observe.metrics import ServerMetrics
from tests.unit.server.listening import until


async def test_callback_that_holds_the_loop_shows_as_lag() -> None:
    lags: list[float] = []
    watching = asyncio.create_task(watch_lag(lags.append, 0.01))
    await until(lambda: len(lags) >= 3)
    lags.clear()
    time.sleep(0.2)  # noqa: ASYNC251 -- the point
    await until(lambda: lags)
    watching.cancel()
    assert max(lags) > 0.15
    assert min(lags) >= 0


def test_lag_and_its_worst_are_metrics() -> None:
    metrics = ServerMetrics(ServedModels())
    for seconds in (0.002, 0.3, 0.01):
        metrics.note_lag(seconds)
    families = text_string_to_metric_families(generate_latest(metrics.registry).decode())
    found = {sample.name: sample.value for family in families for sample in family.samples}
    assert found["parallax_loop_lag_seconds_count"] == 3
    assert found["parallax_loop_lag_worst_seconds"] == 0.3
