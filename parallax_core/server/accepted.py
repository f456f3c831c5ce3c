"""Answers connections of clients that something else than the server has accepted."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, cast

import uvicorn

from parallax_core.contracts.node_service import JoinedMachine
from parallax_core.server.client_id import JOINED_MACHINE


class AcceptedConnections:
    """Answers with the protocol and the application of a server; see `ClientConnections`."""

    def __init__(self, server: uvicorn.Server) -> None:
        self._server = server

    @property
    def are_answered(self) -> bool:
        """Whether the server answers."""
        return self._server.started and not self._server.should_exit

    async def answer(self, sock: socket.socket, machine: JoinedMachine) -> None:
        """Answer a client of a machine; see `ClientConnections.answer`."""
        await asyncio.get_running_loop().connect_accepted_socket(lambda: self._make_protocol(machine), sock=sock)

    def _make_protocol(self, machine: JoinedMachine) -> asyncio.Protocol:
        config = self._server.config
        state = {**self._server.lifespan.state, JOINED_MACHINE: machine}
        make = cast("Any", config.http_protocol_class)
        protocol: asyncio.Protocol = make(config=config, server_state=self._server.server_state, app_state=state)
        return protocol
