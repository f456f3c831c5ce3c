"""Join codes over TCP: the kit, and what only this transport promises."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from parallax_core.api import ParallaxError, PeerLost, TransportPlan, TransportSpec
from parallax_core.testing.joining import SECRET, VERSIONS, JoinConformance, OneCode
from parallax_transport_zmq.address import TcpEndpoint
from parallax_transport_zmq.joining import ZmqJoining, derive_pair, list_hosts
from parallax_transport_zmq.keyring import Keyring
from parallax_transport_zmq.message import BadMessage, EnrolRequest, Hello, Kind, OtherVersion, pack_enrol
from parallax_transport_zmq.plugin import parallax_register_transports
from parallax_transport_zmq.security import Guard
from parallax_transport_zmq.transport import ZmqTransport
from tests.support.zmq_nodes import LOOPBACK

[SPEC] = parallax_register_transports()


class TestJoining(JoinConformance):
    spec: TransportSpec = SPEC

    @pytest.fixture(autouse=True)
    def machines(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.patch = tmp_path, monkeypatch

    def make_address(self) -> str:
        return LOOPBACK

    def enter_machine(self, name: str) -> None:
        self.patch.setenv("PARALLAX_HOME", str(self.folder / name))


@pytest.fixture
def admission() -> OneCode:
    return OneCode(ZmqJoining().derive_proof(SECRET))


async def start_head(admission: OneCode | None) -> tuple[ZmqTransport, bytes]:
    ZmqJoining().prepare("head")
    head = ZmqTransport(TransportPlan(node="head", listen=LOOPBACK))
    if admission is not None:
        head.enrol_by(admission)
    await head.start()
    return head, ZmqJoining().describe_head("head", head.address)


def dial(head: ZmqTransport, description: bytes) -> zmq.Socket[bytes]:
    """Return a socket that has proved the secret of the code."""
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
    Guard(derive_pair(SECRET), description[:32]).apply(socket)
    socket.linger = 0
    socket.connect(head.address)
    return socket


async def ask(head: ZmqTransport, description: bytes, *messages: bytes) -> bytes | None:
    """Send messages with the key of a code, and return the answer; None: there is none."""
    with dial(head, description) as socket:
        for message in messages:
            socket.send(message)
        for _ in range(50):
            await asyncio.sleep(0.01)
            if socket.poll(0):
                return socket.recv()
    return None


@pytest.mark.parametrize(
    "garbage",
    [b"", b"N", b"N" + bytes(100), b"NPLX\x02\x00\x08" + VERSIONS + bytes(32), b"NPLX\x02\x00\x09" + VERSIONS],
)
async def test_garbage_with_a_valid_code_admits_nobody(admission: OneCode, garbage: bytes) -> None:
    head, description = await start_head(admission)
    try:
        assert await ask(head, description, garbage) is None
    finally:
        await head.stop()
    assert admission.keys == []


@given(st.binary(max_size=200))
def test_any_bytes_after_the_first_are_no_admission(data: bytes) -> None:
    try:
        key, name = EnrolRequest.unpack(b"N" + data).read()
    except BadMessage:
        return
    assert len(key) == 32
    assert name.isprintable()


async def test_machine_of_an_older_parallax_is_told_in_words(admission: OneCode) -> None:
    head, description = await start_head(admission)
    try:
        answer = await ask(head, description, b"NPLX\x01" + bytes(range(32)) + b"guest")
    finally:
        await head.stop()
    assert answer is not None
    assert answer == Kind.REFUSE + b"its version of Parallax is older than the server's: install the same one"
    assert admission.keys == []


def test_versions_are_read_from_a_request_of_any_later_version() -> None:
    message = bytearray(pack_enrol(b"versions", bytes(range(32)), "guest"))
    message[4] = 9
    request = EnrolRequest.unpack(bytes(message) + b"what comes later")
    assert request.versions == b"versions"
    with pytest.raises(OtherVersion, match="not 9"):
        request.read()


async def test_versions_that_cannot_be_read_admit_nobody(admission: OneCode, monkeypatch: pytest.MonkeyPatch) -> None:
    def check_versions(versions: bytes) -> None:
        raise ValueError(versions)

    monkeypatch.setattr(admission, "check_versions", check_versions)
    head, description = await start_head(admission)
    try:
        assert await ask(head, description, pack_enrol(b"?", bytes(range(32)), "guest")) is None
    finally:
        await head.stop()
    assert admission.keys == []


async def test_code_makes_no_link(admission: OneCode) -> None:
    head, description = await start_head(admission)
    try:
        answer = await ask(head, description, Hello("guest/1", "head", 4).pack())
    finally:
        await head.stop()
    assert answer is not None
    assert answer[:1] == Kind.REFUSE


async def test_head_without_codes_admits_nobody(home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    head, description = await start_head(None)
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path / "guest"))
    try:
        with pytest.raises(PeerLost, match="does not know this join code"):
            await ZmqJoining().enrol(description, SECRET, "guest", b"")
    finally:
        await head.stop()


def test_known_key_keeps_its_name(ring: Keyring) -> None:
    ring.make("default")
    assert ring.admit(bytes(range(32)), "mini") == "mini"
    assert ring.admit(bytes(range(32)), "other") == "mini"
    assert ring.admit(bytes(range(1, 33)), "mini") == "mini-2"
    assert ring.find_role(bytes(range(32)), "mini/7") == "worker"
    assert ring.find_role(bytes(range(32)), "mini-2/7") is None


@pytest.mark.parametrize("wanted", ["head", "default", "", "../../etc", "a b\n", "x" * 300, "ä"])
def test_no_name_is_reserved_or_a_path(ring: Keyring, wanted: str) -> None:
    name = ring.admit(bytes(range(32)), wanted)
    assert name not in {"head", "default"}
    assert (ring.folder / "known" / f"{name}.pub").is_file()
    assert [path.name for path in ring.folder.parent.parent.rglob("*.pub")] == [f"{name}.pub"]


def test_introduced_node_is_trusted_until_the_next_introduction(ring: Keyring, home: Path, tmp_path: Path) -> None:
    other = Keyring(tmp_path / "other" / "keys").make("default")
    ring.introduce({"mini/7": other.public})
    assert ring.find_role(other.public, "mini/7") == "worker"
    assert ring.find_public("mini/7") == other.public
    assert ring.allows(other.public)
    ring.introduce({})
    assert ring.find_role(other.public, "mini/7") is None
    assert not ring.allows(other.public)
    assert list((home / "keys").rglob("mini*")) == []


def test_head_of_the_plan_is_trusted_as_a_head_only(home: Path) -> None:
    ring = Keyring(home / "keys", {"head": bytes(range(32))})
    assert ring.find_public("head") == bytes(range(32))
    assert ring.find_role(bytes(range(32)), "head") == "head"


def test_socket_of_this_machine_has_no_code() -> None:
    ZmqJoining().prepare("head")
    with pytest.raises(ParallaxError, match="no other machine reaches"):
        ZmqJoining().describe_head("head", "ipc://head.sock")


def test_listener_on_all_interfaces_has_addresses_that_others_reach() -> None:
    hosts = list_hosts(TcpEndpoint("0.0.0.0", 9000))  # noqa: S104 -- nothing is bound
    assert hosts
    assert "0.0.0.0" not in hosts  # noqa: S104 -- nothing is bound
    assert list_hosts(TcpEndpoint("::1", 9000)) == ["[::1]"]


@given(st.binary(max_size=600))
def test_any_description_is_read_or_refused(data: bytes) -> None:
    with suppress(ParallaxError):
        assert len(ZmqJoining().find_key(data)) == 32
        assert all(address.startswith("tcp://") for address in ZmqJoining().list_addresses(data))
