from __future__ import annotations

import msgspec
import pytest

from parallax_cluster.node.forwarding import forwarded
from parallax_core.server.api_keys import ApiKeys
from parallax_core.server.options import ServerOptions
from parallax_core.server.response_models import ErrorReply
from parallax_core.server.served_models import ModelEntry
from plugins.cluster.tests.node.forwarding.machine import forwarding
from tests.unit.node.cluster import soon
from tests.unit.server.listening import request


async def test_client_without_a_key_is_a_user_and_no_administrator() -> None:
    async with forwarding() as machine:
        assert (await machine.ask("GET", "/v1/models"))[0] == 200
        status, _, body = await machine.ask("POST", "/v1/replicas/0/drain")
        assert (status, body["error"]["code"]) == (403, "machine_not_trusted")
        message = "clients of machine 'mini' are users, and this needs the role 'admin'; run it on the server's machine"
        assert body["error"]["message"] == message
        assert (await machine.ask("GET", "/metrics"))[0] == 403
        assert (await machine.ask("GET", "/v1/cluster/events"))[0] == 403
        assert (await machine.ask("POST", "/v1/cluster"))[0] == 403


async def test_client_without_a_key_sees_the_nodes() -> None:
    async with forwarding() as machine:
        status, _, cluster = await machine.ask("GET", "/v1/cluster")
        assert (status, cluster["object"]) == (200, "cluster")


async def test_client_without_a_key_sees_the_models_and_not_why_some_could_not_be_loaded() -> None:
    async with forwarding() as machine:
        machine.server.site.models.known["lost"] = ModelEntry("lost", "lost", error="there is no /srv/lost")
        _, _, cluster = await machine.ask("GET", "/v1/cluster")
        status, _, models = await machine.ask("GET", "/v1/cluster/models")
        assert status == 200
        for shown in (cluster["models"], models["data"]):
            assert {each["id"]: each["error"] for each in shown} == {"toy": None, "lost": None}


async def test_refusal_names_the_command_by_which_the_machine_may_do_more() -> None:
    async with forwarding(key=b"\x1f" * 32) as machine:
        _, _, body = await machine.ask("POST", "/v1/cluster/models")
        remedy = f"`parallax keys allow {'1f' * 32} mini --role any` on the server's machine"
        assert body["error"]["hint"] == f"if they should have it: {remedy}"
        assert body["error"]["message"].endswith(f"; {body['error']['hint']}")
        msgspec.convert(body, ErrorReply)


async def test_clients_of_a_machine_that_may_serve_are_administrators() -> None:
    async with forwarding(key=b"\x1f" * 32, role="any") as machine:
        machine.server.site.models.known["lost"] = ModelEntry("lost", "lost", error="there is no /srv/lost")
        _, _, models = await machine.ask("GET", "/v1/cluster/models")
        assert {each["id"]: each["error"] for each in models["data"]} == {"toy": None, "lost": "there is no /srv/lost"}
        assert (await machine.ask("POST", "/v1/replicas/0/drain"))[0] == 200


async def test_machine_without_a_proved_key_is_not_trusted_by_its_role() -> None:
    async with forwarding(role="any") as machine:
        assert (await machine.ask("POST", "/v1/replicas/0/drain"))[0] == 403


async def test_client_of_a_machine_that_may_serve_needs_a_key_where_the_server_has_some() -> None:
    async with forwarding(ServerOptions(keys=ApiKeys({"a": "admin"})), key=b"\x1f" * 32, role="any") as machine:
        assert (await machine.ask("GET", "/v1/cluster/models"))[0] == 401


async def test_clients_of_a_machine_count_as_one_where_there_are_no_keys() -> None:
    async with forwarding(ServerOptions(max_per_minute=1)) as machine:
        client = await machine.connect()
        client.send(request(max_tokens=1))
        assert (await soon(client.read()))[0] == 200
        await client.close()
        again = await machine.connect()
        again.send(request(max_tokens=1))
        assert (await soon(again.read()))[0] == 429
        await again.close()
        assert await machine.server.answers(), "a client of the server's own machine is another one"


async def test_machine_has_only_so_many_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarded, "MOST_OF_ONE", 1)
    async with forwarding() as machine:
        first = await machine.connect()
        first.send(request(max_tokens=1))
        await soon(first.read())
        status, _, body = await machine.ask("GET", "/v1/models")
        assert (status, body["error"]["message"]) == (503, "too many connections from machines that have joined")
        await first.close()


async def test_server_that_ends_takes_no_more() -> None:
    async with forwarding() as machine:
        machine.server.server.should_exit = True
        status, _, body = await machine.ask("GET", "/v1/models")
        assert (status, body["error"]["message"]) == (503, "the server starts or stops")
