"""A rendezvous: takes announcements, and passes each on to those who follow its topic.

It knows neither join codes nor what announcements say; it checks signatures, and keeps a bounded number.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from parallax_core.base.errors import PeerLost
from parallax_core.base.ids import name_machine
from parallax_core.cluster.membership.announcement import Announcement, Place, read_announcement
from parallax_core.cluster.membership.announcements import Announcements
from parallax_core.node.channel import Channel
from parallax_core.wire.rendezvous import Announced, Follow

logger = logging.getLogger(__name__)

MOST_LINKS = 1000
"""The most clients at a time."""
MOST_LINKS_OF_ONE = 16
"""The same of one machine."""
EACH_S = 0.01
"""The least seconds between two announcements that a link brings; further ones wait in the transport."""


@dataclass(slots=True, eq=False)
class Subscriber:
    """A client, and what it is still to be sent: of each place only the newest announcement."""

    channel: Channel
    topics: frozenset[bytes] = frozenset()
    waiting: dict[Place, Announcement] = field(default_factory=dict)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self, announcement: Announcement) -> None:
        """Send it an announcement, as soon as it takes it."""
        self.waiting[announcement.place] = announcement
        self.news.set()

    async def send(self) -> None:
        """Send what is waiting, until cancelled or the client is gone."""
        while True:
            await self.news.wait()
            self.news.clear()
            while self.waiting:
                announcement = self.waiting.pop(next(iter(self.waiting)))
                await self.channel.send(Announced(announcement.data))


class RendezvousServer:
    """Serves the clients of a rendezvous. Belongs to one event loop."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """Keep time by ``clock``, in seconds since 1970."""
        self._clock = clock
        self._announcements = Announcements()
        self._subscribers: set[Subscriber] = set()

    async def serve(self, channel: Channel) -> None:
        """Serve a client that has greeted, until it is gone.

        Raises:
            PeerLost: once it is gone, or sends what it may not.
        """
        machine = name_machine(channel.peer)
        machines = [name_machine(each.channel.peer) for each in self._subscribers]
        if len(machines) >= MOST_LINKS or machines.count(machine) >= MOST_LINKS_OF_ONE:
            await channel.leave()
            raise PeerLost(f"node {channel.peer!r} is one client of the rendezvous too many")
        subscriber = Subscriber(channel)
        self._subscribers.add(subscriber)
        sending = asyncio.create_task(subscriber.send())
        try:
            while True:
                await self._take(subscriber, machine)
        finally:
            self._subscribers.discard(subscriber)
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            await channel.leave()

    async def _take(self, subscriber: Subscriber, machine: str) -> None:
        message = await subscriber.channel.receive()
        if isinstance(message, Follow):
            subscriber.topics = frozenset(message.topics)
            for topic in message.topics:
                for each in self._announcements.list_current(topic, self._clock()):
                    subscriber.tell(each)
        elif isinstance(message, Announced):
            try:
                announcement = read_announcement(message.announcement)
            except ValueError as error:
                raise PeerLost(f"node {subscriber.channel.peer!r} sent an invalid announcement: {error}") from error
            if self._announcements.note(announcement, machine, self._clock()):
                self._pass_on(announcement)
            else:
                logger.debug("announcement is no news node=%s", subscriber.channel.peer)
        else:
            name = type(message).__name__
            raise PeerLost(f"node {subscriber.channel.peer!r} sent a {name}, which is unexpected at a rendezvous")
        await asyncio.sleep(EACH_S)

    def _pass_on(self, announcement: Announcement) -> None:
        for subscriber in self._subscribers:
            if announcement.body.topic in subscriber.topics:
                subscriber.tell(announcement)
