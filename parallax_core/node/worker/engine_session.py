"""Serves a head with an engine that schedules itself: loads it, submits requests, sends tokens."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from parallax_core.base.errors import BackendFailed, ParallaxError, StageHung, StageLost
from parallax_core.base.taskgroup import FailFastGroup
from parallax_core.contracts.engine import EngineStats, Health
from parallax_core.contracts.progress import Progress
from parallax_core.contracts.token_engine import EngineInfo, TokenEngine
from parallax_core.node.channel import Channel
from parallax_core.node.whole_model.messages import pack_deltas, read_submit
from parallax_core.node.worker.engine_runner import EngineRunner, Numbered
from parallax_core.node.worker.load_progress import LoadProgressReporter
from parallax_core.wire.engine import Abort, AssignEngine, Deltas, EngineOpened, EngineStatus, Submit
from parallax_core.wire.membership import Refusal, Release
from parallax_core.wire.messages import Message

logger = logging.getLogger(__name__)

HUNG_S = 60.0
"""Seconds for which an engine's event loop may be busy before it counts as hung."""
REPLACED_HINT = "`parallax serve` starts the process again by itself"


@dataclass(frozen=True, slots=True)
class OpenedEngine:
    """An engine that is not started, and the content of the model's folder."""

    engine: TokenEngine
    weights_parts: Mapping[str, str]
    """See `StageInfo.weights_parts`."""


OpenEngine = Callable[[AssignEngine, Progress], OpenedEngine]
"""Opens an assigned engine; called on the thread of its event loop."""


class EngineSession:
    """One engine, for one head, on one link."""

    def __init__(self, channel: Channel, assign: AssignEngine, open_engine: OpenEngine) -> None:
        self._channel = channel
        self._assign = assign
        self._open_engine = open_engine
        self._pending: list[Numbered] = []
        self._has_pending = asyncio.Event()
        self._runner = EngineRunner(self._take)
        self._weights: Mapping[str, str] = {}
        self._control: Message | None = None

    async def run(self) -> Message:
        """Load the engine and serve until the head sends a message that means something else; return that message.

        Raises:
            PeerLost: if the head is lost.
            StageLost: if the engine fails or hangs; its process should end and be replaced.
        """
        if not await self._load():
            return await self._channel.receive()
        try:
            async with FailFastGroup() as group:
                group.start(self._receive())
                group.start(self._send())
                group.start(self._report())
        except _Done:
            pass
        finally:
            await self._runner.close()
        assert self._control is not None, "the session ended with a message"
        if isinstance(self._control, Release):  # the head waits for this
            await self._channel.send(self._describe(Health(state="draining"), EngineStats()))
        return self._control

    async def _load(self) -> bool:
        """Load the engine, and tell the head; return whether it is ready."""
        assign, channel = self._assign, self._channel
        try:
            async with LoadProgressReporter(channel, assign) as reporter:
                info = await self._start(reporter)
        except ParallaxError as error:
            logger.warning("engine cannot be opened: %s", error.message)
            await channel.send(Refusal(assign.lease, assign.epoch, assign.stage, error.message, error.hint))
            return False
        await channel.send(EngineOpened(assign.lease, assign.epoch, info, dict(self._weights)))
        return True

    async def _start(self, progress: Progress) -> EngineInfo:
        def make() -> TokenEngine:
            opened = self._open_engine(self._assign, progress)
            self._weights = opened.weights_parts
            return opened.engine

        try:
            return await self._runner.open(make)
        except ParallaxError:
            raise
        except Exception as error:
            logger.exception("engine cannot be opened")
            message = f"the model could not be loaded: {type(error).__name__}: {error}"
            raise BackendFailed(message, "the log of the node has the traceback") from error

    async def _receive(self) -> None:
        while True:
            match await self._channel.receive():
                case Submit() as submit:
                    self._runner.submit(submit.number, read_submit(submit))
                case Abort(_, _, numbers):
                    self._runner.abort(numbers)
                case message:
                    self._control = message
                    raise _Done

    def _take(self, deltas: Sequence[Numbered]) -> None:
        self._pending += deltas
        self._has_pending.set()

    async def _send(self) -> None:
        while True:
            await self._has_pending.wait()
            self._has_pending.clear()
            pending, self._pending = self._pending, []
            if any(delta.finish is not None and delta.finish.reason == "error" for _, delta in pending):
                await self._check()  # if the engine has failed, the head hears of that first
            for portion in pack_deltas(pending):
                await self._channel.send(Deltas(self._assign.lease, self._assign.epoch, portion))

    async def _report(self) -> None:
        while True:
            await self._check()
            await asyncio.sleep(self._assign.status_s)

    async def _check(self) -> None:
        """Send the engine's status to the head.

        Raises:
            StageLost: if the engine has failed, or hangs.
        """
        try:
            async with asyncio.timeout(HUNG_S):
                health, stats = await self._runner.look()
        except TimeoutError as error:
            raise StageHung(f"the engine has not answered for {HUNG_S:g} s", REPLACED_HINT) from error
        await self._channel.send(self._describe(health, stats))
        if health.state == "failed":
            raise StageLost(f"the engine has failed: {health.reason}", REPLACED_HINT)

    def _describe(self, health: Health, stats: EngineStats) -> EngineStatus:
        return EngineStatus(self._assign.lease, self._assign.epoch, health.state, health.reason, stats)


class _Done(Exception):
    """The head has sent a message that ends the session."""
