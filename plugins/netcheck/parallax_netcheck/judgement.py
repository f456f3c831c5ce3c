"""Judges the network of a machine by its survey: its kind, how to use it, and ports to open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import Literal

from parallax_cluster.wire.stun import HostPort

Kind = Literal["open", "dial-out", "cone", "symmetric", "router", "no-udp", "proxy", "unreachable", "unknown"]
"""What a network is:

``open``: a public address, at which others reach the machine.
``dial-out``: a public address; a firewall lets only answers in.
``cone``: behind a router that shows a socket at one port, whatever its destination.
``symmetric``: behind a router that shows it at another port for each destination.
``router``: behind a router of one of these kinds, which were not told apart.
``no-udp``: TCP passes, and UDP does not.
``proxy``: the servers are not reached, and there is a proxy for HTTP.
``unreachable``: no server is reached.
``unknown``: no server was asked, or none told enough.
"""

CARRIER = ip_network("100.64.0.0/10")
"""The addresses of machines behind a router of their provider (RFC 6598)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerView:
    """What one port of a server saw of this machine."""

    server: HostPort
    udp: HostPort | None = None
    """The address from which a datagram came; None: no answer arrived."""
    tcp: HostPort | None = None
    """The address from which a connection came; None: there was none."""
    hears_other_port: bool | None = None
    """Whether an answer from another port of the server arrived; None: it was not asked to send one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkFacts:
    """What was seen of the network of a machine."""

    own: tuple[str, ...] = ()
    """The IP addresses from which it sends to servers."""
    has_ipv6: bool = False
    """Whether there is a route to other networks over IPv6."""
    proxy: str = ""
    """The proxy for HTTP of the environment; empty: none."""
    views: tuple[ServerView, ...] = ()
    """What was seen, of all that was asked."""
    clusters: Mapping[str, bool] = field(default_factory=dict)
    """The addresses at which clusters listen, and whether they accept connections."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkReport:
    """The kind of a machine's network, with its consequences."""

    kind: Kind
    address: str = ""
    """The address by which others see the machine; empty: not known."""
    summary: str
    """The kind of network, in a sentence."""
    works: tuple[str, ...]
    """What works over it, a sentence each."""
    remedies: tuple[str, ...] = ()
    """What to open, or to do, a sentence each."""
    notes: tuple[str, ...] = ()
    """What else is known, or is not."""


def find_kind(facts: NetworkFacts) -> Kind:
    """Return the kind of network."""
    udp = {view.udp for view in facts.views if view.udp is not None}
    tcp = [view.tcp for view in facts.views if view.tcp is not None]
    if not udp:
        return _find_kind_without_udp(facts, is_seen=bool(tcp))
    if {host for host, _ in udp} <= set(facts.own):
        heard = {view.hears_other_port for view in facts.views} - {None}
        return "unknown" if not heard else "open" if True in heard else "dial-out"
    if len(udp) > 1:
        return "symmetric"
    return "cone" if sum(view.udp is not None for view in facts.views) > 1 else "router"


def _find_kind_without_udp(facts: NetworkFacts, *, is_seen: bool) -> Kind:
    if is_seen:
        return "no-udp"
    if not facts.views and not facts.clusters:
        return "unknown"
    if any(facts.clusters.values()):
        return "unknown"  # a server that does not tell addresses
    return "proxy" if facts.proxy else "unreachable"


