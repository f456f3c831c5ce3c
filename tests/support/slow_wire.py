"""A wire on which everything arrives late, between a machine that is a network namespace and its switch; needs root."""

from __future__ import annotations

import fcntl
import os
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import SimpleQueue

from tests.support.namespaces import SWITCH, Machine, enter, run

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
LARGEST = 65_536
"""Bytes of the largest frame."""


@contextmanager
def slow_wire(machine: Machine, address: str, delay_s: float) -> Iterator[None]:
    """Replace the interface of a machine by one with this address, where frames take ``delay_s`` either way."""
    machine.ip("link", "del", "lan0")
    ends = [open_tap(machine.namespace, "lan0"), open_tap(SWITCH, "slow0")]
    machine.ip("addr", "add", address, "dev", "lan0")
    machine.ip("link", "set", "lan0", "up")
    run("ip", "-n", SWITCH, "link", "set", "slow0", "master", "br0", "up")
    for there, back in (ends, ends[::-1]):
        frames: SimpleQueue[tuple[float, bytes]] = SimpleQueue()
        threading.Thread(target=take, args=(there, frames, delay_s), daemon=True).start()
        threading.Thread(target=give, args=(back, frames), daemon=True).start()
    yield
    for end in ends:
        os.close(end)


def open_tap(namespace: str, name: str) -> int:
    """Make an interface in a namespace, and return the file by which its frames are read and written."""
    found: list[int] = []

    def work() -> None:
        enter(namespace)
        file = os.open("/dev/net/tun", os.O_RDWR)
        fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TAP | IFF_NO_PI))
        found.append(file)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return found[0]


def take(end: int, frames: SimpleQueue[tuple[float, bytes]], delay_s: float) -> None:
    """Read frames until the end is closed."""
    with suppress(OSError):
        while True:
            frame = os.read(end, LARGEST)
            frames.put((time.monotonic() + delay_s, frame))


def give(end: int, frames: SimpleQueue[tuple[float, bytes]]) -> None:
    """Write each frame when it is due."""
    with suppress(OSError):
        while True:
            due, frame = frames.get()
            time.sleep(max(0.0, due - time.monotonic()))
            os.write(end, frame)
