"""Serves a head: joins it, loads the stages it assigns and runs them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import msgspec

from parallax_core.base.errors import ParallaxError, PeerLost, StageLost, Unsupported
from parallax_core.base.ids import Epoch, LeaseId, is_lease
from parallax_core.contracts.transport import Transport
from parallax_core.node.channel import Channel
from parallax_core.node.handshake import SoftwareNotes
from parallax_core.node.profile.reporter import NodeReporter
from parallax_core.node.relay.offer import RelayOffer
from parallax_core.node.relay.paths import RelayPaths
from parallax_core.node.relay.upgrade import LinkUpgrade
from parallax_core.node.trusted_peers import TrustedPeers
from parallax_core.node.worker.engine_session import EngineSession, OpenEngine
from parallax_core.node.worker.further import FurtherNodes
from parallax_core.node.worker.head_link import connect_head, greet_head
from parallax_core.node.worker.incoming import IncomingLinks
from parallax_core.node.worker.leases import NodeLeases
from parallax_core.node.worker.link_trials import LinkTrials
from parallax_core.node.worker.loaded_stage import REPLACED_HINT, LoadedStage, StageHolder
from parallax_core.node.worker.loop import StageChannels, StageLoop
from parallax_core.node.worker.peers import PeerLinker, PeerLinks
from parallax_core.node.worker.shared_layers import OpenStage, SharedLayers
from parallax_core.node.worker.terms import HeadTerms, refuse_head
from parallax_core.wire.engine import Abort, AssignEngine, Submit
from parallax_core.wire.further import EndNode, OpenLease, StartNode
from parallax_core.wire.membership import Assign, Hop, Join, Leave, Linked, Ready, Refusal, Release
from parallax_core.wire.messages import Mask, Message, Step
from parallax_core.wire.profile import Peer, Peers, TryLink
from parallax_core.wire.relay import Relays, Relinked
from parallax_core.wire.succession import Succession

logger = logging.getLogger(__name__)


class WorkerSession:
    """Serves one head: loads the stage it assigns, runs it, and may be assigned another. Belongs to one event loop."""

    def __init__(
        self,
        transport: Transport | RelayPaths,
        node: str,
        open_stage: OpenStage | SharedLayers,
        open_engine: OpenEngine | None = None,
        reporter: NodeReporter | None = None,
    ) -> None:
        """Serve as the node called ``node``; ``transport`` has started and listens.

        The session of a lease gets the `SharedLayers` of its node for ``open_stage``. Without ``open_engine`` it opens
        stages only, and without ``reporter`` it says nothing of its device.
        """
        self._paths = transport if isinstance(transport, RelayPaths) else RelayPaths(transport, node)
        self._transport = self._paths.transport
        self._node = node
        self._incoming = IncomingLinks(self._transport, node)
        self._trusted = TrustedPeers(self._transport)
        self._neighbours = PeerLinker(self._paths, node, self._incoming, self._trusted)
        self.layers = open_stage if isinstance(open_stage, SharedLayers) else SharedLayers(open_stage)
        """Opens its stages, and those of its leases."""
        self._open_engine = open_engine
        self._reporter = reporter or NodeReporter(lambda: None)
        self._trials = LinkTrials(self._paths, node, self._trusted, self._reporter)
        self._stage = StageHolder(self.layers, self._reporter)
        self.further = FurtherNodes(node)
        """The nodes that it starts when the head asks for them; by default it cannot start any."""
        self.leases = NodeLeases(node)
        """The leases that it opens when the head asks for them; by default it cannot open any."""
        self.offer: RelayOffer | None = None
        """Its relay for other nodes, or None."""
        self._loop: StageLoop | None = None
        """The loop that runs steps; None: no pipeline uses this node."""
        self.is_leaving = False
        """Whether `leave` was called."""
        self._channel: Channel | None = None
        """To the head that it has joined; None: it has joined none."""
        self._leaving: list[asyncio.Task[None]] = []
        self.terms: HeadTerms | None = None
        """Decides whether a coordinator is the newest; None: this node follows any."""
        self._refusals: set[asyncio.Task[None]] = set()
        self._software = SoftwareNotes()

    @property
    def is_needed(self) -> bool:
        """Whether a pipeline uses the stage of this node or a lease, or it has started further nodes."""
        return self._loop is not None or self.leases.are_needed or self.further.are_running

    @property
    def is_joined(self) -> bool:
        """Whether it has joined a head."""
        return self._channel is not None

    @property
    def held(self) -> LoadedStage | None:
        """The loaded stage, or None."""
        return self._stage.held

    def leave(self) -> None:
        """Ask the head to replace this node, its leases and `further`; all work until `serve` returns. Idempotent."""
        if self.is_leaving:
            return
        self.is_leaving = True
        self._leaving += [asyncio.create_task(each.leave()) for each in (self.further, self.leases)]
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
        channel = await connect_head(self._transport, address, head)
        try:
            channel.check_role("head")
            await self._join(channel, join)
            logger.info("joined head=%s", head)
            self._channel = channel
            if self.is_leaving:  # since before there was anybody to tell
                await _announce_leave(channel)
            channel.divert(Peers, self._meet)
            channel.divert(TryLink, partial(self._trials.take, channel))
            channel.divert(Relays, partial(self._paths.meet, trusted=self._trusted))
            channel.divert(StartNode, self.further.start)
            channel.divert(EndNode, self.further.end)
            channel.divert(OpenLease, self.leases.open)
            channel.divert(Succession, partial(self._note_term, channel))
            relaying, reporting = self._relaying(Peer(head, address)), self._reporter.reporting(channel, address)
            async with self._incoming.accepting(), relaying, reporting:
                message = await channel.receive()
                while not (self.is_leaving and isinstance(message, Release)):
                    message = await self._handle(channel, message)
            await asyncio.gather(*self._leaving)
        finally:
            self._channel = None
            await channel.leave()
            await asyncio.gather(self.further.close(), self.leases.close(), self._trials.close())

    @asynccontextmanager
    async def _relaying(self, head: Peer) -> AsyncIterator[None]:
        """Use the relays that ``head`` names, and offer it the one of this node, while this node has joined it."""
        async with self._paths.joined(head), contextlib.AsyncExitStack() as stack:
            if self.offer is not None:
                self._incoming.relay = self.offer.server
                offered = self.offer.offered(self._transport, self._node, head, self._trusted)
                await stack.enter_async_context(offered)
            yield

    def _note_term(self, channel: Channel, told: Succession) -> None:
        """Follow a coordinator of the newest term; tell an older one that it is, and leave it."""
        if self.terms is not None and (newer := self.terms.note(told, channel.key)) is not None:
            refusal = asyncio.create_task(refuse_head(channel, newer))
            self._refusals.add(refusal)
            refusal.add_done_callback(self._refusals.discard)

    def _meet(self, peers: Peers) -> None:
        self._trusted.trust("peer", {peer.node: peer.key for peer in peers.peers})
        self._reporter.meet(peers)

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
        if (shared := self.layers.loaded) is not None:
            return msgspec.structs.replace(join, model=shared.model, start=shared.holds_start, stop=shared.holds_stop)
        return join

    async def _handle(self, channel: Channel, message: Message) -> Message:
        """Handle a message of the head, and return its next one."""
        match message:
            case Assign():
                return await self._serve_stage(channel, message)
            case AssignEngine() if self._open_engine is not None:
                await self.close()
                await self._reporter.pause()
                return await EngineSession(channel, message, self._open_engine).run()
            case Release():
                await self._stage.release(keeps_layers=message.keeps_layers)
                return await channel.receive()
            case Step() | Mask() | Hop() | Submit() | Abort():  # sent before the head knew that all had ended
                return await channel.receive()
            case Refusal(_, _, _, reason, hint):
                await self.close()  # the loaded stage may be the reason
                raise PeerLost(f"node {channel.peer!r} turned this one away: {reason}", hint)
        raise PeerLost(f"node {channel.peer!r} sent a {type(message).__name__}, which is unexpected here")

    async def _serve_stage(self, channel: Channel, assign: Assign) -> Message:
        ids = (assign.lease, assign.epoch, assign.stage)
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
            self._reporter.note_link(unreached, is_reached=False)
            await channel.send(Refusal(*ids, reason, error.hint, unreached=unreached))
            links = await channel.receive()
        if not isinstance(links, PeerLinks):
            return links
        try:
            await channel.send(Linked(*ids, links.relay))
            channels = StageChannels(channel, links.before, links.after)
            async with self._upgrading(channel, message, links):
                control = await self._run_loop(held, channels, assign.heartbeat_s)
        finally:
            await links.close()
            self._neighbours.forget()
        if held.runtime.is_lost:
            raise StageLost(f"stage {assign.stage} is lost: {held.runtime.fault}", REPLACED_HINT)
        return control or await channel.receive()

    @asynccontextmanager
    async def _upgrading(self, channel: Channel, hop: Hop, links: PeerLinks) -> AsyncIterator[None]:
        """Replace a relayed link by a direct one when that becomes possible, on either side."""
        tasks = []
        if links.relay and links.after is not None:
            upgrade = LinkUpgrade(self._transport, self._node, hop.address, links.after)
            tasks.append(asyncio.create_task(upgrade.run(partial(channel.send, Relinked()))))
        self._incoming.before = links.before
        try:
            yield
        finally:
            self._incoming.before = None
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _run_loop(self, held: LoadedStage, channels: StageChannels, heartbeat_s: float) -> Message | None:
        runtime = held.runtime
        self._loop = StageLoop(held.thread, runtime, runtime.key, channels, heartbeat_s)
        if self.is_leaving:  # the head may have rebuilt the pipeline before it heard of that
            self._loop.leave()
        try:
            return await self._loop.run()
        finally:
            self._loop = None

    async def _refuse(self, channel: Channel, assign: Assign, error: ParallaxError) -> None:
        lacks_leases = assign.memory_share > 0 and isinstance(error, Unsupported)
        ids = (assign.lease, assign.epoch, assign.stage)
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
            self._reporter.resume()
        gc.collect()  # tensors of the failed load may be part of a reference cycle
        return None


async def _announce_leave(channel: Channel) -> None:
    with contextlib.suppress(PeerLost):  # then no head is left to tell
        await channel.send(Leave(LeaseId(0), Epoch(0)))
