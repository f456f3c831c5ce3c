"""Serves the links that are made to a head for something else than joining it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from parallax_core.base.errors import PeerLost
from parallax_core.contracts.node_service import LinkPurpose
from parallax_core.node.channel import Channel

logger = logging.getLogger(__name__)


class ServedLinks:
    """The links of clients of nodes, of standbys, and of users of a rendezvous or of relays."""

    def __init__(self, has_joined: Callable[[str], bool]) -> None:
        """Serve nodes that have joined, as ``has_joined`` says by name, and whoever needs not."""
        self._has_joined = has_joined
        self.purposes: dict[str, LinkPurpose] = {}
        """How to serve links, by purpose; links of other purposes are refused."""
        self.running: set[asyncio.Future[None]] = set()
        """The links that are being served."""

    def open(self, channel: Channel, purpose: str) -> None:
        """Start to serve a link.

        Raises:
            PeerLost: if the node has not joined and would have to, or nobody serves such links.
        """
        if (found := self.purposes.get(purpose)) is not None and found.role is not None:
            channel.check_role(found.role)
        if found is None or (found.must_have_joined and not self._has_joined(channel.peer)):
            raise PeerLost(f"node {channel.peer!r} asked for a link that it may not have here")
        if found.admits:
            channel.admit()
        found.accept(channel)
        self.running.add(serving := asyncio.ensure_future(found.serve(channel)))
        serving.add_done_callback(self._note_end)

    def _note_end(self, serving: asyncio.Future[None]) -> None:
        self.running.discard(serving)
        if not serving.cancelled() and (error := serving.exception()) is not None and not isinstance(error, PeerLost):
            logger.error("connection of a joined machine's client ended", exc_info=error)
