"""Machines that join by a code over networks of many kinds, each machine in a network namespace of its own.

Needs root and `ip netns`; elsewhere the tests are skipped. A firewall that drops packets is a route that does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.namespaces import has_namespaces, run

HEAD = textwrap.dedent("""
    import asyncio, sys
    from parallax_core.api import TransportPlan
    from parallax_transport_zmq.joining import ZmqJoining
    from parallax_transport_zmq.transport import ZmqTransport

    class Anybody:
        def knows(self, proof): return proof == joining.derive_proof(bytes(16))
        def check_versions(self, versions): pass
        def admit(self, proof, key): pass

    async def main():
        joining.prepare("head")
        transport = ZmqTransport(TransportPlan(node="head", listen=sys.argv[1]))
        transport.enrol_by(Anybody())
        await transport.start()
        print(joining.describe_head("head", sys.argv[1]).hex(), flush=True)
        await asyncio.sleep(60)

    joining = ZmqJoining()
    asyncio.run(main())
""")
JOINER = textwrap.dedent("""
    import asyncio, sys, time
    from parallax_core.api import ParallaxError
    from parallax_transport_zmq.joining import ZmqJoining

    begun = time.monotonic()
    try:
        found = asyncio.run(ZmqJoining().enrol(bytes.fromhex(sys.argv[1]), bytes(16), "desk", bytes()))
        print("joined", found.machine, found.address)
    except ParallaxError as error:
        print(f"error: {error.message} hint: {error.hint}")
    print(time.monotonic() - begun)
""")
STALE = textwrap.dedent("""
    import socket

    listener = socket.create_server(("10.77.0.1", 9000))
    print(1, flush=True)
    caller, _ = listener.accept()
    caller.send(b"HTTP/1.1 400 Bad Request" + bytes(99))
    caller.recv(1)
