"""A scenario of those who reach the port of a server, and have no key."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket as sockets
import subprocess
import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from http.client import HTTPConnection
from itertools import accumulate, count
from pathlib import Path

import zmq

from benchmarks.faults.run import Figures, Run, private_folder, say
from benchmarks.processes import read_cpu_s, read_resident
from benchmarks.servers import parallax, read_ready, running
from parallax_cluster.config.home import cluster_file
from parallax_cluster.node.membership.code_store import CodeStore
from parallax_core.api import keys_folder
from parallax_core.config.home import models_folder
from parallax_core.node.versions import write_own_versions
from parallax_transport_zmq.joining import ZmqJoining, derive_pair
from parallax_transport_zmq.keyfile import KeyPair
from parallax_transport_zmq.keyring import Keyring, make_pair
from parallax_transport_zmq.message import pack_enrol
from parallax_transport_zmq.security import Guard
from tests.support.namespaces import Process
from tests.support.zmq_nodes import find_tcp_port

GOAL_MS = 20
NUM_KEYS, NUM_STREAMS = 1000, 4
QUIET_S, ATTACK_S = 5.0, 10.0
HELD_S = 2.0
"""Seconds for which an attacker holds a connection of ZeroMQ."""
SECRET = bytes(range(16))
"""Of a join code that was revoked."""
PART, NUM_PARTS = bytes(2**20), 512
ENROL = pack_enrol(write_own_versions(), bytes(range(1, 33)), "guest")


class Aim:
    """Where to attack, and for how long."""

    def __init__(self, port: int, server: bytes) -> None:
        self.port, self._server = port, server
        self.until = time.monotonic() + ATTACK_S + 1.0
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.max_sockets = 60_000

    def dial(self, pair: KeyPair) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.DEALER)
        socket.linger, socket.reconnect_ivl = 0, -1
        Guard(pair, self._server).apply(socket)
        socket.connect(f"tcp://127.0.0.1:{self.port}")
        return socket

    def at_rate(self, rate: float) -> Iterator[int]:
        begun = time.monotonic()
        for number in count():
            if time.monotonic() >= self.until:
                return
            time.sleep(max(0.0, begun + number / rate - time.monotonic()))
            yield number


def knock(aim: Aim, rate: float, *, pair: KeyPair | None = None, says: bytes = b"") -> None:
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
    socket = aim.dial(derive_pair(SECRET))
    while time.monotonic() < aim.until:
        with contextlib.suppress(zmq.Again):
            socket.send(ENROL, zmq.NOBLOCK)
        while socket.poll(0):
            socket.recv()
        time.sleep(0.0005)


def hold(aim: Aim, rate: float, *, pair: KeyPair | None) -> None:
    place = "127.0.0.1", aim.port
    held = [sockets.create_connection(place, 5) if pair is None else aim.dial(pair) for _ in aim.at_rate(rate)]
    assert held


def send_parts(aim: Aim) -> None:
    """Send a message of many parts by a revoked code: it goes out once it is whole, and takes as much memory there."""
    socket = aim.dial(derive_pair(SECRET))
    socket.send_multipart([PART] * NUM_PARTS)
    time.sleep(max(0.0, aim.until - time.monotonic()))


ATTACKS: dict[str, Callable[[Aim], None]] = {
    "strangers, 100 a second": partial(knock, rate=100),
    "strangers, 400 a second": partial(knock, rate=400),
    "revoked code, 100 a second": partial(knock, rate=100, pair=derive_pair(SECRET), says=ENROL),
    "revoked code, one connection": enrol_again_and_again,
    "connections that say nothing, 1000 a second": partial(hold, rate=1000, pair=None),
    "revoked code that says nothing, 200 a second": partial(hold, rate=200, pair=derive_pair(SECRET)),
    "revoked code, a message of 512 MiB in parts": send_parts,
}


def pinned(command: Sequence[str], core: int) -> list[str]:
    return ["taskset", "-c", str(core % (os.cpu_count() or 1)), *command]


def prepare_home(num_keys: int) -> bytes:
    ZmqJoining().prepare("head")
    ring = Keyring(keys_folder())
    for number in range(num_keys):
        ring.allow(os.urandom(32), f"machine-{number}", "worker")
    store = CodeStore(cluster_file())
    store.revoke(store.add(ZmqJoining().derive_proof(SECRET), 3600.0, 0).name)
    pair = ring.find_pair("head")
    assert pair is not None
    return pair.public


def stream(url: str, model: str, gaps: list[float]) -> None:
    host = url.removeprefix("http://").removesuffix("/v1")
    body = {"model": model, "prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True, "stream": True}
    with contextlib.suppress(OSError):  # the server ends
        while True:
            connection = HTTPConnection(host, timeout=60)
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            latest = 0.0
            for line in connection.getresponse():
                if line.startswith(b"data: {"):
                    now = time.monotonic()
                    gaps += [now - latest] if latest else []
                    latest = now


def summarize(gaps: Sequence[float]) -> dict[str, float]:
    """Return percentiles in milliseconds; gaps count by their length.

    In one of a hundred moments, a stream is within a gap that is longer than the 99th percentile. (Else a server that
    stands still would have few gaps, and so a good percentile.)
    """
    ordered = sorted(gaps)
    marks = {
        f"p{share}_ms": ordered[bisect_left(list(accumulate(ordered)), share / 100 * sum(ordered))]
        for share in (50, 99)
    }
    found = marks | {"longest_ms": ordered[-1]}
    return {"tokens": len(gaps), **{name: round(1000 * each, 2) for name, each in found.items()}}


def read_state(process: Process) -> dict[str, float]:
    pid = process.popen.pid
    files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    memory = read_resident(pid) / 2**20
    return {"cpu_s": read_cpu_s(pid), "files": files, "memory_mib": memory, "log_lines": len(process.lines)}


def suffer(process: Process, gaps: list[float], attack: Sequence[str]) -> Figures:
    time.sleep(1.0)
    gaps.clear()
    time.sleep(QUIET_S)
    quiet, before = summarize(gaps), read_state(process)
    gaps.clear()
    attacker = subprocess.Popen(pinned((sys.executable, "-m", "benchmarks.faults.strangers", *attack), 1))
    begun, states = time.monotonic(), [before]
    while time.monotonic() < begun + ATTACK_S:
        time.sleep(0.1)
        states.append(read_state(process))
    under = summarize(gaps)
    assert attacker.wait(60) in {0, -signal.SIGABRT}, "ZeroMQ aborts if it is cut off within a message of parts"
    time.sleep(4.0)
    rest = read_state(process)
    return {
        "quiet": quiet,
        "under": under,
        "p99_grows_by_ms": round(under["p99_ms"] - quiet["p99_ms"], 2),
        "goal_ms": GOAL_MS,
        "taken": {each: round(max(state[each] for state in states) - before[each], 2) for each in before},
        "left": {each: round(rest[each] - before[each], 2) for each in ("files", "memory_mib")},
    }


def measure(run: Run, name: str) -> Figures:
    with private_folder() as home:
        (home / "models").symlink_to(models_folder())
        os.environ["PARALLAX_HOME"] = str(home)
        key, port, gaps = prepare_home(run.times(NUM_KEYS)), find_tcp_port(), list[float]()
        words = ("--listen", f"tcp://127.0.0.1:{port}", "--port", "0", "--set", "stun_port=0", "--backend", "torch")
        with running(pinned(parallax("run", str(run.model), *words), 0), home) as process:
            url, model = read_ready(process)
            for _ in range(NUM_STREAMS):
                threading.Thread(target=stream, args=(url, model, gaps), daemon=True).start()
            return suffer(process, gaps, (name, str(port), key.hex()))


def strangers(run: Run) -> None:
    """Attack a server that listens for machines, with 1,000 keys on disk, while it streams; the attacker has no key.

    Of each attack: percentiles of the time between two tokens, by how much the 99th is longer than without it, and the
    most that the server took meanwhile: seconds of processor time, open files, memory, log lines.
    """
    run.options.model = run.model
    for name in ATTACKS:
        say(name)
        run.part(name, lambda: measure(run, name))


if __name__ == "__main__":
    given, place, public = sys.argv[1:]
    ATTACKS[given](Aim(int(place), bytes.fromhex(public)))
    os._exit(0)  # contexts of ZeroMQ would wait for their sockets
