"""What leaves a machine: with ``--offline``, only what goes to addresses that were given. Needs root and `ip netns`.

Each machine is a network namespace with a route to everywhere, and all that it sends is recorded.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.conftest import PARALLAX
from tests.e2e.tiny import write_tiny
from tests.support.namespaces import Machine, Process, network

RECORD = """
import socket, struct
sock = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
sock.bind(("lan0", 3))
print("recording", flush=True)
while True:
    data, (_, protocol, kind, *_) = sock.recvfrom(65535)
    if kind != 4:  # of another machine
        continue
    if protocol == 0x0800:
        size = (data[0] & 15) * 4
        port = struct.unpack_from("!H", data, size + 2)[0]
        print({6: "tcp", 17: "udp"}.get(data[9], data[9]), socket.inet_ntoa(data[16:20]), port, flush=True)
    elif protocol == 0x86DD and data[6] != 58 and data[6] != 0:  # not of the kernel, which looks for routers
        print("ipv6", socket.inet_ntop(socket.AF_INET6, data[24:40]), flush=True)
"""
SERVER, GUEST, GATEWAY = "10.77.0.1", "10.77.0.2", "10.77.0.254"
LISTEN = f"tcp://{SERVER}:9000"
NOT_HERE = "nobody/nothing"
"""A model of the hub."""


@contextmanager
def recording(machine: Machine) -> Iterator[Process]:
    """Record where a machine sends."""
    with machine.running(sys.executable, "-c", RECORD) as record:
        record.await_line("recording")
        yield record


def list_destinations(record: Process) -> set[tuple[str, ...]]:
    """Return the protocol, the address and the port of all that was sent."""
    time.sleep(0.3)
    return {tuple(line.split()) for _, line in record.lines[1:]}


@pytest.fixture
def machines(tmp_path: Path, model_home: Path) -> Iterator[tuple[Machine, Machine]]:
    """Make a server and a guest, with a gateway that answers to its address and forwards nothing."""
    with network(tmp_path / "homes", model_home / "models", "server", "guest", "gateway") as made:
        for machine, address in zip(made, (SERVER, GUEST, GATEWAY), strict=True):
            machine.ip("addr", "add", f"{address}/24", "dev", "lan0")
        for machine in made[:2]:
            machine.ip("route", "add", "default", "via", GATEWAY)
        yield made[0], made[1]


@pytest.mark.timeout(120)
def test_offline_machines_contact_only_each_other(
    machines: tuple[Machine, Machine], tmp_path: Path, model_folder: Path
) -> None:
    server, guest = machines
    tiny = write_tiny(tmp_path / "tiny", model_folder)
    run = (PARALLAX, "run", str(tiny), "--offline", "--no-local", "--listen", LISTEN, "--port", "0")
    with recording(server) as sent, recording(guest) as asked, server.running(*run) as head:
        code = head.await_line("parallax join ")[1].split()[2]
        refusing = guest.running(PARALLAX, "serve", NOT_HERE, "--offline")
        joining = guest.running(PARALLAX, "join", "--offline", "--port", "0", code)
        with refusing as refused, joining as joined:
            refused.await_line("error: ", 30)
            joined.await_line("joined head=", 30)
            head.await_line("node joined")
            time.sleep(1.0)  # links are measured meanwhile
        for process in (head, joined, refused):
            assert process.find("network: offline") is not None
        assert {place[:2] for place in list_destinations(asked)} == {("tcp", SERVER)}
        assert {place[:2] for place in list_destinations(sent)} == {("tcp", GUEST)}


@pytest.mark.timeout(120)
def test_without_it_what_is_said_is_what_leaves(machines: tuple[Machine, Machine]) -> None:
    _, guest = machines
    with recording(guest) as sent:
        with guest.running(PARALLAX, "join", "plx1" + "0" * 30) as refused:
            refused.await_line("error: ", 30)
        before = list_destinations(sent)
        with guest.running(PARALLAX, "join", LISTEN) as unknown:  # known by a code only
            unknown.await_line("error: ", 30)
        with guest.running(PARALLAX, "serve", NOT_HERE) as fetching:
            fetching.await_line("network: models that are not here are fetched")
            until = time.monotonic() + 60
            while not any(place[-1] == "53" for place in list_destinations(sent)) and time.monotonic() < until:
                time.sleep(0.2)
        assert before == set()
        assert any(place[0] == "udp" and place[-1] == "53" for place in list_destinations(sent))
