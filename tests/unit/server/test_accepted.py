"""Connections that something else than the server has accepted are answered as its own."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import pytest

from parallax_core.api import JoinedMachine
from parallax_core.server.accepted import AcceptedConnections
from parallax_core.server.options import ServerOptions
from tests.unit.server.listening import Client, Listening, until


async def ask(server: Listening, machine: JoinedMachine, path: str) -> tuple[int, Any]:
    """Return the status and the JSON of the answer to a client of a machine."""
    ours, theirs = socket.socketpair()
    await AcceptedConnections(server.server).answer(theirs, machine)
    client = Client(*await asyncio.open_connection(sock=ours))
    client.send(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    status, _, body = await client.read()
    await client.close()
    await until(lambda: server.num_connections == 0)
    return status, json.loads(body)


async def test_client_is_answered_and_its_machine_is_known() -> None:
    async with Listening(ServerOptions(max_per_minute=1)) as server:
        status, models = await ask(server, JoinedMachine("mini"), "/v1/models")
        assert (status, [each["id"] for each in models["data"]]) == (200, ["toy"])
        status, body = await ask(server, JoinedMachine("studio"), "/v1/cluster/events")
        assert (status, body["error"]["code"]) == (403, "machine_not_trusted")
        assert "'studio'" in body["error"]["message"]


@pytest.mark.parametrize(("may_serve", "status"), [(True, 405), (False, 403)])
async def test_client_of_a_machine_that_may_serve_is_an_administrator(may_serve: bool, status: int) -> None:
    """One may ask for what is there in another way only."""
    async with Listening() as server:
        machine = JoinedMachine("mini", b"\x1f" * 32, may_serve)
        assert (await ask(server, machine, "/v1/nodes/none/drain"))[0] == status


async def test_server_that_ends_says_that_it_answers_no_more() -> None:
    async with Listening() as server:
        clients = AcceptedConnections(server.server)
        assert clients.are_answered
        server.server.should_exit = True
        assert not clients.are_answered
