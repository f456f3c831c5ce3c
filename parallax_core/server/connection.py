"""Ends HTTP connections that stall, and answers input that is not HTTP."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from parallax_core.server.error_body import error_body

TAKING = "takes what it is sent"
LOOKS = 4
"""The number of checks of a connection during its time limit."""
FAREWELL_S = 0.3
"""Seconds a client has to read the rest of its answer when the server stops."""
PROBES = 3
"""The number of unanswered keep-alive probes after which a client counts as gone."""
LEAST_BYTES_S = 256
"""Bytes per second below which a client that has unread data counts as stalled."""
QUIET_S = 2.0
"""Seconds of silence after which the rest of an unread body is no longer awaited."""
MOST_DISCARDED = 64 * 2**20
"""The bytes of such a rest that are read and dropped."""
MOST_SILENT = 1024
"""The usual bound of connections that have sent no request yet; of more, the oldest are ended."""


class CountedTransport:
    """Wraps a transport: counts the bytes written to it, and may close it later than it is told to."""

    def __init__(self, transport: Any, delays_close: Callable[[], bool]) -> None:  # noqa: ANN401 -- of many types
        self._transport = transport
        self._num_written = 0
        self._delays_close = delays_close
        self._is_closing = False

    @property
    def num_taken(self) -> int:
        """Bytes that were passed to the kernel."""
        return self._num_written - int(self._transport.get_write_buffer_size())

    def write(self, data: bytes) -> None:
        """Write data and count its bytes."""
        self._num_written += len(data)
        self._transport.write(data)

    def close(self) -> None:
        """Close the transport, unless its protocol will do that later."""
        self._is_closing = True
        if not self._delays_close():
            self._transport.close()

    def is_closing(self) -> bool:
        """Return whether it has been told to close."""
        return self._is_closing or bool(self._transport.is_closing())

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 -- whatever the transport has
        return getattr(self._transport, name)


class SilentConnections:
    """The connections that have sent no request yet, up to a limit.

    Each is an open file, and a server without free files can accept no client and no machine.
    """

    def __init__(self, most: int) -> None:
        """Keep at most ``most``."""
        self._most = most
        self._known: dict[Connection, None] = {}

    def add(self, connection: Connection) -> None:
        """Note a new connection, and end the oldest if there are too many."""
        self._known[connection] = None
        if len(self._known) > self._most:
            oldest = next(iter(self._known))
            self.remove(oldest)
            oldest.transport.abort()

    def remove(self, connection: Connection) -> None:
        """Note that a connection has sent a request, or has ended."""
        self._known.pop(connection, None)


class Connection(H11Protocol):
    """uvicorn's protocol, which also ends stalled connections and answers invalid HTTP with an error body.

    uvicorn alone waits for ever for the head of a request, for the rest of an unneeded body, and for a client to read
    its answer; many stalled clients would use up the server's connections. This protocol aborts a connection after
    ``limit_s`` seconds without progress, or up to a quarter more, and also one whose client reads its answer too
    slowly. (`ReadTimeout` limits the time for a body that a route reads.)

    A client may be answered while it still sends its body, because of its head or size. If the connection were closed
    then, the kernel would reset it, and most clients would never read the answer. So the rest of the body is read and
    dropped first, within bounds.
    """

    limit_s = 30.0
    silent = SilentConnections(MOST_SILENT)

    def connection_made(self, transport: Any) -> None:  # noqa: ANN401 -- uvicorn's own types differ between versions
        """Start to watch the connection."""
        super().connection_made(transport)
        self._counted = CountedTransport(transport, self._begin_to_discard)
        self._discarding: asyncio.TimerHandle | None = None
        self._num_unread = 0
        self.transport = cast("Any", self._counted)  # uvicorn writes to it from now on
        self._taken = 0
        _guard_socket(transport.get_extra_info("socket"), self.limit_s)
        self._stall, self._since = self._find_stall(), self.loop.time()
        self._watch = self.loop.call_later(self.limit_s / LOOKS, self._look)
        self.silent.add(self)

    def data_received(self, data: bytes) -> None:
        """Read what a client sends."""
        self._num_unread = self._num_unread + len(data) if self._is_unread() else 0
        if self._num_unread > MOST_DISCARDED:
            self.transport.abort()
            return
        if self._discarding is not None:
            self._await_more()
            return
        super().data_received(data)
        if getattr(self, "cycle", None) is not None:
            self.silent.remove(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop watching the connection."""
        self._watch.cancel()
        if self._discarding is not None:
            self._discarding.cancel()
        self.silent.remove(self)
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Shut the connection down, and abort it if the client does not read the rest."""
        super().shutdown()
        self.loop.call_later(FAREWELL_S, self.transport.abort)

    def send_400_response(self, msg: str) -> None:
        """Answer invalid HTTP with a 400; if another answer is being sent, only end the connection."""
        cycle = getattr(self, "cycle", None)  # uvicorn sets it with the first request
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            body = json.dumps(error_body(400, msg)).encode()
            size = str(len(body)).encode()
            headers = [(b"content-type", b"application/json"), (b"content-length", size), (b"connection", b"close")]
            head = self.conn.send(h11.Response(status_code=400, headers=headers, reason=b"Bad Request"))
            self.transport.write((head or b"") + body)
        self.transport.close()

    def _is_unread(self) -> bool:
        """Return whether the client sends a body whose request has been answered."""
        cycle = getattr(self, "cycle", None)
        return self.conn.their_state is h11.SEND_BODY and cycle is not None and cycle.response_complete

    def _begin_to_discard(self) -> bool:
        """Begin to discard data that the client still sends unread; return whether there may be any."""
        if self._discarding is not None or not (self._is_unread() or self.conn.their_state is h11.ERROR):
            return False
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self._discard_until = self.loop.time() + self.limit_s
        self._await_more()
        return True

    def _await_more(self) -> None:
        if self._discarding is not None:
            self._discarding.cancel()
        end = min(self.loop.time() + QUIET_S, self._discard_until)
        self._discarding = self.loop.call_at(end, self.transport.abort)

    def _look(self) -> None:
        stall, now = self._find_stall(), self.loop.time()
        is_slow = self._counted.num_taken - self._taken < LEAST_BYTES_S * self.limit_s
        if stall is None or stall != self._stall or (stall[0] == TAKING and not is_slow):
            self._stall, self._since, self._taken = stall, now, self._counted.num_taken
        elif now - self._since >= self.limit_s * 0.99:  # timers may be early by a little
            self.transport.abort()
            return
        self._watch = self.loop.call_later(self.limit_s / LOOKS, self._look)

    def _find_stall(self) -> tuple[str, int] | None:
        """Return the action of the client that the connection waits for; None if it waits for none."""
        if self.transport.get_write_buffer_size():
            return TAKING, 0
        if self.conn.our_state is h11.IDLE and self.timeout_keep_alive_task is None:
            return "sends the head of a request", id(self.cycle)
        if self.conn.our_state is h11.DONE and self.conn.their_state is h11.SEND_BODY:
            return "sends the rest of a body", id(self.cycle)
        return None


def make_protocol(limit_s: float, most_silent: int = MOST_SILENT) -> type[asyncio.Protocol]:
    """Return the protocol class with ``limit_s`` as its time limit, in seconds, and a bound of silent connections."""
    return type("LimitedConnection", (Connection,), {"limit_s": limit_s, "silent": SilentConnections(most_silent)})


def _guard_socket(sock: socket.socket, limit_s: float) -> None:
    """Make the kernel detect clients that are gone without closing, as far as it can.

    It probes a silent client, and gives up when sent data is not acknowledged. (RFC 1122, section 4.2.3.6; RFC 5482.)
    """
    if sock.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    pause = max(1, round(limit_s / PROBES))
    options = {
        "TCP_KEEPIDLE": max(1, round(limit_s)),
        "TCP_KEEPALIVE": max(1, round(limit_s)),  # the same on macOS
        "TCP_KEEPINTVL": pause,
        "TCP_KEEPCNT": PROBES,
        "TCP_USER_TIMEOUT": max(1, round(limit_s * 1000)),
    }
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in options.items():
        if (option := getattr(socket, name, None)) is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
