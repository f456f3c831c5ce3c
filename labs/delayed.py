"""Carries what is sent between two network interfaces, with a delay; it makes them, in network namespaces.

    sudo python -m labs.delayed SECONDS NAMESPACE INTERFACE NAMESPACE INTERFACE

Each frame of Ethernet arrives the same time after it was sent. It does what ``tc qdisc add ... netem delay`` does, for
kernels without that.
"""

from __future__ import annotations

import fcntl
import os
import queue
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.support.namespaces import SWITCH, Machine, enter, run

MOST_FRAME = 2**16
MAKE_INTERFACE, TAP_WITHOUT_HEADER = 0x400454CA, 0x1002
"""TUNSETIFF, and IFF_TAP with IFF_NO_PI."""


def make_interface(namespace: str, name: str) -> int:
    """Make an interface whose frames are read from, and written to, the returned file."""
    enter(namespace)
    handle = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(handle, MAKE_INTERFACE, struct.pack("16sH22x", name.encode(), TAP_WITHOUT_HEADER))
    return handle


def carry(source: int, target: int, delay_s: float) -> None:
    """Carry frames in one direction, from threads of their own."""
    frames: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()

    def receive() -> None:
        while True:
            frame = os.read(source, MOST_FRAME)
            frames.put((time.monotonic() + delay_s, frame))

    def deliver() -> None:
        while True:
            due, frame = frames.get()
            time.sleep(max(0.0, due - time.monotonic()))
            with suppress(OSError):  # the interface is not up yet
                os.write(target, frame)

    for work in (receive, deliver):
        threading.Thread(target=work).start()


@contextmanager
def delaying(machine: Machine, address: str, delay_s: float) -> Iterator[None]:
    """Have all that passes the router of a machine take longer, each way.

    Args:
        machine: behind a router.
        address: that of the router on the internet.
        delay_s: how much longer, in seconds.
    """
    router, port = machine.router, machine.router_port
    run("ip", "-n", router, "link", "del", "out")
    command = (sys.executable, "-m", "labs.delayed", str(delay_s), router, "out", SWITCH, port)
    with machine.running(*command) as process:
        process.await_line("carrying")
        run("ip", "-n", router, "addr", "add", f"{address}/24", "dev", "out")
        run("ip", "-n", router, "link", "set", "out", "up")
        run("ip", "-n", SWITCH, "link", "set", port, "master", "br0", "up")
        yield


def main() -> None:
    """Carry frames until killed."""
    delay_s, *places = sys.argv[1:]
    one, other = (make_interface(*each) for each in (places[:2], places[2:]))
    carry(one, other, float(delay_s))
    carry(other, one, float(delay_s))
    print("carrying", flush=True)


if __name__ == "__main__":
    main()
