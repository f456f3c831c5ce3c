"""Fuzzes the links of a node: nothing that strangers or malicious peers send may harm the node or its other peers.

    python -m tests.support.link_fuzz --messages 10000 --out benchmarks/results/link-fuzz.json

A node listens, and serves one good link without a pause. Meanwhile attackers connect: half of them begin with a valid
greeting, and some do not speak ZeroMQ at all. They send messages of a real conversation that are truncated, spliced,
have flipped bits or wrong sizes; and random bytes. Every frame of the good link must come back unchanged. In the end,
memory, files, threads and links must be at the level after the first quarter of the attack; 1 MiB more memory is
allowed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import gc
import json
import os
import random
import re
import resource
import signal
import socket
import sys
import tempfile
import threading
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import zmq

from benchmarks.record import describe_run, write_report
from parallax_core.api import Frame, FrameLimits, Link, PeerLost, TransportPlan, keys_folder
from parallax_transport_zmq.keyring import Keyring
from parallax_transport_zmq.message import Hello, Kind, pack_reason, pack_taken, pack_welcome
from parallax_transport_zmq.parcel import CHUNK_BYTES, cut_frame
from parallax_transport_zmq.security import Guard
from parallax_transport_zmq.transport import ZmqTransport

LIMITS = FrameLimits(header_bytes=2**16, frame_bytes=2**23, buffers=16)
HELLO = Hello("attacker", "victim", 8).pack()
FRAMES = (
    Frame(b"x"),
    Frame(bytes(300), (b"", bytes(70), bytes(2000))),
    Frame(b"large", (bytes(70_000), b"abc")),
    Frame(b"x", (b"",) * 17),
)
TALK: tuple[bytes, ...] = (
    *(bytes(message) for frame in FRAMES for message in cut_frame(frame, 0)),
    *(HELLO, pack_welcome("attacker", 3), pack_taken(0), pack_taken(2**63), Kind.BEAT, Kind.BYE, Kind.HEARD_BYE),
    *(pack_reason(Kind.BYE, "\x1b[31mred"), pack_reason(Kind.REFUSE, "no"), bytes(CHUNK_BYTES)),
)
"""The messages of a real conversation, which attackers damage."""
LIES = (b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\xff" * 8, b"\0\0\0\0\x80\0\0\0", b"\0\0\0\x10")
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01NULL" + bytes(48)
"""The greeting of the ZeroMQ protocol."""
GROWTH_BYTES = 2**20
"""Allowed growth of memory in bytes: fragmented pages, and caches of libraries."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Of glibc's ``malloc.h``."""
THRESHOLD_BYTES = 2**17
"""Its thresholds at the start of a process."""
PAUSE_S = 0.002
"""Seconds between two frames on the good link, which would otherwise take a processor of its own."""
MESSAGES = 10
"""Messages of each attacker."""
NUM_ATTACKERS = 20
"""Attackers that connect at once."""


@dataclass(frozen=True, slots=True)
class State:
    """The resources of the node that must not grow."""

    memory_bytes: int
    """Resident memory, after the allocator has returned its free memory."""
    most_bytes: int
    """Peak resident memory; for information only, since the free memory an allocator keeps varies."""
    files: int
    threads: int
    links: int


@dataclass(slots=True)
class Outcome:
    """The result of a run."""

    messages: int
    strangers: int
    service: int
    """Frames that were echoed on the good link."""
    accepted: int
    """Links that attackers had for a while."""
    errors: list[str]
    """Exceptions that reached the event loop's handler."""
    before: State
    after: State
    seconds: float

    def find_faults(self) -> list[str]:
        """Return the rules that the run broke."""
        faults = {
            "memory grew": self.after.memory_bytes - self.before.memory_bytes > GROWTH_BYTES,
            "files were left open": self.after.files > self.before.files,
            "threads were left": self.after.threads > self.before.threads,
            "links were left": self.after.links > self.before.links,
            "the good link stood still": self.service < self.strangers / NUM_ATTACKERS,
            "errors were raised": bool(self.errors),
            "no ill peer got as far as a link": not self.accepted,
        }
        return [fault for fault, is_so in faults.items() if is_so]


