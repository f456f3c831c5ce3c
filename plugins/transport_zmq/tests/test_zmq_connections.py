"""Connections that are no links: they end in time, and neither their number nor what they send is unbounded."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager

import pytest
import zmq

from parallax_core.api import Frame, keys_folder
from parallax_core.testing.joining import SECRET, VERSIONS, OneCode
from parallax_transport_zmq import connections as module
from parallax_transport_zmq import listener
from parallax_transport_zmq.arrivals import count_arrived, hang_up
from parallax_transport_zmq.connections import Connection, Connections
from parallax_transport_zmq.joining import ZmqJoining, derive_pair
from parallax_transport_zmq.keyring import Keyring
from parallax_transport_zmq.link import ZmqLink
from parallax_transport_zmq.listener import Linked
from parallax_transport_zmq.message import Hello, pack_enrol
from parallax_transport_zmq.security import Guard
from parallax_transport_zmq.transport import ZmqTransport
from tests.support.zmq_nodes import LOOPBACK, eventually, join, plan_node, started

IS_TOLD = int(sys.platform in {"linux", "darwin"})
"""1 where the system tells how much a connection has received."""
PARTS = """
import sys, time, zmq
from zmq.utils import z85
address, server, public, secret = sys.argv[1:]
guest = zmq.Context().socket(zmq.DEALER)
guest.reconnect_ivl, guest.curve_serverkey = -1, z85.encode(bytes.fromhex(server))
guest.curve_publickey, guest.curve_secretkey = (z85.encode(bytes.fromhex(key)) for key in (public, secret))
guest.connect(address)
guest.send_multipart([bytes(2**20)] * 64)
time.sleep(60)
"""
"""A program that sends a message of many parts. ZeroMQ aborts it when it is cut off."""
HELLO = Hello("near", "far", 4).pack()


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def pairs(count: int) -> Iterator[list[tuple[socket.socket, socket.socket]]]:
    """Yield connections: our ends, and those of peers."""
    with ExitStack() as stack, socket.create_server(("127.0.0.1", 0)) as server:
        found = []
        for _ in range(count):
            there = stack.enter_context(socket.create_connection(server.getsockname()))
            found.append((stack.enter_context(server.accept()[0]), there))
        yield found


def pass_on(here: socket.socket, there: socket.socket, count: int) -> None:
    """Send bytes, and take them, as ZeroMQ does."""
    there.sendall(bytes(count))
    while count:
        count -= len(here.recv(count))


def is_ended(there: socket.socket) -> bool:
    """Return whether a peer is hung up on."""
    there.settimeout(0.0)
    try:
        return there.recv(1) == b""
    except BlockingIOError:
        return False


def test_connection_that_becomes_no_link_is_ended_and_a_link_is_not() -> None:
    clock = Clock()
    book = Connections(clock)
    with pairs(2) as [(silent, _), (linked, _)]:
        for each in (silent, linked):
            book.note_begin(each.fileno())
        book.keep(linked.fileno())
        clock.now += module.UNLINKED_S - 0.1
        assert book.end_surplus() == 0
        clock.now += 0.2
        assert book.end_surplus() == 1
        assert silent.recv(1) == b""


def test_link_is_ended_once_its_last_messages_had_time() -> None:
    clock = Clock()
    book = Connections(clock)
    with pairs(1) as [(here, there)]:
        link = book.keep(here.fileno())
        book.note_begin(here.fileno())  # its event comes late
        clock.now += 100.0
        assert book.end_surplus() == 0
        book.end_link(link)
        assert book.end_surplus() == 0
        clock.now += module.FAREWELL_S
        assert book.end_surplus() == 1
        assert is_ended(there)


def test_of_too_many_the_oldest_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_UNLINKED", 3)
    clock = Clock()
    book = Connections(clock)
    with pairs(5) as found:
        for here, _ in found:
            book.note_begin(here.fileno())
            clock.now += 0.1
        assert book.end_surplus() == 2
        assert [is_ended(there) for _, there in found] == [True, True, False, False, False]


def test_stranger_that_is_refused_cannot_have_the_link_ended_that_has_its_descriptor_now() -> None:
    clock = Clock()
    book = Connections(clock)
    with pairs(1) as [(here, there)]:
        book.keep(here.fileno())
        book.end_stranger(here.fileno())
        clock.now += 100.0
        assert book.end_surplus() == 0
        assert not is_ended(there)


def test_refused_stranger_that_becomes_a_link_after_all_stays() -> None:
    clock = Clock()
    book = Connections(clock)
    with pairs(1) as [(here, there)]:
        book.end_stranger(here.fileno())
        book.keep(here.fileno())
        clock.now += 100.0
        assert book.end_surplus() == 0
        assert not is_ended(there)


def test_descriptor_that_another_connection_has_by_now_is_let_alone() -> None:
    clock = Clock()
    book = Connections(clock)
    with pairs(2) as [(first, _), (second, there)]:
        file = first.fileno()
        book.note_begin(file)
        os.dup2(second.fileno(), file)
        clock.now += 100.0
        assert book.end_surplus() == 0
        assert len(book) == 0
        book.keep(file)
        book.note_end(file)
        assert len(book) == 1, "the end of the former connection is told late"
        assert not is_ended(there)


def test_connection_that_is_gone_is_forgotten() -> None:
    book = Connections(Clock())
    with pairs(1) as [(here, _)]:
        file = here.fileno()
        book.note_begin(file)
        here.close()
        book.note_end(file)
        assert len(book) == 0
        book.keep(10**6)
        book.end_stranger(10**6)
        assert Connection(10**6, None, 0.0).is_gone


def test_who_sends_much_that_nobody_is_shown_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_UNSEEN_BYTES", 100_000)
    clock = Clock()
    book = Connections(clock)
    with pairs(2) as [(here, there), (linked, peer)]:
        book.note_begin(here.fileno())
        link = book.keep(linked.fileno())
        for each in ((here, there), (linked, peer)):
            pass_on(*each, module.MOST_UNLINKED_BYTES + 1)
        assert book.end_surplus() == IS_TOLD
        here.close()
        pass_on(linked, peer, 50_000)
        link.heard = 20_000
        clock.now += module.LINKS_S
        assert book.end_surplus() == 0
        pass_on(linked, peer, 10_000)
        clock.now += module.LINKS_S
        assert book.end_surplus() == IS_TOLD


@asynccontextmanager
async def heading() -> AsyncIterator[tuple[ZmqTransport, OneCode]]:
    """Start a head that has a code."""
    ZmqJoining().prepare("far")
    admission = OneCode(ZmqJoining().derive_proof(SECRET))
    head = ZmqTransport(plan_node("far", LOOPBACK))
    head.enrol_by(admission)
    await head.start()
    try:
        yield head, admission
    finally:
        await head.stop()


@contextmanager
def dialed(head: ZmqTransport) -> Iterator[zmq.Socket[bytes]]:
    """Connect with the key of the code."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    server = Keyring(keys_folder()).find_pair("far")
    assert server is not None
    with context.socket(zmq.DEALER) as guest:
        guest.linger, guest.reconnect_ivl = 0, -1
        Guard(derive_pair(SECRET), server.public).apply(guest)
        guest.connect(head.address)
        yield guest
    context.term()


