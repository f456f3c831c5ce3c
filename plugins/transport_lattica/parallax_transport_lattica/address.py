"""Addresses: ``lattica://HOST:PORT/PEER``; to listen, ``lattica://HOST:PORT[?at=HOST:PORT]``.

What follows ``?at=`` is the address at which others reach the node, such as that of a router which forwards a port.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from parallax_core.api import ParallaxError
from parallax_transport_zmq.address import IpAddress, TcpEndpoint
from parallax_transport_zmq.address import parse_address as parse_tcp
from parallax_transport_zmq.address import place_near as place_tcp

SCHEME = "lattica"
AT = "?at="
HINT = f"write {SCHEME}://HOST:PORT/PEER, or {SCHEME}://HOST:PORT{AT}PUBLIC_HOST:PORT to listen"
PEER = re.compile(r"12D3KooW[1-9A-HJ-NP-Za-km-z]{44}")
"""The id of a peer: its Ed25519 key, in base 58."""
IPV4 = 4


@dataclass(frozen=True, slots=True)
class LatticaEndpoint:
    """A peer, and the port of a machine at which it listens; port 0 stands for a free one."""

    host: str
    """A name or an IP address, without brackets."""
    port: int
    peer: str = ""
    """The id of the peer, which its key proves; empty where one is to listen."""
    public: str = ""
    """For a listener, ``HOST:PORT`` of another machine that forwards connections to it, or empty."""

    def __str__(self) -> str:
        peer = f"/{self.peer}" if self.peer else ""
        public = f"{AT}{self.public}" if self.public else ""
        return str(TcpEndpoint(self.host, self.port)).replace("tcp", SCHEME, 1) + peer + public


def parse_address(address: str) -> LatticaEndpoint:
    """Parse an address.

    Raises:
        ParallaxError: if it is not an address of this transport.
    """
    scheme, mark, rest = address.partition("://")
    rest, at, public = rest.partition(AT)
    place, _, peer = rest.partition("/")
    if scheme != SCHEME or not mark or (peer and not PEER.fullmatch(peer)):
        raise ParallaxError(f"{address!r} is not an address of lattica's", HINT)
    try:
        here, outside = _parse_place(place), _parse_place(public) if at else None
    except ParallaxError as error:
        raise ParallaxError(f"{address!r} is not an address of lattica's", HINT) from error
    if outside is not None and not outside.port:
        raise ParallaxError(f"{address!r} is not an address of lattica's", "write the port that the router forwards")
    return LatticaEndpoint(here.host, here.port, peer, str(outside).removeprefix("tcp://") if outside else "")


def _parse_place(text: str) -> TcpEndpoint:
    place = parse_tcp(f"tcp://{text}")
    assert isinstance(place, TcpEndpoint)
    return place


def write_multiaddr(ip: IpAddress, port: int, peer: str = "") -> str:
    """Return an address in the notation of libp2p."""
    suffix = f"/p2p/{peer}" if peer else ""
    return f"/ip{ip.version}/{ip}/tcp/{port}{suffix}"


def read_multiaddr(text: str) -> LatticaEndpoint | None:
    """Return the address in such a notation; None: it has no IP address and TCP port."""
    match text.split("/"):
        case ["", "ip4" | "ip6", host, "tcp", port, "p2p", peer] if port.isascii() and port.isdigit():
            return LatticaEndpoint(host, int(port), peer)
        case _:
            return None


def find_canary_ip(ip: IpAddress) -> IpAddress:
    """Return the address at which this machine itself reaches a listener."""
    if not ip.is_unspecified:
        return ip
    return ip_address("127.0.0.1" if ip.version == IPV4 else "::1")


def place_local(folder: Path, node: str) -> str:
    """Return the address at which a node listens for nodes of this machine."""
    del folder, node
    return f"{SCHEME}://127.0.0.1:0"


def place_near(address: str, node: str) -> str:
    """Return the address where ``node`` listens for peers on the same network as ``address``.

    On loopback if ``address`` is on loopback, else on the interface with the route to it.

    Raises:
        ParallaxError: if ``address`` is not an address of this transport.
    """
    place = parse_address(address)
    return place_tcp(str(TcpEndpoint(place.host, place.port)), node).replace("tcp", SCHEME, 1)


def split_port(address: str) -> int:
    """Return the port of a local address of ZeroMQ's."""
    port = urlsplit(address).port
    assert port is not None
    return port
