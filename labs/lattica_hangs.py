"""Runs lattica itself into the ways in which it hangs, and links of the transport ``lattica`` through the same traffic.

    python -m labs.lattica_hangs --out benchmarks/results/lattica-hangs.json

Each end is a process. There are three patterns of traffic:

- ``in flight``: one peer has several calls of lattica's `call_stream` in flight to another; a node has as many frames
  in flight to another, and back, as a link takes.
- ``slow reader``: a process that reads a stream is stopped, while another makes calls, or exchanges frames.
- ``busy``: a peer that is called makes a call of lattica's that waits with the interpreter locked, again and again; a
  node that exchanges frames makes and closes links to another.

Lattica has hung if nothing is answered for 10 s, and has not if answers come for 12 s. The report has the answers until
then, and the processes that did not even print any more, since their interpreter was locked. For the links it has the
frames that came back, whether each was whole and the next in order, in how many seconds from the start of the process,
and the longest pause between two.
"""

from __future__ import annotations

import argparse
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from labs.movement import Watched
from benchmarks.record import describe_run, write_report
from tests.support.zmq_nodes import find_tcp_port as find_port
from parallax_transport_zmq.keyring import Keyring

STILL_S = 10.0
"""Seconds without an answer after which lattica counts as hung."""
MOST_S = 12.0
"""Seconds of answers after which lattica counts as not hung."""
LINK_S = 7.0
"""Seconds for which links carry frames."""
STOPPED_S = 5.0
"""Seconds for which a reader is stopped; its link is lost after 8."""
AFTER_S = 4.0
"""Seconds for which is watched what happens after a reader has ended."""
IN_FLIGHT = ((1, 2**10), (8, 2**10), (4, 2**16), (2, 2**20))
"""Calls in flight, and their bytes. One is for comparison: nothing hangs."""
SIZES = (2**10, 2**16, 2**20)
"""Bytes of frames, as many of which are in flight as a link takes."""
ONCE_MORE = {"get_visible_maddrs": "call", "connect": "call", "register_service": "call_stream"}
"""What a busy server calls, and by which method it is called."""


