"""The kit for node services: their messages, and what they do as peers join and leave.

Subclass it in a test module under a name that begins with ``Test``, and give the spec, the name of the distribution and
a sample of each message. Nodes are stood in for by links within the process.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal

from parallax_core.base.errors import PeerLost
from parallax_core.base.ids import Epoch
from parallax_core.base.taskgroup import FailFastGroup
from parallax_core.builtin.inprocess import InProcessTransport
from parallax_core.contracts.node_service import MessageKinds, NodeService, Takers
from parallax_core.contracts.service_message import ServiceMessage
from parallax_core.contracts.transport import Frame, Link, Transport, TransportPlan
from parallax_core.node.channel import Channel
from parallax_core.node.message_limits import MessageLimits
from parallax_core.testing.promise import broken
from parallax_core.testing.runner import beside, in_loop, within
from parallax_core.testing.service_message import ALL, SIZE, MessageConformance
from parallax_core.wire.messages import Heartbeat, Message

Side = Literal["node", "head"]
SIDES: tuple[Side, ...] = ("node", "head")

BLOCKED_S, TRIES = 0.1, 3
"""The seconds for which a handler may keep the event loop busy, in the best of some tries."""
SETTLE = 50
"""Turns of the event loop in which tasks come to wait, or to end if they were told to."""
RATE = "The most messages per second on a link, on average; as many may come at once"
TAKES = "the function that takes it, at once and without waiting"
WAITS = "A head does not wait in it"
LINK = "Return a context for the time of a link to a peer"
MAKES = "Makes the service of a node from its `ServiceContext`; it may return None"
SERVES = "Serves a `NodeLink` until it ends, and leaves it then"
ENDS = "Run for as long as the node or the head does; cancelled at the end"
LEAVES = "Prepare for the end of the node, which was asked to leave; it leaves once this returns"
CLOSES = "End whatever still runs. Idempotent"


@dataclass(frozen=True, slots=True)
class KitContext:
    """The node or the head that a service is for."""

    node: str
    transport: Transport
    clients: None = None
    """No server answers clients while a service is tested."""


class WatchedChannel(Channel):
    """A link that notes what is wrong with the messages that a service sends."""

    def __init__(self, link: Link, kinds: MessageKinds) -> None:
        super().__init__(link)
        self.faults: list[tuple[str, str]] = []
        """Each fault, with the promise that it breaks."""
        self._mine, self._rates = kinds, MessageLimits()

    async def send(self, message: Message) -> None:
        """Send a message, and note whether it may be sent."""
        if not isinstance(message, ServiceMessage) or type(message) not in self._mine:
            self.faults.append((f"it sends a {type(message).__name__}, which is none of its messages", ALL))
        elif not self._rates.take(type(message), asyncio.get_running_loop().time()):
            fault = f"it sends more than {message.most_per_s:g} of {type(message).__name__} per second"
            self.faults.append((fault, RATE))
        try:
            await super().send(message)
        except ValueError as error:
            self.faults.append((str(error), SIZE))
            raise


@dataclass(frozen=True)
class KitPeer:
    """A peer that has joined, or that was joined."""

    name: str
    address: str
    channel: WatchedChannel


class NodeServiceConformance(MessageConformance):
    """Tests for a service of nodes or heads; each side that its spec has is tested."""

    watched_s: float = 0.3
    """Seconds for which both sides run together."""
    patience_s: float = 10.0
    """Seconds within which everything that does not wait is over."""

    async def make_service(self, side: Side) -> NodeService | None:
        """Return the service of a side, or None."""
        ref = self.spec.node if side == "node" else self.spec.head
        if ref is None:
            return None
        transport = InProcessTransport(TransportPlan(node=f"kit/{side}", listen="inprocess://"))
        await transport.start()
        service = ref.load()(KitContext(f"kit/{side}", transport))
        is_one = service is None or isinstance(service, NodeService)
        assert is_one, broken(f"the service of the {side} is {service!r}", MAKES)
        return service

    async def make_services(self) -> AsyncIterator[NodeService]:
        """Yield the services of both sides."""
        for side in SIDES:
            if (service := await self.make_service(side)) is not None:
                yield service

    def make_peer(self, link: Link) -> KitPeer:
        """Return a peer at the other end of a link."""
        return KitPeer(link.peer, f"inprocess://{link.peer}", WatchedChannel(link, self.kinds))

    def match(self, takers: Takers) -> Iterator[tuple[Callable[[Any], None], ServiceMessage]]:
        """Yield each sample, with the function that takes it."""
        for sample in self.samples:
            if (take := takers.get(type(sample))) is not None:
                yield take, sample

    async def meet(self, service: NodeService, peer: KitPeer) -> None:
        """Join a peer, take the samples from it, and part; wait for tasks that were cancelled."""
        async with service.joined(peer) as takers:
            for take, sample in self.match(takers):
                take(sample)
            await asyncio.sleep(0)
        await settle()

    @in_loop
    async def test_handlers_take_messages_at_once(self) -> None:
        """Any message that is accepted is taken at once; a sample does not even end the link."""
        async for service in self.make_services():
            async with linked() as (near, far), beside(drain(far)), service.joined(self.make_peer(near)) as takers:
                for take, sample in self.match(takers):
                    give(take, sample, may_end=False)
                    for variant in self.list_variants(sample):
                        give(take, variant, may_end=True)

    @in_loop
    async def test_both_sides_keep_to_their_limits(self) -> None:
        """Both run together for a while; whatever they send is theirs, and within its size and its rate."""
        async with linked() as links:
            peers = [self.make_peer(link) for link in links]
            services = [await self.make_service(side) for side in SIDES]
            tasks = [
                asyncio.create_task(serve(service or NodeService(), peer, self.kinds))
                for service, peer in zip(services, peers, strict=True)
            ]
            done, _ = await asyncio.wait(tasks, timeout=self.watched_s)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for fault, promise in [fault for peer in peers for fault in peer.channel.faults]:
            raise AssertionError(broken(fault, promise))
        for task in done:
            raise AssertionError(broken(f"it has ended with {task.exception()!r}", ENDS))

    @in_loop
    async def test_service_waits_for_no_peer(self) -> None:
        """A peer that reads nothing joins and leaves at once."""
        async for service in self.make_services():
            async with linked() as (near, _), beside(flood(near)):
                await settle()
                joining = join_once(service, self.make_peer(near))
                await within(self.patience_s, joining, "it waits for a peer that reads nothing", WAITS)

    @in_loop
    async def test_lost_peer_is_no_fault(self) -> None:
        """A peer that is gone as it joins ends nothing, and may join again."""
        async for service in self.make_services():
            for _ in range(2):
                async with linked() as (near, far):
                    await far.close()
                    joining = join_once(service, self.make_peer(near))
                    with suppress(PeerLost):
                        await within(self.patience_s, joining, "it waits for a peer that is gone", LINK)

    @in_loop
    async def test_nothing_is_left_of_a_peer(self) -> None:
        """Once its link has ended, nothing is kept of a peer, and nothing runs for it."""
        async for service in self.make_services():
            async with linked() as (near, far), beside(drain(far)):
                before = asyncio.all_tasks()
                await self.meet(service, peer := self.make_peer(near))
                left = {task.get_name() for task in asyncio.all_tasks() - before}
                assert not left, broken("tasks run on for a peer that has left", LINK)
                kept: list[weakref.ref[Any]] = [weakref.ref(peer), weakref.ref(peer.channel)]
                del peer
                gc.collect()
                assert not any(each() for each in kept), broken("it keeps a peer that has left", LINK)

    @in_loop
    async def test_service_ends_when_it_is_told(self) -> None:
        """It leaves, ends when it is cancelled, and is closed twice."""
        async for service in self.make_services():
            running = asyncio.create_task(service.run())
            await asyncio.sleep(0)
            await within(self.patience_s, service.leave(), "it does not leave", LEAVES)
            running.cancel()
            await within(self.patience_s, asyncio.wait([running]), "it runs on when it is cancelled", ENDS)
            for _ in range(2):
                await within(self.patience_s, service.close(), "it does not close", CLOSES)

    @in_loop
    async def test_links_end_with_their_peers(self) -> None:
        """A link of each purpose, over which the other node sends junk and goes, ends without another error."""
        async for service in self.make_services():
            for name, purpose in service.purposes.items():
                async with linked() as (near, far):
                    channel = Channel(near)
                    await Channel(far).send(Heartbeat(Epoch(0), 0, 0))
                    await far.close()
                    with suppress(PeerLost):
                        purpose.accept(channel)
                        serving = purpose.serve(channel)
                        await within(self.patience_s, serving, f"a link for {name!r} does not end", SERVES)


@asynccontextmanager
async def linked() -> AsyncIterator[tuple[Link, Link]]:
    """Link two nodes of this process; give both ends."""
    far = InProcessTransport(TransportPlan(node="kit/head", listen="inprocess://"))
    await far.start()
    near = InProcessTransport(TransportPlan(node="kit/node"))
    yield await near.connect(far.address, "kit/head"), await far.accept()
    await far.stop()
    await near.stop()


def give(take: Callable[[Any], object], message: ServiceMessage, *, may_end: bool) -> None:
    """Give a message to the function that takes it, and check that it does so at once."""
    spent = []
    for _ in range(TRIES):
        begun = time.perf_counter()
        try:
            answer = take(message)
        except Exception as error:
            if may_end and isinstance(error, PeerLost):
                return
            raise AssertionError(broken(f"{message!r} makes its handler raise {error!r}", TAKES)) from error
        assert not inspect.isawaitable(answer), broken("a handler has to be awaited", TAKES)
        spent.append(time.perf_counter() - begun)
        if min(spent) < BLOCKED_S:
            return
    raise AssertionError(broken(f"a handler blocks the event loop for {min(spent):.1f} s", TAKES))


async def serve(service: NodeService, peer: KitPeer, kinds: MessageKinds) -> None:
    """Run a service that a peer has joined, and give it the messages of the peer, until it fails."""
    peer.channel.is_greeted = True
    async with service.joined(peer) as takers, FailFastGroup() as group:
        for kind, take in takers.items():
            peer.channel.divert(kind, take)
        peer.channel.learn(kinds)
        group.start(drain(peer.channel))
        group.start(service.run())


async def join_once(service: NodeService, peer: KitPeer) -> None:
    """Join a peer, and part at once."""
    async with service.joined(peer):
        await asyncio.sleep(0)


async def settle() -> None:
    """Wait until all tasks wait."""
    for _ in range(SETTLE):
        await asyncio.sleep(0)


async def drain(link: Link | Channel) -> None:
    """Take all that comes."""
    while True:
        await link.receive()


async def flood(link: Link) -> None:
    """Send until the other end would have to read."""
    while True:
        await link.send(Frame(b"x"))
