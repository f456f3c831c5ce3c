"""Runs a response in the background: it outlives its client, and its events can be read again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from itertools import count

from parallax_api_responses.begun import Journal
from parallax_api_responses.replies import ResponseEvent
from parallax_api_responses.writer import ResponsesWriter
from parallax_core.api import BackendFailed, Delta, ParallaxError, Unavailable
from parallax_core.api.bodies import to_json
from parallax_core.api.dialect import ResponseFlow, TokenCounts, error_response, write_named

Save = Callable[["BackgroundRun"], Awaitable[None]]
Submit = Callable[[tuple[int, ...]], Awaitable[ResponseFlow]]
"""Submits the request of a response again, to go on after the tokens given."""
RETRY_S = 0.5
"""Seconds between two tries to submit a response again, while the model is being loaded."""

logger = logging.getLogger(__name__)


class BackgroundRun:
    """A response that is generated whether its client listens or not."""

    def __init__(
        self,
        flow: ResponseFlow | None,
        writer: ResponsesWriter,
        save: Save,
        journal: Journal | None = None,
        restored: tuple[list[Delta], Submit] | None = None,
    ) -> None:
        """Start it.

        Args:
            flow: its answer; None: it is ``restored``.
            writer: of its events.
            save: called once with it, before it is done.
            journal: keeps what comes, so that it goes on when the server is started again; None: it ends with it.
            restored: what came of it on the server before this one, and how it goes on.
        """
        self.writer = writer
        self.is_suspended = False
        """Whether it ends for this server alone: the next one goes on with it."""
        self.events: list[bytes] = []
        """All events so far, as they are sent."""
        self.is_done = False
        self._flow = flow
        self._save = save
        self._journal = journal
        self._restored = restored
        self._news = asyncio.Event()
        self._add(writer.queue())
        self._task = asyncio.create_task(self._run())

    def suspend(self) -> None:
        """Leave it to the next server, if it is kept as it comes; the others end with this one."""
        self.is_suspended = self._journal is not None

    async def cancel(self) -> None:
        """Stop the response and wait until it is stored; no effect once it is done."""
        if not self.is_done:
            self.writer.is_cancelled = True
            if self._flow is not None:
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
            self._end_by(error)
        except Exception:  # the response has to end, whatever the error is
            logger.exception("background response failed")
            self._add(self.writer.fail(BackendFailed("internal error; the server's log has the details")))
        finally:
            if self._flow is not None:
                self._flow.close()
            if self._journal is not None:
                await self._journal.close()
            try:
                await self._save(self)
            except Exception:  # those who wait for the response have to be told that it has ended
                logger.exception("background response cannot be kept")
            self.is_done = True
            self._tell()

    def _end_by(self, error: ParallaxError) -> None:
        if self.is_suspended and isinstance(error, Unavailable):
            return  # the engine stops, and the next one goes on
        if self._flow is not None:
            self._flow.count_error(error_response(error).status_code)
        self._add(self.writer.fail(error))

    async def _read(self) -> None:
        is_first = True
        if self._restored is not None:
            deltas, submit = self._restored
            for delta in deltas:
                is_first = self._take(delta, is_first=is_first)
            if deltas and (finish := deltas[-1].finish) is not None:
                self._add(self.writer.end(TokenCounts(finish.prompt_tokens, 0, finish.output_tokens)))
                return
            tokens = tuple(token for delta in deltas for token in delta.tokens)
            self._flow = await self._submit(submit, tokens)
            if self._flow is None:
                self._add(self.writer.end(TokenCounts(0, 0, len(tokens))))
                return
        assert self._flow is not None, "it is restored, or begins with a flow"
        async for _, delta in self._flow.collect():
            if self._journal is not None:
                self._journal.add(delta)
            is_first = self._take(delta, is_first=is_first)
        self._add(self.writer.end(self._flow.count_tokens()))

    async def _submit(self, submit: Submit, tokens: tuple[int, ...]) -> ResponseFlow | None:
        """Return the rest of a restored answer, once an engine takes it; None: its client has cancelled it."""
        while not self.writer.is_cancelled:
            try:
                return await submit(tokens)
            except Unavailable:
                if self.is_suspended:
                    raise
            await asyncio.sleep(RETRY_S)
        return None

    def _take(self, delta: Delta, *, is_first: bool) -> bool:
        """Add the events of a delta; return whether the next one is the first."""
        if is_first:
            self._add(self.writer.start())
        self._add(self.writer.read(delta))
        return False

    def _add(self, events: Iterable[ResponseEvent]) -> None:
        self.events += [write_named(event.type, to_json(event)) for event in events]
        self._tell()

    def _tell(self) -> None:
        """Wake all that follow."""
        self._news.set()
        self._news = asyncio.Event()
