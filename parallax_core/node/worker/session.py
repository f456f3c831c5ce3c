"""A node that runs stages for a head somewhere else."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from parallax_core.base.errors import BackendFailed, ParallaxError, PeerLost, StageHung, StageLost
from parallax_core.contracts.progress import Progress
from parallax_core.contracts.stage import Stage, StageInfo
from parallax_core.contracts.transport import Transport
from parallax_core.node.channel import Channel
from parallax_core.node.handshake import greet
from parallax_core.node.worker.load_progress import LoadProgressReporter
from parallax_core.node.worker.loop import StageChannels, StageLoop
from parallax_core.node.worker.peers import PeerLinker, PeerLinks
from parallax_core.node.worker.runtime import StageKey, StageRuntime
from parallax_core.node.worker.thread import StageThread
from parallax_core.wire.membership import Assign, Hop, Join, Linked, Ready, Refusal, Release
from parallax_core.wire.messages import Mask, Message, Step

logger = logging.getLogger(__name__)

GREETING_S = 10.0
"""How long a head may take to greet."""
RESET_S = 60.0
"""How long a step that is still running is waited for where its stage is wanted again."""
REPLACED_HINT = (
    "start this node again; where it is a service, or was started by `parallax serve`, that happens by itself"
)
CLOSE_S = 1.5
"""How long a step that is still running is waited for."""

Open = Callable[[Assign, Progress], Stage]
"""Opens the stage that a node is given; called on the thread that will run it."""


@dataclass(slots=True)
class LoadedStage:
    """A stage that is loaded."""

    what: Assign
    thread: StageThread
    host: StageRuntime
    info: StageInfo

    def is_that(self, assign: Assign) -> bool:
        """Return whether it is what ``assign`` asks for, and of use."""
        return _describe(self.what) == _describe(assign) and not self.host.is_lost


class WorkerSession:
    """Serves one head: is given a stage, runs it, and may be given another. Belongs to one event loop."""

    def __init__(self, transport: Transport, node: str, open_stage: Open) -> None:
        """Be the node called ``node``; ``transport`` listens, and has started."""
        self._transport = transport
        self._node = node
        self._neighbours = PeerLinker(transport, node)
        self._open_stage = open_stage
        self._held: LoadedStage | None = None

    async def serve(self, address: str, head: str, join: Join) -> None:
        """Join the head called ``head`` at ``address``, and do what it says until it is lost.

        What is loaded stays so, for the next head that wants just that.

        Raises:
            PeerLost: saying why there is no head any more.
            StageLost: if its stage is lost, or hangs. Its device may be broken, its memory may not come back, its
                thread cannot be ended: the process is to end, so that another takes its place.
            ParallaxError: if ``address`` is none.
        """
        if self._held is not None:
            await _reset(self._held)
        channel = Channel(await self._transport.connect(address, head))
        try:
            channel.check_role("head")
            await self._join(channel, join)
            logger.info("joined head=%s", head)
            message = await channel.receive()
            while True:
                message = await self._obey(channel, message)
        finally:
            await channel.leave()

    async def close(self) -> None:
        """Close what is loaded, waiting for at most `CLOSE_S`. Twice is harmless."""
        held, self._held = self._held, None
        if held is not None:
            closing = held.thread.call(held.host.close)
            held.thread.close()
            closing.add_done_callback(_note_end)
            await asyncio.wait([closing], timeout=CLOSE_S)

    async def _join(self, channel: Channel, join: Join) -> None:
        try:
            async with asyncio.timeout(GREETING_S):
                await greet(channel, self._node)
        except TimeoutError as error:
            raise PeerLost(f"node {channel.peer!r} did not greet within {GREETING_S:g} s") from error
        if self._held is not None:
            what = self._held.what
            join = msgspec.structs.replace(join, model=what.model, start=what.start, stop=what.stop)
        await channel.send(join)

    async def _obey(self, channel: Channel, message: Message) -> Message:
        """Do what the head says, and return what it says next."""
        match message:
            case Assign():
                return await self._be_stage(channel, message)
            case Release():
                await self.close()
                return await channel.receive()
            case Step() | Mask() | Hop():  # said before the head knew that the stage had ended
                return await channel.receive()
            case Refusal(_, _, _, reason, hint):
                await self.close()  # what is loaded may be why
                raise PeerLost(f"node {channel.peer!r} turned this one away: {reason}", hint)
        raise PeerLost(f"node {channel.peer!r} sent a {type(message).__name__} that means nothing here")

    async def _be_stage(self, channel: Channel, assign: Assign) -> Message:
        place = (assign.lease, assign.epoch, assign.stage)
        held = await self._try_load(channel, assign)
        if held is None:  # what failed is forgotten before anything is waited for, with all it had loaded
            return await channel.receive()
        await channel.send(Ready(*place, held.info))
        message = await channel.receive()
        if not isinstance(message, Hop) or message.epoch != assign.epoch:
            return message
        try:
            links = await self._link(channel, message)
        except ParallaxError as error:
            reason = f"stage {assign.stage} has no links: {error.message}"
            await self._refuse(channel, assign, PeerLost(reason, error.hint))
            links = await channel.receive()
        if not isinstance(links, PeerLinks):
            return links
        try:
            await channel.send(Linked(*place))
            channels = StageChannels(channel, links.before, links.after)
            said = await StageLoop(held.thread, held.host, held.host.place, channels, assign.heartbeat_s).run()
        finally:
            await links.close()
        if held.host.is_lost:
            raise StageLost(f"stage {assign.stage} is lost: {held.host.fault}", REPLACED_HINT)
        return said or await channel.receive()

    async def _refuse(self, channel: Channel, assign: Assign, error: ParallaxError) -> None:
        await channel.send(Refusal(assign.lease, assign.epoch, assign.stage, error.message, error.hint))

    async def _link(self, channel: Channel, hop: Hop) -> PeerLinks | Message:
        """Make links, unless the head says something else meanwhile: return that then."""
        linking = asyncio.create_task(self._neighbours.link(hop))
        hearing = asyncio.create_task(channel.receive())
        try:
            await asyncio.wait([linking, hearing], return_when=asyncio.FIRST_COMPLETED)
        finally:
            is_heard = hearing.done()
            for task in (linking, hearing):
                task.cancel()
            await asyncio.gather(linking, hearing, return_exceptions=True)
        if not is_heard:
            return linking.result()
        if not linking.cancelled() and linking.exception() is None:
            await linking.result().close()
        return hearing.result()

    async def _try_load(self, channel: Channel, assign: Assign) -> LoadedStage | None:
        """Return the stage, loading it unless it is there; None, once the head knows why, if that fails."""
        if (held := self._held) is not None and held.is_that(assign):
            await _reset(held)
            return held
        await self.close()
        try:
            return await self._load(channel, assign)
        except ParallaxError as error:
            logger.warning("stage cannot be opened stage=%d: %s", assign.stage, error.message)
            await self._refuse(channel, assign, error)
        gc.collect()  # what was loaded by then may be part of a cycle
        return None

    async def _load(self, channel: Channel, assign: Assign) -> LoadedStage:
        thread = StageThread(f"parallax-stage-{assign.stage}")
        async with LoadProgressReporter(channel, assign) as reporter:
            host = StageRuntime(lambda: self._open_stage(assign, reporter), StageKey(assign.lease, assign.stage))
            try:
                info = await thread.call(host.open)
            except Exception as error:
                thread.close()
                if isinstance(error, ParallaxError):
                    raise
                logger.exception("stage cannot be opened")
                message = f"the model could not be loaded: {type(error).__name__}: {error}"
                raise BackendFailed(message, "the log of the node has the traceback") from error
        self._held = LoadedStage(assign, thread, host, info)
        return self._held


async def _reset(held: LoadedStage) -> None:
    """Have a stage forget all it holds.

    Raises:
        StageLost: if it cannot, or a step that it still computes hangs.
    """
    done, _ = await asyncio.wait([held.thread.call(held.host.reset)], timeout=RESET_S)
    if not done:
        logger.critical("stage %d hangs here:\n%s", held.what.stage, held.thread.find_place())
        raise StageHung(f"stage {held.what.stage} has computed a step for longer than {RESET_S:g} s", REPLACED_HINT)
    if held.host.is_lost:
        raise StageLost(f"stage {held.what.stage} is lost: {held.host.fault}", REPLACED_HINT)


def _note_end(closing: asyncio.Future[None]) -> None:
    if not closing.cancelled() and (error := closing.exception()) is not None:
        logger.warning("stage not closed cleanly: %s: %s", type(error).__name__, error)


def _describe(assign: Assign) -> tuple[object, ...]:
    return (
        assign.lease,
        assign.stage,
        assign.backend,
        assign.model,
        (assign.start, assign.stop),
        assign.dtype,
        assign.device,
        (assign.memory_fraction, assign.max_batch_tokens, assign.max_running),
    )
