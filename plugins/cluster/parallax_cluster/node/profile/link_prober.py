"""Measures the links of a joined node to its head and other nodes, one after another."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, field

from parallax_cluster.link_estimate import LinkEstimate
from parallax_cluster.node.profile.link_probe import probe_link
from parallax_cluster.wire.profile import LinkReport, Peer, Peers
from parallax_core.api import NodeRole, ParallaxError, Transport
from parallax_core.api.node import Channel, Path, Paths, greet

logger = logging.getLogger(__name__)

FIRST_S, AGAIN_S, NEXT_S = 0.1, 1.0, 5.0
"""Seconds between two measurements: while a link was not measured yet, while one has failed, and later."""
CONNECT_S = 5.0
"""Seconds to connect, and to be greeted."""
BANDWIDTH_EVERY = 30
"""Round trips per measurement of a link's bandwidth; the first one measures it, too."""
MOST_FAILURES = 3
"""Failures in a row after which a node counts as unreachable and its link's figures are forgotten."""
LEAST_BANDWIDTH, MOST_BANDWIDTH, MOST_ROUND_TRIP_S = 1e3, 1e15, 60.0
"""The bounds of `LinkReport`."""


@dataclass(slots=True)
class MeasuredLink:
    """A link, and what was measured of it."""

    peer: Peer
    role: NodeRole
    """The role of the node at the other end."""
    estimate: LinkEstimate = field(default_factory=LinkEstimate)
    num_failures: int = 0
    """Failures since the last success."""
    relay: str = ""
    """The relay over which the other node was reached; empty: directly."""

    @property
    def is_new(self) -> bool:
        """Whether it was not tried yet."""
        return not self.estimate.round_trips and not self.num_failures

    @property
    def is_doubtful(self) -> bool:
        """Whether it has failed, and may be tried soon again before the node counts as not reached."""
        return 0 < self.num_failures < MOST_FAILURES


class LinkProber:
    """Measures the links of this node; it never measures two at once. Belongs to one event loop."""

    def __init__(self, transport: Transport | Paths, node: str) -> None:
        """Measure as the node called ``node``, which connects by ``transport``, or by paths over relays."""
        self._transport = transport
        self._node = node
        self._links: dict[str, MeasuredLink] = {}
        """By node; the one that was measured last is last."""
        self.news = asyncio.Event()
        """Set when another node is no longer reached, or is again; whoever waits for it clears it."""

    @property
    def links(self) -> tuple[LinkReport, ...]:
        """The measured links, those with both a round trip and a bandwidth."""
        return tuple(
            LinkReport(
                name,
                min(link.estimate.round_trip_s, MOST_ROUND_TRIP_S),
                min(max(link.estimate.bandwidth, LEAST_BANDWIDTH), MOST_BANDWIDTH),
                link.relay,
            )
            for name, link in sorted(self._links.items())
            if link.estimate.round_trip_s is not None and link.estimate.bandwidth is not None
        )

    @property
    def unreached(self) -> tuple[str, ...]:
        """The other nodes that are not reached."""
        links = sorted(self._links.items())
        return tuple(name for name, link in links if link.role == "worker" and link.num_failures >= MOST_FAILURES)

    def note(self, node: str, *, is_reached: bool) -> None:
        """Note whether another node was reached just now, by whatever link."""
        if (link := self._links.get(node)) is not None:
            self._note(link, 0 if is_reached else max(MOST_FAILURES, link.num_failures))

    def meet(self, peers: Peers) -> None:
        """Measure the links to these nodes, besides that to the head, in place of those of an earlier call."""
        wanted = {peer.node: peer for peer in peers.peers if peer.is_measured}
        kept = {name: link for name, link in self._links.items() if link.role == "head" or name in wanted}
        added = {name: MeasuredLink(peer, "worker") for name, peer in wanted.items()}
        for name, link in kept.items():
            peer = wanted.get(name, link.peer)
            if peer.address != link.peer.address:  # it has come back elsewhere
                self._note(link, 0)
            link.peer = peer
        self._links = {**{name: link for name, link in added.items() if name not in kept}, **kept}

    def begin(self, head: Peer) -> None:
        """Measure the link to this head, and as yet to no other node; what was measured before is forgotten."""
        self._links = {head.node: MeasuredLink(head, "head")}

    async def run(self) -> None:
        """Measure the links to the head, and to the nodes that this one meets, until cancelled; call `begin` first."""
        while True:
            link = self._choose()
            name = link.peer.node
            await self._measure(link)
            if self._links.pop(name, None) is not None:
                self._links[name] = link
            following = self._choose()
            await asyncio.sleep(FIRST_S if following.is_new else AGAIN_S if following.is_doubtful else NEXT_S)

    def _choose(self) -> MeasuredLink:
        """Return the link to measure next: a new one, else a doubtful one, else the one measured the longest ago."""
        links = list(self._links.values())
        new = [link for link in links if link.is_new]
        return [*new, *(link for link in links if link.is_doubtful), *links][0]

    async def _measure(self, link: MeasuredLink) -> None:
        try:
            async with asyncio.timeout(CONNECT_S):
                path = await self._connect(link.peer)
            channel = Channel(path.link)
            try:
                channel.check_role(link.role)
                async with asyncio.timeout(CONNECT_S):
                    await greet(channel, self._node, "probe")
                is_large = link.estimate.needs_bandwidth(BANDWIDTH_EVERY)
                link.estimate = link.estimate.add(await probe_link(channel, with_bandwidth=is_large))
                link.relay = path.relay
                self._note(link, 0)
            finally:
                with suppress(TimeoutError):
                    await channel.leave()
        except (ParallaxError, TimeoutError) as error:
            self._note(link, link.num_failures + 1)
            logger.debug("link not measured node=%s: %s", link.peer.node, error)

    async def _connect(self, peer: Peer) -> Path:
        if isinstance(self._transport, Paths):
            return await self._transport.reach(peer.address, peer.node)
        return Path(await self._transport.connect(peer.address, peer.node))

    def _note(self, link: MeasuredLink, num_failures: int) -> None:
        """Note how often a link has failed in a row."""
        was_reached, is_reached = link.num_failures < MOST_FAILURES, num_failures < MOST_FAILURES
        link.num_failures = num_failures
        if was_reached and not is_reached:
            link.estimate, link.relay = LinkEstimate(), ""
        if was_reached != is_reached:
            self.news.set()
