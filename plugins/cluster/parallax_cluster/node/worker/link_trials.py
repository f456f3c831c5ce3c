"""Tries links to other nodes when the head asks for that."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from parallax_cluster.node.profile.reporter import NodeReporter
from parallax_cluster.wire.profile import LinkTried, Peer, TryLink
from parallax_core.api import ParallaxError, PeerLost
from parallax_core.api.node import Channel, Paths, TrustedPeers, open_channel

TRY_S = 5.0
"""Seconds after which a node counts as not reached."""
INTRODUCED_S = 1.0
"""Seconds within which the head introduces this node to the other one."""
MOST_TRUSTED = 64
"""The most nodes whose keys are kept because they try links, or are tried; the newest ones."""
MOST_TRIALS = 64
"""The most links that are tried at the same time; more are not answered."""


class LinkTrials:
    """The links that a node tries, each once for each question of its head. Belongs to one event loop."""

    def __init__(self, paths: Paths, node: str, trusted: TrustedPeers, reporter: NodeReporter) -> None:
        """Connect by ``paths``, as the node called ``node``; ``trusted`` keeps the keys of the others.

        ``reporter`` is told whether they were reached.
        """
        self._paths = paths
        self._node = node
        self._trusted = trusted
        self._reporter = reporter
        self._keys: dict[str, bytes] = {}
        self._trials: set[asyncio.Task[None]] = set()

    def take(self, channel: Channel, message: TryLink) -> None:
        """Try a link, and tell the head at the other end of ``channel``; or know who will try it from its end."""
        peer = message.peer
        self._keys.pop(peer.node, None)
        self._keys[peer.node] = peer.key
        for name in list(self._keys)[:-MOST_TRUSTED]:
            del self._keys[name]
        self._trusted.trust("tried link", self._keys)
        if peer.is_measured and len(self._trials) < MOST_TRIALS:
            self._trials.add(trial := asyncio.create_task(self._try(channel, peer)))
            trial.add_done_callback(self._trials.discard)

    async def close(self) -> None:
        """Try no more. Idempotent."""
        for trial in self._trials:
            trial.cancel()
        await asyncio.gather(*self._trials, return_exceptions=True)

    async def _try(self, channel: Channel, peer: Peer) -> None:
        reason = ""
        try:
            async with asyncio.timeout(TRY_S):
                path = await self._paths.reach_soon(peer.address, peer.node, INTRODUCED_S if peer.key else 0.0)
                tried = await open_channel(path.link, self._node, "probe", "worker")
            await tried.leave()
        except ParallaxError as error:
            reason = error.message
        except TimeoutError:
            reason = f"node {peer.node!r} does not answer at {peer.address} within {TRY_S:g} s"
        self._reporter.note_link(peer.node, is_reached=not reason)
        with suppress(PeerLost):  # the head is gone
            await channel.send(LinkTried(peer.node, is_reached=not reason, reason=reason))
