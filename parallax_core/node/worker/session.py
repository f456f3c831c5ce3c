"""Serves a head: joins it, loads the stages it assigns and runs them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging

import msgspec

from parallax_core.base.errors import ParallaxError, PeerLost, StageLost, Unsupported
from parallax_core.base.ids import Epoch, is_lease
from parallax_core.node.channel import Channel
from parallax_core.node.handshake import SoftwareNotes
from parallax_core.node.worker.head_link import connect_head, greet_head
from parallax_core.node.worker.incoming import IncomingLinks
from parallax_core.node.worker.loaded_stage import REPLACED_HINT, LoadedStage, StageHolder
from parallax_core.node.worker.loop import StageChannels, StageLoop
from parallax_core.node.worker.node_services import HeadPeer, NodeServices
from parallax_core.node.worker.peers import PeerLinker, PeerLinks
from parallax_core.node.worker.shared_layers import OpenStage, SharedLayers
from parallax_core.wire.membership import Assign, Hop, Join, Leave, Linked, Ready, Refusal, Release
from parallax_core.wire.messages import Mask, Message, Step

logger = logging.getLogger(__name__)


class WorkerSession:
    """Serves one head: loads the stage it assigns, runs it, and may be assigned another. Belongs to one event loop."""

    def __init__(self, services: NodeServices, node: str, open_stage: OpenStage | SharedLayers) -> None:
        """Serve as the node called ``node``, with ``services``.

        The session of a lease gets the `SharedLayers` of its node for ``open_stage``.
        """
        self.services = services
        """The services of the node."""
        self._node = node
        self._incoming = IncomingLinks(services.paths.transport, node, services.purposes)
        self._neighbours = PeerLinker(services.paths, node, self._incoming, services.trusted)
        layers = open_stage if isinstance(open_stage, SharedLayers) else SharedLayers(open_stage)
        self._stage = StageHolder(layers, services)
        self._loop: StageLoop | None = None
        """The loop that runs steps; None: no pipeline uses this node."""
        self.is_leaving = False
        """Whether `leave` was called."""
        self._channel: Channel | None = None
        """To the head that it has joined; None: it has joined none."""
        self._leaving: list[asyncio.Task[None]] = []
        self._software = SoftwareNotes()

    @property
    def is_needed(self) -> bool:
        """Whether a pipeline uses the stage of this node, or others rely on a service of it."""
        return self._loop is not None or self.services.are_needed

    @property
    def is_joined(self) -> bool:
        """Whether it has joined a head."""
        return self._channel is not None

    @property
    def layers(self) -> SharedLayers:
        """What opens its stages, and those of its leases."""
        return self._stage.layers

    @property
    def held(self) -> LoadedStage | None:
        """The loaded stage, or None."""
        return self._stage.held

    def leave(self) -> None:
        """Ask the head to replace this node, its leases and `further`; all work until `serve` returns. Idempotent."""
        if self.is_leaving:
            return
        self.is_leaving = True
        self._leaving += [asyncio.create_task(each.leave()) for each in self.services]
        if self._loop is not None:
            self._loop.leave()
        elif self._channel is not None:
            self._leaving.append(asyncio.create_task(_announce_leave(self._channel)))

    async def serve(self, address: str, head: str, join: Join) -> None:
        """Join the head called ``head`` at ``address``, and follow its messages until it is lost.

        A loaded stage stays loaded, for the next head that assigns the same one. After `leave`, it returns once the
        head has released the node.

        Raises:
            PeerLost: if the head is lost, or turns this node away; it says why.
            IncompatibleNode: if the head runs a version of Parallax with which this node cannot work.
            StageLost: if the stage is lost or hangs. The process should end and be replaced, since the device may be
                broken, memory may not be freed, and the thread cannot be ended.
            UnusableAddress: if this node cannot connect to ``address``.
        """
        await self._stage.prepare()
        channel = await connect_head(self.services.paths.transport, address, head)
        try:
            channel.check_role("head")
            await self._join(channel, join)
            logger.info("joined head=%s", head)
            async with self.services.joined(HeadPeer(head, address, channel)):
                await self._follow(channel)
        finally:
            self._channel = None
            await channel.leave()

    async def _follow(self, channel: Channel) -> None:
        """Follow the messages of the head until it is lost, or has released this node, which leaves."""
        self._channel = channel
        try:
            if self.is_leaving:  # since before there was anybody to tell
                await _announce_leave(channel)
            async with self._incoming.accepting():
                message = await channel.receive()
                while not (self.is_leaving and isinstance(message, Release)):
                    message = await self._handle(channel, message)
            await asyncio.gather(*self._leaving)
        finally:
            await channel.leave()  # before services end what they have for this head

    async def close(self, *, keeps_layers: bool = False) -> None:
        """Close the loaded stage, and layers that no lease uses; waits only a moment for a running step. Idempotent.

        With ``keeps_layers``, the layers stay.
        """
        await self._stage.close(keeps_layers=keeps_layers)

    async def _join(self, channel: Channel, join: Join) -> None:
        welcome = await greet_head(channel, self._node)
        if not is_lease(self._node):  # else its holder has noted that
            self._software.note(welcome)
        if not join.is_fixed:  # else it says already which layers it runs
            join = self._name_layers(join)
        await channel.send(join)

    def _name_layers(self, join: Join) -> Join:
        """Return ``join`` with the layers that are loaded, if there are any."""
        if (held := self._stage.held) is not None:
            assign = held.assign
            return msgspec.structs.replace(join, model=assign.model, start=assign.start, stop=assign.stop)
        if (shared := self._stage.layers.loaded) is not None:
            return msgspec.structs.replace(join, model=shared.model, start=shared.holds_start, stop=shared.holds_stop)
        return join

    async def _handle(self, channel: Channel, message: Message) -> Message:
        """Handle a message of the head, and return its next one."""
        match message:
            case Assign():
                return await self._serve_stage(channel, message)
            case Release():
                await self._stage.release(keeps_layers=message.keeps_layers)
                return await channel.receive()
            case Step() | Mask() | Hop():  # sent before the head knew that all had ended
                return await channel.receive()
            case Refusal(_, _, reason, hint):
                await self.close()  # the loaded stage may be the reason
                raise PeerLost(f"node {channel.peer!r} turned this one away: {reason}", hint)
        raise PeerLost(f"node {channel.peer!r} sent a {type(message).__name__}, which is unexpected here")

    async def _serve_stage(self, channel: Channel, assign: Assign) -> Message:
        ids = (assign.epoch, assign.stage)
        held = await self._try_load(channel, assign)
        if held is None:  # the failed load is freed before this waits
            return await channel.receive()
        await channel.send(Ready(*ids, held.info))
        message = await channel.receive()
        if not isinstance(message, Hop) or message.epoch != assign.epoch:
            return message
        try:
            links = await self._neighbours.link_unless_told(channel, message)
        except ParallaxError as error:
            reason = f"stage {assign.stage} has no links: {error.message}"
            unreached = "" if isinstance(error, PeerLost) and error.peer != message.after else message.after
            self.services.note_unreached(unreached)
            await channel.send(Refusal(*ids, reason, error.hint, unreached=unreached))
            links = await channel.receive()
        if not isinstance(links, PeerLinks):
            return links
        try:
            await channel.send(Linked(*ids, links.relay))
            channels = StageChannels(channel, links.before, links.after)
            async with self.services.linked(channel, links):
                control = await self._run_loop(held, channels, assign.heartbeat_s)
        finally:
            await links.close()
            self._neighbours.forget()
        if held.runtime.is_lost:
            raise StageLost(f"stage {assign.stage} is lost: {held.runtime.fault}", REPLACED_HINT)
        return control or await channel.receive()

    async def _run_loop(self, held: LoadedStage, channels: StageChannels, heartbeat_s: float) -> Message | None:
        runtime = held.runtime
        self._loop = StageLoop(held.thread, runtime, channels, heartbeat_s)
        if self.is_leaving:  # the head may have rebuilt the pipeline before it heard of that
            self._loop.leave()
        try:
            return await self._loop.run()
        finally:
            self._loop = None

    async def _refuse(self, channel: Channel, assign: Assign, error: ParallaxError) -> None:
        lacks_leases = assign.memory_share > 0 and isinstance(error, Unsupported)
        ids = (assign.epoch, assign.stage)
        await channel.send(Refusal(*ids, error.message, error.hint, lacks_leases))

    async def _try_load(self, channel: Channel, assign: Assign) -> LoadedStage | None:
        """Return the stage, loading it if necessary; if that fails, tell the head why and return None."""
        if (held := await self._stage.reuse(assign)) is not None:
            return held
        try:
            return await self._stage.load(channel, assign)
        except ParallaxError as error:
            logger.warning("stage cannot be opened stage=%d: %s", assign.stage, error.message)
            await self._refuse(channel, assign, error)
            self.services.resume()
        gc.collect()  # tensors of the failed load may be part of a reference cycle
        return None


async def _announce_leave(channel: Channel) -> None:
    with contextlib.suppress(PeerLost):  # then no head is left to tell
        await channel.send(Leave(Epoch(0)))