def damage(message: bytes, rng: random.Random) -> bytes:
    """Return a message with random damage; now and then it is unchanged."""
    data = bytearray(message)
    at = rng.randrange(len(data) + 1)
    match rng.randrange(7):
        case 0:
            return bytes(data[:at])
        case 1:
            for _ in range(rng.randint(1, 8)):
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        case 2:
            lie = rng.choice(LIES)
            data[at : at + len(lie)] = lie
        case 3:
            data[at:] = rng.choice(TALK)[at:]
        case 4:
            return rng.randbytes(rng.randrange(2000))
        case 5:
            return message[:1] + rng.randbytes(rng.randrange(64))
    return bytes(data)


def return_free_memory() -> None:
    """Have glibc's allocator return free memory by fixed rules.

    Its own threshold grows with the blocks that are freed, and the free memory at the end of another thread's arena is
    not trimmed by ``malloc_trim``: 8 MiB more or less from one moment to the next.
    """
    with contextlib.suppress(AttributeError, OSError):  # another libc
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, THRESHOLD_BYTES)
        libc.mallopt(M_TRIM_THRESHOLD, THRESHOLD_BYTES)


async def serve(link: Link) -> None:
    """Echo frames until the peer is lost."""
    with contextlib.suppress(PeerLost):
        while True:
            await link.send(await link.receive())


class Victim:
    """A node that serves every accepted link."""

    def __init__(self) -> None:
        self.transport = ZmqTransport(
            TransportPlan(node="victim", listen="tcp://127.0.0.1:0", limits=LIMITS, timeout_s=2.0)
        )
        self.accepted = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def accept_all(self) -> None:
        """Accept links, and serve each in a task."""
        while True:
            task = asyncio.create_task(serve(await self.transport.accept()))
            self.accepted += 1
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def measure(self) -> State:
        """Wait until the node has cleaned up after lost peers, and return its state."""
        await asyncio.sleep(3.0)
        gc.collect()
        unit = 1 if sys.platform == "darwin" else 1024
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        files = len(os.listdir("/dev/fd"))  # noqa: PTH208 -- only the count matters
        return State(read_resident() or most, most, files, threading.active_count(), len(self._tasks))


