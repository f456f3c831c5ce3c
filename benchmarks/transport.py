"""Measures the round-trip time of a frame over a ZeroMQ link, compared with ZeroMQ itself.

    python benchmarks/transport.py --out benchmarks/results/transport.json

A frame with a 64-byte header and one buffer goes to another process and back, over an ipc socket, and over encrypted
TCP on loopback. There are three ways: `raw`, blocking calls of pyzmq with one message of two parts and no checks;
`asyncio`, the same with pyzmq's asyncio sockets; and `link`, the transport, with limits, credit, ordering and
heartbeats. The ways take turns, so that other load affects all of them. The figures are the median and the 99th
percentile of the round trips, in milliseconds, and their ratios to `raw`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import zmq
import zmq.asyncio

from parallax_core.api import Frame, PeerLost, TransportPlan
from parallax_transport_zmq.keyring import Keyring
from parallax_transport_zmq.transport import ZmqTransport

HEADER = bytes(64)
SIZES = {"64 B": 64, "64 KiB": 2**16, "4 MiB": 2**22}
TRIPS = {"64 B": 400, "64 KiB": 400, "4 MiB": 40}
"""Round trips of one turn."""
TURNS = 5
WARM_UP = 10
WAYS = ("raw", "asyncio", "link")
ROADS = ("ipc", "curve")

Trip = Callable[[bytes], Awaitable[None]]


def open_raw(context: Any, kind: int, road: str, keys: Keyring) -> Any:
    """Return a socket that is not yet bound or connected."""
    socket = context.socket(kind)
    socket.linger = 0
    pair = keys.find_pair("default")
    if road == "curve" and pair:
        socket.curve_publickey, socket.curve_secretkey = pair.public, pair.secret
        if kind == zmq.ROUTER:
            socket.curve_server = True
        else:
            socket.curve_serverkey = pair.public
    return socket


def echo_raw(address: str, road: str, keys: Keyring) -> None:
    """Echo messages forever, with blocking calls."""
    socket = open_raw(zmq.Context(), zmq.ROUTER, road, keys)
    socket.bind(address)
    print(socket.getsockopt_string(zmq.LAST_ENDPOINT), flush=True)
    while True:
        socket.send_multipart(socket.recv_multipart(copy=False), copy=False)


async def echo_asyncio(address: str, road: str, keys: Keyring) -> None:
    """Echo messages forever, on an event loop."""
    socket = open_raw(zmq.asyncio.Context(), zmq.ROUTER, road, keys)
    socket.bind(address)
    print(socket.getsockopt_string(zmq.LAST_ENDPOINT), flush=True)
    while True:
        await socket.send_multipart(await socket.recv_multipart(copy=False), copy=False)


async def echo_link(address: str) -> None:
    """Echo frames over a link."""
    transport = ZmqTransport(TransportPlan(node="echo", listen=address))
    await transport.start()
    print(transport.address, flush=True)
    link = await transport.accept()
    while True:
        await link.send(await link.receive())


@asynccontextmanager
async def reach_raw(address: str, road: str, keys: Keyring) -> AsyncIterator[Trip]:
    """Yield a function that makes a round trip with blocking calls."""
    context = zmq.Context()
    socket = open_raw(context, zmq.DEALER, road, keys)
    socket.connect(address)

    async def round_trip(payload: bytes) -> None:
        socket.send_multipart([HEADER, payload], copy=len(payload) <= 2**16)
        assert len(socket.recv_multipart(copy=False)[1]) == len(payload)

    yield round_trip
    context.destroy()


@asynccontextmanager
async def reach_asyncio(address: str, road: str, keys: Keyring) -> AsyncIterator[Trip]:
    """Yield a function that makes a round trip on the event loop."""
    context = zmq.asyncio.Context()
    socket = open_raw(context, zmq.DEALER, road, keys)
    socket.connect(address)

    async def round_trip(payload: bytes) -> None:
        await socket.send_multipart([HEADER, payload], copy=len(payload) <= 2**16)
        assert len((await socket.recv_multipart(copy=False))[1]) == len(payload)

    yield round_trip
    context.destroy()


@asynccontextmanager
async def reach_link(address: str) -> AsyncIterator[Trip]:
    """Yield a function that makes a round trip over a link."""
    transport = ZmqTransport(TransportPlan(node="near"))
    await transport.start()
    link = await transport.connect(address, "echo")

    async def round_trip(payload: bytes) -> None:
        await link.send(Frame(HEADER, (payload,)))
        assert len((await link.receive()).buffers[0]) == len(payload)

    yield round_trip
    await transport.stop()


def run_echo(way: str, road: str, address: str, keys: Keyring) -> None:
    """Run the echo process."""
    if way == "raw":
        echo_raw(address, road, keys)
    with contextlib.suppress(PeerLost):  # the benchmark has ended
        asyncio.run(echo_link(address) if way == "link" else echo_asyncio(address, road, keys))
    sys.exit()


@asynccontextmanager
async def reach(way: str, road: str, folder: Path) -> AsyncIterator[Trip]:
    """Start an echo process, yield a function that makes a round trip to it, and end the process."""
    home = folder / road
    address = f"ipc://{folder}/{way}" if road == "ipc" else "tcp://127.0.0.1:0"
    os.environ["PARALLAX_HOME"] = str(home)
    keys = Keyring(home / "keys")
    command = [sys.executable, __file__, "--echo", way, road, address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: ASYNC220 -- nothing waits
        try:
            assert process.stdout
            where = process.stdout.readline().strip()
            ways = {"raw": reach_raw, "asyncio": reach_asyncio}
            async with reach_link(where) if way == "link" else ways[way](where, road, keys) as round_trip:
                yield round_trip
        finally:
            process.kill()


async def take_turn(round_trip: Trip, payload: bytes, count: int) -> list[float]:
    """Return the milliseconds of ``count`` round trips, after a warm-up."""
    times = []
    for number in range(WARM_UP + count):
        begin = time.perf_counter()
        await round_trip(payload)
        if number >= WARM_UP:
            times.append(1e3 * (time.perf_counter() - begin))
    return times


async def measure(road: str, folder: Path) -> list[dict[str, Any]]:
    """Measure all ways over ``ipc`` or ``curve`` (encrypted TCP), in turns."""
    if road == "curve":
        Keyring(folder / road / "keys").make("default")
    found = []
    async with AsyncExitStack() as stack:
        trips = {way: await stack.enter_async_context(reach(way, road, folder)) for way in WAYS}
        for name, size in SIZES.items():
            payload, times = os.urandom(size), {way: list[float]() for way in WAYS}
            for _ in range(TURNS):
                for way in WAYS:
                    times[way] += await take_turn(trips[way], payload, TRIPS[name])
            found += [summarize(road, name, way, times) for way in WAYS]
    return found


def summarize(road: str, name: str, way: str, times: dict[str, list[float]]) -> dict[str, Any]:
    """Return the figures of one way, and their ratios to `raw`."""
    p50, p99 = (pick(times[way], share) for share in (0.5, 0.99))
    return {
        "road": road,
        "payload": name,
        "way": way,
        "trips": len(times[way]),
        "p50_ms": round(p50, 4),
        "p99_ms": round(p99, 4),
        "p50_ratio": round(p50 / pick(times["raw"], 0.5), 2),
        "p99_ratio": round(p99 / pick(times["raw"], 0.99), 2),
    }


def pick(times: list[float], share: float) -> float:
    """Return the quantile ``share`` of ``times``."""
    return sorted(times)[min(len(times) - 1, int(share * len(times)))]


async def measure_all() -> list[dict[str, Any]]:
    """Measure over ``ipc`` and ``curve``."""
    with tempfile.TemporaryDirectory() as folder:
        return [each for road in ROADS for each in await measure(road, Path(folder))]


def main() -> None:
    """Measure, print, and write the report."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--echo", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.echo:
        way, road, address = options.echo
        run_echo(way, road, address, Keyring(Path(os.environ["PARALLAX_HOME"]) / "keys"))
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)  # noqa: S607
    trips = asyncio.run(measure_all())
    found = {
        "round_trips": trips,
        "commit": commit.stdout.strip(),
        "command": "python benchmarks/transport.py",
        "machine": {
            "system": platform.platform(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "zmq": f"{zmq.zmq_version()}, pyzmq {zmq.pyzmq_version()}",
            "load": [round(load, 2) for load in os.getloadavg()],
        },
    }
    for each in trips:
        times = "p50 {p50_ms:>8} ms  p99 {p99_ms:>8} ms  {p50_ratio}  {p99_ratio}".format(**each)
        print("{road:<6}{payload:<8}{way:<9}".format(**each), times)
    if options.out:
        options.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
