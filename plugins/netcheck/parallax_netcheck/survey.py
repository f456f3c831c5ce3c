"""Surveys what this machine's network lets through, by asking named or joined servers."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from urllib.parse import urlsplit

from parallax_cluster.deploy.network import Asked
from parallax_cluster.wire.stun import HostPort, StunAnswer
from parallax_netcheck.client import UdpAsker, ask_by_tcp, can_connect
from parallax_netcheck.judgement import NetworkFacts, ServerView

FAR_IPV6 = "2001:db8::1"
"""An address reserved for documentation (RFC 3849)."""
ANY_PORT = 9
"""A port of that address; nothing is sent there."""
LAST_PORT = 65535
PROXIES = ("https_proxy", "http_proxy", "all_proxy")
"""Variables of the environment that name a proxy, also in capitals."""


def survey_network(servers: Sequence[Asked], environment: Mapping[str, str]) -> NetworkFacts:
    """Ask all servers at the same time, and return what is seen of this machine; takes a few seconds.

    Nothing is sent to anybody else, but the names of servers are looked up.
    """
    with ThreadPoolExecutor(max(1, len(servers))) as pool:
        parts = list(pool.map(_ask, servers))
    own = [part.own for part in parts if part.own]
    return NetworkFacts(
        own=tuple(dict.fromkeys(own)),
        has_ipv6=bool(_find_source(socket.AF_INET6, (FAR_IPV6, ANY_PORT))),
        proxy=find_proxy(environment),
        views=tuple(view for part in parts for view in part.views),
        clusters={each.cluster: part.accepts for each, part in zip(servers, parts, strict=True) if each.cluster},
    )


def find_proxy(environment: Mapping[str, str]) -> str:
    """Return the host and port of the proxy that the environment names, without a password; empty: none."""
    for name in PROXIES:
        if url := environment.get(name) or environment.get(name.upper()):
            return urlsplit(url if "//" in url else f"//{url}").netloc.rpartition("@")[2]
    return ""


@dataclass(frozen=True, slots=True)
class _Part:
    """What one server saw."""

    own: str = ""
    """The IP address of this machine from which it was asked."""
    views: tuple[ServerView, ...] = ()
    accepts: bool = False
    """Whether the port of its cluster accepts connections."""


def _ask(server: Asked) -> _Part:
    try:
        found = socket.getaddrinfo(server.host, server.port, type=socket.SOCK_DGRAM)
    except OSError:  # no such name, or no name server
        return _Part()
    family, _, _, _, place = min(found, key=lambda each: each[0] != socket.AF_INET)
    first = (str(place[0]), server.port)
    accepts = bool(server.cluster) and can_connect((first[0], urlsplit(server.cluster).port or 0))
    return _Part(_find_source(family, first), tuple(_ask_ports(family, first)), accepts)


def _ask_ports(family: socket.AddressFamily, first: HostPort) -> Iterator[ServerView]:
    """Yield what is seen at each port: of a server of Parallax at two."""
    with contextlib.suppress(OSError), closing(UdpAsker(family)) as asker:
        udp = asker.ask(first)
        tcp = ask_by_tcp(family, [first])
        is_parallax = any(each is not None and each.is_parallax for each in (udp, tcp[0]))
        if not is_parallax or first[1] == LAST_PORT:  # the second of its two ports, maybe
            yield ServerView(server=first, udp=_get_address(udp), tcp=_get_address(tcp[0]))
            return
        second = (first[0], first[1] + 1)
        with closing(UdpAsker(family)) as fresh:  # has sent to the first port only, when the other one answers
            is_heard = fresh.ask(first, changes_port=True) is not None
        seen = {first: udp, second: asker.ask(second)}
        for port, by_tcp in zip(seen, ask_by_tcp(family, list(seen)), strict=True):
            hears = is_heard if port == first and udp is not None else None
            yield ServerView(
                server=port, udp=_get_address(seen[port]), tcp=_get_address(by_tcp), hears_other_port=hears
            )


def _get_address(answer: StunAnswer | None) -> HostPort | None:
    return None if answer is None else answer.address


def _find_source(family: socket.AddressFamily, place: HostPort) -> str:
    """Return the address from which this machine would send to a place; empty: there is no route."""
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(place)  # sends nothing: the kernel only chooses a route
        return str(probe.getsockname()[0])
    return ""
