"""Serves a server with an engine that schedules itself: loads it, submits requests, sends tokens."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from parallax_core.api import (
    BackendFailed,
    EngineBackend,
    EngineInfo,
    EnginePlan,
    JoinedPeer,
    NodeLink,
    NodeService,
    ParallaxError,
    PeerLost,
    Progress,
    StageLost,
    Takers,
    TokenEngine,
    Unsupported,
)
from parallax_core.api.node import FailFastGroup, WatchedWork, describe_error, wait_for_ever
from parallax_core.api.replica import LoadProgressReporter, NodeContext, PreparedModel, StageHung
from parallax_engines.conversion import pack_deltas, read_submit
from parallax_engines.messages import (
    Abort,
    AssignEngine,
    Deltas,
    EngineLoading,
    EngineOpened,
    EngineRefused,
    EngineStatus,
    StopEngine,
    Submit,
)
from parallax_engines.runner import EngineRunner, Numbered

logger = logging.getLogger(__name__)

HUNG_S = 60.0
"""Seconds for which an engine's event loop may be busy before it counts as hung."""
GONE_S = 0.5
"""Seconds that a process whose engine is lost has to end by itself."""
REPLACED_HINT = "`parallax serve` starts the process again by itself"


class EngineSession:
    """One engine, for one server, on one link."""

    def __init__(self, link: NodeLink, assign: AssignEngine, context: NodeContext) -> None:
        self._link = link
        self._assign = assign
        self._context = context
        self._pending: list[Numbered] = []
        self._has_pending = asyncio.Event()
        self._runner = EngineRunner(self._take)
        self._model: PreparedModel | None = None
        self._is_open = False

    async def run(self) -> None:
        """Load the engine and serve until cancelled; then stop the engine.

        Raises:
            PeerLost: if the server is lost.
            StageLost: if the engine fails or hangs; its process should end and be replaced.
        """
        await self._context.pause()
        info = await self._load()
        if info is None:
            await wait_for_ever()  # until the server ends this process
            return
        try:
            self._is_open = True  # before the server hears of it, and submits
            assert self._model is not None, "it was opened"
            await self._link.send(EngineOpened(info, dict(self._model.weights_parts)))
            async with FailFastGroup() as group:
                group.start(self._send())
                group.start(self._report())
        finally:
            self._is_open = False
            await self._runner.close()

    def submit(self, submit: Submit) -> None:
        """Submit a request; one for an engine that is gone is dropped, as its server will notice."""
        if self._is_open:
            self._runner.submit(submit.number, read_submit(submit))

    def abort(self, abort: Abort) -> None:
        """Abort requests."""
        if self._is_open:
            self._runner.abort(abort.numbers)

    async def _load(self) -> EngineInfo | None:
        """Load the engine, and return what it is; if that fails, tell the server why and return None."""
        try:
            await self._link.send(EngineLoading("", 0, 0))  # so that it knows that this node has the plugin
            async with LoadProgressReporter(self._link, EngineLoading) as reporter:
                return await self._start(reporter)
        except ParallaxError as error:
            logger.warning("engine cannot be opened: %s", error.message)
            await self._link.send(EngineRefused(error.message, error.hint))
            return None

    async def _start(self, progress: Progress) -> EngineInfo:
        def make() -> TokenEngine:
            self._model = model = self._context.prepare_model(self._assign.model, self._assign.backend, progress)
            return open_engine(model, self._assign, progress)

        try:
            return await self._runner.open(make)
        except ParallaxError:
            raise
        except Exception as error:
            logger.exception("engine cannot be opened")
            message = f"the model could not be loaded: {type(error).__name__}: {error}"
            raise BackendFailed(message, "the log of the node has the traceback") from error

    def _take(self, deltas: Sequence[Numbered]) -> None:
        self._pending += deltas
        self._has_pending.set()

    async def _send(self) -> None:
        while True:
            await self._has_pending.wait()
            self._has_pending.clear()
            pending, self._pending = self._pending, []
            if any(delta.finish is not None and delta.finish.reason == "error" for _, delta in pending):
                await self._check()  # if the engine has failed, the server hears of that first
            for portion in pack_deltas(pending):
                await self._link.send(Deltas(portion))

    async def _report(self) -> None:
        while True:
            await self._check()
            await asyncio.sleep(self._assign.status_s)

    async def _check(self) -> None:
        """Send the engine's status to the server.

        Raises:
            StageLost: if the engine has failed, or hangs.
        """
        try:
            async with asyncio.timeout(HUNG_S):
                health, stats = await self._runner.look()
        except TimeoutError as error:
            message = f"the engine has not answered for {HUNG_S:g} s"
            await self._link.send(EngineStatus("failed", message))
            raise StageHung(message, REPLACED_HINT) from error
        await self._link.send(EngineStatus(health.state, health.reason, stats))
        if health.state == "failed":
            raise StageLost(f"the engine has failed: {health.reason}", REPLACED_HINT)


