"""Measures what those who reach the port of a server, and have no key, cost the streams of others.

    python -m benchmarks.strangers --out benchmarks/results/strangers.json

A server listens for machines, with 1,000 keys on disk, and streams answers over a node whose stage sleeps 10 ms a step.
Server and node run on one core; whoever attacks has another. For each attack the report has the 50th and the 99th
percentile of the time between two tokens of a stream, the longest, by how much the 99th is longer than without an
attack, and the most that the server has taken meanwhile: seconds of processor time, open files, memory, log lines.
Gaps count by their length: in one of a hundred moments, a stream is within a gap that is longer than the 99th
percentile. (Else a server that stands still would have few gaps, and so a good percentile.)

With ``--model MODEL`` the server is ``parallax run``, whose stage computes on the same core.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate, count
from pathlib import Path
from typing import Any

import zmq

from benchmarks.record import describe_run, write_report
from benchmarks.slow_links import find_port
from parallax_core.api import LayerRange, Request, RequestId, TransportPlan, keys_folder
from parallax_core.base import log
from parallax_core.config.home import cluster_file, models_folder
from parallax_core.node.executor.remote import RemoteExecutor
from parallax_core.node.membership.assignment import StageAssignment
from parallax_core.node.membership.code_store import CodeStore
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.node.membership.supervisor import WorkerSupervisor
from parallax_core.node.membership.supply import NodeSupply
from parallax_core.node.pipeline.engine import PipelineEngine
from parallax_core.node.versions import own_versions
from parallax_core.testing.node import NodePlan, serve_head
from parallax_core.testing.sleep import SleepStage, describe_sleeper
from parallax_core.testing.toy import GREEDY
from parallax_core.wire.versions import write_versions
from parallax_transport_zmq.joining import ZmqJoining, derive_pair
from parallax_transport_zmq.keyfile import KeyPair
from parallax_transport_zmq.keyring import Keyring, make_pair
from parallax_transport_zmq.message import pack_enrol
from parallax_transport_zmq.security import Guard
from parallax_transport_zmq.transport import ZmqTransport

GOAL_MS = 20
NUM_KEYS = 1000
STEP_S = 0.01
NUM_STREAMS = 4
QUIET_S, ATTACK_S = 5.0, 10.0
RATE = 100
"""Connections that an attacker makes in a second."""
HELD_S = 2.0
"""Seconds for which an attacker holds a connection of ZeroMQ."""
SECRET = bytes(range(16))
"""Of a join code that was revoked."""
PART, NUM_PARTS = bytes(2**20), 512

Attack = Callable[["Aim"], None]


class Aim:
    """Where to attack, and for how long."""

    def __init__(self, address: str, server: bytes, seconds: float) -> None:
        self.address, self.server = address, server
        self.until = time.monotonic() + seconds
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.context.max_sockets = 60_000

    @property
    def place(self) -> tuple[str, int]:
        """The host and port."""
        host, _, port = self.address.removeprefix("tcp://").rpartition(":")
        return host, int(port)

    def dial(self, pair: KeyPair, kind: int = zmq.DEALER) -> zmq.Socket[bytes]:
        """Return a socket that proves a key."""
        socket = self.context.socket(kind)
        socket.linger, socket.reconnect_ivl = 0, -1
        Guard(pair, self.server).apply(socket)
        socket.connect(self.address)
        return socket

    def at_rate(self, rate: float) -> Iterator[int]:
        """Yield the numbers of events at a rate, until the end."""
        begun = time.monotonic()
        for number in count():
            if time.monotonic() >= self.until:
                return
            time.sleep(max(0.0, begun + number / rate - time.monotonic()))
            yield number


def knock(aim: Aim, rate: float = RATE, *, pair: KeyPair | None = None, says: bytes = b"") -> None:
    """Connect with a key, or a new one each time, say something, and hang up after a while."""
    held: list[tuple[float, zmq.Socket[bytes]]] = []
    for _ in aim.at_rate(rate):
        socket = aim.dial(pair or make_pair())
        if says:
            socket.send(says, zmq.NOBLOCK)
        held.append((time.monotonic() + HELD_S, socket))
        while held[0][0] < time.monotonic():
            held.pop(0)[1].close(0)


def enrol_again_and_again(aim: Aim) -> None:
    """Ask to be admitted by a revoked code, as often as one connection allows."""
    socket = aim.dial(derive_pair(SECRET))
    while time.monotonic() < aim.until:
        with contextlib.suppress(zmq.Again):
            socket.send(ENROL, zmq.NOBLOCK)
        while socket.poll(0):
            socket.recv()
        time.sleep(0.0005)


def hold(aim: Aim, *, pair: KeyPair | None) -> None:
    """Keep as many connections as possible, which say nothing; with a key, they prove it."""
    import socket as sockets

    rate = 10 * RATE if pair is None else 2 * RATE
    held = [sockets.create_connection(aim.place, 5) if pair is None else aim.dial(pair) for _ in aim.at_rate(rate)]
    assert held


def send_parts(aim: Aim) -> None:
    """Send a message of many parts by a revoked code: it goes out once it is whole, and takes as much memory there."""
    socket = aim.dial(derive_pair(SECRET))
    socket.send_multipart([PART] * NUM_PARTS)
    time.sleep(max(0.0, aim.until - time.monotonic()))


ENROL = pack_enrol(write_versions(own_versions()), bytes(range(1, 33)), "guest")
ATTACKS: dict[str, Attack] = {
    "strangers, 100/s": knock,
    "strangers, 400/s": partial(knock, rate=400),
    "revoked code, 100/s": partial(knock, pair=derive_pair(SECRET), says=ENROL),
    "revoked code, one connection": enrol_again_and_again,
    "connections that say nothing, 1000/s": partial(hold, pair=None),
    "revoked code that says nothing, 200/s": partial(hold, pair=derive_pair(SECRET)),
    "revoked code, a message of 512 MiB in parts": send_parts,
}


class Victim:
    """A server with a node whose stage sleeps, and the gaps between the tokens of its streams."""

    def __init__(self) -> None:
        plan = TransportPlan(node="head", listen="tcp://127.0.0.1:0", timeout_s=2.5)
        transport = ZmqTransport(plan)
        transport.enrol_by(CodeStore(cluster_file()))
        self.registry = NodeRegistry(transport, "head")
        supervisor = WorkerSupervisor(self._make_command)
        stage = StageAssignment(stage=0, layers=LayerRange(0, 8), model="sleep", node="worker/0", heartbeat_s=0.2)
        executor = RemoteExecutor([stage], NodeSupply(self.registry, supervisor))
        self.engine = PipelineEngine(executor, lambda tokens: "x" * len(tokens))
        self.gaps: list[float] = []

    def _make_command(self, node: str) -> list[str]:
        plan = {"node": node, "transport": "parallax_transport_zmq.transport:ZmqTransport"}
        places = {"connect": self.registry.address, "listen": "tcp://127.0.0.1:0"}
        return [sys.executable, "-m", "benchmarks.strangers", "--node", json.dumps({**plan, **places})]

    async def stream(self, name: int) -> None:
        """Stream one answer after the other, and note the time between its tokens."""
        for number in count():
            request = Request(id=RequestId(f"{name}-{number}"), prompt=(1, 2, 3), max_tokens=1000, sampling=GREEDY)
            latest = 0.0
            async for _ in self.engine.submit(request):
                now = time.monotonic()
                self.gaps += [now - latest] if latest else []
                latest = now

    async def run(self) -> None:
        """Serve; on each line of standard input, print the gaps since the one before."""
        await self.registry.start()
        try:
            await self.engine.start()
            streams = [asyncio.create_task(self.stream(name)) for name in range(NUM_STREAMS)]
            print(self.registry.address, flush=True)
            while await asyncio.to_thread(sys.stdin.readline):
                gaps, self.gaps = self.gaps, []
                print(json.dumps(gaps), flush=True)
            for each in streams:
                each.cancel()
            await asyncio.gather(*streams, return_exceptions=True)
        finally:
            await self.engine.stop()
            await self.registry.stop()


async def run_node(plan: str) -> None:
    """Run the node whose stage sleeps."""
    await serve_head(
        NodePlan(**json.loads(plan)),
        lambda *_: SleepStage(describe_sleeper(), lambda _: STEP_S),
    )


class Server:
    """The process of a server that is attacked."""

    def __init__(self, process: subprocess.Popen[str], address: str, log_file: Path) -> None:
        self.process, self.address, self._log = process, address, log_file

    def take_gaps(self) -> list[float]:
        """Return the gaps between tokens since the last call, in seconds."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        found: list[float] = json.loads(self.process.stdout.readline())
        return found

    def read_state(self) -> dict[str, float]:
        """Return what the process has taken so far."""
        pid = self.process.pid
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        return {
            "cpu_s": ticks / os.sysconf("SC_CLK_TCK"),
            "files": len(os.listdir(f"/proc/{pid}/fd")),  # noqa: PTH208 -- only the count matters
            "memory_mib": int(fields[21]) * os.sysconf("SC_PAGE_SIZE") / 2**20,
            "log_lines": self._log.read_text().count("\n"),
        }


