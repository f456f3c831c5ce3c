"""The nodes that have joined a head, and wait to be given a stage."""

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

logger = logging.getLogger(__name__)

GREETING_S = 10.0
"""How long who has connected may take to greet and to join."""
MOST_GREETINGS, MOST_GREETINGS_OF_ONE = 64, 16
"""Nodes that greet at once, others wait with the transport; and those of one machine, others are turned away."""


@dataclass(frozen=True, slots=True)
class JoinedNode:
    """A node that has joined."""

    channel: Channel
    join: Join

    @property
    def name(self) -> str:
        """The name of the node."""
        return self.channel.peer


Fit = Callable[[JoinedNode], int]
"""How well a node would do; 0: not at all."""


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """Somebody waits for a node."""

    fit: Fit
    found: asyncio.Future[JoinedNode]


class NodeRegistry:
    """Takes in the nodes that connect to a head, and hands them out to whoever needs them."""

    def __init__(self, transport: Transport, node: str, command: str = "parallax worker") -> None:
        """Listen with ``transport``, as the node called ``node``; ``command`` starts a node, but for where we are."""
        self._transport = transport
        self._command = command
        self._node = node
        self._waiting: dict[str, JoinedNode] = {}
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._requests: list[NodeRequest] = []
        self._taking: asyncio.Task[None] | None = None
        self._greetings: dict[asyncio.Task[None], str] = {}
        """Those under way, each with the machine that the node is on."""
        self._room = asyncio.Semaphore(MOST_GREETINGS)

    @property
    def address(self) -> str:
        """Where nodes connect to, once this has started."""
        return self._transport.address

    @property
    def invitation(self) -> str:
        """The command that has a node join."""
        return f"{self._command} --connect {self.address}"

    @property
    def waiting(self) -> tuple[JoinedNode, ...]:
        """Those that have nothing to do; the longest there first."""
        return tuple(self._waiting.values())

    async def start(self) -> None:
        """Begin to listen.

        Raises:
            ParallaxError: with a hint, if that cannot be.
        """
        await self._transport.start()
        self._taking = asyncio.create_task(self._take())

    async def stop(self) -> None:
        """Let go of everybody. Twice is harmless."""
        tasks = [task for task in (self._taking, *self._greetings, *self._watches.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._waiting.clear()
        await self._transport.stop()

    async def find(self, fit: Fit) -> JoinedNode:
        """Wait for a node that would do, and hand it out: the best pairs of nodes and those who wait for one first.

        Of equals, who has waited longest has the first choice, and gets the node that joined first.
        """
        request = NodeRequest(fit, asyncio.get_running_loop().create_future())
        self._requests.append(request)
        self._match()
        try:
            return await request.found
        except asyncio.CancelledError:
            if request.found.done() and not request.found.cancelled():  # found, and nobody is there to take it
                self._admit(request.found.result())
            raise
        finally:
            self._requests.remove(request)

    def forget(self, name: str) -> None:
        """Wait no more with a node of that name: it is about to be replaced."""
        self._waiting.pop(name, None)
        if (watch := self._watches.pop(name, None)) is not None:
            watch.cancel()

    def _match(self) -> None:
        """Hand out what can be."""
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
        """Notice when a node is lost that waits; nothing comes from there."""
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
        self._admit(JoinedNode(channel, join))

    async def _check_join(self, channel: Channel, message: object) -> None:
        """Check that a node may join.

        Raises:
            PeerLost: if it does not want to, may not, or another of its name waits already; that node is told.
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
