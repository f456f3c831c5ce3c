"""Tells machines their address as seen here: a STUN server (RFC 8489) at two UDP and TCP ports.

It keeps no state but connections that have not asked yet, sends no more than it was sent, and answers the sender only.
All is done by a thread of its own that does a bounded number of things in a second; the kernel drops what is more.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from parallax_cluster.wire.stun import MOST_BYTES, answer_request
from parallax_core.api import ParallaxError
from parallax_core.api.deployment import STUN_PORT

MOST_PER_SECOND = 200
"""Datagrams and connections, together, that are taken in a second."""
MOST_CONNECTED = 32
"""Connections that have not asked yet; more are closed at once."""
CONNECTION_S = 2.0
"""Seconds in which a connection has to ask."""
BACKLOG = 64


@contextmanager
def answering(host: str, port: int = STUN_PORT) -> Iterator[None]:
    """Answer at ``port`` and the next one of an IP address of this machine until the end of the context.

    Several processes of a user may share the ports; any of them answers. With ``::``, IPv4 is answered too.

    Raises:
        ParallaxError: if a port is not free.
    """
    with ExitStack() as stack:
        try:
            udp = [stack.enter_context(bind(socket.SOCK_DGRAM, host, port + number)) for number in range(2)]
            tcp = [stack.enter_context(bind(socket.SOCK_STREAM, host, port + number)) for number in range(2)]
        except (OSError, OverflowError) as error:
            message = f"ports {port} and {port + 1} of {host} cannot be used to tell machines their address: {error}"
            raise ParallaxError(message, "choose others: --set stun_port=PORT; 0 turns it off") from error
        stack.enter_context(contextlib.closing(Responder(udp, tcp)))
        yield


def bind(kind: socket.SocketKind, host: str, port: int) -> socket.socket:
    """Return a socket at a port that other processes of this user may share; of a stream, one that listens.

    Raises:
        OSError: if the port is not free.
        OverflowError: if there is no such port.
    """
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, kind)
    try:
        sock.settimeout(0.0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if ":" in host:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        if kind == socket.SOCK_STREAM:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        if kind == socket.SOCK_STREAM:
            sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


class Responder:
    """A thread that answers at two UDP sockets, each for the other if a request asks for that, and at TCP sockets."""

    def __init__(self, udp: Sequence[socket.socket], tcp: Sequence[socket.socket]) -> None:
        """Answer until closed; the sockets do not block, and are closed by the caller."""
        self._udp = udp
        self._connected: dict[socket.socket, float] = {}
        """Connections that have not asked yet, oldest first, and until when they may."""
        self._pace = Pace()
        self._wake, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        for work, socks in ((self._answer_datagram, udp), (self._accept, tcp)):
            for sock in socks:
                self._selector.register(sock, selectors.EVENT_READ, work)
        self._thread = threading.Thread(target=self._run, name="stun", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, and close all connections."""
        self._wake.send(b"\0")
        self._thread.join()
        self._selector.close()
        for sock in (*self._connected, self._wake, self._woken):
            sock.close()

    def _run(self) -> None:
        while True:
            ready = self._selector.select(CONNECTION_S if self._connected else None)
            for key, _ in ready:
                if key.data is None:
                    return
                with contextlib.suppress(OSError):  # gone meanwhile, a full buffer, or of an earlier datagram
                    key.data(key.fileobj)
            self._drop_late()
            if self._pace.is_spent:
                time.sleep(self._pace.left_s)

    def _answer_datagram(self, sock: socket.socket) -> None:
        self._pace.count()
        data, place = sock.recvfrom(MOST_BYTES + 1)
        if (found := answer_request(data, place[:2])) is not None:
            answer, request = found
            other = next(each for each in self._udp if each is not sock)
            (other if request.changes_port else sock).sendto(answer, place)

    def _accept(self, listener: socket.socket) -> None:
        self._pace.count()  # also if it fails: a machine without free files stays ready
        sock, _ = listener.accept()
        if len(self._connected) >= MOST_CONNECTED:
            sock.close()
            return
        sock.settimeout(0.0)
        self._connected[sock] = time.monotonic() + CONNECTION_S
        self._selector.register(sock, selectors.EVENT_READ, self._answer_connection)

    def _answer_connection(self, sock: socket.socket) -> None:
        """Answer a connection, whose request is in one segment, and close it."""
        try:
            if (found := answer_request(sock.recv(MOST_BYTES + 1), sock.getpeername()[:2])) is not None:
                sock.send(found[0])
        finally:
            self._drop(sock)

    def _drop_late(self) -> None:
        now = time.monotonic()
        for sock in [sock for sock, until in self._connected.items() if until <= now]:
            self._drop(sock)

    def _drop(self, sock: socket.socket) -> None:
        del self._connected[sock]
        self._selector.unregister(sock)
        sock.close()


class Pace:
    """Counts what happens in a second."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._second, self._count = 0, 0

    def count(self) -> None:
        """Note one more."""
        if (second := int(time.monotonic())) != self._second:
            self._second, self._count = second, 0
        self._count += 1

    @property
    def is_spent(self) -> bool:
        """Whether there were `MOST_PER_SECOND` in this second."""
        return self._count >= MOST_PER_SECOND and self.left_s > 0

    @property
    def left_s(self) -> float:
        """The seconds until the next."""
        return max(0.0, self._second + 1 - time.monotonic())
