"""The nodes that have joined a head, and wait to be given a stage."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

from parallax_core.base.errors import ParallaxError, PeerLost
from parallax_core.contracts.transport import Link, Transport
from parallax_core.node.channel import Channel
from parallax_core.node.greeting import welcome
from parallax_core.wire.membership import Join

logger = logging.getLogger(__name__)

GREETING_S = 10.0
"""How long who has connected may take to greet and to join."""


@dataclass(frozen=True, slots=True)
class Recruit:
    """A node that has joined."""

    channel: Channel
    join: Join

    @property
    def name(self) -> str:
        """The name of the node."""
        return self.channel.peer


class Muster:
    """Takes in the nodes that connect to a head, and hands them out to whoever needs them."""

    def __init__(self, transport: Transport, node: str) -> None:
        """Listen with ``transport``, as the node called ``node``."""
        self._transport = transport
        self._node = node
        self._waiting: dict[str, Recruit] = {}
        self._news = asyncio.Condition()
        self._taking: asyncio.Task[None] | None = None
        self._greetings: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        """Where nodes connect to, once this has started."""
        return self._transport.address

    @property
    def waiting(self) -> tuple[Recruit, ...]:
        """Those that have nothing to do, as far as is known; the longest there first."""
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
        tasks = [task for task in (self._taking, *self._greetings) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._transport.stop()

    async def find(self, is_wanted: Callable[[Recruit], bool]) -> Recruit:
        """Wait for a node that is wanted, and hand it out; of several, the one that joined first."""
        async with self._news:
            while True:
                for name, recruit in self._waiting.items():
                    if is_wanted(recruit):
                        return self._waiting.pop(name)
                await self._news.wait()

    def forget(self, name: str) -> None:
        """Wait no more with a node of that name: it is about to be replaced."""
        self._waiting.pop(name, None)

    async def give_back(self, recruit: Recruit) -> None:
        """Take back a node that is not needed any more."""
        async with self._news:
            self._waiting[recruit.name] = recruit
            self._news.notify_all()

    async def _take(self) -> None:
        with contextlib.suppress(PeerLost):  # the transport has stopped
            while True:
                task = asyncio.create_task(self._greet(await self._transport.accept()))
                self._greetings.add(task)
                task.add_done_callback(self._greetings.discard)

    async def _greet(self, link: Link) -> None:
        channel = Channel(link)
        try:
            async with asyncio.timeout(GREETING_S):
                hello = await welcome(channel, self._node)
                join = await channel.receive()
            if not isinstance(join, Join):
                raise PeerLost(f"node {link.peer!r} sent a {type(join).__name__} where it was to join")
        except (ParallaxError, TimeoutError) as error:
            reason = error.message if isinstance(error, ParallaxError) else "it did not join in time"
            logger.warning("node turned away node=%s: %s", link.peer, reason)
            await link.close()
            return
        logger.info("node joined node=%s host=%s pid=%d software=%s", link.peer, join.host, join.pid, hello.software)
        await self.give_back(Recruit(channel, join))
