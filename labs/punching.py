"""How often TCP gets through two routers if both machines connect at the same time; part of `labs.nat_lab`.

It says what hole punching could do for links, which Parallax does not do. Both machines connect to a meeting point from
the port that they will use, are told from where the other one is seen, and then connect to each other from that port
until a connection stands or the time is over (RFC 5382: routers support simultaneous open).
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.support.namespaces import network
from labs.routers import OUTSIDE, attach, attach_server

TRIES = 10
PAIRS = (("cone", "cone"), ("cone", "symmetric"), ("symmetric", "symmetric"))
PORT = 7100

MEET = """
import json, socket, sys
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("meeting", flush=True)
while True:
    (one, its), (other, others) = listener.accept(), listener.accept()
    for link, place in ((one, others), (other, its)):
        link.sendall(json.dumps(place).encode())
    for link in (one, other):
        link.recv(1); link.close()
"""
PUNCH = """
import json, socket, sys, time
server = sys.argv[1], int(sys.argv[2])
def bound(port):
    sock = socket.socket()
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        sock.setsockopt(socket.SOL_SOCKET, option, 1)
    sock.bind(("", port)); return sock
for number in range(int(sys.argv[3])):
    meeting = bound(0); own = meeting.getsockname()[1]
    meeting.settimeout(20); meeting.connect(server)
    other = tuple(json.loads(meeting.recv(2048)))
    until, answer = time.monotonic() + 2.0, b""
    while time.monotonic() < until and not answer:
        sock = bound(own); sock.settimeout(0.7)
        try:
            sock.connect(other); sock.sendall(b"hello"); answer = sock.recv(5)
        except OSError:
            time.sleep(0.05)
        sock.close()
    print("through" if answer == b"hello" else "not through", flush=True)
    time.sleep(max(0.0, until - time.monotonic())); meeting.sendall(b"."); meeting.close()
print("done", flush=True)
"""


def punch(kinds: tuple[str, str], folder: Path, models: Path) -> dict[str, Any]:
    """Return how often two machines on networks of these kinds get through to each other."""
    with network(folder, models, "server", "first", "second") as (server, *guests), ExitStack() as stack:
        attach_server(server)
        for number, (machine, kind) in enumerate(zip(guests, kinds, strict=True), 10):
            attach(machine, kind, number)
        place = (OUTSIDE[0], str(PORT))
        stack.enter_context(server.running(sys.executable, "-c", MEET, *place)).await_line("meeting")
        words = (sys.executable, "-c", PUNCH, *place, str(TRIES))
        first, second = (stack.enter_context(each.running(*words)) for each in guests)
        for process in (first, second):
            process.await_line("done", 30 * TRIES)
        both = zip(_list_outcomes(first.lines), _list_outcomes(second.lines), strict=True)
        punched = sum(one and other for one, other in both)
    return {"first": kinds[0], "second": kinds[1], "punched": punched, "tries": TRIES}


def _list_outcomes(lines: list[tuple[float, str]]) -> list[bool]:
    return [line == "through" for _, line in lines if line.endswith("through")]


def measure_punching(folder: Path, models: Path) -> list[dict[str, Any]]:
    """Return how often each kind of pair gets through."""
    return [punch(kinds, folder / str(number), models) for number, kinds in enumerate(PAIRS)]