class Lab:
    """Starts processes, and kills them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._environment = {"PARALLAX_HOME": str(folder / "home"), "TMPDIR": str(folder)}
        self._numbers = count()
        self._running: list[Watched] = []

    @contextmanager
    def killing(self) -> Iterator[None]:
        """Kill at the end what was started meanwhile."""
        try:
            yield
        finally:
            while self._running:
                self._running.pop().kill()

    def start_raw(self, *words: str) -> Watched:
        """Start a process of `labs.lattica_raw` in a folder of its own, and wait until it is ready."""
        role, *rest = words
        return self._start("labs.lattica_raw", role, str(self._folder / str(next(self._numbers))), *rest)

    def start_node(self, *words: str) -> Watched:
        """Start a process of `labs.lattica_links`, and wait until it is ready."""
        return self._start("labs.lattica_links", *words)

    def _start(self, module: str, role: str, *words: str) -> Watched:
        process = Watched((module, role, *words), self._environment)
        self._running.append(process)
        process.await_news("address" if role == "serve" else "ready")
        return process


def watch_raw(caller: Watched, server: Watched) -> dict[str, Any]:
    """Wait until the answers to a caller stop, or come for long enough."""
    begun = time.monotonic()
    while time.monotonic() - caller.moved < STILL_S and caller.moved - begun < MOST_S:
        time.sleep(0.1)
    processes = {"caller": caller, "server": server}
    if ended := [f"the {name} ended: {each.error}" for name, each in processes.items() if each.is_over]:
        raise RuntimeError(", ".join(ended))
    return {
        "hung": time.monotonic() - caller.moved >= STILL_S,
        "answers": caller.count,
        "longest_pause_s": round(caller.pause_s, 1),
        "locked": [name for name, each in processes.items() if each.is_silent],
    }


def try_raw_in_flight(lab: Lab) -> Iterator[dict[str, Any]]:
    """Have several calls in flight."""
    for in_flight, num_bytes in IN_FLIGHT:
        with lab.killing():
            server = lab.start_raw("serve", str(find_port()), "")
            caller = lab.start_raw("call_stream", server.await_news("address"), str(in_flight), str(num_bytes))
            yield {"in_flight": in_flight, "bytes": num_bytes, **watch_raw(caller, server)}


def try_raw_reader(lab: Lab) -> Iterator[dict[str, Any]]:
    """Stop a process that reads a stream."""
    with lab.killing():
        server = lab.start_raw("serve", str(find_port()), "")
        address = server.await_news("address")
        reader = lab.start_raw("call_stream_iter", address, "1", "8")
        caller = lab.start_raw("call", address, "1", "1024")
        time.sleep(1.0)
        reader.signal(signal.SIGSTOP)
        found = watch_raw(caller, server)
        reader.kill()
        time.sleep(AFTER_S)
        yield {**found, "answers_after_the_reader_was_killed": caller.count - found["answers"]}


def try_raw_busy(lab: Lab) -> Iterator[dict[str, Any]]:
    """Have a server make calls that wait with the interpreter locked."""
    for once_more, method in ONCE_MORE.items():
        with lab.killing():
            server = lab.start_raw("serve", str(find_port()), once_more)
            caller = lab.start_raw(method, server.await_news("address"), "1", "1024")
            yield {"server_calls": once_more, "method": method, **watch_raw(caller, server)}


def describe_frames(asker: Watched, begun: float) -> dict[str, Any]:
    """Return what came over a link."""
    return {
        "frames": asker.count,
        "in_order": asker.news["in_order"],
        "lost": asker.is_over,
        "seconds": round(time.monotonic() - begun, 1),
        "longest_pause_s": round(asker.pause_s, 3),
    }


def try_links_in_flight(lab: Lab) -> Iterator[dict[str, Any]]:
    """Have as many frames in flight as a link takes, in both directions."""
    for num_bytes in SIZES:
        with lab.killing():
            server = lab.start_node("serve", "")
            begun, asker = time.monotonic(), lab.start_node("echo", server.await_news("address"), str(num_bytes))
            time.sleep(LINK_S)
            yield {"bytes": num_bytes, **describe_frames(asker, begun)}


def try_links_reader(lab: Lab) -> Iterator[dict[str, Any]]:
    """Stop a node that reads frames, with its process of lattica, let it go on, and kill it."""
    with lab.killing():
        address = lab.start_node("serve", "").await_news("address")
        reader = lab.start_node("read", address, str(2**20))
        begun, asker = time.monotonic(), lab.start_node("echo", address, "1024")
        time.sleep(1.0)
        reader.signal(signal.SIGSTOP)
        time.sleep(STOPPED_S)
        before = reader.count
        reader.signal(signal.SIGCONT)
        time.sleep(AFTER_S)
        read = {"before": before, "after": reader.count - before, "in_order": reader.news["in_order"]}
        read["lost"] = reader.is_over
        reader.kill()
        time.sleep(AFTER_S)
        yield {"stopped_s": STOPPED_S, **describe_frames(asker, begun), "frames_of_the_reader": read}


def try_links_busy(lab: Lab) -> Iterator[dict[str, Any]]:
    """Have a node make links while it exchanges frames."""
    with lab.killing():
        other = lab.start_node("serve", "")
        server = lab.start_node("serve", other.await_news("address"))
        begun, asker = time.monotonic(), lab.start_node("echo", server.await_news("address"), "1024")
        time.sleep(LINK_S)
        yield {"links_made": server.count, **describe_frames(asker, begun)}


PATTERNS = {
    "in flight": (try_raw_in_flight, try_links_in_flight),
    "slow reader": (try_raw_reader, try_links_reader),
    "busy": (try_raw_busy, try_links_busy),
}


def measure(lab: Lab) -> list[dict[str, Any]]:
    """Try each pattern of traffic with lattica itself, and over links."""
    rows = []
    for name, (try_raw, try_links) in PATTERNS.items():
        rows.append({"pattern": name, "lattica": list(try_raw(lab)), "links": list(try_links(lab))})
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Measure, print, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hangs-") as folder:
        Keyring(Path(folder) / "home/keys").make("default")
        rows = measure(Lab(Path(folder)))
    command = ["labs.lattica_hangs"]
    write_report(given.out, {"patterns": rows, **describe_run(command, ["lattica", "pyzmq"])})


if __name__ == "__main__":
    main()
