"""How often lattica gets through two routers, in processes that are started for it.

    sudo python -m labs.lattica_punching --out benchmarks/results/lattica-punching.json

Machines and their networks are those of `labs.nat_lab`: network namespaces, some behind routers. A server with a
public address has what lattica lacks, a circuit relay of libp2p (`circuit_relay.mjs`, with packages from npm). Each of
two machines starts a process (`labs.lattica_puncher`) with a key of its own, which is told the relay. They have
got through if each has answered a call of the other within `PATIENCE_S` of their start, and the kernel lists a
connection between them. The next try has new processes.

Others reach lattica only at the port at which it listens, so it has to connect to the relay from that port. It does not
always. The ways to have it do so are compared:

    all            it listens at all addresses of the machine
    all, same key  the same, but a process that the relay sees at another port is killed and started again, with its
                   key, at most `MOST_RESTARTS` times
    all, new key   the same, with another key each time
    one            it listens at one address of the machine

Meanwhile, each machine has a link over the transport ``lattica`` to the server, over which ten frames a second go there
and back; these processes are not touched. ``links`` has what came of that. Needs root, ``ip netns``, ``nft``, ``ss``,
and node with npm, which are installed from PyPI if they are missing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.clients.__main__ import ROOT, make_package
from labs.delayed import delaying
from tests.support.namespaces import Machine, Process, network
from labs.nat_lab import list_own, list_peers
from benchmarks.record import describe_run, read_report, write_report
from labs.routers import OUTSIDE, attach, attach_server, has_tools
from parallax_transport_zmq.keyring import Keyring

DELAY_S = 0.02
PAIRS: dict[str, tuple[tuple[str, str], float]] = {
    "cone, cone": (("cone", "cone"), 0.0),
    "cone, cone, delayed": (("cone", "cone"), DELAY_S),
    "cone, symmetric": (("cone", "symmetric"), 0.0),
    "open, cone": (("open", "cone"), 0.0),
}
"""The networks of both machines, and how long all takes, each way, between each router and the internet."""
TRIES = 10
PATIENCE_S = 15.0
MOST_RESTARTS = 5
PACKAGES = (
    "libp2p@3.3.11",
    "@libp2p/circuit-relay-v2@4.2.13",
    "@libp2p/gossipsub@17.1.1",
    "@libp2p/identify@4.1.14",
    "@libp2p/noise@17.0.3",
    "@libp2p/ping@3.1.13",
    "@libp2p/tcp@11.0.28",
    "@libp2p/yamux@8.0.3",
)
"""Of the relay."""
RELAY_PORT, LINK_PORT, FIRST_PORT = "4001", 9000, 5001


@dataclass(frozen=True, slots=True)
class Way:
    """How a process comes to connect to the relay from the port at which it listens."""

    has_one_address: bool = False
    restarts: int = 0
    """How often it may be started again."""
    keeps_key: bool = False


WAYS = {
    "all": Way(),
    "all, same key": Way(restarts=MOST_RESTARTS, keeps_key=True),
    "all, new key": Way(restarts=MOST_RESTARTS),
    "one": Way(has_one_address=True),
}


@dataclass(slots=True)
class Relay:
    """The relay, and what it says of the processes that connect to it."""

    process: Process
    address: str

    def find_port(self, peer: str, since: float) -> int | None:
        """Return the port from which a peer connected first, since a time; None: it has not yet."""
        found = self.process.find(f'"connected":"{peer}"', since)
        return None if found is None else int(json.loads(found[1])["port"])


@dataclass(slots=True)
class Puncher:
    """What a machine runs for one try: a process, and another after each restart."""

    machine: Machine
    relay: Relay
    way: Way
    folder: Path
    numbers: Iterator[int]
    """Ports, each for one process: the kernel does not use one again for a connection to the relay within a minute."""
    ports: list[tuple[int, int | None]] = field(default_factory=list)
    """The ports at which each process listened, and from which the relay saw it."""
    _process: Process | None = None
    _stack: ExitStack = field(default_factory=ExitStack)

    def start(self) -> None:
        """Start a process, instead of the last one."""
        self.end()
        port = next(self.numbers)
        folder = self.folder if self.way.keeps_key else self.folder / str(port)
        host = min(list_own(self.machine) - {"127.0.0.1"}) if self.way.has_one_address else "0.0.0.0"  # noqa: S104
        words = (str(folder), f"/ip4/{host}/tcp/{port}", self.relay.address)
        command = (sys.executable, "-m", "labs.lattica_puncher", *words)
        self._process = self._stack.enter_context(self.machine.running(*command))
        self.ports.append((port, None))

    def end(self) -> None:
        """Kill the process."""
        self._stack.close()
        self._process = None

    def look(self) -> bool:
        """Note from where the relay sees the process; return whether that is another port than its own."""
        own, seen = self.ports[-1]
        if seen is None and (peer := self._hear("peer")) and self._process is not None:
            seen = self.relay.find_port(peer, self._process.begun)
            self.ports[-1] = (own, seen)
        return seen not in {None, own}

    @property
    def is_direct(self) -> bool:
        """Whether another process has answered it."""
        return bool(self._hear("direct"))

    def _hear(self, name: str) -> str:
        found = self._process.find(f'"{name}": ') if self._process is not None else None
        return str(json.loads(found[1])[name]) if found is not None else ""


@dataclass(frozen=True, slots=True)
class Lab:
    """A server with a relay, and two machines on networks of their kinds."""

    relay: Relay
    guests: tuple[Machine, Machine]
    addresses: tuple[str, str]
    """On the internet."""
    folder: Path
    numbers: Iterator[int] = field(default_factory=lambda: count(FIRST_PORT))

    def try_once(self, way: Way, name: str) -> dict[str, Any]:
        """Start a process on both machines, and return whether they get through."""
        begun, folder = time.monotonic(), self.folder / name
        both = [Puncher(each, self.relay, way, folder / each.name, self.numbers) for each in self.guests]
        try:
            for each in both:
                each.start()
            while not (through := all(each.is_direct for each in both)) and time.monotonic() < begun + PATIENCE_S:
                for each in both:
                    if each.look() and len(each.ports) <= way.restarts:
                        each.start()
                time.sleep(0.02)
            took = time.monotonic() - begun
            for each in both:
                each.look()
            return {
                "through": through and self._is_connected(),
                "seconds": round(took, 2),
                "restarts": sum(len(each.ports) - 1 for each in both),
                "ports": [each.ports for each in both],
            }
        finally:
            for each in both:
                each.end()

    def _is_connected(self) -> bool:
        """Return whether the kernel lists a connection of one machine to the other."""
        return any(other in list_peers(each) for each, other in zip(self.guests, reversed(self.addresses), strict=True))


@contextmanager
def laboratory(pair: str, folder: Path, packages: tuple[str, Path]) -> Iterator[tuple[Lab, list[Process]]]:
    """Yield a lab, and the processes that exchange frames over links meanwhile."""
    kinds, delay_s = PAIRS[pair]
    with network(folder, folder, "server", "first", "second") as (server, *guests), ExitStack() as stack:
        attach_server(server)
        addresses = [
            attach(each, kind, number) for number, (each, kind) in enumerate(zip(guests, kinds, strict=True), 10)
        ]
        if delay_s:
            for each, address in zip(guests, addresses, strict=True):
                stack.enter_context(delaying(each, address, delay_s))
        node, installed = packages
        script = str(ROOT / "labs/circuit_relay.mjs")
        process = stack.enter_context(server.running(node, script, str(installed), OUTSIDE[0], RELAY_PORT))
        relay = Relay(process, json.loads(process.await_line('"address"')[1])["address"])
        links = start_links(server, guests, stack)
        yield Lab(relay, (guests[0], guests[1]), (addresses[0], addresses[1]), folder / "tries"), links


def start_links(server: Machine, guests: Sequence[Machine], stack: ExitStack) -> list[Process]:
    """Link each machine to the server, with one key for all; return the processes that exchange frames."""
    Keyring(server.home / "keys").make("default")
    for machine in guests:
        (machine.home / "keys").symlink_to(server.home / "keys")
    command = (sys.executable, "-m", "labs.lattica_links")
    serving = stack.enter_context(server.running(*command, "serve", "", f"lattica://{OUTSIDE[0]}:{LINK_PORT}"))
    address = json.loads(serving.await_line('"address"')[1])["address"]
    links = [stack.enter_context(machine.running(*command, "beat", address, "1024")) for machine in guests]
    for each in links:
        each.await_line('"ready"')
    return links


def describe_link(link: Process) -> dict[str, Any]:
    """Return what came over a link, and whether it is still there."""
    news = json.loads(next(line for _, line in reversed(link.lines) if '"count"' in line))
    return {
        "frames": news["count"],
        "in_order": news["in_order"],
        "lost": link.popen.poll() is not None,
        "longest_pause_s": round(news["pause_s"], 2),
    }


def describe_try(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return what came of a try, with the ports of all processes of a machine in one line."""
    ports = [", ".join(f"{own} seen at {seen}" for own, seen in machine) for machine in found["ports"]]
    return {**found, "ports": ports}


