"""What leaves this machine: nothing that a link does not need."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from ipaddress import ip_address
from pathlib import Path

import pytest

from parallax_core.api import ParallaxError, PeerLost, TransportPlan
from parallax_transport_lattica import call as call_module
from parallax_transport_lattica.address import LatticaEndpoint, parse_address
from parallax_transport_lattica.confine import refuse_udp
from parallax_transport_lattica.keyfolder import claim_key
from parallax_transport_lattica.listener import find_free_port
from parallax_transport_lattica.process import PeerProcess
from parallax_transport_lattica.transport import LatticaTransport
from parallax_transport_zmq.keyring import Keyring
from tests.support.lattica_nodes import LOOPBACK, join, noted_processes, plan_node, started

PEER = "12D3KooWRRk5NRnUjTxzbBVz85TKRAV8gDnFgCmiiQR64t4nLp4T"
EVERYWHERE = "lattica://0.0.0.0:0"


def list_sockets(pid: int) -> dict[str, set[str]]:
    """Return the local addresses of a process's sockets, by protocol, as the kernel writes them."""
    links = [str(each.readlink()) for each in Path(f"/proc/{pid}/fd").iterdir() if each.is_symlink()]
    inodes = {link.removeprefix("socket:[").rstrip("]") for link in links if link.startswith("socket:[")}
    found = {}
    for protocol in ("tcp", "udp", "tcp6", "udp6"):
        rows = [line.split() for line in Path(f"/proc/{pid}/net/{protocol}").read_text().splitlines()[1:]]
        found[protocol] = {row[1] for row in rows if row[9] in inodes}
    return found


async def test_processes_have_no_udp_and_stay_on_loopback() -> None:
    with noted_processes() as processes:
        async with started(plan_node("far", LOOPBACK)) as far, started(plan_node("near")) as near:
            await join(near, far)
            is_refused = sys.platform == "linux"
            assert [process.has_udp for process in processes] == [not is_refused] * 2
            for process in processes if is_refused else ():
                sockets = list_sockets(process.pid)
                assert sockets["udp"] == sockets["udp6"] == sockets["tcp6"] == set()
                assert sockets["tcp"]
                assert all(each.startswith("0100007F:") for each in sockets["tcp"])


def test_udp_is_refused_and_the_rest_is_not() -> None:
    if sys.platform != "linux":
        assert not refuse_udp()
        return
    code = (
        "import socket\n"
        "from parallax_transport_lattica.confine import limit_memory, refuse_udp\n"
        "limit_memory()\n"
        "assert refuse_udp()\n"
        "for family in (socket.AF_INET, socket.AF_INET6):\n"
        "    socket.socket(family, socket.SOCK_STREAM).close()\n"
        "    try:\n"
        "        socket.socket(family, socket.SOCK_DGRAM)\n"
        "    except PermissionError:\n"
        "        continue\n"
        "    raise SystemExit('UDP')\n"
        "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
        "try:\n"
        "    bytearray(3 * 2**30)\n"
        "except MemoryError:\n"
        "    print('fine')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "fine\n"


def test_questions_to_public_servers_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    call_module.warn_of_stun.cache_clear()
    process = PeerProcess.__new__(PeerProcess)
    for has_udp in (False, True, True):
        process.has_udp = has_udp
        with caplog.at_level(logging.WARNING):
            call_module.tell_of_stun(process)
    assert ["stun.l.google.com" in message for message in caplog.messages] == [True]


async def test_node_without_a_key_listens_at_loopback_only() -> None:
    with pytest.raises(ParallaxError, match="off loopback, without a key"):
        await LatticaTransport(plan_node("far", EVERYWHERE)).start()


async def test_node_behind_a_router_is_reached_at_the_address_of_the_router(home: Path) -> None:
    Keyring(home / "keys").make("default")
    port = find_free_port(LatticaEndpoint("127.0.0.1", 0), ip_address("127.0.0.1"))
    router = f"127.0.0.2:{port}"  # all of 127.0.0.0/8 is this machine
    async with started(plan_node("far", f"lattica://0.0.0.0:{port}?at={router}")) as far:
        assert far.address.startswith(f"lattica://{router}/12D3KooW")
        async with started(plan_node("near")) as near:
            await join(near, far)


async def test_unknown_node_of_another_machine_is_not_called() -> None:
    async with started(plan_node("near")) as near:
        with pytest.raises(ParallaxError, match="needs off loopback"):
            await near.connect(f"lattica://192.0.2.7:4011/{PEER}", "far")


async def test_nobody_there_is_an_error_that_names_the_address() -> None:
    async with started(plan_node("far", LOOPBACK)) as far:
        address = far.address
    with noted_processes() as processes:
        async with started(plan_node("near")) as near:
            with pytest.raises(PeerLost, match=f"no node answers at {address}"):
                await near.connect(address, "far")
            for process in processes:
                with pytest.raises(ProcessLookupError):
                    os.kill(process.pid, 0)


async def test_address_without_the_id_of_a_peer_is_refused() -> None:
    async with started(plan_node("near")) as near:
        with pytest.raises(ParallaxError, match="not an address to connect to"):
            await near.connect("lattica://127.0.0.1:4011", "far")


async def test_other_peer_at_the_address_is_not_believed() -> None:
    async with started(plan_node("far", LOOPBACK)) as far, started(plan_node("near", timeout_s=1.5)) as near:
        place = parse_address(far.address)
        with pytest.raises(PeerLost, match="does not answer"):
            await near.connect(far.address.replace(place.peer, PEER), "far")


async def test_error_of_a_link_names_the_address_that_was_given() -> None:
    async with started(plan_node("far", LOOPBACK)) as far, started(plan_node("near")) as near:
        with pytest.raises(PeerLost, match="called 'far', not 'other'") as caught:
            await near.connect(far.address, "other")
        assert "tcp://127.0.0.1" not in f"{caught.value.message} {caught.value.hint}"


def test_second_process_of_a_name_has_another_key(home: Path) -> None:
    with claim_key("head") as first, claim_key("head") as second:
        assert first == str(home / "keys" / "lattica" / "head")
        assert second == f"{first}.2"
    with claim_key("head") as again:
        assert again == first
    with claim_key("mini/7") as machine, claim_key("../etc/x") as other:
        assert Path(machine).name == "mini"
        assert Path(other).parent == Path(machine).parent


def test_folder_of_a_key_that_others_can_read_is_refused(home: Path) -> None:
    with claim_key("head") as folder:
        Path(folder).chmod(0o755)
    with pytest.raises(ParallaxError, match="other users can read"), claim_key("head"):
        pass


async def test_address_stays_the_same_when_a_node_starts_again() -> None:
    addresses: list[str] = []
    for _ in range(2):
        transport = LatticaTransport(TransportPlan(node="far", listen=addresses[-1] if addresses else LOOPBACK))
        await transport.start()
        addresses.append(transport.address)
        await transport.stop()
    assert addresses[0] == addresses[1]
