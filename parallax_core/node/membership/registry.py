"""Registers the nodes that join a head, and hands them out to executors."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Coroutine
from contextlib import AsyncExitStack
from itertools import count

from parallax_core.base.errors import ParallaxError, PeerLost
from parallax_core.base.ids import Epoch, name_machine
from parallax_core.contracts.joining import MachineKeys
from parallax_core.contracts.node_service import ClientConnections
from parallax_core.contracts.transport import Link, NodeRole, Transport
from parallax_core.node.channel import STRANGERS, Channel
from parallax_core.node.handshake import SoftwareNotes, welcome
from parallax_core.node.membership.copies import NAME_HINT, check_original
from parallax_core.node.membership.false_alarms import FalseAlarms
from parallax_core.node.membership.joined_node import JoinedNode
from parallax_core.node.membership.node_matcher import Fit, NodeMatcher, NodeRequest
from parallax_core.node.membership.refused_nodes import RefusedNodes
from parallax_core.node.membership.served_links import ServedLinks
from parallax_core.node.services import Services
from parallax_core.wire.membership import Join, Leave, Linked, Loading, Ready, Refusal, Release
from parallax_core.wire.messages import Failure, Heartbeat, Message, Result

logger = logging.getLogger(__name__)

GREETING_S = 10.0
"""Seconds a node that has connected may take for the handshake and its `Join`."""
MOST_GREETINGS = 64
"""The largest number of nodes in a handshake at the same time; more wait in the transport."""
MOST_GREETINGS_OF_ONE = 16
"""The same for one machine; more of its nodes are turned away."""
LATE = (Loading, Ready, Linked, Refusal, Result, Failure, Heartbeat)
"""What a node may still send that had a stage a moment ago."""


class NodeRegistry:
    """Accepts the nodes that connect to a head, and hands them out to callers that wait for one."""

    keys: MachineKeys | None = None
    """Which machines may join, if the transport keeps them; None: it does not."""
    clients: ClientConnections | None = None
    """Answers connections of clients that services have accepted; None: the server does not listen yet."""

    def __init__(
        self, transport: Transport, node: str, command: str = "parallax worker", *, measures_links: bool = False
    ) -> None:
        """Listen with ``transport``, as the node called ``node``; ``command`` starts a node, without its address.

        With ``measures_links``, the nodes measure their links to each other.
        """
        self.transport, self.measures_links = transport, measures_links
        self._command = command
        self.node = node
        self._matcher = NodeMatcher()
        self._joined: dict[str, JoinedNode] = {}
        self._list: tuple[JoinedNode, ...] | None = ()
        """The same as a list; None: it has changed."""
        self._leaving: set[str] = set()
        self._ends: set[asyncio.Task[None]] = set()
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._taking: asyncio.Task[None] | None = None
        self._greetings: dict[asyncio.Task[None], str] = {}
        """The handshakes under way, each with the machine of the node."""
        self._room = asyncio.Semaphore(MOST_GREETINGS)
        self.attempts = count(1)
        """Numbers of attempts to assign stages, different for all executors: a reply belongs to one attempt only."""
        self.note_join: Callable[[JoinedNode], None] | None = None
        """Called with each node that has joined."""
        self._served = ServedLinks(self.has)
        self.purposes = self._served.purposes
        """How to serve links, by purpose; links of other purposes are refused."""
        self.services = Services(self.purposes)
        """What the head does beside handing out nodes."""
        self.sharing: Collection[str] = ()
        """The nodes whose stages are released when they are given back, since leases want their memory."""
        self._alarms, self._software = FalseAlarms(), SoftwareNotes()
        self._refused = RefusedNodes()
        self.changed = asyncio.Event()
        """Set whenever a node has joined, has reported first or is gone; whoever waits for it clears it."""

    @property
    def address(self) -> str:
        """The address nodes connect to, once the registry has started."""
        return self.transport.address

    @property
    def invitation(self) -> str:
        """The command that starts a node which joins this head."""
        return f"{self._command} --connect {self.address}"

    @property
    def waiting(self) -> tuple[JoinedNode, ...]:
        """The nodes without a stage, in the order they joined."""
        return tuple(self._matcher.nodes.values())

    @property
    def joined(self) -> tuple[JoinedNode, ...]:
        """The nodes that have joined and are not known to be gone, with a stage or without, in the order of joining.

        It is the same object until they change.
        """
        if self._list is None:
            self._list = tuple(self._joined.values())
        return self._list

    def find_role(self, key: bytes) -> NodeRole | None:
        """Return the role of a key for this head now, or None; ``any`` where no keys are kept."""
        return self.keys.find_role(key) if self.keys is not None else "any"

    def has(self, name: str) -> bool:
        """Return whether a node has joined and is not known to be gone."""
        return name in self._joined

    def get(self, name: str) -> JoinedNode | None:
        """Return the joined node called ``name``; None if unknown, or known to be gone."""
        return self._joined.get(name)

    async def start(self) -> None:
        """Begin to listen.

        Raises:
            ParallaxError: if the transport cannot listen; with a hint.
        """
        await self.transport.start()
        self._taking = asyncio.create_task(self._take())
        self.services.start()

    async def stop(self) -> None:
        """Disconnect all nodes and stop listening. Idempotent."""
        several = (self._taking, *self._greetings, *self._watches.values(), *self._ends, *self._served.running)
        tasks = [task for task in several if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.services.stop()  # after the links, since it would tell of their ends
        self._matcher.nodes.clear()
        self._joined.clear()
        self._list = None
        await self.transport.stop()

    async def find(self, fit: Fit, name: str = "") -> JoinedNode:
        """Wait for a suitable node and take it; whoever comes gets the best that waits.

        Among equals, the caller that has waited longest gets the node that joined first.

        Args:
            fit: says how suitable a node is.
            name: the only node that may suit; empty: any may.
        """
        request = NodeRequest(fit, name, asyncio.get_running_loop().create_future())
        if (node := self._matcher.add_request(request)) is not None:
            self.forget(node.name)
            return node
        try:
            return await request.found
        except asyncio.CancelledError:
            if request.found.done() and not request.found.cancelled():  # found, but the caller is gone
                self._admit(request.found.result())
            raise
        finally:
            self._matcher.remove_request(request)

    def give_back(self, node: JoinedNode, *, is_shared: bool = False) -> None:
        """Put a node that was handed out back among the waiting ones; it keeps its loaded layers.

        It may still report steps, and loses its links to its neighbours as these get other stages. A lease is released,
        so that others get its share of the memory, and so is the stage of a node whose leases are wanted. One that has
        joined again meanwhile waits by its new link already, and the old one is closed.
        """
        if node.channel.ended.is_set():
            return
        if is_shared or node.name in self.sharing:
            self.free(node)
        if node.name in self._leaving or self._joined.get(node.name) is not node:
            self._start(self._release(node))
        else:
            self._admit(node, LATE)

    async def unload(self, name: str) -> None:
        """Ask a waiting node to release its loaded layers."""
        if (node := self._matcher.nodes.get(name)) is not None:
            node.loaded = None
            with contextlib.suppress(PeerLost):
                await node.channel.send(Release(Epoch(0)))

    def free(self, node: JoinedNode) -> None:
        """Release the stage of a node for its leases, which keep their layers."""
        node.loaded = None
        self._start(self._send(node, Release(Epoch(0), keeps_layers=True)))

    def _start(self, work: Coroutine[None, None, None]) -> None:
        self._ends.add(task := asyncio.create_task(work))
        task.add_done_callback(self._ends.discard)

    async def _send(self, node: JoinedNode, message: Message) -> None:
        with contextlib.suppress(PeerLost):
            await node.channel.send(message)

    def note_leaving(self, name: str) -> None:
        """Note that a node is about to end: it is released once it is given back."""
        if name in self._joined:
            self._leaving.add(name)

    async def _release(self, node: JoinedNode) -> None:
        with contextlib.suppress(PeerLost):
            await node.channel.send(Release(Epoch(0)))
        await node.channel.leave()

    def forget(self, name: str) -> None:
        """Remove a waiting node of that name: it is about to be replaced."""
        self._matcher.nodes.pop(name, None)
        if (watch := self._watches.pop(name, None)) is not None:
            watch.cancel()

    def _admit(self, node: JoinedNode, ignored: tuple[type, ...] = ()) -> None:
        if (request := self._matcher.add_node(node)) is not None:
            self._matcher.remove_request(request)
            request.found.set_result(node)
            return
        self._watches[node.name] = asyncio.create_task(self._watch(node, ignored))
        if self._matcher.has_requests:
            logger.info("node is not needed yet node=%s backends=%s", node.name, ",".join(node.join.backends))

    async def _watch(self, node: JoinedNode, ignored: tuple[type, ...]) -> None:
        """Remove a waiting node when it is lost or leaves; it must not send anything but what is ``ignored``."""
        try:
            while isinstance(message := await node.channel.receive(), ignored):
                pass
            reason = f"it sent a {type(message).__name__} while it had nothing to do"
            if isinstance(message, Leave):
                reason = "it ends"
                await self._release(node)
        except PeerLost as error:
            reason = error.message
        logger.info("node left node=%s: %s", node.name, reason)
        self._matcher.nodes.pop(node.name, None)
        self._watches.pop(node.name, None)
        await node.channel.leave()

    async def _take(self) -> None:
        with contextlib.suppress(PeerLost):  # the transport has stopped
            while True:
                await self._room.acquire()
                link = await self.transport.accept()
                machine = name_machine(link.peer)
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
                hello = await welcome(channel, self.node)
                if hello.purpose:
                    self._served.open(channel, hello.purpose)
                    return
                join = await self._check_join(channel, await channel.receive())
        except (ParallaxError, TimeoutError) as error:
            reason = error.message if isinstance(error, ParallaxError) else "it did not join in time"
            self._refused.note(link.peer, reason)
            await channel.leave()
            return
        logger.info("node joined node=%s host=%s pid=%d software=%s", link.peer, join.host, join.pid, hello.software)
        self._software.note(hello)
        node = JoinedNode(channel, join, patience_s=self._alarms.note_join((link.peer, join.pid)))
        self._joined[node.name], self._list = node, None
        if self.note_join is not None:
            self.note_join(node)
        stack = AsyncExitStack()
        await stack.enter_async_context(self.services.joined(node))
        self._start(self._await_end(node, stack))
        self._admit(node)
        self.changed.set()

    async def _await_end(self, node: JoinedNode, stack: AsyncExitStack) -> None:
        """Remove a node from the members once its link has ended, whoever notices that."""
        async with stack:
            await node.channel.ended.wait()
            self._alarms.note_end((node.name, node.join.pid), node.channel.silence_s)
            if self._joined.get(node.name) is node:
                del self._joined[node.name]
                self._list = None
                self._leaving.discard(node.name)
        self.changed.set()

    async def _check_join(self, channel: Channel, message: object) -> Join:
        """Return what a node says of itself, if it may join; else tell it why not.

        Raises:
            PeerLost: if the message is no `Join`, its key forbids it, or another node of that name waits already.
        """
        if not isinstance(message, Join):
            raise PeerLost(f"node {channel.peer!r} sent a {type(message).__name__} where it was to join")
        try:
            channel.check_role("worker")
            self._check_name(channel.peer)
            check_original(channel.peer, message, self.joined)
        except PeerLost as error:
            await channel.send(Refusal(Epoch(0), 0, error.message, error.hint))
            raise
        channel.admit()
        return message

    def _check_name(self, name: str) -> None:
        if name in self._matcher.nodes:
            raise PeerLost(f"another node called {name!r} has joined", NAME_HINT)
