"""The engine of one replica made of stages: accepts requests, drives the stages and recovers from losses."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from parallax_core.base.errors import SHUTTING_DOWN, BackendFailed, EngineFailed, ParallaxError, StageLost, Unavailable
from parallax_core.base.ids import RequestId
from parallax_core.contracts.engine import Delta, EngineStats, Finish, Health, Reason, Request
from parallax_core.contracts.stage import StageInfo
from parallax_core.contracts.status import ReplicaLimits, ReplicaStatus
from parallax_core.engine.detokenizer import Decode
from parallax_core.engine.head import Head
from parallax_core.node.executor.base import Executor, StageLocation
from parallax_core.node.pipeline.driver import PipelineDriver
from parallax_core.node.pipeline.options import PipelineOptions
from parallax_core.node.pipeline.recovery import Recovery
from parallax_core.node.pipeline.stream import QueueStream
from parallax_core.node.status import describe_engine, describe_stages

logger = logging.getLogger(__name__)


class PipelineEngine:
    """A replica made of stages: a head on the event loop, and an executor that runs the stages.

    When a stage is lost, the engine's health becomes ``starting``, and the executor opens the stages again, however
    long that takes. Then every request is computed again from its prompt and the tokens already sent, and its stream
    goes on after them. If the stages can never be opened again in this process, the health becomes ``failed`` and every
    stream ends with an error. ``on_lost`` is called with the reason of each loss.
    """

    def __init__(
        self,
        executor: Executor,
        decode: Decode,
        options: PipelineOptions | None = None,
        on_lost: Callable[[str], None] | None = None,
    ) -> None:
        self._options = options or PipelineOptions()
        self._on_lost = on_lost
        self._executor = executor
        self._decode = decode
        self._infos: tuple[StageInfo, ...] = ()
        self._head: Head | None = None
        self._driver: PipelineDriver | None = None
        self._streams: dict[RequestId, QueueStream] = {}
        self._opening: asyncio.Task[tuple[StageInfo, ...]] | None = None
        self._serving: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._health = Health(state="starting")
        self._num_losses = 0

    async def start(self) -> None:
        """Open the stages and begin to serve; call it once.

        Raises:
            ParallaxError: if a stage cannot be opened, or stages do not fit each other; nothing is left running then.
            Unavailable: if the engine is stopped before or during the start.
        """
        if self._opening is not None or self._closing is not None:
            raise Unavailable(f"the engine cannot start: it is {self._health.state}", self._health.reason)
        self._opening = asyncio.get_running_loop().create_task(self._executor.open())
        try:
            self._begin(await self._opening)
        except BaseException as error:
            if self._health.state == "starting":
                self._health = Health(state="failed", reason=str(error))
            await self._close()
            if (reason := self._explain(error)) is None:
                raise
            raise reason from error

    async def stop(self) -> None:
        """End every stream with an error and close the stages; wait only a moment for a running step."""
        if self._health.state != "failed":
            self._health = Health(state="draining", reason=SHUTTING_DOWN)
        self._end_streams("aborted", SHUTTING_DOWN, list(self._streams))
        await self._close()

    def submit(self, request: Request) -> QueueStream:
        """Accept a request; see `Engine.submit`."""
        head, driver = self._find_head()
        head.accept(request, asyncio.get_running_loop().time())
        stream = QueueStream(partial(self._abort, request.id), self._options.backlog)
        self._streams[request.id] = stream
        driver.wake()
        return stream

    def check_room(self) -> None:
        """Check that the engine would accept a request now; see `Admitting`."""
        head, _ = self._find_head()
        head.check_room()

    def health(self) -> Health:
        """Return the state of the engine; while it starts, the reason includes what an operator has to do."""
        health = self._health
        if health.state == "starting" and (needs := self._executor.needs()):
            return Health(state="starting", reason="; ".join(filter(None, (health.reason, needs))))
        return health

    def stats(self) -> tuple[EngineStats, ...]:
        """Return the engine's statistics; empty before it is first ready; see `Measured`."""
        return (self._head.stats(),) if self._head else ()

    def describe(self) -> tuple[ReplicaStatus, ...]:
        """Return the status of the engine and its stages; see `Described`."""
        head = self._head
        stages = describe_stages(self._executor.locations(), self._infos, head, self._driver)
        return (describe_engine(self.health(), head, self._num_losses, stages),)

    def locations(self) -> tuple[StageLocation, ...]:
        """Return where each stage runs."""
        return self._executor.locations()

    @property
    def limits(self) -> ReplicaLimits | None:
        """The engine's limits; None before it is ready."""
        return self._head.limits if self._head else None

    @property
    def max_length(self) -> int:
        """The longest sequence that can be served, in tokens; 0 before the engine is ready."""
        return self._head.max_length if self._head else 0

    @property
    def infos(self) -> tuple[StageInfo, ...]:
        """The info of each stage; empty before the engine is ready."""
        return self._infos

    def _find_head(self) -> tuple[Head, PipelineDriver]:
        """Return the head and the driver that take requests.

        Raises:
            Unavailable: if the engine is not ready.
        """
        if self._head is None or self._driver is None or self._health.state != "ready":
            message = f"the engine is {self._health.state}"
            raise Unavailable(message, self.health().reason)
        return self._head, self._driver

    def _begin(self, infos: tuple[StageInfo, ...]) -> None:
        if self._closing is not None:
            raise Unavailable(SHUTTING_DOWN)
        self._infos = infos
        self._head = Head(infos, self._decode, self._options.head_options(time.perf_counter))
        self._driver = self._make_driver(self._head)
        self._serving = asyncio.get_running_loop().create_task(self._serve(self._head, self._driver))
        self._health = Health(state="ready")

    async def _serve(self, head: Head, driver: PipelineDriver) -> None:
        recovery = Recovery(self._executor, head, self._options, self._excuse, self._deliver)
        try:
            while True:
                try:
                    await driver.run()
                except StageLost as error:
                    head.pause(asyncio.get_running_loop().time())
                    loss = await self._explain_loss(error)
                    logger.warning("pipeline is built anew: %s", loss.message)
                    self._note_loss(head, loss)
                    self._infos = await recovery.heal(loss)
                    self._driver = driver = self._make_driver(head)
                    self._health = Health(state="ready")
                    logger.info("pipeline is ready again")
        except EngineFailed as error:
            logger.critical("engine failed: %s", error.message)
            head.note_lost(sum(stream.has_begun for stream in self._streams.values()))
            self._fail(error.message)
        except Exception as error:  # every stream has to end, whatever the error is
            logger.exception("engine failed")
            self._fail(error.message if isinstance(error, ParallaxError) else _describe(error))

    def _make_driver(self, head: Head) -> PipelineDriver:
        return PipelineDriver(head, self._executor.channels, self._deliver, self._options.step_timeout_s)

    async def _explain_loss(self, loss: StageLost) -> StageLost:
        """Return the root cause of a loss, or the loss itself if the search fails."""
        try:
            return await self._executor.explain(loss)
        except Exception:
            logger.exception("loss cannot be explained")
            return loss

    def _excuse(self, reason: str) -> None:
        """Note why the engine is not ready yet."""
        if self._closing is None:
            self._health = Health(state="starting", reason=reason)

    def _note_loss(self, head: Head, loss: StageLost) -> None:
        """Tell of a lost stage, and release the requests that a router can move to another replica."""
        reason = f"a stage was lost, and is being replaced: {loss.message}"
        self._change_health("starting", reason)
        if self._options.releases_unstarted:
            unstarted = [request_id for request_id, stream in self._streams.items() if not stream.has_begun]
            for request_id in unstarted:
                head.cancel(request_id)
            self._end_streams("error", reason, unstarted)

    def _fail(self, reason: str) -> None:
        self._change_health("failed", reason)
        self._end_streams("error", reason, list(self._streams))

    def _change_health(self, state: Literal["starting", "failed"], reason: str) -> None:
        self._num_losses += 1
        self._health = Health(state=state, reason=reason)
        if self._on_lost is not None:
            self._on_lost(reason)

    def _deliver(self, deltas: list[tuple[RequestId, Delta]]) -> None:
        for request_id, delta in deltas:
            stream = self._streams.get(request_id)
            if delta.finish is not None:
                self._streams.pop(request_id, None)
            if stream is not None:
                stream.put(delta)

    def _abort(self, request_id: RequestId) -> None:
        if self._streams.pop(request_id, None) is not None and self._head is not None and self._driver is not None:
            self._head.cancel(request_id)
            self._driver.wake()

    def _end_streams(self, reason: Reason, message: str, request_ids: Sequence[RequestId]) -> None:
        finish = Finish(reason=reason, prompt_tokens=0, output_tokens=0, message=message)
        for request_id in request_ids:
            self._streams.pop(request_id).put(Delta(finish=finish))

    def _explain(self, error: BaseException) -> ParallaxError | None:
        """Return the error that `start` raises in place of ``error``; None to raise ``error`` itself."""
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and self._health.state == "draining":
            is_cancelled = task is not None and task.cancelling()
            return None if is_cancelled else Unavailable("the engine was stopped while it started", SHUTTING_DOWN)
        if isinstance(error, ParallaxError) or not isinstance(error, Exception):
            return None
        message = f"the model could not be loaded: {_describe(error)}"
        return BackendFailed(message, "run again with --verbose for the traceback")

    async def _close(self) -> None:
        """Close once, even if several callers ask for it or a caller is cancelled."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._shut())
        await asyncio.wait([self._closing])

    async def _shut(self) -> None:
        tasks = [task for task in (self._opening, self._serving) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._executor.close()


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
