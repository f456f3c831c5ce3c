"""Serves clients of joined machines: their connections come over links instead of sockets."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, cast

import uvicorn

from parallax_core.base.ids import name_machine
from parallax_core.node.channel import Channel
from parallax_core.node.tunnel import Tunnel, end_stream
from parallax_core.server.client_id import JOINED_MACHINE, JoinedMachine
from parallax_core.server.error_body import write_unavailable
from parallax_core.wire.api_data import MOST_API_DATA, ApiData

MOST_CONNECTIONS, MOST_OF_ONE = 512, 128
"""The most connections at the same time: of all machines, and of one."""


class ForwardedConnections:
    """Answers links as a server answers connections, with the same protocol and application."""

    def __init__(self, server: uvicorn.Server) -> None:
        self._server = server
        self._machines: list[str] = []
        """The machine of each connection."""

    async def serve(self, channel: Channel) -> None:
        """Answer the requests of a client of the node at the other end, until either end closes the connection."""
        machine = name_machine(channel.peer)
        if reason := self._refuse(machine):
            await channel.send(ApiData(write_unavailable(reason, "unavailable", 1)))
            await channel.leave()
            return
        self._machines.append(machine)
        try:
            may_serve = bool(channel.key) and channel.role == "any"
            await self._answer(channel, JoinedMachine(machine, channel.key, may_serve))
        finally:
            self._machines.remove(machine)

    def _refuse(self, machine: str) -> str:
        """Return why a connection is refused; empty: it is not."""
        if not self._server.started or self._server.should_exit:
            return "the server starts or stops"
        if len(self._machines) >= MOST_CONNECTIONS or self._machines.count(machine) >= MOST_OF_ONE:
            return "too many connections from machines that have joined"
        return ""

    async def _answer(self, channel: Channel, machine: JoinedMachine) -> None:
        """Connect the link to the server's protocol by a pair of sockets."""
        ours, theirs = socket.socketpair()
        await asyncio.get_running_loop().connect_accepted_socket(lambda: self._make_protocol(machine), sock=theirs)
        reader, writer = await asyncio.open_connection(sock=ours, limit=MOST_API_DATA)
        try:
            await Tunnel(channel, reader, writer).run()
        finally:
            await end_stream(writer, 0)

    def _make_protocol(self, machine: JoinedMachine) -> asyncio.Protocol:
        config = self._server.config
        state = {**self._server.lifespan.state, JOINED_MACHINE: machine}
        make = cast("Any", config.http_protocol_class)
        protocol: asyncio.Protocol = make(config=config, server_state=self._server.server_state, app_state=state)
        return protocol
