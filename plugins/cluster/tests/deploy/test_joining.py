from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from parallax_cluster.config.home import joined_folder
from parallax_cluster.deploy import joining
from parallax_cluster.deploy.joined import JoinedHead, find_joined, list_joined
from parallax_cluster.deploy.joining import CodeUse, Joiner
from parallax_cluster.membership.discovery import index_secrets, write_answer
from parallax_cluster.membership.join_code import JoinCode, shorten_code, write_code
from parallax_core.base.errors import ParallaxError, PeerLost, UsageError
from parallax_core.config.config import Config
from parallax_core.contracts.discovery import FindAnswer
from parallax_core.contracts.joining import Enrolment
from parallax_core.plugins.host import PluginHost

SECRET = bytes(range(16))
KEY, OTHER_KEY = b"K" * 4, b"O" * 4


class Method:
    """A join method whose heads are a key and addresses; ``reachable`` ones admit this machine."""

    def __init__(self, *reachable: str, fault: str = "no server answers", delay_s: float = 0.0) -> None:
        self.reachable, self.fault, self.delay_s = reachable, fault, delay_s
        self.asked: list[tuple[str, ...]] = []

    def prepare(self, node: str) -> None:
        raise NotImplementedError

    def describe_head(self, node: str, address: str) -> bytes:
        raise NotImplementedError

    def list_addresses(self, head: bytes) -> tuple[str, ...]:
        return tuple(head[len(KEY) :].decode().split())

    def find_key(self, head: bytes) -> bytes:
        return head[: len(KEY)]

    def derive_proof(self, secret: bytes) -> bytes:
        return b"proof of " + secret

    async def enrol(self, head: bytes, secret: bytes, machine: str, versions: bytes) -> Enrolment:
        assert (secret, bool(machine)) == (SECRET, True)
        self.asked.append(self.list_addresses(head))
        for address in self.list_addresses(head):
            if address in self.reachable:
                return Enrolment(machine="desk", address=address)
        await asyncio.sleep(self.delay_s)
        raise PeerLost(self.fault)


class Network:
    """A discovery that answers with what each of ``heads`` says, if it knows the code."""

    def __init__(self, *heads: bytes, knows: bytes = SECRET) -> None:
        self.heads = heads
        self.known = index_secrets([Method().derive_proof(knows)])

    def answering(self, address: str, find_answer: FindAnswer) -> AbstractAsyncContextManager[None]:
        raise NotImplementedError

    async def ask(self, question: bytes) -> AsyncGenerator[bytes, None]:
        yield b"garbage"
        for head in self.heads:
            if (answer := write_answer(question, self.known, head)) is not None:
                yield answer
        await asyncio.sleep(3600)


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "SEEK_S", 0.05)
    monkeypatch.setattr(joining, "AGAIN_S", 0.05)
    monkeypatch.setattr(joining, "ENROL_S", 0.2)


def make_use(method: Method, network: Network | None, head: bytes = b"") -> CodeUse:
    return CodeUse(method, JoinCode(transport="zmq", secret=SECRET, head=head), network)


async def test_code_is_used_where_its_server_is() -> None:
    method = Method("a")
    enrolment, head = await make_use(method, Network(), KEY + b"a b").ask()
    assert (enrolment.address, head) == ("a", KEY + b"a b")


async def test_code_without_discovery_is_used_at_its_addresses() -> None:
    enrolment, _ = await make_use(Method("b"), None, KEY + b"a b").ask()
    assert enrolment.address == "b"
    with pytest.raises(PeerLost, match="no server answers"):
        await make_use(Method(), None, KEY + b"a b").ask()


async def test_server_that_has_another_address_by_now_is_found() -> None:
    method = Method("new", delay_s=0.1)
    enrolment, head = await make_use(method, Network(KEY + b"new"), KEY + b"old").ask()
    assert (enrolment.address, head) == ("new", KEY + b"new")
    enrolment, _ = await make_use(Method("new"), Network(KEY + b"new"), KEY + b"old").ask()
    assert enrolment.address == "new", "also if the old address refuses at once"


async def test_reason_of_the_addresses_in_the_code_is_told() -> None:
    for network in (Network(), Network(KEY + b"new"), Network(KEY + b"old"), Network(OTHER_KEY + b"good")):
        with pytest.raises(PeerLost, match="it was revoked"):
            await make_use(Method("good", fault="it was revoked"), network, KEY + b"old").ask()


async def test_short_code_finds_its_server() -> None:
    enrolment, head = await make_use(Method("a"), Network(KEY + b"x a")).find_and_ask()
    assert (enrolment.machine, enrolment.address, head) == ("desk", "a", KEY + b"x a")


async def test_short_code_of_no_server_says_so() -> None:
    method = Method("a")
    for network in (Network(), Network(KEY + b"a", knows=bytes(16))):
        with pytest.raises(PeerLost, match="is found on the networks of this machine") as caught:
            await make_use(method, network).find_and_ask()
        assert "--no-discovery" in caught.value.hint
    assert method.asked == []
    with pytest.raises(UsageError, match="this code has no address"):
        await make_use(method, None).find_and_ask()


async def test_server_that_is_found_and_does_not_answer_is_named() -> None:
    with pytest.raises(PeerLost, match="is found, and does not answer at x, y"):
        await make_use(Method(delay_s=3600), Network(KEY + b"x y")).find_and_ask()