def judge_network(facts: NetworkFacts) -> NetworkReport:
    """Return the kind of network, with its consequences."""
    kind = find_kind(facts)
    address = next((each[0] for view in facts.views for each in (view.udp, view.tcp) if each is not None), "")
    text = TEXTS[kind]
    return NetworkReport(
        kind=kind,
        address=address,
        summary=text.summary,
        works=text.works,
        remedies=tuple(each.replace("ADDRESS", address or "ADDRESS") for each in text.remedies),
        notes=tuple(_list_notes(kind, facts)),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Text:
    summary: str
    works: tuple[str, ...]
    remedies: tuple[str, ...] = ()


JOINS = "It joins a server that others reach, by a connection that it makes itself: `parallax join CODE`."
LINKED = (
    "In a pipeline, it is linked directly to reachable machines, and over a relay to all others: "
    "`parallax run MODEL --relay` makes the server one."
)
SERVES = "It can be the server (`parallax run MODEL`, TCP port 9000) and a relay (`--relay`); links to it are direct."
LISTEN = (
    "To be reached, let a TCP port through the firewall, and name it: "
    "`parallax join CODE --listen tcp://0.0.0.0:9001`, or `parallax run MODEL` for port 9000."
)
FORWARD = (
    "To be reached, have the router forward a TCP port to this machine, and say so: "
    "`parallax join CODE --listen 'lattica://0.0.0.0:4012?at=ADDRESS:4012'` in a cluster over lattica."
)
ASK = "Name servers that tell addresses: `parallax network --ask CODE`, or HOST:PORT of a STUN server."
TEXTS: dict[Kind, _Text] = {
    "open": _Text(summary="open: others reach this machine at its own address", works=(SERVES,)),
    "dial-out": _Text(
        summary="dialling out only: the address is public, and a firewall lets nothing in but answers",
        works=(JOINS, LINKED),
        remedies=(LISTEN,),
    ),
    "cone": _Text(
        summary="a cone: behind a router that keeps the port of a socket for all destinations",
        works=(JOINS, LINKED),
        remedies=(FORWARD,),
    ),
    "symmetric": _Text(
        summary="symmetric: behind a router that takes another port for each destination",
        works=(JOINS, LINKED),
        remedies=(FORWARD,),
    ),
    "router": _Text(
        summary="behind a router, cone or symmetric: one answer does not tell which",
        works=(JOINS, LINKED),
        remedies=(FORWARD, "To tell which, ask a second server, or one of Parallax: --ask."),
    ),
    "no-udp": _Text(
        summary="UDP is blocked: TCP passes, and no answer over UDP arrives",
        works=(JOINS, "Links need TCP only. Looking for a server on the local network may fail: use whole codes."),
        remedies=("Nothing has to be opened for that; whether others reach this machine is not known.",),
    ),
    "proxy": _Text(
        summary="behind a proxy: servers are not reached, and HTTP goes through a proxy",
        works=("Models can be fetched through the proxy. Links between machines do not use it.",),
        remedies=("Have the firewall let TCP out to the server's port, such as 9000.",),
    ),
    "unreachable": _Text(
        summary="no server was reached, neither over UDP nor over TCP",
        works=("Nothing beyond this machine and its network, as far as it is known.",),
        remedies=("See whether the server runs and its address is right, and have firewalls let its port through.",),
    ),
    "unknown": _Text(
        summary="not known: no server has told from which address it sees this machine",
        works=("Whether this machine is reached by others cannot be known from here.",),
        remedies=(ASK,),
    ),
}
"""What is said of each kind."""


def _list_notes(kind: Kind, facts: NetworkFacts) -> list[str]:
    """Return what else is to be said."""
    notes = [
        f"The server at {where} {'accepts connections' if accepts else 'accepts no connection'}."
        for where, accepts in facts.clusters.items()
    ]
    if not facts.has_ipv6:
        notes.append("There is no IPv6 to other networks: servers with IPv6 addresses only are not reached.")
    if facts.proxy and kind != "proxy":
        notes.append(f"HTTP goes through the proxy {facts.proxy}; links between machines do not use it.")
    if any(ip_address(each) in CARRIER for each in facts.own):
        notes.append("The provider has a router, too (an address in 100.64.0.0/10): forwarding a port is not enough.")
    if kind == "open":
        notes.append("That was tried over UDP; a firewall may still block TCP ports.")
    hosts = {view.server[0] for view in facts.views if view.udp is not None}
    if kind == "cone" and len(hosts) == 1:
        notes.append("Only ports of one address were asked: some routers take another port for another address.")
    tcp = {view.tcp for view in facts.views} - {None}
    if kind == "cone" and len(tcp) > 1:
        notes.append("Over TCP, the router takes another port for each destination.")
    return notes
