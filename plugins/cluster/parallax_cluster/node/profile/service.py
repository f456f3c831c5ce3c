"""The service by which a node tells its head of its device and its links, and tries links for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial

from parallax_cluster.node.profile.link_probe import answer_probes
from parallax_cluster.node.profile.reporter import NodeReporter
from parallax_cluster.node.worker.link_trials import LinkTrials
from parallax_cluster.wire.profile import Peers, TryLink
from parallax_core.api import JoinedPeer, LinkPurpose, Takers
from parallax_core.api.node import Channel, TrustedPeers
from parallax_core.node.worker.node_services import WorkerService

PURPOSES = {"probe": LinkPurpose(serve=answer_probes, admits=True, must_have_joined=False)}
"""How to serve links that are measured."""


class ProfileService(WorkerService):
    """Reports the device and the disk of a node to its head, and measures links."""

    def __init__(self, reporter: NodeReporter, trials: LinkTrials, trusted: TrustedPeers) -> None:
        """Report with ``reporter``, and try links with ``trials``; ``trusted`` keeps the keys of the others."""
        self._reporter = reporter
        self._trials = trials
        self._trusted = trusted

    @property
    def purposes(self) -> Mapping[str, LinkPurpose]:
        """How to serve links that are measured."""
        return PURPOSES

    @asynccontextmanager
    async def joined(self, peer: JoinedPeer) -> AsyncIterator[Takers]:
        """Report to the head, and measure and try links as it asks."""
        channel = peer.channel
        assert isinstance(channel, Channel), "a session has no other"
        try:
            async with self._reporter.reporting(channel, peer.address):
                yield {Peers: self._meet, TryLink: partial(self._trials.take, channel)}
        finally:
            await self._trials.close()

    async def pause(self) -> None:
        """Measure no more until `resume`."""
        await self._reporter.pause()

    def resume(self) -> None:
        """Measure if that is still to be done."""
        self._reporter.resume()

    def note_unreached(self, node: str) -> None:
        """Report that a node was not reached."""
        self._reporter.note_link(node, is_reached=False)

    def _meet(self, peers: Peers) -> None:
        self._trusted.trust("peer", {peer.node: peer.key for peer in peers.peers})
        self._reporter.meet(peers)
