"""Registers the nodes that join a head, and hands them out to executors."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter

from parallax_core.base.errors import ParallaxError, PeerLost
from parallax_core.base.ids import Epoch
from parallax_core.contracts.transport import Link, Transport
from parallax_core.node.channel import STRANGERS, Channel
from parallax_core.node.executor.base import LEASE
from parallax_core.node.handshake import welcome
from parallax_core.wire.membership import Join, Refusal
from parallax_core.wire.profile import NodeReport

logger = logging.getLogger(__name__)

GREETING_S = 10.0
"""Seconds a node that has connected may take for the handshake and its `Join`."""
MOST_GREETINGS = 64
"""The largest number of nodes in a handshake at the same time; more wait in the transport."""
MOST_GREETINGS_OF_ONE = 16
"""The same for one machine; more of its nodes are turned away."""


@dataclass(slots=True, eq=False)
class JoinedNode:
    """A node that has joined."""

    channel: Channel
    join: Join
    report: NodeReport | None = None
    """What it said last of its device and its links; None: nothing yet."""

    @property
    def name(self) -> str:
        """The name of the node."""
        return self.channel.peer

    def note_report(self, report: NodeReport) -> None:
        """Keep what the node says of itself, in place of what it said before."""
        if self.report is None:
            memory = report.device.memory / 10**9
            logger.info("node has reported node=%s device=%r memory=%.3gGB", self.name, report.device.name, memory)
        self.report = report


Fit = Callable[[JoinedNode], int]
"""Returns how suitable a node is; 0: not at all."""


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """A caller that waits for a suitable node."""

    fit: Fit
    found: asyncio.Future[JoinedNode]


class NodeRegistry:
    """Accepts the nodes that connect to a head, and hands them out to callers that wait for one."""

    def __init__(self, transport: Transport, node: str, command: str = "parallax worker") -> None:
        """Listen with ``transport``, as the node called ``node``; ``command`` starts a node, without its address."""
        self._transport = transport
        self._command = command
        self._node = node
        self._joined: list[JoinedNode] = []
        self._waiting: dict[str, JoinedNode] = {}
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._requests: list[NodeRequest] = []
        self._taking: asyncio.Task[None] | None = None
        self._greetings: dict[asyncio.Task[None], str] = {}
        """The handshakes under way, each with the machine of the node."""
        self._room = asyncio.Semaphore(MOST_GREETINGS)

    @property
    def address(self) -> str:
        """The address nodes connect to, once the registry has started."""
        return self._transport.address

    @property
    def invitation(self) -> str:
        """The command that starts a node which joins this head."""
        return f"{self._command} --connect {self.address}"

    @property
    def joined(self) -> tuple[JoinedNode, ...]:
        """The nodes that have joined and are not lost, with and without a stage, in the order they joined."""
        self._joined = [node for node in self._joined if not node.channel.is_over]
        return tuple(self._joined)

    @property
    def waiting(self) -> tuple[JoinedNode, ...]:
        """The nodes without a stage, in the order they joined."""
        return tuple(self._waiting.values())

    async def start(self) -> None:
        """Begin to listen.

        Raises:
            ParallaxError: if the transport cannot listen; with a hint.
        """
        await self._transport.start()
        self._taking = asyncio.create_task(self._take())

    async def stop(self) -> None:
        """Disconnect all nodes and stop listening. Idempotent."""
        tasks = [task for task in (self._taking, *self._greetings, *self._watches.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._waiting.clear()
        await self._transport.stop()

    async def find(self, fit: Fit) -> JoinedNode:
        """Wait for a suitable node and take it; the best pairs of callers and nodes are matched first.

        Among equals, the caller that has waited longest gets the node that joined first.
        """
        request = NodeRequest(fit, asyncio.get_running_loop().create_future())
        self._requests.append(request)
        self._match()
        try:
            return await request.found
        except asyncio.CancelledError:
            if request.found.done() and not request.found.cancelled():  # found, but the caller is gone
                self._admit(request.found.result())
            raise
        finally:
            self._requests.remove(request)

    def forget(self, name: str) -> None:
        """Remove a waiting node of that name: it is about to be replaced."""
        self._waiting.pop(name, None)
        if (watch := self._watches.pop(name, None)) is not None:
            watch.cancel()

    def _match(self) -> None:
        """Give nodes to callers, the best match first, until none is left."""
        while True:
            node_requests = [request for request in self._requests if not request.found.done()]
            pairs = [(request.fit(node), request, node) for request in node_requests for node in self._waiting.values()]
            fit, request, node = max(pairs, key=itemgetter(0), default=(0, None, None))
            if request is None or node is None or fit <= 0:
                return
            self.forget(node.name)
            request.found.set_result(node)

    def _admit(self, node: JoinedNode) -> None:
        self._waiting[node.name] = node
        self._watches[node.name] = asyncio.create_task(self._watch(node))
        self._match()
        if self._requests and node.name in self._waiting:
            logger.info("node is not needed yet node=%s backends=%s", node.name, ",".join(node.join.backends))

    async def _watch(self, node: JoinedNode) -> None:
        """Remove a waiting node when it is lost; it must not send anything."""
        try:
            reason = f"it sent a {type(await node.channel.receive()).__name__} while it had nothing to do"
        except PeerLost as error:
            reason = error.message
        logger.info("node left node=%s: %s", node.name, reason)
        self._waiting.pop(node.name, None)
        self._watches.pop(node.name, None)
        await node.channel.leave()

    async def _take(self) -> None:
        with contextlib.suppress(PeerLost):  # the transport has stopped
            while True:
                await self._room.acquire()
                link = await self._transport.accept()
                machine = link.peer.partition("/")[0]
                is_one_too_many = list(self._greetings.values()).count(machine) >= MOST_GREETINGS_OF_ONE
                task = asyncio.create_task(Channel(link).leave() if is_one_too_many else self._greet(link))
                self._greetings[task] = machine
                task.add_done_callback(self._note_greeting)

    def _note_greeting(self, task: asyncio.Task[None]) -> None:
        del self._greetings[task]
        self._room.release()

    async def _greet(self, link: Link) -> None:
        channel = Channel(link, STRANGERS)
        try:
            async with asyncio.timeout(GREETING_S):
                hello = await welcome(channel, self._node)
                join = await channel.receive()
                await self._check_join(channel, join)
        except (ParallaxError, TimeoutError) as error:
            reason = error.message if isinstance(error, ParallaxError) else "it did not join in time"
            logger.warning("node turned away node=%s: %s", link.peer, reason)
            await channel.leave()
            return
        assert isinstance(join, Join), "it was checked"
        logger.info("node joined node=%s host=%s pid=%d software=%s", link.peer, join.host, join.pid, hello.software)
        node = JoinedNode(channel, join)
        channel.expect_reports(node.note_report)
        self._joined = [*self.joined, node]
        self._admit(node)

    async def _check_join(self, channel: Channel, message: object) -> None:
        """Check that a node may join; tell it why if not.

        Raises:
            PeerLost: if the message is no `Join`, its key forbids it, or another node of that name waits already.
        """
        if not isinstance(message, Join):
            raise PeerLost(f"node {channel.peer!r} sent a {type(message).__name__} where it was to join")
        try:
            channel.check_role("worker")
            self._check_name(channel.peer)
        except PeerLost as error:
            await channel.send(Refusal(LEASE, Epoch(0), 0, error.message, error.hint))
            raise
        channel.admit()

    def _check_name(self, name: str) -> None:
        if name in self._waiting:
            raise PeerLost(f"another node called {name!r} has joined", "give it another name: --node NAME")
