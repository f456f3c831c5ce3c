"""The common part of in-process engines: start, stop, health, and streams of open requests."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Generic, Literal, TypeVar

from parallax_core.base.errors import SHUTTING_DOWN, BackendFailed, ParallaxError, Unavailable
from parallax_core.base.faults import describe_error
from parallax_core.base.ids import RequestId
from parallax_core.base.tasks import WatchedWork, start_task
from parallax_core.contracts.engine import Delta, Finish, Health, Reason
from parallax_core.node.pipeline.stream import QueueStream
from parallax_core.node.pipeline.unread import UnreadOutput

T = TypeVar("T")

logger = logging.getLogger(__name__)


class EngineBase(ABC, Generic[T]):
    """An engine that opens something of type T, serves with it until it is lost, and opens it again.

    It never stays ready and mute: should the task that serves end in whatever way, the engine has failed, and every
    stream ends with an error.
    """

    def __init__(self, on_lost: Callable[[str], None] | None = None) -> None:
        """``on_lost`` is called with the reason of each loss."""
        self._on_lost = on_lost
        self._streams: dict[RequestId, QueueStream] = {}
        self._opening: asyncio.Task[T] | None = None
        self._serving: WatchedWork | None = None
        self._closing: asyncio.Task[None] | None = None
        self._health = Health(state="starting")
        self._num_losses = 0
        self.farewell = SHUTTING_DOWN
        """The message to clients whose requests end as the engine stops."""

    async def start(self) -> None:
        """Open the engine and begin to serve; call it once.

        Raises:
            ParallaxError: if it cannot be opened; nothing is left running then.
            Unavailable: if the engine is stopped before or during the start.
        """
        if self._opening is not None or self._closing is not None:
            raise Unavailable(f"the engine cannot start: it is {self._health.state}", self._health.reason)
        self._opening = start_task(self._open())
        try:
            self._take(await self._opening)
        except BaseException as error:
            if self._health.state == "starting":
                self._health = Health(state="failed", reason=str(error))
            await self._close()
            if (reason := self._explain(error)) is None:
                raise
            raise reason from error

    async def stop(self) -> None:
        """End every stream with an error and release all resources; wait only a moment for running work."""
        if self._health.state != "failed":
            self._health = Health(state="draining", reason=SHUTTING_DOWN)
        self._end_streams("aborted", self.farewell, list(self._streams))
        await self._close()

    def health(self) -> Health:
        """Return the state of the engine; while it starts, the reason includes what an operator has to do."""
        health = self._health
        if health.state == "starting" and (needs := self._needs()):
            return Health(state="starting", reason="; ".join(filter(None, (health.reason, needs))))
        return health

    def _take(self, opened: T) -> None:
        if self._closing is not None:
            raise Unavailable(SHUTTING_DOWN)
        self._serving = WatchedWork(self._begin(opened), self._note_end)
        self._health = Health(state="ready")

    @abstractmethod
    async def _open(self) -> T:
        """Open what the engine serves with."""

    @abstractmethod
    def _begin(self, opened: T) -> Coroutine[None, None, None]:
        """Take over what was opened, and return the work that serves with it, and opens it again after losses."""

    @abstractmethod
    async def _release(self) -> None:
        """Close what was opened; legal at any time."""

    @abstractmethod
    def _needs(self) -> str:
        """Return what an operator has to do before the engine can open; empty if nothing."""

    @abstractmethod
    def _cancel(self, request_id: RequestId) -> None:
        """Stop the work on a request whose stream was closed."""

    def _add_stream(self, request_id: RequestId, backlog: UnreadOutput) -> QueueStream:
        stream = QueueStream(partial(self._abort, request_id), backlog)
        self._streams[request_id] = stream
        return stream

    def _deliver(self, deltas: Iterable[tuple[RequestId, Delta]]) -> None:
        for request_id, delta in deltas:
            stream = self._streams.get(request_id)
            if delta.finish is not None:
                self._streams.pop(request_id, None)
            if stream is not None:
                stream.put(delta)

    def _abort(self, request_id: RequestId) -> None:
        if self._streams.pop(request_id, None) is not None:
            self._cancel(request_id)

    def _end_streams(self, reason: Reason, message: str, request_ids: Sequence[RequestId]) -> None:
        finish = Finish(reason=reason, prompt_tokens=0, output_tokens=0, message=message)
        for request_id in request_ids:
            self._streams.pop(request_id).put(Delta(finish=finish))

    def _excuse(self, reason: str) -> None:
        """Note why the engine is not ready yet."""
        if self._closing is None:
            self._health = Health(state="starting", reason=reason)

    def _note_ready(self) -> None:
        """Note that the engine serves again after a loss."""
        if self._closing is None:
            self._health = Health(state="ready")

    def _note_end(self, error: BaseException) -> None:
        """Fail, since the serving task ended before the engine was stopped."""
        if self._closing is None:
            is_known = isinstance(error, ParallaxError)
            reason = error.message if isinstance(error, ParallaxError) else describe_error(error)
            logger.critical("engine failed: %s", reason, exc_info=None if is_known else error)
            self._fail(reason)

    def _fail(self, reason: str) -> None:
        """End every stream: the engine cannot serve again."""
        self._end_streams("error", reason, list(self._streams))
        self._change_health("failed", reason)

    def _change_health(self, state: Literal["starting", "failed"], reason: str) -> None:
        """Note a loss."""
        self._num_losses += 1
        self._health = Health(state=state, reason=reason)
        if self._on_lost is None:
            return
        try:
            self._on_lost(reason)
        except Exception:  # the engine goes on, whatever the error of its observer is
            logger.exception("loss cannot be told")

    def _explain(self, error: BaseException) -> ParallaxError | None:
        """Return the error that `start` raises in place of ``error``; None to raise ``error`` itself."""
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and self._health.state == "draining":
            is_cancelled = task is not None and task.cancelling()
            return None if is_cancelled else Unavailable("the engine was stopped while it started", SHUTTING_DOWN)
        if isinstance(error, ParallaxError) or not isinstance(error, Exception):
            return None
        message = f"the model could not be loaded: {describe_error(error)}"
        return BackendFailed(message, "run again with --verbose for the traceback")

    async def _close(self) -> None:
        """Close once, even if several callers ask for it or a caller is cancelled."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._shut())
        await asyncio.wait([self._closing])

    async def _shut(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        if self._serving is not None:
            await self._serving.cancel()
        await self._release()