class HttpServer(Server):
    """``parallax run``, whose gaps are seen by a client of its API."""

    def __init__(self, process: subprocess.Popen[str], address: str, log_file: Path, url: str) -> None:
        super().__init__(process, address, log_file)
        client = (sys.executable, "-m", "benchmarks.strangers", "--client", url)
        self._client = subprocess.Popen(
            pinned(client, 0), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )

    def take_gaps(self) -> list[float]:
        """Return the gaps between tokens since the last call, in seconds."""
        return Server(self._client, "", Path()).take_gaps()


ROOT = Path(__file__).parents[1]


def pinned(command: Sequence[str], core: int) -> list[str]:
    """Return a command that runs on one core."""
    return ["taskset", "-c", str(core), *command]


async def read_streams(url: str) -> None:
    """Stream answers of an API as `Victim` does."""
    gaps: list[float] = []
    host, _, port = url.removeprefix("http://").removesuffix("/v1").rpartition(":")

    async def stream() -> None:
        body = json.dumps({"prompt": "Once upon a time", "max_tokens": 500, "ignore_eos": True, "stream": True})
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        while True:
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode())
            await reader.readuntil(b"\r\n\r\n")
            latest = 0.0
            while await reader.read(2**16):
                now = time.monotonic()
                if latest:
                    gaps.append(now - latest)
                latest = now
            writer.close()

    tasks = [asyncio.create_task(stream()) for _ in range(NUM_STREAMS)]
    while await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(gaps), flush=True)
        gaps.clear()
    for task in tasks:
        task.cancel()


