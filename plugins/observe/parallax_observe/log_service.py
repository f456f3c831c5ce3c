"""Tells a head the log of its nodes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from parallax_core.api import JoinedPeer, NodeService, PeerLost, ServiceContext, Takers
from parallax_observe.log_messages import MOST_LINES, MOST_TEXT, NodeLine, NodeLines
from parallax_observe.log_store import STORE, LogHandler, LogLine, LogStore

EVERY_S = 0.5
"""Seconds between two messages: a node that logs more than `MOST_LINES` lines meanwhile loses the oldest."""


class LogSender(NodeService):
    """Tells each head that the node joins the latest lines of its log, and then new ones."""

    def __init__(self, store: LogStore, every_s: float = EVERY_S) -> None:
        """Send what ``store`` has, at most one message in ``every_s`` seconds."""
        self._store, self._every_s = store, every_s
        self._handler = LogHandler(store)
        logging.getLogger().addHandler(self._handler)

    @asynccontextmanager
    async def joined(self, peer: JoinedPeer) -> AsyncIterator[Takers]:
        """Send while the node has joined."""
        sending = asyncio.create_task(self._send(peer))
        try:
            yield {}
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def close(self) -> None:
        """Keep no more lines."""
        logging.getLogger().removeHandler(self._handler)

    async def _send(self, peer: JoinedPeer) -> None:
        sent = 0
        with contextlib.suppress(PeerLost):
            while True:
                if lines := self._store.list(MOST_LINES, sent, ""):
                    sent = lines[-1].number
                    await peer.channel.send(NodeLines(tuple(map(_pack, lines))))
                await asyncio.sleep(self._every_s)


class LogTaker(NodeService):
    """Keeps the lines that nodes send."""

    def __init__(self, store: LogStore) -> None:
        """Keep them in ``store``."""
        self._store = store

    @asynccontextmanager
    async def joined(self, peer: JoinedPeer) -> AsyncIterator[Takers]:
        """Take the lines of a node."""
        yield {NodeLines: partial(self._take, peer.name)}

    def _take(self, node: str, message: NodeLines) -> None:
        self._store.add((LogLine(each.time, each.level, each.logger, each.text) for each in message.lines), node)


def make_sender(context: ServiceContext) -> NodeService:
    """Return the service of a node."""
    del context
    return LogSender(LogStore())


def make_taker(context: ServiceContext) -> NodeService:
    """Return the service of a head."""
    del context
    return LogTaker(STORE)


def _pack(line: LogLine) -> NodeLine:
    """Return a line as it is sent: the end of a long one, where a traceback has its error."""
    text = line.text if len(line.text) <= MOST_TEXT else f"…{line.text[1 - MOST_TEXT :]}"
    return NodeLine(line.time, line.level[:16], line.logger[:64], text)
