"""Networks of the NAT lab: machines on the internet, behind home routers and behind firewalls, and a proof of each.

A router is a network namespace whose nftables rules translate addresses. What it does is proved before it is used, by a
probe that knows nothing of Parallax: sockets of the machine ask sockets at two addresses of the internet from where
they are seen, over UDP and TCP (RFC 4787 and 5382 name the behaviours), and who may answer.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from tests.support.namespaces import Machine, run

INTERNET = "203.0.113.0/24"
ECHO_PORTS = (7001, 7002)
OUTSIDE = ("203.0.113.1", "203.0.113.3")
"""The addresses of the server, both of which answer the probe."""

TRANSLATE = """
table ip lab {{
    chain postrouting {{
        type nat hook postrouting priority srcnat;
        meta l4proto {{ tcp, udp }} oifname "out" masquerade {ports}
        oifname "out" masquerade
    }}
    chain forward {{
        type filter hook forward priority filter; policy drop;
        {extra}
        ct state established,related accept
        iifname "in" accept
    }}
    chain input {{
        type filter hook input priority filter; policy drop;
        ct state established,related accept
        iifname "in" accept
    }}
}}
"""
"""A home router: it forwards what comes from inside and the answers to it, and says nothing to strangers."""
FIREWALL = """
table inet lab {
    chain input {
        type filter hook input priority filter; policy drop;
        ct state established,related accept
        iifname "lo" accept
        meta l4proto icmpv6 accept
    }
}
"""
"""The firewall of a machine that takes no connections from elsewhere."""

NETWORKS = ("open", "cone", "symmetric")
"""Those whose pairs have to serve: a public address, a router that keeps the port of a socket whatever its destination
(port-restricted cone), and one that takes another port for each destination."""


def translate(ports: str = "", extra: str = "") -> str:
    """Return the rules of a home router: how it chooses ports, and what else it drops."""
    return TRANSLATE.format(ports=ports, extra=extra)


RULES = {
    "cone": translate(),
    "symmetric": translate(ports="to :1024-65535 fully-random"),
    "no-udp": translate(extra="meta l4proto udp drop"),
    "walled": translate(extra="drop"),
}
"""The rules of the router of each network that has one."""


def attach(machine: Machine, kind: str, number: int) -> str:
    """Give a machine a network of a kind, and return its address on the internet.

    Args:
        machine: without an address yet.
        kind: ``open``, ``firewalled`` (a public address, without connections from elsewhere), or one of `RULES`.
        number: of the machine, from 10 to 99: its address on the internet is 203.0.113.number.
    """
    public = f"203.0.113.{number}"
    if kind in {"open", "firewalled"}:
        machine.ip("addr", "add", f"{public}/24", "dev", "lan0")
        if kind == "firewalled":
            apply(machine.namespace, FIREWALL)
        return public
    inside = f"192.168.{number}"
    machine.add_router(f"{public}/24", f"{inside}.1/24")
    machine.ip("addr", "add", f"{inside}.2/24", "dev", "lan0")
    machine.ip("route", "add", "default", "via", f"{inside}.1")
    apply(machine.router, RULES[kind])
    return public


def attach_server(machine: Machine) -> None:
    """Give a machine both addresses of `OUTSIDE`."""
    for address in OUTSIDE:
        machine.ip("addr", "add", f"{address}/24", "dev", "lan0")


def apply(namespace: str, rules: str) -> None:
    """Load nftables rules in a namespace.

    Raises:
        CalledProcessError: if the kernel lacks one.
    """
    command = ("ip", "netns", "exec", namespace, "nft", "-f", "-")
    subprocess.run(command, input=rules, check=True, capture_output=True, text=True)


ECHO = """
import json, socket, sys, threading
def tell(text):
    print(text, flush=True)
udp = {}
def serve(host, port):
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); sock.bind((host, port)); udp[host, port] = sock
    listener = socket.create_server((host, port))
    def hear():
        while True:
            data, place = sock.recvfrom(2048)
            asked = json.loads(data)
            udp[tuple(asked["from"])].sendto(json.dumps(place).encode(), place)
    def accept():
        while True:
            link, place = listener.accept()
            link.sendall(json.dumps(place).encode()); link.close()
    for work in (hear, accept):
        threading.Thread(target=work, daemon=True).start()
for host in sys.argv[1].split(","):
    for port in sys.argv[2].split(","):
        serve(host, int(port))
tell("echoing"); threading.Event().wait()
"""
"""Answers each datagram with the address it came from, from the address that it names; and each connection likewise."""

ASK = """
import json, socket, sys
places = [(host, int(port)) for host in sys.argv[1].split(",") for port in sys.argv[2].split(",")]
def ask(sock, to, answerer):
    for _ in range(2):
        sock.sendto(json.dumps({"from": answerer}).encode(), to)
        try:
            return json.loads(sock.recv(2048))
        except TimeoutError:
            pass
    return None