class ServedEngine:
    """The engine of one link to a server, once it has assigned one."""

    def __init__(self, link: NodeLink, context: NodeContext, on_lost: Callable[[StageLost], None]) -> None:
        """Open an engine with the backends of ``context``; ``on_lost`` is told if it is lost."""
        self._link = link
        self._context = context
        self._on_lost = on_lost
        self._session: EngineSession | None = None
        self._serving: WatchedWork | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._leaving: asyncio.Task[None] | None = None

    @property
    def takers(self) -> Takers:
        """What takes the messages of the server."""
        return {AssignEngine: self._assign, Submit: self._submit, Abort: self._abort, StopEngine: self._stop}

    async def stop(self) -> None:
        """Stop the engine, if there is one, waiting only a moment. Idempotent."""
        if self._serving is not None:
            self._stop()
        if self._stopping is not None:
            await asyncio.wait([self._stopping])
        if self._leaving is not None:
            self._leaving.cancel()

    def _assign(self, assign: AssignEngine) -> None:
        """Begin to load an engine.

        Raises:
            PeerLost: if one was assigned before.
        """
        if self._serving is not None:
            raise PeerLost(f"node {self._link.peer!r} assigned a second engine")
        self._session = session = EngineSession(self._link, assign, self._context)
        self._serving = WatchedWork(session.run(), self._note_end)

    def _submit(self, submit: Submit) -> None:
        if self._session is not None:
            self._session.submit(submit)

    def _abort(self, abort: Abort) -> None:
        if self._session is not None:
            self._session.abort(abort)

    def _note_end(self, error: BaseException) -> None:
        if isinstance(error, PeerLost):
            logger.info("server is gone: %s", error.message)
        elif isinstance(error, StageLost):
            self._on_lost(error)
        else:
            logger.error("engine cannot be served", exc_info=error)
            self._on_lost(StageLost(f"the engine cannot be served: {describe_error(error)}", REPLACED_HINT))
        self._leaving = asyncio.create_task(self._leave())

    async def _leave(self) -> None:
        """End the link, so that the server notices the loss even if nothing ends this process."""
        await asyncio.sleep(GONE_S)
        await self._link.leave()

    def _stop(self, _: StopEngine | None = None) -> None:
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop_and_say())

    async def _stop_and_say(self) -> None:
        if self._serving is not None:
            await self._serving.cancel()
        with contextlib.suppress(PeerLost):  # then nobody waits
            await self._link.send(EngineStatus("draining"))


class EngineService(NodeService):
    """Opens the engine that a server assigns to this node."""

    def __init__(self, context: NodeContext) -> None:
        """Open engines with the backends of ``context``."""
        self._context = context
        self._is_lost = asyncio.Event()
        self._loss: StageLost | None = None

    @asynccontextmanager
    async def joined(self, peer: JoinedPeer) -> AsyncIterator[Takers]:
        """Take the messages of a server, and stop its engine once the link has ended."""
        served = ServedEngine(peer.channel, self._context, self._note_loss)
        try:
            yield served.takers
        finally:
            await served.stop()

    async def run(self) -> None:
        """Run until an engine is lost.

        Raises:
            StageLost: with the reason; the process should end, and be replaced.
        """
        await self._is_lost.wait()
        assert self._loss is not None, "it was noted"
        raise self._loss

    def _note_loss(self, loss: StageLost) -> None:
        self._loss = loss
        self._is_lost.set()


def open_engine(model: PreparedModel, assign: AssignEngine, progress: Progress) -> TokenEngine:
    """Return the engine that ``assign`` asks for, not started.

    Raises:
        Unsupported: if the backend opens no engines, or refuses the model.
    """
    backend = model.backend
    if not isinstance(backend, EngineBackend):
        message = f"the backend {model.name!r} says that it opens engines, and has no open_engine"
        raise Unsupported(message, "update it")
    plan = EnginePlan(
        model=model.folder,
        listed_weights=model.listed_weights,
        dtype=assign.dtype,
        device=assign.device,
        memory_fraction=assign.memory_fraction * model.memory_share,
        max_batch_tokens=assign.max_batch_tokens,
        max_running=assign.max_running,
        progress=progress,
        options=model.options,
    )
    return backend.open_engine(plan)
