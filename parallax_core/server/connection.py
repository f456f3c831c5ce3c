"""The server's side of a connection, before there is a request."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


class Connection(H11Protocol):
    """uvicorn's protocol, closing connections on which no request arrives.

    uvicorn waits for the first line and the headers for ever; a client that opens many connections and sends nothing
    would use up the server's.
    """

    limit_s = 30.0

    def connection_made(self, transport: Any) -> None:  # noqa: ANN401 -- uvicorn's own types differ between versions
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._patience = self.loop.call_later(self.limit_s, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._patience.cancel()
        super().connection_lost(exc)

    def _give_up(self) -> None:
        if getattr(self, "cycle", None) is None:  # uvicorn sets it with the first request
            self.transport.close()


def make_protocol(limit_s: float) -> type[asyncio.Protocol]:
    """Return the protocol with a limit of its own, in seconds."""
    return type("LimitedConnection", (Connection,), {"limit_s": limit_s})
