"""Measures a frame there and back between two processes: over ZeroMQ with CURVE, over a relay, and over lattica.

    python -m labs.relayed_hop [zmq] [lattica]

The relay is a third process on the same machine, so that what is measured is the work of
all, and no distance. The roads take turns. A hop is half of a round trip; its median and its 99th percentile are in
milliseconds.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from parallax_core.api import Frame, PeerLost, Transport, TransportPlan
from parallax_core.contracts.transport import Link
from parallax_cluster.node.relay.limits import RelayLimits
from parallax_cluster.node.relay.paths import RelayPaths
from parallax_cluster.node.relay.server import RelayServer
from parallax_core.node.trusted_peers import TrustedPeers
from parallax_core.node.worker.incoming import IncomingLinks
from parallax_cluster.wire.profile import Peer
from parallax_cluster.wire.relay import RelayPlace, Relays

SIZES = {2**10: 400, 2**14: 400, 2**20: 60}
"""Bytes of a frame, and how often it is sent in all."""
TURNS = 4
UNREACHABLE = "tcp://127.0.0.1:1"
LISTEN = {"zmq": "tcp://127.0.0.1:0", "lattica": "lattica://127.0.0.1:0"}


def pick(times: list[float], share: float) -> float:
    """Return the quantile ``share`` of ``times``."""
    return sorted(times)[min(len(times) - 1, int(share * len(times)))]


def make_transport(kind: str, node: str) -> Transport:
    """Return a transport that listens on loopback, not started."""
    plan = TransportPlan(node=node, listen=LISTEN[kind], timeout_s=8.0)
    if kind == "lattica":
        from parallax_transport_lattica.transport import LatticaTransport

        return LatticaTransport(plan)
    from parallax_transport_zmq.transport import ZmqTransport

    return ZmqTransport(plan)


async def relay() -> None:
    """Be the relay, until killed; prints its address."""
    transport = make_transport("zmq", "relay")
    await transport.start()
    incoming = IncomingLinks(transport, "relay", RelayServer(RelayLimits(), lambda _: True).purposes)
    async with incoming.accepting():
        print(transport.address, flush=True)
        await asyncio.Event().wait()


@asynccontextmanager
async def using(transport: Transport, node: str, relay_address: str) -> AsyncIterator[RelayPaths]:
    """Use the relay at an address, as a head would tell a node to."""
    paths = RelayPaths(transport, node)
    async with paths.joined(Peer("head", UNREACHABLE)):
        paths.meet(Relays((RelayPlace("relay", relay_address),)), TrustedPeers(transport))
        while not paths.relays:  # noqa: ASYNC110 -- there is no event for it
            await asyncio.sleep(0.01)
        yield paths


async def echo(kind: str, relay_address: str) -> None:
    """Send back what comes over each link, until killed; prints the address."""
    transport = make_transport(kind, "echo")
    await transport.start()
    async with AsyncExitStack() as stack:
        if kind == "zmq":
            await stack.enter_async_context(using(transport, "echo", relay_address))
        print(transport.address, flush=True)
        tasks = set()
        while True:
            task = asyncio.create_task(send_back(await transport.accept()))
            tasks.add(task)
            task.add_done_callback(tasks.discard)


async def send_back(link: Link) -> None:
    """Send back every frame of a link."""
    try:
        while True:
            await link.send(await link.receive())
    except PeerLost:
        await link.close()


async def time_frames(link: Link, size: int, number: int) -> list[float]:
    """Return the seconds that frames took there and back."""
    frame, times = Frame(b"x", (bytes(size),)), []
    for _ in range(number):
        begun = time.perf_counter()
        await link.send(frame)
        await link.receive()
        times.append(time.perf_counter() - begun)
    return times


async def measure(addresses: dict[str, str], relay_address: str) -> list[dict[str, Any]]:
    """Measure all roads and sizes."""
    rows = []
    async with AsyncExitStack() as stack:
        links: dict[str, Link] = {}
        for kind, address in addresses.items():
            transport = make_transport(kind, "asker")
            await transport.start()
            stack.push_async_callback(transport.stop)
            links[kind] = await transport.connect(address, "echo")
            if kind == "zmq":
                paths = await stack.enter_async_context(using(transport, "asker", relay_address))
                path = await paths.reach(UNREACHABLE, "echo")
                assert path.relay == "relay"
                links["zmq relayed"] = path.link
        for size, number in SIZES.items():
            times: dict[str, list[float]] = {road: [] for road in links}
            for turn in range(1 + TURNS):  # the first warms up
                for road, link in links.items():
                    taken = await time_frames(link, size, number // TURNS)
                    times[road] += taken if turn else []
            for road, each in times.items():
                p50, p99 = (round(500 * pick(each, share), 3) for share in (0.5, 0.99))  # of one way
                rows.append({"road": road, "bytes": size, "p50_ms": p50, "p99_ms": p99})
                print(rows[-1], flush=True)
    return rows


def start(*words: str) -> tuple[subprocess.Popen[str], str]:
    """Start a process of this module, and return the address that it prints."""
    command = [sys.executable, "-m", "labs.relayed_hop", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def measure_frames(kinds: tuple[str, ...] = ("zmq", "lattica")) -> list[dict[str, Any]]:
    """Return the times of frames over each transport, and over a relay."""
    process, relay_address = start("relay")
    processes, addresses = [process], {}
    try:
        for kind in kinds:
            process, addresses[kind] = start("echo", kind, relay_address)
            processes.append(process)
        return asyncio.run(measure(addresses, relay_address))
    finally:
        for process in processes:
            process.kill()
            process.communicate()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["relay"]:
            asyncio.run(relay())
        case ["echo", kind, relay_address]:
            asyncio.run(echo(kind, relay_address))
        case kinds:
            measure_frames(tuple(kinds) or ("zmq", "lattica"))
