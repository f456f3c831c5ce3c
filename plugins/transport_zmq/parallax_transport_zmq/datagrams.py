"""UDP sockets for discovery, whose reading takes little of the event loop's time however much arrives."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from typing import Any

BATCH = 16
"""Datagrams read before other tasks of the loop get a turn."""
MOST_PER_SECOND = 1000
"""Datagrams read in a second; the kernel drops those that do not fit into its buffer meanwhile."""
MOST_BYTES = 2048
"""The most bytes read of a datagram; what is longer is cut off, and so invalid."""
GROUP = "ff12::706c:7831"
"""The IPv6 group of all nodes that answer questions, on the local link only."""

Place = tuple[Any, ...]
"""The address of a socket, as the module `socket` has it."""


class DatagramReader:
    """Passes each datagram of a socket on, with its sender. Belongs to one event loop; closes the socket."""

    def __init__(self, sock: socket.socket, hear: Callable[[bytes, Place], None]) -> None:
        """Call ``hear`` on the event loop for each datagram."""
        self._sock = sock
        self._hear = hear
        self._loop = asyncio.get_running_loop()
        self._second, self._num_read = 0, 0
        self._pause: asyncio.TimerHandle | None = None
        sock.settimeout(0.0)
        self._loop.add_reader(sock, self._read)

    @property
    def place(self) -> Place:
        """Where the socket is bound."""
        place: Place = self._sock.getsockname()
        return place

    def send(self, data: bytes, place: Place) -> bool:
        """Send without waiting; return whether the kernel took it."""
        try:
            self._sock.sendto(data, place)
        except (OSError, ValueError):  # no route, a full buffer, an interface that is gone
            return False
        return True

    def close(self) -> None:
        """Stop reading, and close the socket. Idempotent."""
        if self._pause is not None:
            self._pause.cancel()
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock)
            self._sock.close()

    def _read(self) -> None:
        for _ in range(BATCH):
            if self._is_spent():
                return
            try:
                data, place = self._sock.recvfrom(MOST_BYTES)
            except BlockingIOError:
                return
            except OSError:  # of an earlier datagram that was not received
                continue
            self._hear(data, place)

    def _is_spent(self) -> bool:
        """Count a datagram; once there were too many in this second, pause until the next."""
        now = self._loop.time()
        if int(now) != self._second:
            self._second, self._num_read = int(now), 0
        self._num_read += 1
        if self._num_read <= MOST_PER_SECOND:
            return False
        self._loop.remove_reader(self._sock)
        self._pause = self._loop.call_at(self._second + 1.0, self._loop.add_reader, self._sock, self._read)
        return True


def open_receiver(family: int, host: str, port: int) -> socket.socket:
    """Return a socket at a port that several processes of a machine may share, each of which gets every question.

    Raises:
        OSError: if it cannot be bound.
    """
    with _opened(family) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if sys.platform != "linux":  # on Linux it would give a datagram to one of them
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((host, port))
        return sock


def open_sender(family: int) -> socket.socket:
    """Return a socket that may send to all machines of a network.

    Raises:
        OSError: if the machine has no such family.
    """
    with _opened(family) as sock:
        if family == socket.AF_INET:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        sock.bind(("::" if family == socket.AF_INET6 else "0.0.0.0", 0))  # noqa: S104 -- answers come from any network
        return sock


@contextlib.contextmanager
def _opened(family: int) -> Iterator[socket.socket]:
    """Yield a new socket, which is closed if the block raises."""
    sock = socket.socket(family, socket.SOCK_DGRAM)
    try:
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        yield sock
    except BaseException:
        sock.close()
        raise


def join_group(sock: socket.socket) -> None:
    """Join a socket to the multicast `GROUP` on all present interfaces."""
    group = socket.inet_pton(socket.AF_INET6, GROUP)
    for index, _ in socket.if_nameindex():
        with contextlib.suppress(OSError):  # it has joined there already, or the interface has no IPv6
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, group + struct.pack("@I", index))