""")
BOUND_S = 5.0
"""Within so many seconds a machine joins or says why not. The code itself gives up after 2.5."""
SERVER, CLIENT = f"plx-s-{os.getpid()}", f"plx-c-{os.getpid()}"


def ip(machine: str, *command: str) -> None:
    run("ip", "-n", machine, *command)


pytestmark = pytest.mark.skipif(not has_namespaces(), reason="network namespaces need root and `ip netns`")


@pytest.fixture(autouse=True)
def machines() -> Iterator[None]:
    """Make two machines with a cable between them and no addresses."""
    for machine in (SERVER, CLIENT):
        run("ip", "netns", "add", machine)
    try:
        run("ip", "link", "add", "lan0", "netns", SERVER, "type", "veth", "peer", "name", "lan0", "netns", CLIENT)
        for machine in (SERVER, CLIENT):
            ip(machine, "link", "set", "lo", "up")
            ip(machine, "link", "set", "lan0", "up")
        yield
    finally:
        for machine in (SERVER, CLIENT):
            run("ip", "netns", "del", machine)


def give_ipv4() -> None:
    ip(SERVER, "addr", "add", "10.77.0.1/24", "dev", "lan0")
    ip(CLIENT, "addr", "add", "10.77.0.2/24", "dev", "lan0")


def give_ipv6() -> None:
    ip(SERVER, "addr", "add", "fd77::1/64", "dev", "lan0", "nodad")
    ip(CLIENT, "addr", "add", "fd77::2/64", "dev", "lan0", "nodad")


def add_interface(machine: str, name: str, address: str) -> None:
    ip(machine, "link", "add", name, "type", "bridge")
    ip(machine, "addr", "add", address, "dev", name)
    ip(machine, "link", "set", name, "up")


def set_up_docker() -> None:
    """Give both machines a bridge with the same address, before that of the network between them."""
    for machine in (SERVER, CLIENT):
        add_interface(machine, "docker0", "172.17.0.1/16")
    give_ipv4()


def set_up_vpn() -> None:
    """Route all else through a tunnel that leads nowhere, so that its address is the one that is advertised."""
    for machine, address in ((SERVER, "10.8.0.1/24"), (CLIENT, "10.9.0.1/24")):
        add_interface(machine, "vpn0", address)
        ip(machine, "route", "add", "default", "dev", "vpn0")
    give_ipv4()


def set_up_subnets() -> None:
    """Put the machines in two subnets that are routed to each other."""
    ip(SERVER, "addr", "add", "10.77.0.1/24", "dev", "lan0")
    ip(CLIENT, "addr", "add", "10.78.0.2/24", "dev", "lan0")
    ip(SERVER, "route", "add", "10.78.0.0/24", "dev", "lan0")
    ip(CLIENT, "route", "add", "10.77.0.0/24", "dev", "lan0")


def forbid_multicast() -> None:
    give_ipv4()
    for machine in (SERVER, CLIENT):
        ip(machine, "link", "set", "lan0", "multicast", "off")


@contextmanager
def heading(tmp_path: Path, listen: str) -> Iterator[str]:
    """Run a head, and yield its description in hexadecimal digits."""
    command = ["ip", "netns", "exec", SERVER, sys.executable, "-c", HEAD, listen]
    env = {**os.environ, "PARALLAX_HOME": str(tmp_path / "server")}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def join(tmp_path: Path, head: str) -> str:
    """Join from the other machine, and return what it says; it says so in time."""
    command = ["ip", "netns", "exec", CLIENT, sys.executable, "-c", JOINER, head]
    env = {**os.environ, "PARALLAX_HOME": str(tmp_path / "client")}
    said, seconds = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, env=env, check=True, timeout=60
    ).stdout.splitlines()
    assert float(seconds) < BOUND_S
    return said


@pytest.mark.parametrize(
    ("set_up", "listen", "address"),
    [
        (give_ipv4, "tcp://0.0.0.0:9000", "tcp://10.77.0.1:9000"),
        (give_ipv6, "tcp://[::]:9000", "tcp://[fd77::1]:9000"),
        (give_ipv4, "tcp://[::]:9000", "tcp://10.77.0.1:9000"),
        (forbid_multicast, "tcp://0.0.0.0:9000", "tcp://10.77.0.1:9000"),
        (set_up_subnets, "tcp://0.0.0.0:9000", "tcp://10.77.0.1:9000"),
        (set_up_docker, "tcp://0.0.0.0:9000", "tcp://10.77.0.1:9000"),
        (set_up_vpn, "tcp://0.0.0.0:9000", "tcp://10.77.0.1:9000"),
    ],
)
def test_machine_joins_over_every_network(
    tmp_path: Path, set_up: Callable[[], None], listen: str, address: str
) -> None:
    set_up()
    with heading(tmp_path, listen) as head:
        assert join(tmp_path, head) == f"joined desk {address}"


def drop_answers() -> None:
    ip(SERVER, "route", "add", "blackhole", "10.77.0.2/32")


def drop_questions() -> None:
    ip(CLIENT, "route", "add", "blackhole", "10.77.0.1/32")


def unplug() -> None:
    ip(CLIENT, "addr", "del", "10.77.0.2/24", "dev", "lan0")


@pytest.mark.parametrize(
    ("change", "listen", "reason"),
    [
        (drop_answers, "tcp://0.0.0.0:9000", "does not answer in 2.5 s hint: is it still running, does a firewall"),
        (drop_questions, "tcp://0.0.0.0:9000", "tcp://10.77.0.1:9000"),
        (unplug, "tcp://0.0.0.0:9000", "tcp://10.77.0.1:9000"),
        (lambda: None, "tcp://127.0.0.1:9000", "only the machine of the server itself reaches this address"),
    ],
)
def test_machine_that_cannot_join_says_why(
    tmp_path: Path, change: Callable[[], None], listen: str, reason: str
) -> None:
    give_ipv4()
    with heading(tmp_path, listen) as head:
        change()
        said = join(tmp_path, head)
        assert said.startswith("error: ")
        assert reason in said


def test_other_process_on_the_port_is_told_apart(tmp_path: Path) -> None:
    give_ipv4()
    with heading(tmp_path, "tcp://10.77.0.1:9000") as head:
        pass
    command = ["ip", "netns", "exec", SERVER, sys.executable, "-c", STALE]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        assert "tcp://10.77.0.1:9000" in join(tmp_path, head)
    finally:
        process.kill()
        process.communicate()


def test_nothing_on_the_port_is_said_at_once(tmp_path: Path) -> None:
    give_ipv4()
    with heading(tmp_path, "tcp://10.77.0.1:9000") as head:
        pass
    assert "no server answers at tcp://10.77.0.1:9000" in join(tmp_path, head)
