"""A node that runs stages for a head somewhere else."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

from parallax_core.base.errors import BackendFailed, ParallaxError, PeerLost
from parallax_core.contracts.progress import Progress
from parallax_core.contracts.stage import Stage, StageInfo
from parallax_core.contracts.transport import Transport
from parallax_core.node.channel import Channel
from parallax_core.node.greeting import greet, welcome
from parallax_core.node.host import Place, StageHost
from parallax_core.node.lane import Lane
from parallax_core.node.report import Reporter
from parallax_core.node.worker import Channels, StageWorker
from parallax_core.wire.membership import Assign, Hop, Join, Linked, Ready, Refusal, Release
from parallax_core.wire.messages import Message

logger = logging.getLogger(__name__)

LINK_S = 20.0
"""How long neighbours may take to find each other."""
CLOSE_S = 1.5
"""How long a step that is still running is waited for."""

Open = Callable[[Assign, Progress], Stage]
"""Opens the stage that a node is given; called on the thread that will run it."""


@dataclass(slots=True)
class Held:
    """A stage that is loaded."""

    what: Assign
    lane: Lane
    host: StageHost
    info: StageInfo

    def is_that(self, assign: Assign) -> bool:
        """Return whether it is what ``assign`` asks for, and of use."""
        return _describe(self.what) == _describe(assign) and not self.host.is_lost


class Member:
    """Serves one head: is given a stage, runs it, and may be given another. Belongs to one event loop."""

    def __init__(self, transport: Transport, node: str, open_stage: Open) -> None:
        """Be the node called ``node``; ``transport`` listens, and has started."""
        self._transport = transport
        self._node = node
        self._open_stage = open_stage
        self._held: Held | None = None

    async def serve(self, address: str, head: str, join: Join) -> None:
        """Join the head called ``head`` at ``address``, and do what it says until it is lost.

        What is loaded stays so, for the next head that wants just that.

        Raises:
            PeerLost: saying why there is no head any more.
            ParallaxError: if ``address`` is none.
        """
        channel = Channel(await self._transport.connect(address, head))
        try:
            await greet(channel, self._node)
            await channel.send(join)
            logger.info("joined head=%s", head)
            message = await channel.receive()
            while True:
                message = await self._obey(channel, message)
        finally:
            await channel.close()

    async def close(self) -> None:
        """Close what is loaded, waiting for at most `CLOSE_S`. Twice is harmless."""
        held, self._held = self._held, None
        if held is not None:
            closing = held.lane.call(held.host.close)
            held.lane.close()
            with contextlib.suppress(Exception):  # it is gone, whatever it says
                await asyncio.wait_for(closing, CLOSE_S)

    async def _obey(self, channel: Channel, message: Message) -> Message:
        """Do what the head says, and return what it says next."""
        match message:
            case Assign():
                return await self._be_stage(channel, message)
            case Release():
                await self.close()
                return await channel.receive()
        raise PeerLost(f"node {channel.peer!r} sent a {type(message).__name__} that means nothing here")

    async def _be_stage(self, channel: Channel, assign: Assign) -> Message:
        place = (assign.lease, assign.epoch, assign.stage)
        try:
            held = await self._load(channel, assign)
        except ParallaxError as error:
            logger.warning("stage cannot be opened stage=%d: %s", assign.stage, error.message)
            await channel.send(Refusal(*place, error.message, error.hint))
            return await channel.receive()
        await channel.send(Ready(*place, held.info))
        message = await channel.receive()
        if not isinstance(message, Hop):
            return message
        try:
            async with asyncio.timeout(LINK_S):
                before, after = await self._link(message)
        except (PeerLost, TimeoutError) as error:
            reason = error.message if isinstance(error, PeerLost) else "its neighbours did not come in time"
            await channel.send(Refusal(*place, f"stage {assign.stage} has no links: {reason}"))
            return await channel.receive()
        await channel.send(Linked(*place))
        return await self._run(held, Channels(channel, before, after), assign)

    async def _run(self, held: Held, channels: Channels, assign: Assign) -> Message:
        worker = StageWorker(held.lane, held.host, held.host.place, channels, assign.heartbeat_s)
        try:
            message = await worker.run()
        finally:
            for channel in (channels.before, channels.after):
                if channel is not None:
                    await channel.close()
        return message or await channels.head.receive()

    async def _load(self, channel: Channel, assign: Assign) -> Held:
        """Return the stage, loading it unless it is there."""
        held = self._held
        if held is not None and held.is_that(assign):
            await held.lane.call(held.host.reset)
            if not held.host.is_lost:
                return held
        await self.close()
        lane = Lane(f"parallax-stage-{assign.stage}")
        async with Reporter(channel, assign) as reporter:
            host = StageHost(lambda: self._open_stage(assign, reporter), Place(assign.lease, assign.stage))
            try:
                info = await lane.call(host.open)
            except Exception as error:
                lane.close()
                if isinstance(error, ParallaxError):
                    raise
                logger.exception("stage cannot be opened")
                message = f"the model could not be loaded: {type(error).__name__}: {error}"
                raise BackendFailed(message, "the log of the node has the traceback") from error
        self._held = Held(assign, lane, host, info)
        return self._held

    async def _link(self, hop: Hop) -> tuple[Channel | None, Channel | None]:
        """Make the links of a stage: the one before makes its link to us while we make ours to the next."""
        return await asyncio.gather(self._await_neighbour(hop.before), self._find_neighbour(hop.after, hop.address))

    async def _await_neighbour(self, name: str) -> Channel | None:
        if not name:
            return None
        while True:
            channel = Channel(await self._transport.accept())
            if channel.peer == name:
                with contextlib.suppress(PeerLost):  # a link of earlier days
                    await welcome(channel, self._node)
                    return channel
            await channel.close()

    async def _find_neighbour(self, name: str, address: str) -> Channel | None:
        if not name:
            return None
        channel = Channel(await self._transport.connect(address, name))
        await greet(channel, self._node)
        return channel


def _describe(assign: Assign) -> tuple[object, ...]:
    return (
        assign.lease,
        assign.stage,
        assign.backend,
        assign.model,
        (assign.start, assign.stop),
        assign.dtype,
        assign.device,
        assign.memory_fraction,
    )