@contextmanager
def serving(folder: Path, model: str) -> Iterator[Server]:
    """Start a server on the first core, and yield it."""
    log_file = folder / "log"
    port = find_port()
    listen = f"tcp://127.0.0.1:{port}"
    run = ("-m", "parallax_core", "run", model, "--listen", listen, "--port", "0", "--stun-port", "0")
    command = [sys.executable, *(run if model else ("-m", "benchmarks.strangers", "--victim"))]
    with log_file.open("w") as sink:
        process = subprocess.Popen(
            pinned(command, 0), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sink, text=True, cwd=ROOT
        )
    assert process.stdout is not None
    try:
        if model:
            url = next(line.split()[1] for line in process.stdout if line.startswith("ready"))
            yield HttpServer(process, listen, log_file, url)
        else:
            yield Server(process, process.stdout.readline().strip(), log_file)
    finally:
        process.terminate()
        process.wait()


def prepare_home(num_keys: int) -> bytes:
    """Make the keys and the revoked code of a server, and return its public key."""
    ZmqJoining().prepare("head")
    ring = Keyring(keys_folder())
    for number in range(num_keys):
        ring.allow(os.urandom(32), f"machine-{number}", "worker")
    store = CodeStore(cluster_file())
    store.revoke(store.add(ZmqJoining().derive_proof(SECRET), 3600.0, 0).name)
    pair = ring.find_pair("head")
    assert pair is not None
    return pair.public


