"""A machine that has joined the server of `letters`, and forwards to it over a link in this process."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from parallax_cluster.node.forwarding.forwarded import ForwardedConnections
from parallax_cluster.node.forwarding.forwarder import ApiForwarder, bind_api
from parallax_core.api import TransportPlan
from parallax_core.builtin.inprocess import InProcessTransport
from parallax_core.contracts.node_service import LinkPurpose
from parallax_core.contracts.transport import NodeRole
from parallax_core.node.channel import Channel
from parallax_core.node.handshake import greet
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.node.worker.rejoin import HeadPlace
from parallax_core.server.accepted import AcceptedConnections
from parallax_core.server.options import ServerOptions
from parallax_core.wire.membership import Join
from tests.unit.node.cluster import open_registry, soon, until
from tests.unit.server.listening import Client, Listening


@dataclass
class Machine:
    """A machine that has joined, and its server."""

    server: Listening
    registry: NodeRegistry
    sock: socket.socket
    transport: InProcessTransport

    async def connect(self) -> Client:
        """Return a client of the machine."""
        host, port = self.sock.getsockname()
        return Client(*await asyncio.open_connection(host, port))

    async def ask(self, method: str, path: str, headers: str = "") -> tuple[int, dict[str, str], Any]:
        """Return the answer to a request without a body: status, headers, and JSON."""
        client = await self.connect()
        client.send(f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}\r\n".encode())
        status, found, body = await soon(client.read())
        await client.close()
        return status, found, json.loads(body)


class KeyedChannel(Channel):
    """A channel whose peer has proved a key, as no link in this process does."""

    def __init__(self, channel: Channel, key: bytes, role: NodeRole) -> None:
        super().__init__(channel._link)
        self._key, self._role = key, role

    @property
    def key(self) -> bytes:
        return self._key

    @property
    def role(self) -> NodeRole:
        return self._role


async def join(transport: InProcessTransport, registry: NodeRegistry, node: str) -> Channel:
    """Join a head as ``node``, and return the channel."""
    channel = Channel(await transport.connect(registry.address, "head"))
    await soon(greet(channel, node))
    await channel.send(Join("inprocess://nowhere", ("toy",), "here", 0))
    await until(lambda: node in {each.name for each in registry.joined})
    return channel


@asynccontextmanager
async def forwarding(
    options: ServerOptions | None = None, node: str = "mini/1", key: bytes = b"", role: NodeRole = "worker"
) -> AsyncIterator[Machine]:
    """Run a server, and a machine that has joined it, with a key of a role if there is one."""
    transport = InProcessTransport(TransportPlan(node=node))
    async with Listening(options) as server, open_registry() as registry:
        connections, registry.clients = ForwardedConnections(registry), AcceptedConnections(server.server)
        registry.purposes["api"] = LinkPurpose(
            serve=lambda channel: connections.serve(KeyedChannel(channel, key, role))
        )
        await join(transport, registry, node)
        sock = bind_api(0)
        place = HeadPlace(registry.address, "head", node)
        try:
            async with ApiForwarder(transport, place).listening(sock):
                yield Machine(server, registry, sock, transport)
        finally:
            await transport.stop()
