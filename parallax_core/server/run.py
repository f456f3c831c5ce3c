"""Runs the application until a signal ends it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass

import uvicorn
from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool

from parallax_core.base.errors import EngineFailed
from parallax_core.base.taskgroup import wait_for_ever
from parallax_core.contracts.node_service import ClientConnections
from parallax_core.server.accepted import AcceptedConnections
from parallax_core.server.bind import explain_bind_error
from parallax_core.server.connection import MOST_SILENT, make_protocol
from parallax_core.server.dialects import ServedDialects
from parallax_core.server.drain import Drain
from parallax_core.server.file_limit import raise_limit
from parallax_core.server.options import ServerOptions
from parallax_core.server.served_models import ServedModels

logger = logging.getLogger(__name__)

LOOK_S = 0.25
"""Seconds between checks of the engine's health."""
GRACE_S = 0.5
"""Seconds that open connections have to end when the server stops."""


class Server(uvicorn.Server):
    """uvicorn without its signal handlers: `run_server` has to end the engine's streams first."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do not handle signals."""
        yield


def settle_memory() -> None:
    """Make the garbage collector skip permanent objects: modules, models, vocabularies.

    Scanning them takes a good part of a second, during which the event loop is blocked.
    """
    gc.collect()
    gc.freeze()


@dataclass(frozen=True, slots=True)
class ServerSite:
    """An application with its models, options and drain."""

    app: FastAPI
    models: ServedModels
    options: ServerOptions
    drain: Drain
    share: Callable[[ClientConnections], None] = lambda _: None
    """Is given the answers to connections that something else than the server has accepted."""
    await_end: Callable[[], Coroutine[None, None, None]] = wait_for_ever
    """Raises the reason once the server has to end for good, whatever its engines do."""


async def run_server(site: ServerSite, sock: socket.socket, on_ready: Callable[[], None]) -> None:
    """Serve until SIGINT or SIGTERM; SIGTERM lets running answers end for a moment, up to a second signal.

    ``/health`` answers 503 while the engine starts.

    Raises:
        ParallaxError: if the engine cannot start.
        EngineFailed: if the engine fails later, for good.
        ParallaxError: whatever ends the server for good; see `ServerSite.await_end`.
    """
    dialects: ServedDialects = site.app.state.dialects
    server = Server(make_config(site, raise_limit() // 4))
    site.share(AcceptedConnections(server))
    ending = asyncio.create_task(_wait_for_signal(site))
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    starting = asyncio.create_task(_start(site, on_ready))
    yielding = asyncio.create_task(site.await_end())
    beside = asyncio.create_task(dialects.run())
    try:
        await asyncio.wait({ending, serving, starting, yielding}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (ending, starting, yielding):
            task.cancel()
        # its streams end at once, the rest while clients get their errors
        stopping = asyncio.create_task(_stop(site, beside))
        server.should_exit = True
        await asyncio.wait({ending, serving, starting, yielding, stopping})
        await dialects.close()
        stopping.result()
    for task in (yielding, starting):
        if not task.cancelled():
            task.result()
    try:
        serving.result()
    except OSError as error:
        raise explain_bind_error("{}:{}".format(*sock.getsockname()[:2]), error) from error


def make_config(site: ServerSite, most_silent: int = MOST_SILENT) -> uvicorn.Config:
    """Return uvicorn's configuration for a site, which keeps ``most_silent`` connections without a request."""
    options = site.options
    return uvicorn.Config(
        site.app,
        http=make_protocol(options.request_s, most_silent),
        log_config=None,
        access_log=False,
        ws="none",
        ssl_certfile=options.tls_cert,
        ssl_keyfile=options.tls_key,
        timeout_keep_alive=options.keep_alive_s,  # type: ignore[arg-type]  # it is handed to asyncio, which takes parts
        timeout_graceful_shutdown=GRACE_S,  # type: ignore[arg-type]  # it is handed to asyncio, which takes parts
    )


async def _wait_for_signal(site: ServerSite) -> None:
    loop, signalled, at_once = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

    def handle(number: signal.Signals) -> None:
        if signalled.is_set() or number == signal.SIGINT:
            at_once.set()
        signalled.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, handle, number)
    await signalled.wait()
    draining = asyncio.create_task(site.drain.drain(site.options.drain_s))
    hurried = asyncio.create_task(at_once.wait())
    await asyncio.wait({draining, hurried}, return_when=asyncio.FIRST_COMPLETED)
    draining.cancel()
    hurried.cancel()


async def _stop(site: ServerSite, beside: asyncio.Task[None]) -> None:
    beside.cancel()
    await asyncio.wait([beside])
    await site.models.stop()


async def _start(site: ServerSite, on_ready: Callable[[], None]) -> None:
    """Start the models, call ``on_ready``, and then watch health until cancelled.

    Raises:
        EngineFailed: if the engine fails for good.
    """
    importing = run_in_threadpool(_do_nothing)  # imports the modules that Starlette streams with
    await asyncio.gather(site.models.start(), importing)
    settle_memory()
    on_ready()
    site.models.started.set()
    await _watch_health(site.models)


def _do_nothing() -> None:
    """Return, which the thread pool needs a thread for."""


async def _watch_health(models: ServedModels) -> None:
    """Check the health of all engines from time to time.

    Raises:
        EngineFailed: once one has failed for good, so that a service manager can restart the process.
    """
    while True:
        for service in models.services:
            if (health := service.engine.health()).state == "failed":
                hint = "start the server again; its log, above, says more"
                raise EngineFailed(f"the engine failed: {health.reason}", hint)
        await asyncio.sleep(LOOK_S)
