"""A server that tells machines their address: answers over UDP and TCP, whatever strangers do."""

from __future__ import annotations

import errno
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from parallax_cluster.node.network import responder
from parallax_cluster.node.network.responder import MOST_CONNECTED, MOST_PER_SECOND, Pace, Responder, answering, bind
from parallax_cluster.wire.stun import StunAnswer, make_request
from parallax_core.base.errors import ParallaxError
from parallax_netcheck.client import UdpAsker, ask_by_tcp
from tests.support.ports import HOST, find_ports


@pytest.fixture
def port() -> Iterator[int]:
    found = find_ports()
    with answering(HOST, found):
        yield found


@pytest.fixture
def asker() -> Iterator[UdpAsker]:
    with closing(UdpAsker(socket.AF_INET)) as asker:
        yield asker


def test_both_ports_tell_the_address_of_the_sender(port: int, asker: UdpAsker) -> None:
    found = [asker.ask((HOST, each)) for each in (port, port + 1)]
    assert found[0] == found[1] == StunAnswer((HOST, asker.address[1]), is_parallax=True)


def test_answer_comes_from_the_other_port_if_asked(port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(5)
        for first, other in ((port, port + 1), (port + 1, port)):
            sock.sendto(make_request(secrets.token_bytes(12), changes_port=True), (HOST, first))
            assert sock.recvfrom(2048)[1] == (HOST, other)


def test_connections_are_told_their_address(port: int) -> None:
    found = ask_by_tcp(socket.AF_INET, [(HOST, port), (HOST, port + 1)])
    assert found[0] == found[1] != None  # noqa: E711 -- both are answers
    assert found[0] is not None
    assert found[0].address[0] == HOST


def test_strangers_get_nothing(port: int, asker: UdpAsker) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for data in (b"", b"x", bytes(2000), make_request(bytes(12))[:-4], make_request(bytes(12)) + b"more"):
            sock.sendto(data, (HOST, port))
        sock.settimeout(0.2)
        with pytest.raises(TimeoutError):
            sock.recv(2048)
    assert asker.ask((HOST, port)) is not None


def test_flood_is_answered_at_a_bounded_rate(port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(0.0)
        num_sent = num_answered = 0
        begun = time.monotonic()
        while time.monotonic() < begun + 1.0:
            sock.sendto(make_request(bytes(12)), (HOST, port))
            num_sent += 1
            try:
                while sock.recv(2048):
                    num_answered += 1
            except BlockingIOError:
                pass
    assert num_sent > 4 * MOST_PER_SECOND
    assert 0 < num_answered <= 2 * MOST_PER_SECOND + 2  # the flood may see two of the clock's seconds


def test_silent_connections_keep_nobody_out(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responder, "CONNECTION_S", 0.3)
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection((HOST, port))) for _ in range(2 * MOST_CONNECTED)]
        time.sleep(0.8)
        assert ask_by_tcp(socket.AF_INET, [(HOST, port)])[0] is not None
        assert all(is_closed(each) for each in silent)


class FullListener(socket.socket):
    """A socket on a machine that has no more files: connections wait, and cannot be accepted."""

    num_tries = 0

    def accept(self) -> tuple[socket.socket, object]:
        self.num_tries += 1
        raise OSError(errno.EMFILE, "Too many open files")


def test_connections_that_cannot_be_accepted_are_tried_at_a_bounded_rate() -> None:
    with closing(FullListener(fileno=bind(socket.SOCK_STREAM, HOST, 0).detach())) as listener:
        begun = time.monotonic()
        with socket.create_connection(listener.getsockname()), closing(Responder([], [listener])):
            time.sleep(0.5)
        assert 0 < listener.num_tries <= (time.monotonic() - begun + 2) * MOST_PER_SECOND


def is_closed(sock: socket.socket) -> bool:
    sock.settimeout(5)
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def test_two_servers_share_the_ports(port: int, asker: UdpAsker) -> None:
    with answering(HOST, port):
        assert asker.ask((HOST, port)) is not None
    assert asker.ask((HOST, port)) is not None


def test_ports_are_free_afterwards() -> None:
    found = find_ports()
    with answering(HOST, found):
        pass
    for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
        with socket.socket(socket.AF_INET, kind) as sock:
            sock.bind((HOST, found))


@pytest.mark.parametrize("port", [65535, 70000])
def test_port_that_cannot_be_used_is_an_error(port: int) -> None:
    with pytest.raises(ParallaxError, match="cannot be used") as raised, answering(HOST, port):
        pass
    assert "--set stun_port=" in raised.value.hint


def test_port_of_another_program_is_an_error() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind((HOST, 0))
        with pytest.raises(ParallaxError, match="in use"), answering(HOST, taken.getsockname()[1]):
            pass


def test_pace_counts_within_a_second() -> None:
    pace = Pace()
    assert not pace.is_spent
    for _ in range(2 * MOST_PER_SECOND):
        pace.count()
    assert 0 <= pace.left_s <= 1
