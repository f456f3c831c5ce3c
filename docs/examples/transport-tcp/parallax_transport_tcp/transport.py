"""A transport over TCP on loopback, on the streams of asyncio.

A connection begins with the names of both ends: the connecting node sends its name, receives the other's, and hangs up
if that is not the one it expects. Names are not verified and nothing is encrypted, so it listens on loopback only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from ipaddress import ip_address
from urllib.parse import urlsplit

from parallax_core.api import ParallaxError, PeerLost, TransportPlan
from parallax_transport_tcp.link import TcpLink

MAGIC = b"parallax-transport-tcp 1\n"
"""The first bytes of a connection."""


class TcpTransport:
    """See `parallax_core.api.Transport`; its links are of the class `link`."""

    link: type[TcpLink] = TcpLink

    def __init__(self, plan: TransportPlan) -> None:
        self._plan = plan
        self._server: asyncio.Server | None = None
        self._links: list[TcpLink] = []
        self._accepted: deque[TcpLink] = deque()
        self._changed = asyncio.Condition()
        self._stopped = False
        self.address = ""

    async def start(self) -> None:
        """Listen if the plan has an address; port 0 takes a free port."""
        if not self._plan.listen:
            return
        host, port = parse_address(self._plan.listen)
        try:
            self._server = await asyncio.start_server(self._greet, host, port)
        except OSError as error:
            raise ParallaxError(f"cannot listen at {self._plan.listen}: {error}", "choose another port") from error
        self.address = f"tcp://{host}:{self._server.sockets[0].getsockname()[1]}"

    async def connect(self, address: str, node: str) -> TcpLink:
        """Connect, exchange names, and return a link if the peer has the expected name."""
        host, port = parse_address(address)
        try:
            async with asyncio.timeout(self._plan.timeout_s):
                reader, out = await asyncio.open_connection(host, port)
                try:
                    out.write(MAGIC + f"{self._plan.node}\n".encode())
                    name = (await reader.readline()).decode().strip()
                    self.check_name(name, node, address)
                except BaseException:
                    out.close()
                    raise
        except (OSError, ValueError) as error:  # TimeoutError is an OSError
            raise PeerLost(f"no node answers at {address}: {error}") from error
        out.write(b"\n")
        return self.add_link(name, reader, out)

    def check_name(self, name: str, wanted: str, address: str) -> None:
        """Raise PeerLost if the peer has another name than the wanted one."""
        if name != wanted:
            raise PeerLost(f"{name!r} is at {address}, not {wanted!r}")

    def add_link(self, peer: str, reader: asyncio.StreamReader, out: asyncio.StreamWriter) -> TcpLink:
        """Make a link of a connection after the exchange of names."""
        link = self.link(self._plan, peer, reader, out)
        self._links.append(link)
        return link

    async def accept(self) -> TcpLink:
        """Wait for the next incoming link."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._accepted or self._stopped)
            if self._stopped:
                raise PeerLost("this transport is stopped")
            return self._accepted.popleft()

    async def stop(self) -> None:
        """Close all links and stop listening."""
        self._stopped = True
        if self._server:
            self._server.close()
        async with self._changed:
            self._changed.notify_all()
        await asyncio.gather(*(link.close() for link in self._links))

    async def identify(self, reader: asyncio.StreamReader, out: asyncio.StreamWriter) -> str:
        """Exchange names with a connecting node; return its name, or an empty text if it fails or takes too long."""
        try:
            async with asyncio.timeout(self._plan.timeout_s):
                if await reader.readexactly(len(MAGIC)) != MAGIC:
                    return ""
                name = (await reader.readline()).decode().strip()
                out.write(f"{self._plan.node}\n".encode())
                return name if await reader.readline() == b"\n" else ""
        except (OSError, ValueError, EOFError):
            return ""

    async def _greet(self, reader: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        """Handle a new connection, in its own task, so that a silent peer does not block others."""
        name = ""
        try:
            name = await self.identify(reader, out)
        finally:
            if not name:
                out.close()
        if name:
            async with self._changed:
                self._accepted.append(self.add_link(name, reader, out))
                self._changed.notify_all()


def parse_address(address: str) -> tuple[str, int]:
    """Return the host and the port of ``tcp://HOST:PORT``; raise ParallaxError for any other address."""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname or "", parts.port
        if parts.scheme == "tcp" and port is not None and ip_address(host).is_loopback:
            return host, port
    except ValueError:
        pass
    raise ParallaxError(f"{address!r} is not a TCP address on loopback", "write tcp://127.0.0.1:PORT")
