"""Runs an engine that schedules itself on a thread of its own, and hands over its deltas in batches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from parallax_core.api import (
    BackendFailed,
    Delta,
    EngineInfo,
    EngineStats,
    Finish,
    Health,
    Measured,
    ParallaxError,
    Request,
    Stream,
    TokenEngine,
)
from parallax_core.api.node import describe_error
from parallax_core.api.replica import TASK_ENDINGS
from parallax_engines.loop_thread import LoopThread

logger = logging.getLogger(__name__)

STOP_S = 0.7
"""Seconds an engine has to stop before its process ends without it."""

Numbered = tuple[int, Delta]
"""A delta, and the number of its request."""


class EngineRunner:
    """An engine on an event loop of its own. Belongs to the event loop of the caller.

    The deltas of one turn of the engine's loop, as a rule those of one step, are handed over together.
    """

    def __init__(self, deliver: Callable[[Sequence[Numbered]], None]) -> None:
        """Call ``deliver`` with the deltas, in order, on the caller's event loop."""
        self._deliver = deliver
        self._thread = LoopThread("parallax-engine")
        self._engine: TokenEngine | None = None
        self._streams: dict[int, Stream] = {}
        """The open streams by number; like the rest below, used only on the engine's loop."""
        self._pumps: set[asyncio.Task[None]] = set()
        self._batch: list[Numbered] = []

    async def open(self, make: Callable[[], TokenEngine]) -> EngineInfo:
        """Make and start the engine. Raises what that raises; nothing is left running then."""

        async def work() -> EngineInfo:
            engine = make()
            await engine.start()
            self._engine = engine
            return engine.info

        try:
            return await self._thread.run(work)
        except BaseException:
            self._thread.close()
            raise

    def submit(self, number: int, request: Request) -> None:
        """Submit a request; if the engine refuses it, its stream is one delta with the reason."""
        self._thread.post(self._submit, number, request)

    def abort(self, numbers: Sequence[int]) -> None:
        """Close the streams of requests; unknown ones are ignored."""
        self._thread.post(self._close, numbers)

    async def look(self) -> tuple[Health, EngineStats]:
        """Return the engine's health and statistics. Waits while the engine's loop is busy."""

        async def work() -> tuple[Health, EngineStats]:
            engine = self._engine
            assert engine is not None, "the engine has started"
            stats = engine.stats() if isinstance(engine, Measured) else ()
            return engine.health(), next(iter(stats), EngineStats())

        return await self._thread.run(work)

    async def close(self) -> None:
        """Stop the engine, waiting for at most `STOP_S`."""
        stopping = asyncio.ensure_future(self._thread.run(self._stop))
        done, _ = await asyncio.wait([stopping], timeout=STOP_S)
        if not done:
            logger.warning("engine has not stopped within %g s", STOP_S)
            stopping.cancel()
        elif (error := stopping.exception()) is not None:
            logger.warning("engine not stopped cleanly: %s: %s", type(error).__name__, error)
        self._thread.close()

    async def _stop(self) -> None:
        if self._engine is not None:
            await self._engine.stop()

    def _submit(self, number: int, request: Request) -> None:
        engine = self._engine
        assert engine is not None, "the engine has started"
        try:
            stream = engine.submit(request)
        except TASK_ENDINGS:
            raise
        except BaseException as error:  # noqa: BLE001 -- the client has to know any error
            self._put(number, Delta(finish=_describe(error, request)))
            return
        self._streams[number] = stream
        pump = asyncio.get_running_loop().create_task(self._pump(number, request, stream))
        self._pumps.add(pump)
        pump.add_done_callback(self._pumps.discard)

    async def _pump(self, number: int, request: Request, stream: Stream) -> None:
        has_ended = False
        try:
            async for delta in stream:
                has_ended = delta.finish is not None
                self._put(number, delta)
        except BaseException as error:  # a cancellation too: an engine's own task may have been cancelled
            self._streams.pop(number, None)
            self._put(number, Delta(finish=_describe(error, request)))
            if isinstance(error, TASK_ENDINGS):
                raise
            logger.exception("engine failed to answer a request")
            return
        is_aborted = self._streams.pop(number, None) is None
        if not has_ended and not is_aborted:
            unexplained = BackendFailed("the engine ended its answer without a reason")
            self._put(number, Delta(finish=_describe(unexplained, request)))

    def _put(self, number: int, delta: Delta) -> None:
        if not self._batch:
            asyncio.get_running_loop().call_soon(self._flush)
        self._batch.append((number, delta))

    def _flush(self) -> None:
        batch, self._batch = self._batch, []
        self._thread.post_back(self._deliver, batch)

    def _close(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            if (stream := self._streams.pop(number, None)) is not None:
                stream.close()


def _describe(error: BaseException, request: Request) -> Finish:
    message = error.message if isinstance(error, ParallaxError) else describe_error(error)
    return Finish(reason="error", prompt_tokens=len(request.prompt), output_tokens=0, message=message)
