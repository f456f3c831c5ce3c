"""Asking servers of STUN that are slow, silent, or lie."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress

from parallax_cluster.wire.stun import answer_request
from parallax_netcheck.client import TRIES, UdpAsker, ask_by_tcp, can_connect

HOST = "127.0.0.1"


@contextmanager
def pretending(respond: Callable[[int, bytes, tuple[str, int]], bytes | None]) -> Iterator[tuple[str, int]]:
    """Have a UDP server answer by ``respond(number, request, place)``."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((HOST, 0))
        sock.settimeout(10)

        def work() -> None:
            number = 0
            while True:
                data, place = sock.recvfrom(2048)
                if data == b"end":
                    return
                if (answer := respond(number, data, place)) is not None:
                    sock.sendto(answer, place)
                number += 1

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield sock.getsockname()
        finally:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
                other.sendto(b"end", sock.getsockname())
            thread.join()


def answer(data: bytes, place: tuple[str, int]) -> bytes | None:
    found = answer_request(data, place)
    return found[0] if found is not None else None


def test_lost_datagram_is_sent_again() -> None:
    with (
        pretending(lambda number, data, place: answer(data, place) if number == 1 else None) as server,
        closing(UdpAsker(socket.AF_INET)) as asker,
    ):
        found = asker.ask(server)
        assert found is not None
        assert found.address == (HOST, asker.address[1])


def test_answers_that_do_not_belong_to_the_request_are_ignored() -> None:
    first: list[bytes] = []

    def respond(_: int, data: bytes, place: tuple[str, int]) -> bytes | None:
        first.append(data)
        return answer(first[0], place)  # of another request, from the second on

    with pretending(respond) as server, closing(UdpAsker(socket.AF_INET)) as asker:
        assert asker.ask(server) is not None
        assert asker.ask(server) is None


def test_silent_server_is_given_up() -> None:
    with pretending(lambda *_: None) as server, closing(UdpAsker(socket.AF_INET)) as asker:
        assert asker.ask(server) is None
    assert sum(TRIES) < 2


def test_server_that_refuses_is_none() -> None:
    with closing(UdpAsker(socket.AF_INET)) as asker:
        assert asker.ask((HOST, 9)) is None
    assert ask_by_tcp(socket.AF_INET, [(HOST, 9)]) == [None]


def test_connection_that_says_something_else_is_none() -> None:
    with socket.create_server((HOST, 0)) as listener:

        def work() -> None:
            sock, _ = listener.accept()
            with sock, suppress(ConnectionResetError):  # by which it is left
                sock.recv(2048)
                sock.sendall(b"HTTP/1.1 400 Bad Request\r\n" * 60)
                sock.recv(2048)

        thread = threading.Thread(target=work)
        thread.start()
        assert ask_by_tcp(socket.AF_INET, [listener.getsockname()]) == [None]
        thread.join()


def test_port_accepts_connections_or_not() -> None:
    with socket.create_server((HOST, 0)) as listener:
        place = listener.getsockname()
        assert can_connect(place)
    assert not can_connect(place)
