"""Lets the tests of a kit share one engine that takes long to start.

Each test gets an engine of its own on its own event loop, whose start and stop concern only its requests. How the real
engine starts and stops needs tests of its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from parallax_core.base.errors import Unavailable
from parallax_core.contracts.engine import Delta, EngineStats, Finish, Health, Measured, Request, Stream
from parallax_core.contracts.token_engine import EngineInfo, TokenEngine

T = TypeVar("T")

NOT_READY = "the test has not started it, or has stopped it"


class SharedEngine:
    """An engine on an event loop and a thread of its own."""

    def __init__(self, make: Callable[[], TokenEngine]) -> None:
        """Make the engine and start it; wait until it is ready. Raises what that raises."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="shared-engine", daemon=True)
        self._thread.start()
        self.engine = self.run(_start(make))

    def attach(self) -> AttachedEngine:
        """Return an engine for one test, not started."""
        return AttachedEngine(self)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of ``work`` on the engine's event loop; wait for it."""
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result()

    def post(self, function: Callable[..., object], *args: object) -> None:
        """Call ``function`` on the engine's event loop soon."""
        self._loop.call_soon_threadsafe(function, *args)

    def close(self) -> None:
        """Stop the engine and end its thread."""
        self.run(self.engine.stop())
        self.post(self._loop.stop)
        self._thread.join()
        self._loop.close()


class AttachedEngine:
    """A `TokenEngine` whose requests a shared one answers. It belongs to the event loop of its test."""

    def __init__(self, shared: SharedEngine) -> None:
        self._shared = shared
        self._health = Health(state="starting")
        self._streams: set[AttachedStream] = set()

    async def start(self) -> None:
        """Become ready, unless it was stopped."""
        if self._health.state != "starting":
            raise Unavailable("the engine was stopped")
        self._health = Health(state="ready")

    async def stop(self) -> None:
        """End every stream."""
        self._health = Health(state="draining", reason="the engine was stopped")
        for stream in list(self._streams):
            stream.end(Delta(finish=Finish(reason="aborted", prompt_tokens=0, output_tokens=0, message="stopped")))

    def submit(self, request: Request) -> AttachedStream:
        """Submit a request to the shared engine. Raises what that raises."""
        if self._health.state != "ready":
            raise Unavailable(f"the engine is {self._health.state}", NOT_READY)
        inner = self._shared.run(_submit(self._shared.engine, request))
        stream = AttachedStream(self._shared, inner, self._streams.discard)
        self._streams.add(stream)
        return stream

    def health(self) -> Health:
        """Return the health of this engine, or that of the shared one if it has failed."""
        found = self._shared.engine.health()
        return found if found.state == "failed" else self._health

    def stats(self) -> tuple[EngineStats, ...]:
        """Return the statistics of the shared engine."""
        engine: object = self._shared.engine
        return engine.stats() if isinstance(engine, Measured) else ()

    @property
    def info(self) -> EngineInfo:
        """The properties of the shared engine."""
        return self._shared.engine.info


class AttachedStream:
    """A `Stream` of the shared engine, read on the event loop of a test."""

    def __init__(self, shared: SharedEngine, inner: Stream, on_end: Callable[[AttachedStream], None]) -> None:
        self._shared = shared
        self._inner = inner
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._deltas: asyncio.Queue[Delta | None] = asyncio.Queue()
        self._has_ended = False
        shared.post(self._start)

    async def __aiter__(self) -> AsyncIterator[Delta]:
        """Yield the deltas up to the one with a finish, or until the stream is closed."""
        while (delta := await self._deltas.get()) is not None:
            yield delta
            if delta.finish is not None:
                return

    def close(self) -> None:
        """Abort the request; see `Stream.close`."""
        self.end(None)

    def end(self, last: Delta | None) -> None:
        """Abort the request and end the iteration after ``last``; do nothing if it has ended."""
        if not self._has_ended:
            self._has_ended = True
            self._shared.post(self._inner.close)
            self._deltas.put_nowait(last)
            self._on_end(self)

    def _start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        async for delta in self._inner:
            if self._loop.is_closed():
                return
            self._loop.call_soon_threadsafe(self._put, delta)

    def _put(self, delta: Delta) -> None:
        if self._has_ended:
            return
        self._deltas.put_nowait(delta)
        if delta.finish is not None:
            self._has_ended = True
            self._on_end(self)


async def _start(make: Callable[[], TokenEngine]) -> TokenEngine:
    engine = make()
    await engine.start()
    return engine


async def _submit(engine: TokenEngine, request: Request) -> Stream:
    return engine.submit(request)
