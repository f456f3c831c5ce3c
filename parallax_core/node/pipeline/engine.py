"""The engine of one pipeline: accepts requests, drives the stages and recovers from losses."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace

from parallax_core.base.errors import EngineFailed, InvalidRequest, StageLost, Unavailable
from parallax_core.base.ids import RequestId
from parallax_core.base.taskgroup import FailFastGroup
from parallax_core.contracts.engine import EngineStats, Health, Request
from parallax_core.contracts.stage import StageInfo
from parallax_core.contracts.status import ReplicaLimits, ReplicaStatus
from parallax_core.engine.detokenizer import Decode
from parallax_core.engine.head import Head
from parallax_core.engine.validate import list_poolings, take_grammars
from parallax_core.node.engine_base import EngineBase
from parallax_core.node.executor.base import Executor, Movable, StageLocation, StepObserver
from parallax_core.node.pipeline.compiled_grammars import CompiledGrammars
from parallax_core.node.pipeline.driver import PipelineDriver
from parallax_core.node.pipeline.handover import Handover, Interruption, follow
from parallax_core.node.pipeline.mask_maker import MaskMaker
from parallax_core.node.pipeline.options import PipelineOptions
from parallax_core.node.pipeline.recovery import Recovery
from parallax_core.node.pipeline.stream import QueueStream
from parallax_core.node.status import describe_engine, describe_stages

logger = logging.getLogger(__name__)


class PipelineEngine(EngineBase[tuple[StageInfo, ...]]):
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
        super().__init__(on_lost)
        self._options = options or PipelineOptions()
        self._executor = executor
        self._decode = decode
        self._infos: tuple[StageInfo, ...] = ()
        self._head: Head | None = None
        self._driver: PipelineDriver | None = None
        self._grammars: CompiledGrammars | None = None
        self._masks: MaskMaker | None = None

    def submit(self, request: Request) -> QueueStream:
        """Accept a request; see `Engine.submit`."""
        head, driver = self._find_head()
        self._accept(head, request)
        stream = self._add_stream(request.id, self._options.backlog)
        driver.wake()
        return stream

    def check_room(self) -> None:
        """Check that the engine would accept a request now; see `Admitting`."""
        head, _ = self._find_head()
        head.check_room()

    def can_resume(self, request: Request) -> bool:
        """Return whether it can continue an answer that another engine began; see `Resumable`."""
        del request
        return True

    def health(self) -> Health:
        """Return the state of the engine; see `EngineBase.health`. One whose stages could not be moved is not ready."""
        health = super().health()
        if health.state == "ready" and isinstance(self._executor, Movable) and self._executor.fault:
            return Health(state="starting", reason=self._executor.fault)
        return health

    def stats(self) -> tuple[EngineStats, ...]:
        """Return the engine's statistics; empty before it is first ready; see `Measured`."""
        return (self._head.stats(),) if self._head else ()

    def describe(self) -> tuple[ReplicaStatus, ...]:
        """Return the status of the engine and its stages; see `Described`."""
        head = self._head
        stages = describe_stages(self._executor.locations(), self._infos, head, self._driver)
        status = describe_engine(self.health(), head, self._num_losses, stages)
        takes_grammars = self._options.grammars is not None and take_grammars(self._infos)
        return (replace(status, takes_grammars=takes_grammars, poolings=list_poolings(self._infos)),)

    def drop_stored(self) -> None:
        """Drop the stored prefixes, as many as one step has room to drop.

        Raises:
            Unavailable: if the engine is not ready.
        """
        head, driver = self._find_head()
        head.drop_stored()
        driver.wake()

    def check(self) -> None:
        """Check that the head agrees with its requests; for tests. See `Head.check`."""
        head, _ = self._find_head()
        head.check()

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

    def _accept(self, head: Head, request: Request) -> None:
        """Pass a request to the head; without a compiled grammar it waits for that."""
        grammars, now = self._grammars, asyncio.get_running_loop().time()
        if request.grammar is None:
            head.accept(request, now)
            return
        if grammars is None:
            message = "a grammar is not available: this engine was made without a compiler of grammars"
            raise InvalidRequest(message, "grammar", "leave it out")
        compiled = grammars.find(request.grammar)
        head.accept(request, now, compiled)
        if compiled is None:
            grammars.prepare(request.id, request.grammar)

    def _wake(self) -> None:
        """Wake the driver, if any, to plan again."""
        if self._driver is not None:
            self._driver.wake()

    def _find_head(self) -> tuple[Head, PipelineDriver]:
        """Return the head and the driver that take requests.

        Raises:
            Unavailable: if the engine is not ready.
        """
        health = self.health()
        if self._head is None or self._driver is None or health.state != "ready":
            raise Unavailable(f"the engine is {health.state}", health.reason)
        return self._head, self._driver

    async def _open(self) -> tuple[StageInfo, ...]:
        return await self._executor.open()

    def _begin(self, opened: tuple[StageInfo, ...]) -> Coroutine[None, None, None]:
        self._infos = opened
        self._head = Head(opened, self._decode, self._options.head_options(time.perf_counter))
        if self._options.grammars is not None:
            self._grammars = CompiledGrammars(self._options.grammars, self._head, self._wake)
            self._masks = MaskMaker(self._head, opened[-1].vocab_size, self._wake)
        self._driver = self._make_driver(self._head)
        return self._serve(self._head, self._driver)

    async def _release(self) -> None:
        for each in (self._grammars, self._masks):
            if each is not None:
                each.close()
        await self._executor.close()

    def _needs(self) -> str:
        return self._executor.needs()

    def _cancel(self, request_id: RequestId) -> None:
        if self._head is not None and self._driver is not None:
            self._head.cancel(request_id)
            self._driver.wake()

    async def _serve(self, head: Head, driver: PipelineDriver) -> None:
        recovery = Recovery(self._executor, head, self._options, self._excuse, self._deliver)
        try:
            while True:
                cause = await self._drive(head, driver)
                if isinstance(cause, StageLost):
                    cause = await self._explain_loss(cause)
                    logger.warning("pipeline is built anew: %s", cause.message)
                    self._note_loss(head, cause)
                elif cause.kind == "moves":
                    logger.info("pipeline moves: %s", cause.message)
                    self._begin_move(head, cause.message)
                self._infos = await recovery.heal(cause)
                self._driver = driver = self._make_driver(head)
                self._health = Health(state="ready")
                logger.info("pipeline is ready again")
        except EngineFailed:
            head.note_lost(sum(stream.has_begun for stream in self._streams.values()))
            raise

    async def _drive(self, head: Head, driver: PipelineDriver) -> StageLost | Interruption:
        """Serve until the stages have to be opened again, and return why; then requests are paused."""
        handover = Handover(self._executor, head, self._note_leaving, self._options.releases_requests)
        try:
            async with FailFastGroup() as group:
                group.start(driver.run())
                group.start(handover.run(driver.leaving))
                group.start(follow(self._executor))
        except (StageLost, Interruption) as error:
            is_loss = isinstance(error, StageLost) and error.cause != "leave"
            head.pause(asyncio.get_running_loop().time(), is_loss=is_loss)
            return error
        raise AssertionError("none of the tasks ends by itself")

    def _note_leaving(self, reason: str) -> None:
        """Note why the engine, which still serves, is about to open its stages again."""
        if self._closing is None:
            self._health = Health(state="ready", reason=reason)

    def _make_driver(self, head: Head) -> PipelineDriver:
        timeout_s = self._options.step_timeout_s
        driver = PipelineDriver(head, self._executor.channels, self._deliver, timeout_s, self._masks)
        if isinstance(self._executor, StepObserver):
            driver.observer = self._executor
        return driver

    async def _explain_loss(self, loss: StageLost) -> StageLost:
        """Return the root cause of a loss, or the loss itself if the search fails."""
        try:
            return await self._executor.explain(loss)
        except Exception:  # the stages have to be opened again, with or without an explanation
            logger.exception("loss cannot be explained")
            return loss

    def _note_loss(self, head: Head, loss: StageLost) -> None:
        """Tell of a lost stage, and release the requests if a router can move them to another replica."""
        reason = f"a stage was lost, and is being replaced: {loss.message}"
        self._change_health("starting", reason)
        if self._options.releases_requests():
            self._release_requests(head, reason)

    def _begin_move(self, head: Head, reason: str) -> None:
        """Move the requests to other replicas, if any; otherwise they wait, and new ones too."""
        if self._options.releases_requests():
            self._excuse(reason)
            self._release_requests(head, reason)
        else:
            self._note_leaving(reason)

    def _release_requests(self, head: Head, reason: str) -> None:
        for request_id in self._streams:
            head.cancel(request_id)
        self._end_streams("error", reason, list(self._streams))
