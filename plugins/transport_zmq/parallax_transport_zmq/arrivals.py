"""Asks the kernel whether data arrives on a connection of ZeroMQ's, and ends one.

ZeroMQ's own threads send and answer its pings, whatever Python does at either end. So data that arrives shows that the
peer's process runs, even while its interpreter lock is held, and none that it is stopped, or cut off.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import zmq

LINUX_INFO = struct.Struct("=52xI")
"""Of ``tcp_info``, up to ``tcpi_last_data_recv``: milliseconds since data arrived."""
LINUX_COUNT = struct.Struct("=128xQ")
"""The same up to ``tcpi_bytes_received``: all bytes that have arrived."""
DARWIN_OPTION, DARWIN_INFO = 0x106, struct.Struct("=88xQ")
"""``TCP_CONNECTION_INFO``; of ``tcp_connection_info``, up to ``tcpi_rxbytes``: all bytes that have arrived."""
SYSTEM: str = sys.platform


class Arrivals:
    """What the kernel knows of a TCP connection of ZeroMQ's, on Linux and macOS; elsewhere nothing ever arrives."""

    def __init__(self, message: zmq.Frame) -> None:
        """Watch the connection on which ``message`` came; ZeroMQ may close it at any time."""
        self._fd = int(message.get(zmq.SRCFD))
        self._inode = find_inode(self._fd)
        self._received = 0

    def has_news(self, seconds: float) -> bool:
        """Return whether data has arrived in the last ``seconds``; on macOS, since the last call."""
        if self._inode is None or find_inode(self._fd) != self._inode:  # the number may be another's by now
            return False
        if SYSTEM == "linux":
            last_ms = _ask(self._fd, socket.TCP_INFO, LINUX_INFO)
            return last_ms is not None and last_ms <= 1000 * seconds
        if SYSTEM == "darwin":
            before, self._received = self._received, count_arrived(self._fd)
            return self._received > before
        return False


def count_arrived(descriptor: int) -> int:
    """Return the bytes that have arrived on a TCP connection; 0: the system does not tell."""
    if SYSTEM == "linux":
        return _ask(descriptor, socket.TCP_INFO, LINUX_COUNT) or 0
    return (_ask(descriptor, DARWIN_OPTION, DARWIN_INFO) or 0) if SYSTEM == "darwin" else 0


def hang_up(descriptor: int) -> None:
    """End a connection of ZeroMQ's, which notices that, and closes it."""
    with contextlib.suppress(OSError), _borrow(descriptor) as borrowed:  # the peer has done so, or ZeroMQ has
        borrowed.shutdown(socket.SHUT_RDWR)


def _ask(descriptor: int, option: int, layout: struct.Struct) -> int | None:
    """Return the number at the end of what the kernel says; None: it says nothing, as of a local socket."""
    with contextlib.suppress(OSError), _borrow(descriptor) as borrowed:  # ZeroMQ may close it at any time
        found = borrowed.getsockopt(socket.IPPROTO_TCP, option, layout.size)
        return int(layout.unpack(found)[0]) if len(found) == layout.size else None
    return None


@contextmanager
def _borrow(descriptor: int) -> Iterator[socket.socket]:
    """Lend a socket of ZeroMQ's, which closes it; raise OSError if it has done so."""
    borrowed = socket.socket(socket.AF_INET, socket.SOCK_STREAM, fileno=descriptor)
    try:
        yield borrowed
    finally:
        borrowed.detach()


def find_inode(descriptor: int) -> int | None:
    """Return the inode of an open descriptor, which tells a connection from a later one; None: it is closed."""
    try:
        return os.fstat(descriptor).st_ino
    except OSError:
        return None