def summarize(gaps: Sequence[float]) -> dict[str, float]:
    """Return percentiles in milliseconds."""
    found = {"p50_ms": find_percentile(gaps, 0.5), "p99_ms": find_percentile(gaps, 0.99), "longest_ms": max(gaps)}
    return {"tokens": len(gaps), **{name: round(1000 * each, 2) for name, each in found.items()}}


def find_percentile(gaps: Sequence[float], share: float) -> float:
    """Return the length that gaps with ``share`` of the whole time do not exceed."""
    ordered = sorted(gaps)
    return ordered[bisect_left(list(accumulate(ordered)), share * sum(ordered))]


def suffer(server: Server, key: bytes, name: str) -> dict[str, Any]:
    """Have a server attacked from the other core, and return the figures."""
    time.sleep(1.0)
    server.take_gaps()
    time.sleep(QUIET_S)
    quiet, before = summarize(server.take_gaps()), server.read_state()
    aim = ("--attack", name, "--address", server.address, "--key", key.hex())
    attacker = subprocess.Popen(pinned((sys.executable, "-m", "benchmarks.strangers", *aim), 1), cwd=ROOT)
    begun, states = time.monotonic(), [before]
    while time.monotonic() < begun + ATTACK_S:
        time.sleep(0.1)
        states.append(server.read_state())
    most = {each: max(state[each] for state in states) for each in before}
    under = summarize(server.take_gaps())
    assert attacker.wait(60) in {0, -signal.SIGABRT}, "ZeroMQ aborts if it is cut off within a message of parts"
    time.sleep(4.0)
    rest = server.read_state()
    return {
        "attack": name,
        "quiet": quiet,
        "under": under,
        "p99_grows_by_ms": round(under["p99_ms"] - quiet["p99_ms"], 2),
        "taken": {each: round(most[each] - before[each], 2) for each in most},
        "left": {each: round(rest[each] - before[each], 2) for each in ("files", "memory_mib")},
    }


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Attack a fresh server, and return the figures."""
    with tempfile.TemporaryDirectory(prefix="strangers-") as folder:
        home = Path(folder)
        if options.model:
            (home / "models").symlink_to(models_folder())
        with environ(PARALLAX_HOME=folder):
            key = prepare_home(options.keys)
            with serving(home, options.model) as server:
                found = suffer(server, key, name)
    print(json.dumps(found), file=sys.stderr, flush=True)
    return found


@contextmanager
def environ(**values: str) -> Iterator[None]:
    """Set environment variables for a while."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def main() -> None:
    """Measure, print, and write the report."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--keys", type=int, default=NUM_KEYS)
    parser.add_argument("--model", default="", help="a model that `parallax run` serves, from the models of this user")
    parser.add_argument("--only", default="", help="run only attacks whose names contain this")
    parser.add_argument("--out", type=Path)
    for hidden in ("--attack", "--address", "--key", "--node", "--client"):
        parser.add_argument(hidden, default="", help=argparse.SUPPRESS)
    parser.add_argument("--victim", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.node:
        asyncio.run(run_node(options.node))
    elif options.victim:
        log.configure(verbose=False)
        asyncio.run(Victim().run())
    elif options.client:
        asyncio.run(read_streams(options.client))
    elif options.attack:
        ATTACKS[options.attack](Aim(options.address, bytes.fromhex(options.key), ATTACK_S + 1.0))
        os._exit(0)  # contexts of ZeroMQ would wait for their sockets
    else:
        report(options)


def report(options: argparse.Namespace) -> None:
    """Run the attacks, print what they did, and write it."""
    runs = [measure(name, options) for name in ATTACKS if options.only in name]
    command = ["benchmarks.strangers", *(["--model", options.model] if options.model else [])]
    found = {
        "keys": options.keys,
        "runs": runs,
        "worst_ms": max(run["p99_grows_by_ms"] for run in runs),
        "goal_ms": GOAL_MS,
        **describe_run(command, ["pyzmq"]),
    }
    print(json.dumps(found, indent=2))
    write_report(options.out, found)


if __name__ == "__main__":
    main()
