"""A client of a rendezvous: announces, and hears what others with the same join code announce."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from nacl.signing import SigningKey

from parallax_cluster.membership.announcement import (
    LIFETIME_S,
    Announcement,
    Body,
    ClusterSecret,
    read_announcement,
)
from parallax_cluster.membership.announcements import MOST_ANNOUNCEMENTS, Announcements
from parallax_cluster.node.membership.skew_watch import SkewWatch
from parallax_cluster.wire.rendezvous import Announced, Follow
from parallax_core.api import HEAD, ParallaxError, PeerLost, Transport
from parallax_core.api.node import Channel, Message, greet
from parallax_core.wire.membership import Refusal

logger = logging.getLogger(__name__)

GREETING_S = 10.0
AGAIN_S = (0.5, 1.0, 2.0, 5.0)
"""Seconds before each attempt to reach a rendezvous again; the last value repeats."""
REPEAT_S = 5.0
"""Seconds between repetitions of an announcement."""


@dataclass(frozen=True, slots=True)
class RendezvousPlace:
    """Where a rendezvous is, as this machine reaches it."""

    transport: Transport
    """Started; stopped by the client."""
    address: str
    node: str
    """The name of this client."""


FindRendezvous = Callable[[], Awaitable[RendezvousPlace]]
"""Finds the rendezvous, and has it admit this machine; raises ParallaxError if that fails."""


class Announcer:
    """Signs what this process announces."""

    def __init__(self, key: SigningKey, number: int, clock: Callable[[], float] = time.time) -> None:
        """Sign with ``key``, as the process ``number``; ``clock`` returns the seconds since 1970."""
        self._key = key
        self._clock = clock
        self._last = 0
        self.number = number

    @property
    def signer(self) -> bytes:
        """The public key."""
        return bytes(self._key.verify_key)

    def announce(self, secret: ClusterSecret, topic: bytes, content: bytes) -> bytes:
        """Return an announcement that replaces all earlier ones of this process in the topic; empty: withdraws them."""
        now = self._clock()
        self._last = max(self._last + 1, int(now * 1000))
        expires = int(now + LIFETIME_S)
        return secret.announce(self._key, Body(topic, self.number, self._last, expires, content))


class RendezvousClient:
    """A link to one rendezvous, which is made again whenever it is lost. Belongs to one event loop."""

    def __init__(self, secret: ClusterSecret, announcer: Announcer, heard: Callable[[], None]) -> None:
        """Announce what ``announcer`` signs to holders of ``secret``; ``heard`` is called with news."""
        self.secret = secret
        self._announcer = announcer
        self._heard = heard
        self._topics: tuple[bytes, ...] = ()
        self._contents: dict[bytes, bytes] = {}
        """By topic: what is announced; empty: it is withdrawn."""
        self._known = Announcements(most_of_one=MOST_ANNOUNCEMENTS)
        self._changed = asyncio.Event()
        self._skew = SkewWatch()
        self.is_linked = False
        """Whether the rendezvous is there."""

    def follow(self, topics: Sequence[bytes]) -> None:
        """Hear the announcements of these topics."""
        self._topics = tuple(topics)
        self._changed.set()

    def announce(self, topic: bytes, content: bytes) -> None:
        """Announce in a topic, again and again; empty: announce nothing there any more."""
        if content or topic in self._contents:
            self._contents[topic] = content
            self._changed.set()

    def list_current(self, topic: bytes) -> Sequence[Announcement]:
        """Return what others with the secret announce in a topic that is followed."""
        return self._known.list_current(topic, time.time())

    async def run(self, reach: FindRendezvous) -> None:
        """Keep a link to the rendezvous that ``reach`` finds, until cancelled."""
        num_failures = 0
        while True:
            try:
                place = await reach()
                try:
                    num_failures = 0 if await self._serve(place) else num_failures
                finally:
                    self.is_linked = False
                    await place.transport.stop()
            except ParallaxError as error:
                reason = f"{error.message}; {error.hint}" if error.hint else error.message
                logger.warning("rendezvous is not there: %s", reason)
            await asyncio.sleep(AGAIN_S[min(num_failures, len(AGAIN_S) - 1)])
            num_failures += 1

    async def _serve(self, place: RendezvousPlace) -> bool:
        """Announce and hear over a link until it is lost; return whether it was of use."""
        channel = Channel(await place.transport.connect(place.address, HEAD))
        channel.learn([Announced])
        sending: asyncio.Task[None] | None = None
        try:
            channel.check_role("head")
            async with asyncio.timeout(GREETING_S):
                await greet(channel, place.node, "rendezvous")
            logger.info("rendezvous at %s", place.address)
            self.is_linked = True
            sending = asyncio.create_task(self._send(channel))
            while True:
                self._take(await channel.receive())
        except TimeoutError as error:
            raise PeerLost(f"the rendezvous at {place.address} did not greet in time") from error
        except PeerLost as error:
            if not self.is_linked:
                raise
            logger.warning("rendezvous is lost: %s", error.message)
            return True
        finally:
            if sending is not None:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
            await channel.leave()

    async def _send(self, channel: Channel) -> None:
        followed: tuple[bytes, ...] = ()
        while True:
            self._changed.clear()
            if self._topics != followed:
                followed = self._topics
                await channel.send(Follow(followed))
            for topic, content in list(self._contents.items()):
                await channel.send(Announced(self._announcer.announce(self.secret, topic, content)))
                if not content and not self._contents[topic]:
                    del self._contents[topic]
            with suppress(TimeoutError):
                async with asyncio.timeout(REPEAT_S):
                    await self._changed.wait()

    def _take(self, message: Message) -> None:
        if isinstance(message, Refusal):
            logger.warning("the rendezvous passes on nothing of this node: %s; %s", message.message, message.hint)
            return
        if not isinstance(message, Announced):
            raise PeerLost(f"the rendezvous sent a {type(message).__name__}, which is unexpected")
        try:
            announcement = read_announcement(message.announcement)
        except ValueError as error:
            raise PeerLost(f"the rendezvous sent an invalid announcement: {error}") from error
        if announcement.body.topic not in self._topics or not self.secret.has_made(announcement):
            return
        now = time.time()
        if self._known.note(announcement, "", now):
            self._heard()
        elif self._skew.is_shown_by(announcement, now):
            skew = announcement.describe_skew(now)
            logger.warning("a node is not found: its clock is %s that of this machine; set both: is NTP on?", skew)
