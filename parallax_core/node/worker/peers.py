"""Makes the links between a stage and its neighbours."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from parallax_core.base.errors import PeerLost
from parallax_core.base.taskgroup import FailFastGroup
from parallax_core.node.channel import Channel
from parallax_core.node.handshake import answer_greeting, greet
from parallax_core.node.paths import Paths
from parallax_core.node.trusted_peers import TrustedPeers
from parallax_core.node.worker.incoming import IncomingLinks
from parallax_core.wire.membership import Hop
from parallax_core.wire.messages import Message

LINK_S = 20.0
"""Seconds neighbours may take to link to each other."""
INTRODUCED_S = 2.0
"""Seconds within which the head introduces this node to the next stage."""


@dataclass(slots=True)
class PeerLinks:
    """The links of a stage to its neighbours."""

    before: Channel | None = None
    """To the stage before; None: the head sends the steps."""
    after: Channel | None = None
    """To the next stage; None: this is the last."""
    address: str = ""
    """Where the next stage listens; empty for the last stage."""
    relay: str = ""
    """The relay over which the next stage is linked; empty: directly."""

    async def close(self) -> None:
        """Close the links. Idempotent."""
        channels = [channel for channel in (self.before, self.after) if channel is not None]
        await asyncio.gather(*(channel.leave() for channel in channels))


class PeerLinker:
    """Makes the links of a stage: it accepts one from the stage before, and connects to the next stage meanwhile."""

    def __init__(self, paths: Paths, node: str, incoming: IncomingLinks, trusted: TrustedPeers) -> None:
        """Link as the node called ``node``, which connects by ``paths``; other nodes' links are ``incoming``."""
        self._paths = paths
        self._node = node
        self._incoming = incoming
        self._trusted = trusted

    async def link(self, hop: Hop) -> PeerLinks:
        """Return the links that ``hop`` asks for; if it fails or is cancelled, no link is left open.

        Raises:
            PeerLost: if a neighbour cannot be reached, or does not connect in time; it names that one.
            ParallaxError: if the address of the next stage is invalid.
        """
        links = PeerLinks(address=hop.address)
        self._trusted.trust("neighbour", {hop.before: hop.before_key, hop.after: hop.after_key})
        try:
            async with asyncio.timeout(LINK_S), FailFastGroup() as group:
                group.start(self._await(hop.before, links))
                group.start(self._find(hop, links))
        except TimeoutError as error:
            await self._give_up(links)
            missing = hop.after if hop.after and links.after is None else hop.before
            message = f"its neighbours did not connect within {LINK_S:g} s"
            raise PeerLost(message, "look at their logs", peer=missing) from error
        except BaseException:
            await self._give_up(links)
            raise
        return links

    async def link_unless_told(self, head: Channel, hop: Hop) -> PeerLinks | Message:
        """Return the links, or the next message of the head if that arrives first; then no link is left open.

        Raises:
            PeerLost: if the head is gone, or as `link` does.
            ParallaxError: as `link` does.
        """
        linking = asyncio.create_task(self.link(hop))
        hearing = asyncio.create_task(head.receive())
        try:
            await asyncio.wait([linking, hearing], return_when=asyncio.FIRST_COMPLETED)
        finally:
            is_heard = hearing.done()
            for task in (linking, hearing):
                task.cancel()
            await asyncio.gather(linking, hearing, return_exceptions=True)
        if not is_heard:
            return linking.result()
        if not linking.cancelled() and linking.exception() is None:
            await self._give_up(linking.result())
        return hearing.result()

    async def _give_up(self, links: PeerLinks) -> None:
        self.forget()
        await links.close()

    def forget(self) -> None:
        """Trust the neighbours of the last stage no longer: their machines may have been removed."""
        self._trusted.trust("neighbour", {})

    async def _await(self, name: str, links: PeerLinks) -> None:
        while name:
            channel, hello = await self._incoming.take()
            if channel.peer == name:
                channel.check_role("worker")
                channel.admit()
                with contextlib.suppress(PeerLost):  # a link left from an earlier attempt
                    await answer_greeting(channel, hello, self._node)
                    links.before = channel
                    return
            await channel.leave()

    async def _find(self, hop: Hop, links: PeerLinks) -> None:
        if hop.after:
            try:
                path = await self._paths.reach_soon(hop.address, hop.after, INTRODUCED_S if hop.after_key else 0.0)
                after, links.relay = Channel(path.link), path.relay
                links.after = after
                after.check_role("worker")
                await greet(after, self._node)
            except PeerLost as error:
                error.peer = hop.after
                raise