def count_open(head: ZmqTransport) -> int:
    return head.measure().connections


async def test_holder_of_a_code_that_says_nothing_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "UNLINKED_S", 0.3)
    async with heading() as (head, _):
        with dialed(head):
            await eventually(lambda: count_open(head) == 1)
            await eventually(lambda: count_open(head) == 0)


async def test_stranger_that_says_nothing_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "UNLINKED_S", 0.3)
    async with heading() as (head, _):
        host, _, port = head.address.removeprefix("tcp://").rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        async with asyncio.timeout(10):
            await reader.read()
        writer.close()
        await eventually(lambda: count_open(head) == 0)


@pytest.mark.parametrize("first", [b"garbage", HELLO, pack_enrol(VERSIONS, bytes(32), "guest")])
async def test_connection_by_a_code_may_say_one_thing(first: bytes) -> None:
    async with heading() as (head, admission):
        with dialed(head) as guest:
            guest.send(first)
            for _ in range(5):
                guest.send(pack_enrol(VERSIONS, bytes(range(32)), "guest"))
            await eventually(lambda: count_open(head) == 1)
            await eventually(lambda: count_open(head) == 0)
        assert len(admission.keys) <= 1
        assert bytes(range(32)) not in admission.keys


async def test_message_of_many_parts_is_not_gathered_whole() -> None:
    async with heading() as (head, _):
        server, code = Keyring(keys_folder()).find_pair("far"), derive_pair(SECRET)
        assert server is not None
        keys = (server.public.hex(), code.public.hex(), code.secret.hex())
        command = (sys.executable, "-c", PARTS, head.address, *keys)
        guest = await asyncio.create_subprocess_exec(*command, stderr=DEVNULL)
        try:
            await eventually(lambda: count_open(head) == 1, 30)
            await eventually(lambda: count_open(head) == 0)
        finally:
            with contextlib.suppress(ProcessLookupError):
                guest.kill()
            await guest.wait()


async def test_link_that_has_ended_leaves_no_connection() -> None:
    async with started(plan_node("far", LOOPBACK)) as far, started(plan_node("near")) as near:
        here, there = await join(near, far)
        await eventually(lambda: count_open(far) == 1)
        there.break_off("enough", "enough")
        await eventually(lambda: count_open(far) == 0)
        with contextlib.suppress(Exception):
            await here.close()


async def test_messages_of_another_key_are_not_those_of_a_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer chooses the identity of its connection; it may be the one that a link had a moment ago."""

    def link(made: ZmqLink, user: str, connection: Connection | None) -> Linked:
        assert user
        return Linked(made, "00" * 32, connection)

    monkeypatch.setattr(listener, "Linked", link)
    async with started(plan_node("far", LOOPBACK)) as far, started(plan_node("near")) as near:
        here, there = await join(near, far)
        await here.send(Frame(b"x"))
        await asyncio.sleep(0.2)
        assert not there.frames
        there.break_off("enough", "enough")


def test_connection_that_closes_under_the_look_raises_nothing() -> None:
    with pairs(1) as [(ours, _)]:
        file = ours.fileno()
    assert count_arrived(file) == 0
    hang_up(file)