def ask_tcp(own, to):
    sock = socket.socket(); sock.settimeout(1.0)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); sock.bind(("", own))
    try:
        sock.connect(to); return json.loads(sock.recv(2048))
    except OSError:
        return None
    finally:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\\1\\0\\0\\0\\0\\0\\0\\0"); sock.close()
mapped = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); mapped.bind(("", 0)); mapped.settimeout(0.4)
udp = [ask(mapped, to, to) for to in places]
first = places[0]
def answered_by(who):
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); sock.bind(("", 0)); sock.settimeout(0.4)
    return ask(sock, first, first) is not None and ask(sock, first, who) is not None
other_port = next(p for p in places if p[0] == first[0] and p[1] != first[1])
other_host = next(p for p in places if p[0] != first[0])
free = socket.create_server(("", 0)); own = free.getsockname()[1]; free.close()
print(json.dumps({"own_udp": mapped.getsockname()[1], "own_tcp": own, "udp": udp,
    "tcp": [ask_tcp(own, to) for to in places],
    "hears_other_port": answered_by(other_port), "hears_other_host": answered_by(other_host)}))
"""
"""Asks all places from one socket, over UDP and from one port over TCP, and whether others may answer."""


@contextmanager
def echoing(server: Machine) -> Iterator[None]:
    """Answer the probe at all addresses of the server."""
    ports = ",".join(map(str, ECHO_PORTS))
    with ExitStack() as stack:
        echo = stack.enter_context(server.running(sys.executable, "-c", ECHO, ",".join(OUTSIDE), ports))
        echo.await_line("echoing")
        yield


def prove(machine: Machine) -> dict[str, Any]:
    """Return how the network of a machine behaves, by the probe, while the server is `echoing`.

    ``udp`` and ``tcp``: ``none`` (nothing passes), ``kept`` (the same port for all destinations) or ``changed``
    (another one for each); ``filter``: who may send a datagram to a socket: ``any``, ``host`` (all ports of a host that
    it has sent to), or ``port`` (only that port).
    """
    ports = ",".join(map(str, ECHO_PORTS))
    with machine.running(sys.executable, "-c", ASK, ",".join(OUTSIDE), ports) as process:
        seen = json.loads(process.await_line("own_udp")[1])
    behaves = {name: _describe_mapping(seen[name]) for name in ("udp", "tcp")}
    hears = (seen["hears_other_port"], seen["hears_other_host"])
    allowed = "unknown" if behaves["udp"] == "none" else {(True, True): "any", (True, False): "host"}.get(hears, "port")
    return {**behaves, "filter": allowed, "addresses": sorted({each[0] for each in seen["udp"] + seen["tcp"] if each})}


def _describe_mapping(seen: list[Any]) -> str:
    if None in seen:
        return "none"
    return "kept" if len({tuple(each) for each in seen}) == 1 else "changed"


EXPECTED = {
    "open": {"udp": "kept", "tcp": "kept", "filter": "any"},
    "firewalled": {"udp": "kept", "tcp": "kept", "filter": "port"},
    "cone": {"udp": "kept", "tcp": "kept", "filter": "port"},
    "symmetric": {"udp": "changed", "tcp": "changed", "filter": "port"},
    "no-udp": {"udp": "none", "tcp": "kept", "filter": "unknown"},
    "walled": {"udp": "none", "tcp": "none", "filter": "unknown"},
}
"""What makes a network one of its kind."""
DOCTOR_SAYS = {
    "firewalled": "dial-out",
    "walled": "proxy",
    **{kind: kind for kind in ("open", "cone", "symmetric", "no-udp")},
}
"""What `parallax network` calls each; on the walled one, a proxy is set in the environment."""


def prove_all(machines: dict[str, Machine], server: Machine) -> dict[str, Any]:
    """Return the behaviour of the network of each machine, by its kind, and whether it is of that kind."""
    found = {}
    with echoing(server):
        for kind, machine in machines.items():
            seen = prove(machine)
            found[kind] = {**seen, "is_as_named": all(seen[name] == value for name, value in EXPECTED[kind].items())}
    return found


def has_tools() -> bool:
    """Return whether this process may make namespaces, and nftables works in one."""
    space = "plx-nft-check"
    try:
        run("ip", "netns", "add", space)
        apply(space, RULES["symmetric"])
    except (OSError, subprocess.CalledProcessError):
        return False
    finally:
        with suppress(OSError, subprocess.CalledProcessError):
            run("ip", "netns", "del", space)
    return True