def read_resident() -> int:
    """Return the resident memory in bytes after trimming the allocator, or 0 if the system does not report it.

    Pages of files, such as of libraries, are left out: the system drops them and reads them again as it likes.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    with contextlib.suppress(AttributeError, OSError):  # another libc
        ctypes.CDLL(None).malloc_trim(0)
    [kilobytes] = re.findall(r"^RssAnon:\s+(\d+) kB$", status.read_text(), re.MULTILINE)
    return int(kilobytes) * 1024


async def check_link(link: Link, counter: list[int]) -> None:
    """Send frames of many sizes forever, and compare the echoes."""
    while True:
        sizes = (counter[0] % 100, counter[0] * 7919 % 100_000)
        frame = Frame(counter[0].to_bytes(8, "big"), tuple(os.urandom(size) for size in sizes))
        await link.send(frame)
        back = await link.receive()
        assert (back.header, [bytes(each) for each in back.buffers]) == (frame.header, list(frame.buffers))
        counter[0] += 1
        await asyncio.sleep(PAUSE_S)


async def attack(address: str, count: int, rng: random.Random) -> None:
    """Send ``count`` messages from attackers that have a key, in groups, and raw TCP data beside them."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    pair = Keyring(keys_folder()).ensure_pair("attacker")
    for start in range(0, count, NUM_ATTACKERS * MESSAGES):
        peers = [context.socket(zmq.DEALER) for _ in range(NUM_ATTACKERS)]
        rounds = min(MESSAGES, max(1, (count - start) // NUM_ATTACKERS))
        for peer in peers:
            Guard(pair, pair.public).apply(peer)
            peer.connect(address)
            if rng.randrange(2):
                peer.send(HELLO)
            for _ in range(rounds):
                parts = [damage(rng.choice(TALK), rng) for _ in range(rng.choice((1, 1, 1, 1, 1, 1, 1, 1, 1, 3)))]
                peer.send_multipart(parts)
        send_raw(address, rng)
        await asyncio.sleep(0.05)
        for peer in peers:
            peer.close(linger=500)
        print(min(count, start + NUM_ATTACKERS * MESSAGES), flush=True)
        await asyncio.sleep(0)
    await asyncio.to_thread(context.term)


def send_raw(address: str, rng: random.Random) -> None:
    """Send damaged data below the ZeroMQ protocol, like a client of some other protocol."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1) as stranger:
        stranger.sendall(damage(GREETING + rng.randbytes(rng.randrange(200)), rng))


@asynccontextmanager
async def at_work(victim: Victim, counter: list[int]) -> AsyncIterator[None]:
    """Let the victim serve a good link in the meantime; raise the errors of that link at the end."""
    good = ZmqTransport(TransportPlan(node="good", limits=LIMITS))
    await good.start()
    accepting = asyncio.create_task(victim.accept_all())
    link = await good.connect(victim.transport.address, "victim")
    checking = asyncio.create_task(check_link(link, counter))
    yield
    assert not accepting.done()
    checking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await checking
    accepting.cancel()
    await good.stop()


async def start_attack(address: str, count: int, seed: int) -> None:
    """Attack from other processes, so that their memory is not counted with the victim's.

    ZeroMQ aborts a process whose connection ends within a message of several parts that it sends; another one follows.
    """
    while count > 0:
        options = {"--attack": address, "--messages": str(count), "--seed": str(seed)}
        command = (
            sys.executable,
            "-m",
            "tests.support.link_fuzz",
            *(word for pair in options.items() for word in pair),
        )
        process = await asyncio.create_subprocess_exec(*command, cwd=Path(__file__).parents[1], stdout=PIPE)
        try:
            printed, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
        assert process.returncode in {0, -signal.SIGABRT}
        count -= int(printed.split()[-1]) if printed else NUM_ATTACKERS * MESSAGES
        seed += 1


async def run_fuzz(messages: int, seed: int) -> Outcome:
    """Attack a node with ``messages`` messages, and return the result."""
    victim, counter = Victim(), [0]
    begin, errors = time.monotonic(), list[str]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(str(context)))
    await victim.transport.start()
    try:
        async with at_work(victim, counter):
            await start_attack(victim.transport.address, messages // 4, seed)
            before = await victim.measure()
            await start_attack(victim.transport.address, messages - messages // 4, seed + 1)
            after = await victim.measure()
    finally:
        await victim.transport.stop()
    return Outcome(
        messages=messages,
        strangers=-(-messages // MESSAGES),
        service=counter[0],
        accepted=victim.accepted - 1,
        errors=errors,
        before=before,
        after=after,
        seconds=round(time.monotonic() - begin, 1),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Attack, print, and write the report."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--attack", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.attack:
        rng = random.Random(options.seed)
        asyncio.run(attack(options.attack, options.messages, rng))
        return
    return_free_memory()
    with tempfile.TemporaryDirectory(prefix="links-") as folder:
        os.environ["PARALLAX_HOME"] = folder
        outcome = asyncio.run(run_fuzz(options.messages, options.seed))
    found = {
        **asdict(outcome),
        "faults": outcome.find_faults(),
        **describe_run(["tests.support.link_fuzz", "--messages", str(options.messages)], ["pyzmq"]),
    }
    print(json.dumps(found, indent=2))
    write_report(options.out, found)
    if faults := outcome.find_faults():
        sys.exit(f"error: {', '.join(faults)}")


if __name__ == "__main__":
    main()
