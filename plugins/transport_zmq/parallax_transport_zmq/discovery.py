"""Finds nodes on this machine's networks: questions by broadcast and multicast, answers to the asker.

A question has the length of the longest answer, so that no sender can make a node send more to a forged address than he
has sent to the node. The formats are those of `_pack`: a mark, a kind, the number of an asker, a length, the bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
import struct
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from ipaddress import ip_address

from parallax_core.api import MOST_ANSWER_BYTES, MOST_QUESTION_BYTES, FindAnswer, ParallaxError
from parallax_transport_zmq.address import TcpEndpoint, parse_address
from parallax_transport_zmq.datagrams import GROUP, DatagramReader, Place, join_group, open_receiver, open_sender
from parallax_transport_zmq.interfaces import list_broadcast_addresses

logger = logging.getLogger(__name__)

PORT = 29753
"""The UDP port of questions."""
LOOPBACK = "127.255.255.255"
"""Reaches all sockets of this machine."""
MARK = b"PLXD\x01"
"""Begins every datagram; the last byte is the version."""
QUESTION, ANSWER = b"?", b"!"
HEAD = struct.Struct("!5sc8sH")
QUESTION_BYTES = HEAD.size + MOST_ANSWER_BYTES
ASK_S = (0.1, 0.15, 0.25, 0.5)
"""Seconds after each question until the next; the last value repeats."""
REFRESH_S = 5.0
"""Seconds after which a node listens on interfaces that are new."""
MOST_UNREAD = 64
"""The most answers that wait for the asker; more are dropped."""


class UdpDiscovery:
    """Asks and answers on the networks of this machine; see `parallax_core.api.Discovery`."""

    def __init__(self, port: int = PORT) -> None:
        """Ask and answer at a UDP port."""
        self._port = port

    @asynccontextmanager
    async def answering(self, address: str, find_answer: FindAnswer) -> AsyncIterator[None]:
        """Answer questions on all networks; those of this machine only, if ``address`` is on loopback.

        Raises:
            ParallaxError: if the port is not free, or another user's.
        """
        place = parse_address(address)
        if not isinstance(place, TcpEndpoint):  # only this user can reach it, and finds its file
            yield
            return
        async with AsyncExitStack() as stack:
            self._listen(stack, find_answer, is_loopback=_is_loopback(place.host))
            yield

    def _listen(self, stack: AsyncExitStack, find_answer: FindAnswer, *, is_loopback: bool) -> None:
        try:
            host = LOOPBACK if is_loopback else "0.0.0.0"  # noqa: S104 -- answers only those who know what to ask
            stack.callback(Answerer(open_receiver(socket.AF_INET, host, self._port), find_answer).close)
        except OSError as error:
            message = f"questions at UDP port {self._port} cannot be heard: {error.strerror}"
            raise ParallaxError(message, "does another program use the port? Or turn it off: --no-discovery") from error
        if is_loopback:
            return
        with suppress(OSError):  # a machine without IPv6
            sock = open_receiver(socket.AF_INET6, "::", self._port)
            stack.callback(Answerer(sock, find_answer).close)
            following = asyncio.create_task(_follow_interfaces(sock))
            stack.push_async_callback(_end, following)

    async def ask(self, question: bytes) -> AsyncGenerator[bytes, None]:
        """Ask on all networks until it is closed; yield each answer.

        Raises:
            ValueError: if the question is too long.
            ParallaxError: if it can be sent nowhere.
        """
        if len(question) > MOST_QUESTION_BYTES:
            raise ValueError(f"a question has at most {MOST_QUESTION_BYTES} bytes, not {len(question)}")
        asker = Asker(question, self._port)
        asking = asyncio.create_task(asker.run())
        try:
            while True:
                hearing = asyncio.create_task(asker.answers.get())
                try:
                    await asyncio.wait([hearing, asking], return_when=asyncio.FIRST_COMPLETED)
                    if not hearing.done():
                        await asking  # which raises
                    yield hearing.result()
                finally:
                    hearing.cancel()
        finally:
            await _end(asking)
            asker.close()


class Answerer:
    """Answers the questions that arrive at a socket."""

    def __init__(self, sock: socket.socket, find_answer: FindAnswer) -> None:
        """Answer by ``find_answer``; closes the socket in the end."""
        self._find_answer = find_answer
        self._reader = DatagramReader(sock, self.hear)

    @property
    def place(self) -> Place:
        """Where it listens."""
        return self._reader.place

    def close(self) -> None:
        """Answer no more. Idempotent."""
        self._reader.close()

    def hear(self, data: bytes, place: Place) -> None:
        """Answer a datagram that is a question, if there is an answer."""
        found = unpack(data, QUESTION)
        if found is None or len(data) != QUESTION_BYTES or len(found[1]) > MOST_QUESTION_BYTES:
            return
        answer = self._find_answer(found[1])
        if answer is not None and len(answer) <= MOST_ANSWER_BYTES:
            self._reader.send(pack(ANSWER, found[0], answer), place)


class Asker:
    """Sends one question, again and again, and collects the answers."""

    def __init__(self, question: bytes, port: int) -> None:
        """Ask at a UDP port."""
        self.number = secrets.token_bytes(8)
        """In the question and in each answer to it."""
        self._packet = pack(QUESTION, self.number, question).ljust(QUESTION_BYTES, b"\0")
        self._port = port
        self._readers: dict[int, DatagramReader] = {}
        self.answers: asyncio.Queue[bytes] = asyncio.Queue(MOST_UNREAD)
        """Those that were not read yet."""

    async def run(self) -> None:
        """Ask until cancelled.

        Raises:
            ParallaxError: if the first question reaches no network.
        """
        for family in (socket.AF_INET, socket.AF_INET6):
            with suppress(OSError):  # a machine without IPv6
                self._readers[family] = DatagramReader(open_sender(family), self.hear)
        num_asked = 0
        while True:
            if not self._send() and not num_asked:
                raise ParallaxError("this machine is on no network", "connect it to the network of the server")
            await asyncio.sleep(ASK_S[min(num_asked, len(ASK_S) - 1)])
            num_asked += 1

    def close(self) -> None:
        """Hear no more answers. Idempotent."""
        for reader in self._readers.values():
            reader.close()

    def _send(self) -> bool:
        """Send the question everywhere; return whether any network took it."""
        hosts = [LOOPBACK, *map(str, list_broadcast_addresses())]
        places: list[tuple[int, Place]] = [(socket.AF_INET, (host, self._port)) for host in hosts]
        places += [(socket.AF_INET6, (GROUP, self._port, 0, index)) for index, _ in socket.if_nameindex()]
        sent = [self._readers[family].send(self._packet, to) for family, to in places if family in self._readers]
        return any(sent)

    def hear(self, data: bytes, _: Place) -> None:
        """Take a datagram that is an answer to this question."""
        found = unpack(data, ANSWER)
        if found is not None and found[0] == self.number and len(found[1]) <= MOST_ANSWER_BYTES:
            with contextlib.suppress(asyncio.QueueFull):
                self.answers.put_nowait(found[1])


def pack(kind: bytes, number: bytes, content: bytes) -> bytes:
    """Return a datagram, without padding; ``number`` has 8 bytes."""
    return HEAD.pack(MARK, kind, number, len(content)) + content


def unpack(data: bytes, kind: bytes) -> tuple[bytes, bytes] | None:
    """Return the number and the content of a datagram, or None if it is of another kind."""
    if len(data) < HEAD.size:
        return None
    mark, its_kind, number, size = HEAD.unpack_from(data)
    content = data[HEAD.size : HEAD.size + size]
    if mark != MARK or its_kind != kind or len(content) != size:
        return None
    return number, content


async def _follow_interfaces(sock: socket.socket) -> None:
    while True:
        join_group(sock)
        await asyncio.sleep(REFRESH_S)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return False
