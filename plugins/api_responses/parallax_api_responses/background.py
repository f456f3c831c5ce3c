"""Runs a response in the background: it outlives its client, and its events can be read again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from itertools import count

from parallax_api_responses.replies import ResponseEvent
from parallax_api_responses.writer import ResponsesWriter
from parallax_core.api import BackendFailed, ParallaxError
from parallax_core.api.bodies import to_json
from parallax_core.api.dialect import ResponseFlow, error_response, write_named

Save = Callable[["BackgroundRun"], Awaitable[None]]

logger = logging.getLogger(__name__)


class BackgroundRun:
    """A response that is generated whether its client listens or not."""

    def __init__(self, flow: ResponseFlow, writer: ResponsesWriter, save: Save) -> None:
        """Start it; ``save`` is called once with it, before it is done."""
        self.writer = writer
        self.events: list[bytes] = []
        """All events so far, as they are sent."""
        self.is_done = False
        self._flow = flow
        self._save = save
        self._news = asyncio.Event()
        self._add(writer.queue())
        self._task = asyncio.create_task(self._run())

    async def cancel(self) -> None:
        """Stop the response and wait until it is stored; no effect once it is done."""
        if not self.is_done:
            self.writer.is_cancelled = True
            self._flow.stop()
        await self.wait()

    async def wait(self) -> None:
        """Wait until it is done."""
        await asyncio.shield(self._task)

    async def follow(self, first: int) -> AsyncIterator[bytes]:
        """Yield the events from number ``first`` on, as they come."""
        for number in count(first):
            while number >= len(self.events):
                if self.is_done:
                    return
                await self._news.wait()
            yield self.events[number]

    async def _run(self) -> None:
        try:
            await self._read()
        except ParallaxError as error:
            self._flow.count_error(error_response(error).status_code)
            self._add(self.writer.fail(error))
        except Exception:  # the response has to end, whatever the error is
            logger.exception("background response failed")
            self._add(self.writer.fail(BackendFailed("internal error; the server's log has the details")))
        finally:
            self._flow.close()
            try:
                await self._save(self)
            except Exception:  # those who wait for the response have to be told that it has ended
                logger.exception("background response cannot be kept")
            self.is_done = True
            self._tell()

    async def _read(self) -> None:
        is_first = True
        async for _, delta in self._flow.collect():
            if is_first:
                self._add(self.writer.start())
                is_first = False
            self._add(self.writer.read(delta))
        self._add(self.writer.end(self._flow.count_tokens()))

    def _add(self, events: Iterable[ResponseEvent]) -> None:
        self.events += [write_named(event.type, to_json(event)) for event in events]
        self._tell()

    def _tell(self) -> None:
        """Wake all that follow."""
        self._news.set()
        self._news = asyncio.Event()
