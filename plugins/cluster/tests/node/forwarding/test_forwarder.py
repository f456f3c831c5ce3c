from __future__ import annotations

import asyncio
import json
import socket

import pytest

from parallax_cluster.node.forwarding import forwarder
from parallax_cluster.node.forwarding.forwarder import bind_api, find_api_url
from parallax_core.api import ParallaxError
from parallax_core.contracts.node_service import LinkPurpose
from parallax_core.node.channel import Channel
from parallax_core.server.api_keys import ApiKeys
from parallax_core.server.options import ServerOptions
from parallax_core.wire.api_data import ApiData
from plugins.cluster.tests.node.forwarding.machine import forwarding, join
from tests.unit.node.cluster import open_registry, soon, until
from tests.unit.server.listening import request

KEYS = ServerOptions(keys=ApiKeys({"u": "user", "a": "admin"}))


async def test_answer_is_that_of_the_server() -> None:
    async with forwarding() as machine:
        bodies = []
        for client in (await machine.connect(), await machine.server.connect()):
            for _ in range(2):  # the connection is kept
                client.send(request(max_tokens=5))
                status, _, body = await soon(client.read())
                assert status == 200
                bodies.append(json.loads(body)["choices"])
            await client.close()
        assert bodies[0] == bodies[1] == bodies[2] == bodies[3]


async def test_stream_arrives_piece_by_piece() -> None:
    async with forwarding() as machine:
        client = await machine.connect()
        client.send(request(max_tokens=5, stream=True))
        events = await soon(client.reader.readuntil(b"data: [DONE]\n\n"))
        assert events.count(b"data: ") > 5
        await client.close()


async def test_key_goes_through_untouched() -> None:
    async with forwarding(KEYS) as machine:
        assert (await machine.ask("GET", "/v1/models"))[0] == 401
        assert (await machine.ask("GET", "/v1/models", "Authorization: Bearer u\r\n"))[0] == 200
        assert (await machine.ask("GET", "/v1/cluster", "Authorization: Bearer u\r\n"))[0] == 403
        assert (await machine.ask("GET", "/v1/cluster", "Authorization: Bearer a\r\n"))[0] == 200
        assert (await machine.ask("GET", "/v1/models", "Authorization: Bearer x\r\n"))[0] == 401


async def test_host_of_another_site_is_refused() -> None:
    async with forwarding(ServerOptions(hosts=frozenset({"127.0.0.1"}))) as machine:
        client = await machine.connect()
        client.send(b"GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n")
        status, _, body = await soon(client.read())
        assert (status, json.loads(body)["error"]["code"]) == (403, "host_not_allowed")
        await client.close()


async def test_page_of_another_origin_is_refused() -> None:
    async with forwarding() as machine:
        status, _, body = await machine.ask("POST", "/v1/replicas/0/drain", "Origin: http://evil.example\r\n")
        assert (status, body["error"]["code"]) == (403, "origin")


async def test_lost_server_is_a_503_until_it_is_back() -> None:
    async with forwarding() as machine:
        assert (await machine.ask("GET", "/v1/models"))[0] == 200
        address, serve = machine.registry.address, machine.registry.purposes["api"].serve
        await machine.registry.stop()
        status, headers, body = await machine.ask("GET", "/v1/models")
        assert (status, body["error"]["code"]) == (503, "coordinator_unavailable")
        assert body["error"]["type"] == "service_unavailable_error"
        assert body["error"]["message"].startswith(f"this machine has joined the server at {address}, which cannot be")
        assert (headers["retry-after"], headers["connection"]) == ("2", "close")
        async with open_registry(address) as again:
            again.purposes["api"] = LinkPurpose(serve=serve)
            assert (await machine.ask("GET", "/v1/models"))[0] == 503, "it has not joined again"
            await join(machine.transport, again, "mini/1")
            assert (await machine.ask("GET", "/v1/models"))[0] == 200


async def test_server_that_is_lost_before_it_answers_is_a_503() -> None:
    async def vanish(channel: Channel) -> None:
        await channel.receive()
        await channel.leave()

    async with forwarding() as machine:
        machine.registry.purposes["api"] = LinkPurpose(serve=vanish)
        status, _, body = await machine.ask("GET", "/v1/models")
        assert (status, body["error"]["code"]) == (503, "coordinator_unavailable")


async def test_answer_that_is_cut_short_gets_nothing_more() -> None:
    async def falter(channel: Channel) -> None:
        await channel.receive()
        await channel.send(ApiData(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"))
        await channel.leave()

    async with forwarding() as machine:
        machine.registry.purposes["api"] = LinkPurpose(serve=falter)
        client = await machine.connect()
        client.send(request())
        assert (await soon(client.reader.read(-1))).endswith(b"\r\n\r\nhalf")
        await client.close()


async def test_client_that_hangs_up_cancels_its_request() -> None:
    async with forwarding() as machine:
        client = await machine.connect()
        client.send(request(max_tokens=200, stream=True))
        await soon(client.reader.readuntil(b"data: "))
        assert machine.server.num_connections == 1
        await client.close()
        await until(lambda: machine.server.num_connections == 0)
        await until(lambda: machine.registry._served.running == set())


async def test_end_of_the_machine_ends_the_connections_of_its_clients() -> None:
    async with forwarding() as machine:
        client = await machine.connect()
        client.send(request(max_tokens=200, stream=True))
        await soon(client.reader.readuntil(b"data: "))
    assert await client.is_cut()
    await client.close()
    assert machine.server.num_connections == 0


async def test_clients_beyond_the_limit_get_a_503(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarder, "MOST_CLIENTS", 1)
    async with forwarding() as machine:
        first = await machine.connect()
        first.send(request(max_tokens=1))
        await soon(first.read())
        status, _, body = await machine.ask("GET", "/v1/models")
        assert (status, body["error"]["message"]) == (503, "too many connections to this machine")
        await first.close()


async def test_many_clients_at_once_are_all_answered() -> None:
    async with forwarding() as machine:
        answers = await asyncio.gather(*(machine.ask("GET", "/v1/models") for _ in range(60)))
        assert {status for status, _, _ in answers} == {200}


async def test_silent_client_makes_no_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarder, "HEAD_S", 0.05)
    async with forwarding() as machine:
        client = await machine.connect()
        assert await client.is_cut()
        assert machine.server.num_connections == 0
        await client.close()


def test_port_that_is_taken_is_an_error_if_it_was_wished_for() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ParallaxError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            bind_api(port)


def test_default_port_that_is_taken_gives_way_to_a_free_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr(forwarder, "PORT", taken.getsockname()[1])
        with bind_api(None) as sock:
            port = sock.getsockname()[1]
            assert port != taken.getsockname()[1]
            assert find_api_url(sock) == f"http://127.0.0.1:{port}/v1"


def test_two_machines_at_one_address_get_ports_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with bind_api(0) as free:
        port = free.getsockname()[1]
    monkeypatch.setattr(forwarder, "PORT", port)
    with bind_api(None) as first, bind_api(None) as second:
        assert first.getsockname()[1] == port
        assert second.getsockname()[1] != port