def test_short_code_is_the_same_code_without_its_addresses() -> None:
    whole = JoinCode(transport="zmq", secret=SECRET, head=bytes(100))
    short = shorten_code(write_code(whole))
    assert len(short) < 45
    assert short == write_code(JoinCode(transport="zmq", secret=SECRET, head=b""))
    assert shorten_code(short) == short


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PluginHost:
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path / "home"))
    return PluginHost.prepare(Config())


def note(address: str, key: bytes = KEY, *others: str) -> JoinedHead:
    joined = JoinedHead(transport="zmq", address=address, head=key * 8 + b"1.2.3.4:5", machine="desk", others=others)
    joined.save()
    return joined


class Here(Joiner):
    """Finds heads by what a test says: their addresses by those that were noted."""

    found: dict[str, tuple[str, ...]] = {}  # noqa: RUF012 -- replaced by each test

    async def list_addresses(self, joined: JoinedHead, timeout_s: float) -> tuple[str, ...]:
        if joined.address not in self.found:
            await asyncio.sleep(timeout_s)
        return self.found.get(joined.address, ())


def join_again(plugins: PluginHost, **found: Any) -> JoinedHead:
    joiner = Here(plugins)
    Here.found = {f"tcp://{name}:1": addresses for name, addresses in found.items()}
    return joiner.join("")


def test_machine_that_has_joined_nothing_needs_a_code(plugins: PluginHost) -> None:
    with pytest.raises(ParallaxError, match="has not joined a server before"):
        join_again(plugins)


def test_server_that_was_joined_is_found_again(plugins: PluginHost) -> None:
    first = note("tcp://a:1")
    note("tcp://b:1", OTHER_KEY)
    assert join_again(plugins, a=("tcp://a:1", "tcp://x:1")) == first
    assert join_again(plugins, a=("tcp://x:1", "tcp://y:1")).address == "tcp://x:1"


def test_without_an_answer_the_last_server_is_tried(plugins: PluginHost) -> None:
    note("tcp://a:1")
    assert join_again(plugins).address == "tcp://a:1"
    assert Joiner(plugins, looks_around=False).join("").address == "tcp://a:1"


def test_of_several_servers_one_is_to_be_named(plugins: PluginHost) -> None:
    note("tcp://a:1")
    note("tcp://b:1", OTHER_KEY)
    with pytest.raises(UsageError, match="2 servers that this machine has joined") as caught:
        join_again(plugins, a=("tcp://a:1",), b=("tcp://b:1",))
    assert "tcp://a:1" in caught.value.hint
    assert "tcp://b:1" in caught.value.hint


def test_address_stands_for_the_server_that_was_joined_there(plugins: PluginHost) -> None:
    joined = note("tcp://a:1")
    assert Joiner(plugins).join(" tcp://a:1\n") == joined
    assert Joiner(plugins).find_key(joined) == {"head": KEY * 8}
    with pytest.raises(UsageError, match="neither a join code nor an address"):
        Joiner(plugins).join("somewhere")


@pytest.mark.usefixtures("plugins")
def test_address_of_the_description_stands_for_its_server() -> None:
    note("tcp://b:1", OTHER_KEY, "tcp://b:1", "tcp://c:1")
    note("tcp://a:1", KEY, "tcp://c:2", "tcp://d:1")
    found = find_joined("tcp://c:1")
    assert (found.address, found.head[:4]) == ("tcp://c:1", OTHER_KEY)
    assert find_joined("tcp://d:1").head[:4] == KEY
    with pytest.raises(ParallaxError, match="has not joined a server at tcp://e:1") as caught:
        find_joined("tcp://e:1")
    assert all(address in caught.value.hint for address in ("tcp://a:1", "tcp://b:1"))


@pytest.mark.usefixtures("plugins")
def test_any_address_may_be_that_of_the_only_server() -> None:
    with pytest.raises(ParallaxError, match="has not joined a server at tcp://b:1"):
        find_joined("tcp://b:1")
    note("tcp://a:1")
    assert find_joined("tcp://b:1").address == "tcp://b:1"
    with pytest.raises(ParallaxError, match="has not joined a server at lattica://b:1"):
        find_joined("lattica://b:1")
    assert [each.address for each in list_joined()] == ["tcp://a:1"]


def test_damaged_record_is_left_out(plugins: PluginHost) -> None:
    joined = note("tcp://a:1")
    (joined_folder() / "damaged.json").write_bytes(b"{")
    assert list_joined() == [joined]


def test_record_is_whole_whenever_it_is_read(tmp_path: Path) -> None:
    joined = JoinedHead(transport="zmq", address="tcp://127.0.0.1:1", head=KEY, machine="m")
    joined.save(tmp_path)
    is_over = threading.Event()

    def save() -> None:
        while not is_over.is_set():
            joined.save(tmp_path)

    saving = threading.Thread(target=save)
    saving.start()
    try:
        assert all(list_joined(tmp_path) == [joined] for _ in range(2000))
    finally:
        is_over.set()
        saving.join()


def test_machine_joins_though_that_cannot_be_kept(
    plugins: PluginHost, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    joined = JoinedHead(transport="zmq", address="tcp://a:1", head=KEY * 8, machine="desk")

    async def enrol(self: Joiner, code: JoinCode) -> JoinedHead:
        return joined

    def refuse(self: JoinedHead, folder: Path | None = None) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(Joiner, "enrol", enrol)
    monkeypatch.setattr(JoinedHead, "save", refuse)
    assert Joiner(plugins).join(write_code(JoinCode(transport="zmq", secret=SECRET, head=KEY * 8))) == joined
    assert "`parallax join` without a code may not find this server again" in caplog.text
