from __future__ import annotations

import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Self

import pytest

from parallax_core.api import ParallaxError, PeerLost
from parallax_transport_zmq.address import IpcEndpoint, TcpEndpoint, advertise_host, parse_address, place_near
from parallax_transport_zmq.ipcfile import claim_path
from tests.support.zmq_nodes import LOOPBACK, join, plan_node, started

EVERYWHERE = "0.0.0.0"  # noqa: S104 -- what is refused without a key


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as path:  # the one of pytest has a long path
        yield Path(path)


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("tcp://127.0.0.1:0", TcpEndpoint("127.0.0.1", 0)),
        ("tcp://mini.local:5000", TcpEndpoint("mini.local", 5000)),
        ("tcp://[::1]:5000", TcpEndpoint("::1", 5000)),
        ("ipc:///run/x/a.sock", IpcEndpoint(Path("/run/x/a.sock"))),
        ("ipc:///run/../run/a", IpcEndpoint(Path("/run/a"))),
    ],
)
def test_address_is_read(address: str, place: TcpEndpoint | IpcEndpoint) -> None:
    assert parse_address(address) == place
    assert parse_address(str(place)) == place


def test_star_stands_for_every_address_of_a_machine() -> None:
    assert parse_address("tcp://*:5000") == TcpEndpoint(EVERYWHERE, 5000)


BAD_ADDRESSES = [
    *("", "nowhere", "tcp:host:1", "udp://host:1", "inproc://x"),
    *("tcp://", "tcp://host", "tcp://host:", "tcp://:5000", "tcp://host:99999", "tcp://host:x", "tcp://[::1:5000"),
    *("tcp://host:5000/x", "tcp://me@host:5000", "tcp://host:5000?x"),
    *("ipc://", "ipc://@name", "ipc://*", "ipc:///a\0b", "ipc:///" + "x" * 120),
]


@pytest.mark.parametrize("address", BAD_ADDRESSES)
def test_what_is_no_address_is_refused_with_a_hint(address: str) -> None:
    with pytest.raises(ParallaxError) as caught:
        parse_address(address)
    assert caught.value.hint


def test_machine_is_advertised_by_an_address_others_can_use() -> None:
    assert advertise_host("mini.local") == "mini.local"
    assert advertise_host(EVERYWHERE) not in {EVERYWHERE, ""}


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:0", "tcp://0.0.0.0:5000"])
async def test_address_of_nobody_is_refused(address: str) -> None:
    async with started(plan_node("near")) as near:
        with pytest.raises(ParallaxError, match="is not an address to connect to"):
            await near.connect(address, "far")


async def test_unknown_host_is_a_loss() -> None:
    async with started(plan_node("near")) as near:
        with pytest.raises(PeerLost, match="there is no host"):
            await near.connect("tcp://nobody.invalid:5000", "far")


async def test_port_in_use_is_said_with_a_hint() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ParallaxError, match=f"cannot listen at {address}: Address already in use$") as caught:
            async with started(plan_node("far", address)):
                pass
    assert caught.value.hint


async def test_loopback_of_version_six_works() -> None:
    async with started(plan_node("far", "tcp://[::1]:0")) as far, started(plan_node("near")) as near:
        assert far.address.startswith("tcp://[::1]:")
        await join(near, far)


async def test_name_of_a_host_stays_in_the_address() -> None:
    async with started(plan_node("far", "tcp://localhost:0")) as far, started(plan_node("near")) as near:
        assert far.address.startswith("tcp://localhost:")
        await join(near, far)


async def test_socket_file_is_for_its_owner_alone(folder: Path) -> None:
    path = folder / "made" / "a.sock"
    async with started(plan_node("far", f"ipc://{path}")) as far:
        assert far.address == f"ipc://{path}"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert not path.exists()


@pytest.mark.parametrize("mode", [0o755, 0o710, 0o702])
def test_folder_that_others_can_look_into_is_refused(folder: Path, mode: int) -> None:
    folder.chmod(mode)
    with pytest.raises(ParallaxError, match="other users can enter") as caught, claim_path(folder / "a.sock"):
        pass
    assert f"chmod 700 {folder}" in caught.value.hint
    assert not list(folder.iterdir())


async def test_stale_socket_file_is_replaced(folder: Path) -> None:
    path = folder / "a.sock"
    with closing(socket.socket(socket.AF_UNIX)) as dead:
        dead.bind(str(path))
    async with started(plan_node("far", f"ipc://{path}")) as far, started(plan_node("near")) as near:
        await join(near, far)


async def test_socket_that_somebody_listens_at_is_left_alone(folder: Path) -> None:
    path = folder / "a.sock"
    with closing(socket.socket(socket.AF_UNIX)) as living:
        living.bind(str(path))
        living.listen()
        with pytest.raises(ParallaxError, match="a process listens"):
            async with started(plan_node("far", f"ipc://{path}")):
                pass
        with closing(socket.socket(socket.AF_UNIX)) as probe:
            probe.connect(str(path))


async def test_file_that_is_no_socket_is_left_alone(folder: Path) -> None:
    (folder / "a.sock").write_text("mine")
    with pytest.raises(ParallaxError, match="is a file, not a socket"):
        async with started(plan_node("far", f"ipc://{folder}/a.sock")):
            pass
    assert (folder / "a.sock").read_text() == "mine"


@pytest.mark.parametrize("name", ["", "x" * 257, "a\nb", "\x1b[31m"])
async def test_name_of_a_node_is_checked(name: str) -> None:
    with pytest.raises(ParallaxError, match="cannot be the name of a node"):
        async with started(plan_node(name, LOOPBACK)):
            pass


@pytest.mark.parametrize(
    ("address", "near"),
    [
        ("ipc:///run/parallax/head.sock", "ipc:///run/parallax/mini-7.sock"),
        ("tcp://127.0.0.1:9000", "tcp://127.0.0.1:0"),
        ("tcp://localhost:9000", "tcp://localhost:0"),
        ("tcp://[::1]:9000", "tcp://[::1]:0"),
        ("tcp://nobody.invalid:9000", f"tcp://{EVERYWHERE}:0"),
    ],
)
def test_node_listens_where_those_it_joins_reach_it(address: str, near: str) -> None:
    assert place_near(address, "mini/7") == near


@pytest.mark.parametrize(
    ("way", "near"), [("10.0.0.6", "10.0.0.6"), ("127.0.1.1", EVERYWHERE), ("fe80::1", EVERYWHERE), (None, EVERYWHERE)]
)
def test_node_takes_no_way_that_ends_on_its_machine(
    monkeypatch: pytest.MonkeyPatch, way: str | None, near: str
) -> None:
    class Probe:
        """A socket on a machine with another network."""

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def connect(self, where: tuple[str, int]) -> None:
            if way is None:
                raise OSError("no way there")

        def getsockname(self) -> tuple[str | None, int]:
            return way, 9

    monkeypatch.setattr("parallax_transport_zmq.address.socket.socket", lambda *_: Probe())
    assert place_near("tcp://10.0.0.5:9000", "mini/7") == f"tcp://{near}:0"
