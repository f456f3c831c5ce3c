"""The server of `letters` on a real socket, and a client that sends raw bytes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from types import TracebackType
from typing import Any, Self

from parallax_core.server import run
from parallax_core.server.bind import bind_socket
from parallax_core.server.body_messages import BodyReading
from parallax_core.server.options import ServerOptions
from tests.unit.server.letters import Site


class Listening:
    """A server on loopback in this event loop."""

    def __init__(
        self, options: ServerOptions | None = None, reader: BodyReading | None = None, site: Site | None = None
    ) -> None:
        options = options or ServerOptions()
        self.site = site or Site(options, reader=reader)
        self._clients: list[Client] = []
        self._sock = bind_socket("127.0.0.1", 0)
        served = run.ServerSite(self.site.app, self.site.models, options, self.site.drain)
        self.server = run.Server(run.make_config(served))

    async def __aenter__(self) -> Self:
        await self.site.router.start()
        self._serving = asyncio.create_task(self.server.serve(sockets=[self._sock]))
        await until(lambda: self.server.started)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self._clients:
            await client.close()
        await self.site.router.stop()
        await self.site.app.state.dialects.close()
        self.server.should_exit = True
        await self._serving

    @property
    def port(self) -> int:
        return int(self._sock.getsockname()[1])

    @property
    def num_connections(self) -> int:
        return len(self.server.server_state.connections)

    async def connect(self, receive_buffer: int = 0) -> Client:
        """Return a client; with a small ``receive_buffer`` (bytes) it can be a slow reader."""
        sock = socket.socket()
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        client = Client(*await asyncio.open_connection(sock=sock, limit=receive_buffer or 2**16))
        self._clients.append(client)
        return client

    async def answers(self) -> bool:
        """Return whether another client is answered."""
        client = await self.connect()
        client.send(request(max_tokens=2))
        status, _, _ = await client.read()
        await client.close()
        return status == 200


class Client:
    """One connection to the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def read(self) -> tuple[int, dict[str, str], bytes]:
        """Return the status, headers and body of the next response."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        size = int(headers.get("content-length", 0))
        return int(head[0].split()[1]), headers, await self.reader.readexactly(size)

    async def is_cut(self, within_s: float = 10) -> bool:
        """Return whether the server closes the connection in time."""
        try:
            async with asyncio.timeout(within_s):
                while await self.reader.read(2**16):
                    pass
        except TimeoutError:
            return False
        except ConnectionError:
            return True
        return True

    async def close(self) -> None:
        self.writer.transport.abort()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


def request(headers: str = "", content: str = "hello", **fields: Any) -> bytes:
    """Return the bytes of a chat request."""
    body = json.dumps({"model": "toy", "messages": [{"role": "user", "content": content}], **fields}).encode()
    return head(len(body), headers) + body


def head(size: int, headers: str = "") -> bytes:
    """Return the head of a request with ``size`` bytes of JSON."""
    return (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: toy\r\nContent-Type: application/json\r\n"
        f"Content-Length: {size}\r\n{headers}\r\n"
    ).encode()


async def until(is_so: Any, within_s: float = 10) -> None:
    """Wait until ``is_so()`` is true."""
    async with asyncio.timeout(within_s):
        while not is_so():  # noqa: ASYNC110 -- there is no event for it
            await asyncio.sleep(0.005)
