"""Answers clients of joined machines: their connections come over links instead of sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from typing import Protocol

from parallax_core.api import ClientConnections, JoinedMachine, LinkPurpose, NodeService, name_machine
from parallax_core.api.node import MOST_API_DATA, ApiData, Channel, Tunnel, end_stream, write_unavailable

MOST_CONNECTIONS, MOST_OF_ONE = 512, 128
"""The most connections at the same time: of all machines, and of one."""


class HasClients(Protocol):
    """A head, by whose server clients are answered."""

    @property
    def clients(self) -> ClientConnections | None:
        """What answers them; None: the server does not answer yet."""


class ForwardedConnections(NodeService):
    """Answers links as the server of a head answers connections, with the same protocol and application."""

    def __init__(self, head: HasClients) -> None:
        self._head = head
        self._machines: list[str] = []
        """The machine of each connection."""

    @property
    def purposes(self) -> Mapping[str, LinkPurpose]:
        """The links that machines make for their clients."""
        return {"api": LinkPurpose(serve=self.serve)}

    async def serve(self, channel: Channel) -> None:
        """Answer the requests of a client of the node at the other end, until either end closes the connection."""
        machine, clients = name_machine(channel.peer), self._head.clients
        if clients is None or not clients.are_answered:
            await _refuse(channel, "the server starts or stops")
            return
        if len(self._machines) >= MOST_CONNECTIONS or self._machines.count(machine) >= MOST_OF_ONE:
            await _refuse(channel, "too many connections from machines that have joined")
            return
        self._machines.append(machine)
        try:
            may_serve = bool(channel.key) and channel.role == "any"
            await _answer(channel, clients, JoinedMachine(machine, channel.key, may_serve))
        finally:
            self._machines.remove(machine)


async def _refuse(channel: Channel, reason: str) -> None:
    await channel.send(ApiData(write_unavailable(reason, "unavailable", 1)))
    await channel.leave()


async def _answer(channel: Channel, clients: ClientConnections, machine: JoinedMachine) -> None:
    """Connect the link to the server by a pair of sockets."""
    ours, theirs = socket.socketpair()
    await clients.answer(theirs, machine)
    reader, writer = await asyncio.open_connection(sock=ours, limit=MOST_API_DATA)
    try:
        await Tunnel(channel, reader, writer).run()
    finally:
        await end_stream(writer, 0)
