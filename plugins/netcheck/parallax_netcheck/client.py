"""Asks servers of STUN from which address they see this machine, over UDP and TCP."""

from __future__ import annotations

import contextlib
import secrets
import select
import socket
import struct
import time
from collections.abc import Sequence

from parallax_cluster.wire.stun import MOST_BYTES, TRANSACTION_BYTES, HostPort, StunAnswer, make_request, read_answer

TRIES = (0.25, 0.35, 0.5)
"""Seconds to wait for an answer over UDP, which loses datagrams, after each try."""
CONNECT_S = 1.5
"""Seconds to connect and to be answered over TCP."""


class UdpAsker:
    """A UDP socket that asks servers, always from the same port. To be closed."""

    def __init__(self, family: socket.AddressFamily) -> None:
        """Ask over IPv4 or IPv6.

        Raises:
            OSError: if this machine has no such family.
        """
        self._sock = socket.socket(family, socket.SOCK_DGRAM)
        self._sock.bind(("", 0))

    @property
    def address(self) -> HostPort:
        """Where the socket is bound."""
        place: HostPort = self._sock.getsockname()[:2]
        return place

    def close(self) -> None:
        """Close the socket. Idempotent."""
        self._sock.close()

    def ask(self, server: HostPort, *, changes_port: bool = False) -> StunAnswer | None:
        """Return what a server answers; None: nothing arrives.

        Args:
            server: an IP address of the socket's family, and a port.
            changes_port: whether the server is to answer from its other port, to which this socket has not sent.
        """
        transaction = secrets.token_bytes(TRANSACTION_BYTES)
        request = make_request(transaction, changes_port=changes_port)
        for patience_s in TRIES:
            with contextlib.suppress(OSError):  # no route, or refused; later tries may pass
                self._sock.sendto(request, server)
            if (found := self._await(transaction, patience_s)) is not None:
                return found
        return None

    def _await(self, transaction: bytes, patience_s: float) -> StunAnswer | None:
        until = time.monotonic() + patience_s
        while (left := until - time.monotonic()) > 0 and select.select([self._sock], [], [], left)[0]:
            with contextlib.suppress(OSError):  # a port that is closed, as ICMP says
                found = read_answer(self._sock.recv(MOST_BYTES + 1), transaction)
                if found is not None:
                    return found
        return None


def ask_by_tcp(family: socket.AddressFamily, servers: Sequence[HostPort]) -> list[StunAnswer | None]:
    """Return what each server answers over TCP, from the same port of this machine; None: it does not."""
    with socket.socket(family, socket.SOCK_STREAM) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("", 0))
        return [_ask_by_tcp(family, holder.getsockname()[1], server) for server in servers]


def _ask_by_tcp(family: socket.AddressFamily, port: int, server: HostPort) -> StunAnswer | None:
    transaction = secrets.token_bytes(TRANSACTION_BYTES)
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # so that the port is free again
        sock.bind(("", port))
        sock.settimeout(CONNECT_S)
        sock.connect(server)
        sock.sendall(make_request(transaction))
        data = b""
        while part := sock.recv(MOST_BYTES):
            data += part
            if (found := read_answer(data, transaction)) is not None or len(data) > MOST_BYTES:
                return found
    return None


def can_connect(address: HostPort) -> bool:
    """Return whether something accepts TCP connections at an address; nothing is sent."""
    with contextlib.suppress(OSError), socket.create_connection(address, CONNECT_S):
        return True
    return False
