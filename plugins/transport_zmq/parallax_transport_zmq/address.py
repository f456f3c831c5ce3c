"""Addresses: ``tcp://HOST:PORT`` and ``ipc://PATH``."""

from __future__ import annotations

import asyncio
import os
import socket
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from operator import itemgetter
from pathlib import Path
from urllib.parse import urlsplit

from parallax_core.api import ParallaxError
from parallax_transport_zmq.interfaces import list_own_addresses

IpAddress = IPv4Address | IPv6Address

MOST_PATH_BYTES = 100
"""Longest path of a socket, in bytes; a little below the limits of Linux (107) and macOS (103)."""
HINT = "write tcp://HOST:PORT, or ipc://PATH for a socket of this machine"


@dataclass(frozen=True, slots=True)
class TcpEndpoint:
    """A port of a machine; port 0 stands for a free one."""

    host: str
    """A name or an IP address, without brackets."""
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class IpcEndpoint:
    """A socket in the file system."""

    path: Path

    def __str__(self) -> str:
        return f"ipc://{self.path}"


Endpoint = TcpEndpoint | IpcEndpoint


def parse_address(address: str) -> Endpoint:
    """Parse an address.

    Raises:
        ParallaxError: if it is not an address of this transport.
    """
    scheme, mark, rest = address.partition("://")
    if scheme == "tcp" and mark:
        return _parse_tcp(address)
    if scheme == "ipc" and mark:
        return _parse_ipc(address, rest)
    raise ParallaxError(f"{address!r} is not an address", HINT)


def _parse_tcp(address: str) -> TcpEndpoint:
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ParallaxError(f"{address!r} is not an address: {error}", HINT) from error
    if not host or port is None or parts.path or parts.query or parts.fragment or "@" in parts.netloc:
        raise ParallaxError(f"{address!r} is not a host and a port", HINT)
    return TcpEndpoint("0.0.0.0" if host == "*" else host, port)  # noqa: S104 -- only with keys, see security.py


def _parse_ipc(address: str, rest: str) -> IpcEndpoint:
    if not rest or rest.startswith(("@", "*")) or "\0" in rest:
        raise ParallaxError(f"{address!r} names no file", "write ipc://PATH; nameless sockets have no permissions")
    path = Path(os.path.abspath(Path(rest).expanduser()))  # noqa: PTH100 -- a link in the path stays as it is
    if (size := len(os.fsencode(path))) > MOST_PATH_BYTES:
        message = f"the path of {address!r} has {size} bytes, and a socket can have {MOST_PATH_BYTES}"
        raise ParallaxError(message, "choose a folder nearer to the root")
    return IpcEndpoint(path)


async def find_host(host: str) -> IpAddress:
    """Return the IP address of a host; IPv4 is preferred.

    Raises:
        OSError: if the host is unknown.
    """
    try:
        return ip_address(host)
    except ValueError:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return min((ip_address(entry[4][0]) for entry in found), key=lambda ip: ip.version)


def advertise_host(host: str) -> str:
    """Return the address that other machines use for a host of this one: for ``0.0.0.0``, the outgoing interface's."""
    if host not in {"0.0.0.0", "::"}:  # noqa: S104 -- nothing is bound here
        return host
    family, far = (socket.AF_INET, "192.0.2.1") if host == "0.0.0.0" else (socket.AF_INET6, "2001:db8::1")  # noqa: S104
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((far, 9))  # sends nothing: the kernel only chooses a route
            return str(probe.getsockname()[0])
    except OSError:  # no route to other networks, as on a network of its own
        version, loopback = (4, "127.0.0.1") if family == socket.AF_INET else (6, "::1")
        return next((str(ip) for ip in list_own_addresses() if ip.version == version), loopback)


def place_local(folder: Path, node: str) -> str:
    """Return the socket in ``folder`` where ``node`` listens for nodes of this machine."""
    return str(IpcEndpoint(folder / f"{node.replace('/', '-')}.sock"))


def place_near(address: str, node: str) -> str:
    """Return the address where ``node`` listens for peers on the same network as ``address``.

    For ``ipc``, a socket in the same folder. For TCP, a free port: on loopback if ``address`` is on loopback, else on
    the interface with the route to it, and on all interfaces if no route is found.

    Raises:
        ParallaxError: if ``address`` is not an address of this transport.
    """
    place = parse_address(address)
    if isinstance(place, IpcEndpoint):
        return place_local(place.path.parent, node)
    if place.host in {"localhost", "::1"} or place.host.startswith("127."):
        return str(TcpEndpoint(place.host, 0))
    return str(TcpEndpoint(_find_interface(place.host), 0))


def _find_interface(host: str) -> str:
    """Return the address of this machine's interface with the route to a host; without a route, all interfaces."""
    everywhere = "::" if ":" in host else "0.0.0.0"  # noqa: S104 -- only with keys, see security.py
    try:
        family, _, _, _, where = min(socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM), key=itemgetter(0))
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(where)  # sends nothing: the kernel only chooses a route
            found = ip_address(probe.getsockname()[0])
    except (OSError, ValueError):
        return everywhere
    # A machine may resolve its own name to a loopback address, which other machines cannot reach.
    return everywhere if found.is_loopback or found.is_link_local else str(found)
