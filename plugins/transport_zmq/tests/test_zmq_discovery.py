"""Discovery by UDP: the kit, and what only this one promises."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_core.api import MOST_ANSWER_BYTES, ParallaxError, Ref, TransportSpec
from parallax_core.testing.discovery import DiscoveryConformance
from parallax_transport_zmq.datagrams import MOST_PER_SECOND, DatagramReader, open_receiver
from parallax_transport_zmq.discovery import (
    ANSWER,
    QUESTION,
    QUESTION_BYTES,
    Answerer,
    Asker,
    UdpDiscovery,
    pack,
    unpack,
)
from parallax_transport_zmq.interfaces import list_broadcast_addresses
from parallax_transport_zmq.plugin import parallax_register_transports
from tests.support.zmq_nodes import find_port

[SPEC] = parallax_register_transports()
PORT = find_port()
"""Not that of nodes which may run on this machine, nor of other tests."""
NUMBER = bytes(8)


def make_discovery() -> UdpDiscovery:
    return UdpDiscovery(PORT)


class TestDiscovery(DiscoveryConformance):
    spec: TransportSpec = replace(SPEC, discovery=Ref(f"{__name__}:make_discovery"))

    def make_address(self) -> str:
        return "tcp://127.0.0.1:1"


class TestOnAllNetworks(TestDiscovery):
    def make_address(self) -> str:
        return "tcp://0.0.0.0:1"


def test_plugin_names_the_discovery() -> None:
    assert SPEC.discovery is not None
    assert isinstance(SPEC.discovery.load()(), UdpDiscovery)


@given(st.binary(max_size=1500), st.sampled_from([QUESTION, ANSWER]))
def test_any_bytes_are_read_or_refused(data: bytes, kind: bytes) -> None:
    if (found := unpack(data, kind)) is not None:
        assert len(found[0]) == 8
        assert found[1] in data


@given(st.binary(min_size=8, max_size=8), st.binary(max_size=MOST_ANSWER_BYTES), st.binary(max_size=9))
def test_what_is_packed_is_read(number: bytes, content: bytes, padding: bytes) -> None:
    data = pack(ANSWER, number, content)
    assert unpack(data + padding, ANSWER) == (number, content)
    assert unpack(data, QUESTION) is None
    assert all(unpack(data[:size], ANSWER) is None for size in range(len(data)))


async def exchange(reply: Callable[[bytes], bytes | None], *datagrams: bytes) -> list[bytes]:
    """Send datagrams to a node, and return those that come back until a good question is answered."""
    good = pack(QUESTION, NUMBER, b"good").ljust(QUESTION_BYTES, b"\0")
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.settimeout(0.0)
        answerer = Answerer(open_receiver(socket.AF_INET, "127.0.0.1", 0), reply)
        try:
            for data in (*datagrams, good):
                sock.sendto(data, answerer.place)
            found: list[bytes] = []
            while pack(ANSWER, NUMBER, b"good") not in found:
                found.append(await asyncio.get_running_loop().sock_recv(sock, 2048))
            return found
        finally:
            answerer.close()


async def test_garbage_is_not_answered_and_does_no_harm() -> None:
    short = pack(QUESTION, NUMBER, b"short")
    cases = [
        *(b"", b"x", bytes(QUESTION_BYTES), bytes(1500), short),
        short.ljust(QUESTION_BYTES + 1, b"\0"),
        pack(QUESTION, NUMBER, bytes(200)).ljust(QUESTION_BYTES, b"\0"),
        pack(ANSWER, NUMBER, b"answer").ljust(QUESTION_BYTES, b"\0"),
    ]
    assert len(await exchange(lambda question: question, *cases)) == 1


async def test_answer_is_no_longer_than_the_question() -> None:
    longest = bytes(MOST_ANSWER_BYTES)
    found = await exchange(
        lambda question: question if question == b"good" else longest,
        pack(QUESTION, NUMBER, b"long").ljust(QUESTION_BYTES, b"\0"),
    )
    assert max(map(len, found)) == QUESTION_BYTES


async def test_flood_takes_a_bounded_part_of_the_loop() -> None:
    heard: list[bytes] = []
    reader = DatagramReader(open_receiver(socket.AF_INET, "127.0.0.1", 0), lambda data, _: heard.append(data))
    loop = asyncio.get_running_loop()
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sock:
        try:
            begun = loop.time()
            for _ in range(3 * MOST_PER_SECOND):
                sock.sendto(b"x", reader.place)
                await asyncio.sleep(0)
            seconds = int(loop.time()) - int(begun) + 1
            assert len(heard) <= seconds * MOST_PER_SECOND
            heard.clear()
            while not heard:  # it goes on with the next second
                await asyncio.sleep(0.05)
                sock.sendto(b"x", reader.place)
        finally:
            reader.close()


async def test_answers_of_strangers_fill_no_memory() -> None:
    asker = Asker(b"who?", PORT)
    try:
        for _ in range(10_000):
            asker.hear(pack(ANSWER, asker.number, bytes(MOST_ANSWER_BYTES)), ("127.0.0.1", 1))
        assert asker.answers.qsize() <= 64
    finally:
        asker.close()


async def test_port_of_another_program_is_an_error_with_a_hint() -> None:
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as taken:
        taken.bind(("0.0.0.0", 0))  # noqa: S104 -- it reads nothing
        discovery = UdpDiscovery(taken.getsockname()[1])
        with pytest.raises(ParallaxError, match="questions at UDP port") as refused:
            async with discovery.answering("tcp://0.0.0.0:1", lambda _: None):
                pass
        assert "--no-discovery" in refused.value.hint


async def test_socket_of_this_user_needs_no_answers(tmp_path: Path) -> None:
    async with make_discovery().answering(f"ipc://{tmp_path}/head.sock", lambda _: b"me"):
        kit = TestDiscovery()
        assert await kit.collect(b"who?", 1, 0.5) == set()


def test_every_network_has_one_broadcast_address() -> None:
    found = list_broadcast_addresses()
    assert len(set(found)) == len(found)
    assert not any(address.is_loopback for address in found)
