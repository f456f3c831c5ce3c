"""A rendezvous: takes announcements, and passes each on to those who follow its topic.

It knows neither join codes nor what announcements say; it checks signatures, and keeps a bounded number.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from parallax_cluster.membership.announcement import SKEW_S, Announcement, Place, read_announcement
from parallax_cluster.membership.announcements import Announcements
from parallax_cluster.wire.rendezvous import Announced, Follow
from parallax_core.api import PeerLost, name_machine
from parallax_core.api.node import Channel, Epoch, Message
from parallax_core.wire.membership import Refusal

logger = logging.getLogger(__name__)

MOST_LINKS = 1000
"""The most clients at a time."""
MOST_LINKS_OF_ONE = 16
"""The same of one machine."""
EACH_S = 0.01
"""The least seconds between two messages that a machine brings, over all its links; more wait in the transport."""
TELL_S = 0.0005
"""Further seconds for each announcement that a machine asks to be sent."""
SKEW_HINT = f"set both clocks, which may differ by {SKEW_S:g} s: is NTP on?"


@dataclass(slots=True, eq=False)
class Subscriber:
    """A client, and what it is still to be sent: of each place only the newest announcement."""

    channel: Channel
    turns: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a message is taken; shared by the links of a machine."""
    topics: frozenset[bytes] = frozenset()
    waiting: dict[Place, Announcement] = field(default_factory=dict)
    refusal: Refusal | None = None
    """What it is still to be told of its own announcements."""
    is_told: bool = False
    """Whether it was told."""
    news: asyncio.Event = field(default_factory=asyncio.Event)
    _purge_at: int = 64
    """With how many waiting announcements it forgets those that have expired."""

    @property
    def machine(self) -> str:
        """The machine of the client."""
        return name_machine(self.channel.peer)

    def tell(self, announcement: Announcement, now: float) -> None:
        """Send it an announcement, as soon as it takes it, if that is before it expires; ``now``: since 1970."""
        self.waiting[announcement.place] = announcement
        if len(self.waiting) >= self._purge_at:
            self.waiting = {place: each for place, each in self.waiting.items() if each.is_current(now)}
            self._purge_at = max(64, 2 * len(self.waiting))
        self.news.set()

    def refuse(self, reason: str, hint: str) -> None:
        """Tell it, once, why its announcements are not passed on."""
        if not self.is_told:
            self.is_told, self.refusal = True, Refusal(Epoch(0), 0, reason, hint)
            logger.warning("announcements are not passed on node=%s: %s; %s", self.channel.peer, reason, hint)
            self.news.set()

    async def send(self) -> None:
        """Send what is waiting, until cancelled or the client is gone."""
        while True:
            await self.news.wait()
            self.news.clear()
            if self.refusal is not None:
                refusal, self.refusal = self.refusal, None
                await self.channel.send(refusal)
            while self.waiting:
                announcement = self.waiting.pop(next(iter(self.waiting)))
                await self.channel.send(Announced(announcement.data))
                await asyncio.sleep(0)  # sending need not wait for anything


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
        channel.learn([Follow, Announced])
        machine = name_machine(channel.peer)
        others = [each for each in self._subscribers if each.machine == machine]
        if len(self._subscribers) >= MOST_LINKS or len(others) >= MOST_LINKS_OF_ONE:
            await channel.leave()
            raise PeerLost(f"node {channel.peer!r} is one client of the rendezvous too many")
        subscriber = Subscriber(channel, others[0].turns if others else asyncio.Lock())
        self._subscribers.add(subscriber)
        sending = asyncio.create_task(subscriber.send())
        try:
            while True:
                message = await channel.receive()
                async with subscriber.turns:
                    num_told = self._take(subscriber, message)
                    await asyncio.sleep(EACH_S + num_told * TELL_S)
        finally:
            self._subscribers.discard(subscriber)
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            await channel.leave()

    def _take(self, subscriber: Subscriber, message: Message) -> int:
        """Do what a client asks, and return how many announcements it is sent for that."""
        match message:
            case Follow(topics):
                return self._follow(subscriber, frozenset(topics))
            case Announced(data):
                self._note(subscriber, data)
                return 0
        name = type(message).__name__
        raise PeerLost(f"node {subscriber.channel.peer!r} sent a {name}, which is unexpected at a rendezvous")

    def _follow(self, subscriber: Subscriber, topics: frozenset[bytes]) -> int:
        now = self._clock()
        new = [each for topic in topics - subscriber.topics for each in self._announcements.list_current(topic, now)]
        subscriber.topics = topics
        for each in new:
            subscriber.tell(each, now)
        return len(new)

    def _note(self, subscriber: Subscriber, data: bytes) -> None:
        now = self._clock()
        try:
            announcement = read_announcement(data)
        except ValueError as error:
            raise PeerLost(f"node {subscriber.channel.peer!r} sent an invalid announcement: {error}") from error
        if not announcement.is_current(now):
            reason = f"its clock is {announcement.describe_skew(now)} that of the rendezvous"
            subscriber.refuse(reason, SKEW_HINT)
            return
        if not self._announcements.note(announcement, subscriber.machine, now):
            logger.debug("announcement is no news node=%s", subscriber.channel.peer)
            return
        for each in self._subscribers:
            if announcement.body.topic in each.topics:
                each.tell(announcement, now)
