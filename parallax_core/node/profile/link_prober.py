"""Measures the links of a node to its head and to other nodes, one after another, for as long as it is joined."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, field

from parallax_core.base.errors import ParallaxError
from parallax_core.cluster.link_estimate import LinkEstimate
from parallax_core.contracts.transport import NodeRole, Transport
from parallax_core.node.channel import Channel
from parallax_core.node.handshake import greet
from parallax_core.node.profile.link_probe import probe_link
from parallax_core.node.relay.paths import RelayPaths
from parallax_core.wire.profile import LinkReport, Peer, Peers

logger = logging.getLogger(__name__)

FIRST_S, NEXT_S = 0.1, 5.0
"""Seconds between two measurements: while a link was not measured yet, and later."""
CONNECT_S = 10.0
"""Seconds to connect, and to be greeted."""
BANDWIDTH_EVERY = 30
"""The bandwidth of a link is measured the first time, and then with each of so many round trips."""
MOST_FAILURES = 3
"""Failures in a row after which what was measured of a link is forgotten."""
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


class LinkProber:
    """Measures the links of this node; it never measures two at once. Belongs to one event loop."""

    def __init__(self, transport: Transport | RelayPaths, node: str) -> None:
        """Measure as the node called ``node``, which connects by ``transport``, or by paths over relays."""
        self._transport = transport
        self._node = node
        self._links: dict[str, MeasuredLink] = {}
        """By node; the one that was measured last is last."""

    @property
    def links(self) -> tuple[LinkReport, ...]:
        """What was measured, for each link whose round trip and bandwidth are known."""
        return tuple(
            LinkReport(
                name,
                min(link.estimate.round_trip_s, MOST_ROUND_TRIP_S),
                min(max(link.estimate.bandwidth, LEAST_BANDWIDTH), MOST_BANDWIDTH),
            )
            for name, link in sorted(self._links.items())
            if link.estimate.round_trip_s is not None and link.estimate.bandwidth is not None
        )

    def meet(self, peers: Peers) -> None:
        """Measure the links to these nodes, besides that to the head, in place of those of an earlier call."""
        wanted = {peer.node: peer for peer in peers.peers if peer.is_measured}
        kept = {name: link for name, link in self._links.items() if link.role == "head" or name in wanted}
        added = {name: MeasuredLink(peer, "worker") for name, peer in wanted.items()}
        for name, link in kept.items():
            link.peer = wanted.get(name, link.peer)
        self._links = {**{name: link for name, link in added.items() if name not in kept}, **kept}

    def begin(self, head: Peer) -> None:
        """Measure the link to this head, and as yet to no other node; what was measured before is forgotten."""
        self._links = {head.node: MeasuredLink(head, "head")}

    async def run(self) -> None:
        """Measure the links to the head, and to the nodes that this one meets, until cancelled; call `begin` first."""
        while True:
            link = next(iter(self._links.values()))
            name = link.peer.node
            await self._measure(link)
            if self._links.pop(name, None) is not None:
                self._links[name] = link
            is_new = any(not each.estimate.round_trips and not each.num_failures for each in self._links.values())
            await asyncio.sleep(FIRST_S if is_new else NEXT_S)

    async def _measure(self, link: MeasuredLink) -> None:
        try:
            async with asyncio.timeout(CONNECT_S):
                channel = Channel(await self._transport.connect(link.peer.address, link.peer.node))
            try:
                channel.check_role(link.role)
                async with asyncio.timeout(CONNECT_S):
                    await greet(channel, self._node, "probe")
                is_large = link.estimate.needs_bandwidth(BANDWIDTH_EVERY)
                link.estimate = link.estimate.add(await probe_link(channel, with_bandwidth=is_large))
                link.num_failures = 0
            finally:
                with suppress(TimeoutError):
                    await channel.leave()
        except (ParallaxError, TimeoutError) as error:
            link.num_failures += 1
            if link.num_failures == MOST_FAILURES:
                link.estimate = LinkEstimate()
            logger.debug("link not measured node=%s: %s", link.peer.node, error)
