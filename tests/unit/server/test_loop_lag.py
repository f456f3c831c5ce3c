"""The event loop of a server: how late it is, and what it does not wait for."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time

from prometheus_client.parser import text_string_to_metric_families

from parallax_core.server.event_loop import run_loop
from parallax_core.server.loop_lag import watch_lag
from tests.unit.server.letters import Site
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


def test_lag_and_its_worst_are_metrics(site: Site) -> None:
    for seconds in (0.002, 0.3, 0.01):
        site.service.server_metrics.note_lag(seconds)
    families = text_string_to_metric_families(site.client.get("/metrics").text)
    found = {sample.name: sample.value for family in families for sample in family.samples}
    assert found["parallax_loop_lag_seconds_count"] == 3
    assert found["parallax_loop_lag_worst_seconds"] == 0.3


def test_end_of_the_loop_does_not_wait_for_threads() -> None:
    release, entered = threading.Event(), threading.Event()

    def work() -> None:
        entered.set()
        release.wait(60)

    async def run() -> None:
        asyncio.get_running_loop().run_in_executor(None, work)
        await until(entered.is_set)

    run_loop(run(), 30)
    assert not release.is_set()
    release.set()


def test_client_that_says_nothing_in_a_tls_handshake_is_cut_off() -> None:
    async def run() -> bytes:
        loop = asyncio.get_running_loop()
        sock = socket.create_server(("127.0.0.1", 0))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server = await loop.create_server(asyncio.Protocol, sock=sock, ssl=context)
        reader, writer = await asyncio.open_connection(*sock.getsockname())
        try:
            async with asyncio.timeout(20):
                return await reader.read()
        finally:
            writer.close()
            server.close()

    assert run_loop(run(), 0.2) == b""
