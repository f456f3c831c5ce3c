"""Accepts links to a node: from the stage before, measuring nodes, and users of its relay."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress

from parallax_core.base.errors import ParallaxError, PeerLost
from parallax_core.base.ids import name_machine
from parallax_core.contracts.node_service import LinkPurpose
from parallax_core.contracts.transport import Link, Transport
from parallax_core.node.channel import STRANGERS, Channel
from parallax_core.node.handshake import answer_greeting, hear_greeting
from parallax_core.wire.messages import Hello

GREETING_S = 10.0
"""Seconds a node may take to greet."""
MOST_LINKS, MOST_OF_ONE = 16, 4
"""The most links that greet or measure at the same time, and that wait for this node to need them; more are closed. The
same of one machine, which cannot take the places of others."""

logger = logging.getLogger(__name__)

Greeted = tuple[Channel, Hello]
"""A link, and the greeting of its node, which is not answered yet."""


class IncomingLinks:
    """Accepts links, answers those that measure, and keeps the others for the stage that is to be linked."""

    def __init__(self, transport: Transport, node: str, purposes: Mapping[str, LinkPurpose]) -> None:
        """Accept as the node called ``node``; ``transport`` has started and listens."""
        self._transport = transport
        self._node = node
        self._kept: dict[str, Greeted] = {}
        """The newest link of each node."""
        self._news = asyncio.Event()
        self._greeting: dict[asyncio.Task[None], str] = {}
        """The links that greet or measure, each with the machine of its node."""
        self._leaving: set[asyncio.Task[None]] = set()
        """The links of too many nodes that connect at once."""
        self._serving: set[asyncio.Task[None]] = set()
        """The links of purposes that limit their number themselves."""
        self._purposes = purposes

    @property
    def waiting(self) -> list[str]:
        """The nodes whose links wait to be taken, the oldest first."""
        return list(self._kept)

    @asynccontextmanager
    async def accepting(self) -> AsyncIterator[None]:
        """Accept links until the end of the context."""
        task = asyncio.create_task(self._accept())
        try:
            yield
        finally:
            tasks = [task, *self._greeting, *self._leaving, *self._serving]
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.gather(*(channel.leave() for channel, _ in self._kept.values()))
            self._kept.clear()

    async def take(self) -> Greeted:
        """Wait for the next link that does not measure, the oldest first."""
        while not self._kept:
            self._news.clear()
            await self._news.wait()
        return self._kept.pop(next(iter(self._kept)))

    async def _accept(self) -> None:
        with suppress(PeerLost):  # the transport has stopped
            while True:
                link = await self._transport.accept()
                machine, machines = name_machine(link.peer), list(self._greeting.values())
                if len(machines) >= MOST_LINKS or machines.count(machine) >= MOST_OF_ONE:
                    task = asyncio.create_task(Channel(link).leave())
                    self._leaving.add(task)
                    task.add_done_callback(self._leaving.discard)
                    continue
                task = asyncio.create_task(self._greet(link))
                self._greeting[task] = machine
                task.add_done_callback(self._greeting.pop)

    async def _greet(self, link: Link) -> None:
        channel = Channel(link, STRANGERS)
        try:
            async with asyncio.timeout(GREETING_S):
                hello = await hear_greeting(channel, self._node)
            if hello.purpose:
                await self._serve(channel, hello)
                return
        except (ParallaxError, TimeoutError):
            await channel.leave()
            return
        await self._keep(channel, hello)

    async def _serve(self, channel: Channel, hello: Hello) -> None:
        """Serve a link of a purpose.

        Raises:
            PeerLost: if no service serves such links, or the node may not have one.
        """
        if (purpose := self._purposes.get(hello.purpose)) is None:
            raise PeerLost(f"node {channel.peer!r} asked a worker for a link it does not serve: {hello.purpose}")
        if purpose.role is not None:
            channel.check_role(purpose.role)
        if purpose.admits:
            channel.admit()
        purpose.accept(channel)
        await answer_greeting(channel, hello, self._node)
        if not purpose.limits_itself:
            await purpose.serve(channel)
            return
        self._serving.add(task := asyncio.create_task(_log_end(channel, purpose)))
        task.add_done_callback(self._serving.discard)

    async def _keep(self, channel: Channel, hello: Hello) -> None:
        """Keep a link in place of an earlier one of its node, or of one that is too many."""
        surplus = self._kept.pop(channel.peer, None)
        if surplus is None and (name := self._find_surplus(name_machine(channel.peer))) is not None:
            surplus = self._kept.pop(name)
        self._kept[channel.peer] = (channel, hello)
        self._news.set()
        if surplus is not None:
            await surplus[0].leave()

    def _find_surplus(self, machine: str) -> str | None:
        """Return the node whose link to close for one more of a machine: its oldest, or the most linked machine's."""
        nums = Counter(map(name_machine, self._kept))
        if nums[machine] < MOST_OF_ONE:
            if len(self._kept) < MOST_LINKS:
                return None
            [(machine, _)] = nums.most_common(1)
        return next(node for node in self._kept if name_machine(node) == machine)


async def _log_end(channel: Channel, purpose: LinkPurpose) -> None:
    try:
        await purpose.serve(channel)
    except PeerLost as error:
        logger.debug("link has ended node=%s: %s", channel.peer, error)
