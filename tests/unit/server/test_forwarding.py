"""Requests that plugins have the server's own routes answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse

from parallax_core.api import ForwardedAnswer, HttpSurface
from parallax_core.contracts.surface import RouteRole, needs_role
from parallax_core.server import forwarding
from parallax_core.server.api_keys import ApiKeys
from parallax_core.server.options import ServerOptions
from tests.unit.server.scripted import ScriptedSite
from tests.unit.server.test_plugin_routes import extend

CHAT = "/v1/chat/completions"
BODY = {"model": "toy", "messages": [{"role": "user", "content": "hi"}]}


def add(server: HttpSurface) -> None:
    """Add a route that forwards its body to the path of the header ``X-To``, and one that streams the answer."""
    router = APIRouter()

    async def open_answer(http: Request) -> ForwardedAnswer:
        body = await http.body() if http.method == "POST" else None
        return await server.forward(http, http.headers["x-to"], body)

    @router.api_route("/x/whole", methods=["GET", "POST"])
    @needs_role("user")
    async def whole(http: Request) -> Response:
        answer = await open_answer(http)
        try:
            return Response(await answer.read(), answer.status)
        finally:
            await answer.close()

    @router.post("/x/stream")
    @needs_role("user")
    async def stream(http: Request) -> Response:
        answer = await open_answer(http)
        return StreamingResponse(aiter(answer), answer.status)

    server.add_router(router)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[ScriptedSite]:
    with make_site(tmp_path) as site:
        yield site


def make_site(folder: Path, **options: Any) -> ScriptedSite:
    site = ScriptedSite(folder, options=ServerOptions(**options))
    site.engine.scripts += ["Hello there."] * 9
    assert extend(site, one=add) == {"one": ""}
    return site


def send(site: ScriptedSite, to: str = CHAT, path: str = "/x/whole", key: str = "", **fields: Any) -> Any:
    headers = {"X-To": to, "Content-Type": "text/plain"} | ({"Authorization": f"Bearer {key}"} if key else {})
    return site.http.post(path, content=json.dumps({**BODY, **fields}), headers=headers)


def test_route_of_the_server_answers(site: ScriptedSite) -> None:
    answer = send(site)
    assert (answer.status_code, answer.json()["choices"][0]["message"]["content"]) == (200, "Hello there.")
    models = site.http.get("/x/whole", headers={"X-To": "/v1/models"}).json()
    assert models == site.http.get("/v1/models").json()


@pytest.mark.parametrize("small", [0, 10**6])
def test_whole_answer_is_decoded(site: ScriptedSite, monkeypatch: pytest.MonkeyPatch, small: int) -> None:
    class Reply(msgspec.Struct):
        model: str
        usage: msgspec.Raw

    def add_usage(server: HttpSurface) -> None:
        router = APIRouter()

        @router.post("/x/usage")
        @needs_role("user")
        async def usage(http: Request) -> Response:
            answer = await server.forward(http, CHAT, await http.body())
            reply = await answer.read_json(Reply)
            return Response(bytes(reply.usage), headers={"X-Model": reply.model})

        server.add_router(router)

    monkeypatch.setattr(forwarding, "SMALL", small)
    assert extend(site, two=add_usage) == {"two": ""}
    answer = send(site, path="/x/usage")
    assert (answer.headers["X-Model"], answer.json()["prompt_tokens"] > 0) == ("toy", True)


def test_stream_comes_in_pieces(site: ScriptedSite) -> None:
    text = send(site, path="/x/stream", stream=True).text
    pieces = [json.loads(line.removeprefix("data: ")) for line in text.split("\n\n")[:-2]]
    assert "".join(each["choices"][0]["delta"].get("content") or "" for each in pieces) == "Hello there."
    assert text.endswith("data: [DONE]\n\n")


def test_errors_of_the_server_are_answers(site: ScriptedSite) -> None:
    answer = send(site, temperature=9)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "temperature")
    assert send(site, model="other").status_code == 404
    assert send(site, to="/v1/nowhere").status_code == 404
    assert send(site, to="/v1/models").status_code == 405


def test_client_counts_once_and_by_its_key(tmp_path: Path) -> None:
    keys = ApiKeys({"k": "user", "other": "user"})
    with make_site(tmp_path, keys=keys, max_per_minute=3) as site:
        assert send(site).status_code == 401
        headers = {"X-To": "/v1/responses", "Authorization": "Bearer k"}
        name = site.http.post("/x/whole", json={"model": "toy", "input": "hi"}, headers=headers).json()["id"]
        for key, status in (("other", 404), ("k", 200)):
            headers = {"X-To": f"/v1/responses/{name}", "Authorization": f"Bearer {key}"}
            assert site.http.get("/x/whole", headers=headers).status_code == status
        assert [send(site, key="k").status_code for _ in range(3)] == [200, 200, 429]


@pytest.mark.parametrize("path", ["/v1/cluster", "/v1/replicas/0/drain", "/metrics", "/health"])
def test_route_of_users_forwards_to_routes_of_users_only(tmp_path: Path, path: str) -> None:
    with make_site(tmp_path, keys=ApiKeys({"k": "user", "a": "admin"})) as site:
        for key in ("k", "a"):
            assert send(site, to=path, key=key).status_code == 500, "a mistake of the plugin"


@pytest.mark.parametrize(
    ("role", "forwarded"), [("admin", {CHAT, "/v1/cluster", "/metrics"}), ("metrics", {"/metrics"}), (None, set())]
)
def test_route_forwards_to_what_its_own_role_may_use(
    tmp_path: Path, role: RouteRole | None, forwarded: set[str]
) -> None:
    def add_look(server: HttpSurface) -> None:
        router = APIRouter()

        @router.post("/x/look")
        @needs_role(role)
        async def look(http: Request) -> Response:
            to = http.headers["x-to"]
            answer = await server.forward(http, to, await http.body() if to == CHAT else None)
            return Response(await answer.read(), answer.status)

        server.add_router(router)

    with make_site(tmp_path, keys=ApiKeys({"a": "admin"})) as site:
        assert extend(site, two=add_look) == {"two": ""}
        for to in (CHAT, "/v1/cluster", "/metrics", "/health"):
            status = send(site, to=to, path="/x/look", key="a").status_code
            assert status == (200 if to in forwarded else 500), to


def test_ignored_fields_are_named_to_the_client(site: ScriptedSite) -> None:
    headers = {"X-To": "/v1/responses"}
    body = {"model": "toy", "input": "hi", "tools": [{"type": "web_search"}]}
    assert site.http.post("/x/whole", json=body, headers=headers).headers["x-ignored-fields"] == "tools.web_search"


def test_answer_that_is_closed_is_not_generated(tmp_path: Path) -> None:
    with ScriptedSite(tmp_path) as site:
        site.engine.scripts += ["Hello there."]
        site.engine.gate = asyncio.Event()
        counts = []

        def add_cut(server: HttpSurface) -> None:
            router = APIRouter()

            @router.post("/x/cut")
            @needs_role("user")
            async def cut(http: Request) -> None:
                answer = await server.forward(http, CHAT, await http.body())
                counts.append(len(site.service.running))
                for _ in range(2):
                    await answer.close()
                counts.append(len(site.service.running))

            server.add_router(router)

        assert extend(site, one=add_cut) == {"one": ""}
        assert site.http.post("/x/cut", json={**BODY, "stream": True}).status_code == 200
        assert counts == [1, 0]