def summarize(tries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return how many tries got through, and in which time."""
    seconds = sorted(each["seconds"] for each in tries if each["through"])
    ports = [port for each in tries for machine in each["ports"] for port in machine]
    return {
        "tries": len(tries),
        "through": len(seconds),
        "median_s": round(statistics.median(seconds), 2) if seconds else None,
        "worst_s": max(seconds, default=None),
        "restarts": sum(each["restarts"] for each in tries),
        "processes": len(ports),
        "seen_at_own_port": sum(own == seen for own, seen in ports),
    }


def measure(pair: str, folder: Path, packages: tuple[str, Path], tries: int) -> dict[str, Any]:
    """Return how often each way gets through between a pair of machines."""
    with laboratory(pair, folder, packages) as (lab, links):
        ways = {}
        for name, way in WAYS.items():
            found = [lab.try_once(way, f"{name}-{number}") for number in range(tries)]
            ways[name] = {**summarize(found), "each": [describe_try(each) for each in found]}
            print(json.dumps({"pair": pair, "way": name, **summarize(found)}), flush=True)
        return {"ways": ways, "links": [describe_link(each) for each in links]}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="a JSON file for the report")
    parser.add_argument("--only", choices=PAIRS, help="measure one pair; the others are kept")
    parser.add_argument("--tries", type=int, default=TRIES)
    options = parser.parse_args(arguments)
    if os.geteuid() or not has_tools():
        parser.error("it needs root, `ip netns` and `nft`")
    packages = make_package("lattica-punching", PACKAGES)
    report = read_report(options.out)
    pairs = report.get("pairs", {})
    with TemporaryDirectory(prefix="punching-") as name:
        for number, pair in enumerate(PAIRS):
            if options.only in {None, pair}:
                pairs[pair] = measure(pair, Path(name) / str(number), packages, options.tries)
                run = describe_run(["labs.lattica_punching"], ["lattica", "pyzmq"])
                limits = {"patience_s": PATIENCE_S, "most_restarts": MOST_RESTARTS, "delay_s": DELAY_S}
                write_report(options.out, {"pairs": pairs, **limits, "relay": list(PACKAGES), **run})


if __name__ == "__main__":
    main()
