"""The API address of a joined machine: carries its clients' connections to the head's API."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from parallax_core.api import ParallaxError, Transport
from parallax_core.api.node import (
    MOST_API_DATA,
    Channel,
    Tunnel,
    bind_socket,
    end_stream,
    explain_bind_error,
    open_channel,
    write_unavailable,
)
from parallax_core.node.worker.rejoin import HeadPlace

HOST, PORT = "127.0.0.1", 8000
"""Where clients of this machine are served by default."""
MOST_CLIENTS = 96
"""The most connections of clients at the same time; more get a 503."""
MOST_CONNECTING = 8
"""The most links that are being made at the same time; the head answers 16 greetings of a machine."""
CONNECT_S = 5.0
"""Seconds to make a link to the head, and to be greeted."""
HEAD_S = 30.0
"""Seconds that a client may take to send the first bytes of a request."""
FAREWELL_S = 1.0
"""Seconds for which the rest of a request is read once its answer was sent."""
RETRY_S = 2
"""Seconds after which a client that got a 503 may try again."""

logger = logging.getLogger(__name__)


def bind_api(port: int | None) -> socket.socket:
    """Return a socket that listens at a port of loopback; None: the default port, or a free one if that is taken.

    It listens at once: of two programs that are only bound to a port, the second learns of the clash when it listens.

    Raises:
        ParallaxError: if the port is taken.
    """
    try:
        return _listen(PORT if port is None else port)
    except ParallaxError as error:
        cause = error.__cause__
        if port is not None or not isinstance(cause, OSError) or cause.errno != errno.EADDRINUSE:
            raise
    return _listen(0)


def _listen(port: int) -> socket.socket:
    sock = bind_socket(HOST, port)
    try:
        sock.listen()
    except OSError as error:
        sock.close()
        raise explain_bind_error(f"{HOST}:{port}", error) from error
    return sock


def find_api_url(sock: socket.socket) -> str:
    """Return the URL of the API at a socket."""
    host, port = sock.getsockname()[:2]
    return f"http://{host}:{port}/v1"


class ApiForwarder:
    """Carries each client's connection over its own link to the head, without reading HTTP: the head answers.

    So keys, the ``Host`` and the origin are judged by the head, nothing is kept in memory but what is on its way, and a
    client that reads slowly slows only its own answer. Only if the head cannot be reached before it has begun to
    answer, the client gets a 503 from here.
    """

    def __init__(self, transport: Transport, place: HeadPlace) -> None:
        """Connect by ``transport``, which has started."""
        self._transport = transport
        self._place = place
        self._clients: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._turn = asyncio.Semaphore(MOST_CONNECTING)

    @asynccontextmanager
    async def listening(self, sock: socket.socket) -> AsyncIterator[None]:
        """Serve clients at a bound socket until the end of the context."""
        server = await asyncio.start_server(self._note_client, sock=sock, limit=MOST_API_DATA)
        try:
            yield
        finally:
            server.close()
            for client, writer in self._clients.items():
                client.cancel()
                writer.transport.abort()
            await asyncio.gather(*self._clients, return_exceptions=True)

    def _note_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_one_too_many = len(self._clients) >= MOST_CLIENTS
        client = asyncio.create_task(self._serve(reader, writer, is_one_too_many=is_one_too_many))
        self._clients[client] = writer
        client.add_done_callback(self._clients.pop)

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_one_too_many: bool
    ) -> None:
        try:
            async with asyncio.timeout(HEAD_S):
                first = await reader.read(MOST_API_DATA)
            if first and is_one_too_many:
                writer.write(write_unavailable("too many connections to this machine", "unavailable", RETRY_S))
            elif first:
                await self._forward(reader, writer, first)
        except (OSError, TimeoutError):
            pass
        finally:
            await _end(reader, writer)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, first: bytes) -> None:
        try:
            tunnel = Tunnel(await self._connect(), reader, writer)
        except (ParallaxError, TimeoutError) as error:
            self._refuse(writer, error)
            return
        await tunnel.run(first)
        if tunnel.fault is not None and tunnel.awaits_answer:
            self._refuse(writer, tunnel.fault)

    async def _connect(self) -> Channel:
        """Return a new link to the API of the head.

        Raises:
            ParallaxError: if the head is gone, or does not want it.
            TimeoutError: if it does not answer in time.
        """
        async with self._turn, asyncio.timeout(CONNECT_S):
            link = await self._transport.connect(self._place.address, self._place.head)
            return await open_channel(link, self._place.node, "api", "head")

    def _refuse(self, writer: asyncio.StreamWriter, error: ParallaxError | TimeoutError) -> None:
        reason = error.message if isinstance(error, ParallaxError) else f"it does not answer within {CONNECT_S:g} s"
        logger.debug("client not served: %s", reason)
        message = f"this machine has joined the server at {self._place.address}, which cannot be reached: {reason}"
        writer.write(write_unavailable(message, "coordinator_unavailable", RETRY_S))


def forwarding(sock: socket.socket, transport: Transport, place: HeadPlace) -> AbstractAsyncContextManager[None]:
    """Return a context in which clients at a bound socket are served by the head."""
    return ApiForwarder(transport, place).listening(sock)


async def _end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Close a client's connection, after it had a moment to read its answer.

    What it still sends is read: otherwise the kernel would reset the connection, and the answer might be lost.
    """
    with contextlib.suppress(OSError, TimeoutError):
        if writer.can_write_eof():
            writer.write_eof()
        async with asyncio.timeout(FAREWELL_S):
            while await reader.read(MOST_API_DATA):
                pass
    await end_stream(writer)
