"""Routes of plugins, behind what every request passes."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
from fastapi import APIRouter, Request

from parallax_core.api import HttpSurface, hookimpl
from parallax_core.base.errors import Overloaded
from parallax_core.plugins.discovery import PluginRecord
from parallax_core.plugins.host import PluginHost
from parallax_core.server.api_keys import ApiKeys
from parallax_core.server.body_messages import BodyRequest, BodyResult
from parallax_core.server.options import ServerOptions
from parallax_core.server.plugin_routes import extend_app
from tests.support.local_reader import LocalReader
from tests.unit.server.dialects import make_plugins
from tests.unit.server.letters import Site, error_of
from tests.unit.server.plugin_reader import READER, REWRITER, Asked
from tests.unit.server.scripted import ScriptedSite

KEYED = {"Authorization": "Bearer k"}


def make_router(path: str = "/x/status", **options: Any) -> APIRouter:
    router = APIRouter(**options)

    @router.get(path)
    async def status() -> dict[str, str]:
        return {"said": path}

    return router


def extend(site: Any, **plugins: Callable[[HttpSurface], None]) -> dict[str, str]:
    """Let plugins add to a server on which nothing serves pages, and return what became of each."""
    host = PluginHost(
        (
            PluginRecord(name=name, distribution=name, version="1", module=name, state="loaded"),
            types.SimpleNamespace(parallax_extend_server=hookimpl(function)),
        )
        for name, function in plugins.items()
    )
    app: Any = site.http.app if isinstance(site, ScriptedSite) else site.app
    extend_app(app, site.models, host)
    return {record.name: record.reason for record in host.records}


def test_route_of_a_plugin_answers_and_may_ask_the_engine(site: Site) -> None:
    def add(server: HttpSurface) -> None:
        router = APIRouter()

        @router.get("/x/state")
        async def state() -> dict[str, str]:
            return {"state": server.engine.health().state}

        server.add_router(router)

    assert extend(site, one=add) == {"one": ""}
    assert site.client.get("/x/state").json() == {"state": "ready"}
    assert site.client.get("/v1/models").status_code == 200


def test_route_of_a_plugin_needs_a_key_like_all_others() -> None:
    with Site(ServerOptions(keys=ApiKeys({"k": "user"}))) as site:
        extend(site, one=lambda server: server.add_router(make_router()))
        error_of(site.client.get("/x/status"), 401)
        answer = site.client.get("/x/status", headers=KEYED)
        assert answer.json() == {"said": "/x/status"}
        assert answer.headers["X-Request-Id"]


def test_route_that_raises_is_an_error_of_the_server(site: Site) -> None:
    def add(server: HttpSurface) -> None:
        router = APIRouter()

        @router.get("/x/boom")
        async def boom() -> None:
            raise OSError("secret detail")

        server.add_router(router)

    extend(site, one=add)
    assert "secret" not in error_of(site.client.get("/x/boom"), 500)["message"]


@pytest.mark.parametrize(
    "path", ["/health", "/v1/models", "/v1/models/other", "/v1/models/{name}", "/v1/models/a/b", "/metrics"]
)
def test_route_that_would_never_be_reached_is_refused(site: Site, path: str) -> None:
    reasons = extend(site, one=lambda server: server.add_router(make_router(path)))
    assert reasons["one"] == f"ValueError: {path} is taken"


def test_route_of_another_method_or_below_a_prefix_is_not_taken(site: Site) -> None:
    router = APIRouter()

    @router.delete("/v1/models")
    async def forget() -> dict[str, str]:
        return {"said": "forgotten"}

    def add(server: HttpSurface) -> None:
        server.add_router(router)
        server.add_router(make_router("/health", prefix="/x"))

    assert extend(site, one=add) == {"one": ""}
    assert site.client.delete("/v1/models").json() == {"said": "forgotten"}
    assert site.client.get("/x/health").json() == {"said": "/health"}


def test_two_plugins_cannot_have_one_route_and_the_second_adds_nothing(site: Site) -> None:
    def add_two(server: HttpSurface) -> None:
        server.add_router(make_router("/x/other"))
        server.add_router(make_router())

    reasons = extend(site, one=lambda server: server.add_router(make_router()), two=add_two)
    assert reasons == {"one": "", "two": "ValueError: /x/status is taken"}
    assert site.client.get("/x/status").status_code == 200
    assert site.client.get("/x/other").status_code == 404


def add_reader(server: HttpSurface) -> None:
    """Add a route that says how long its body is."""
    router = APIRouter()

    @router.post("/x/size")
    async def size(http: Request) -> dict[str, int]:
        asked = await server.read(http, READER, Asked)
        return {"size": asked.size}

    server.add_router(router)


def test_body_is_read_for_a_plugin(site: Site) -> None:
    extend(site, one=add_reader)
    assert site.client.post("/x/size", content=b"abc").json() == {"size": 3}
    error = error_of(site.client.post("/x/size", content=b"bad"))
    assert (error["param"], error["message"]) == ("body", "the body is bad")


def test_body_is_read_for_a_plugin_while_no_model_is_ready(site: Site) -> None:
    extend(site, one=add_reader)
    site.models.known.clear()
    assert site.client.post("/x/size", content=b"abc").json() == {"size": 3}
    assert error_of(site.client.post("/x/size", content=b"bad"))["param"] == "body"


def test_body_for_a_plugin_waits_like_all_others() -> None:
    class FullReader(LocalReader):
        async def read(self, ask: BodyRequest) -> BodyResult:
            raise Overloaded("too many requests wait to be read", "try again later")

    with Site(reader=FullReader(None)) as site:  # type: ignore[arg-type]
        extend(site, one=add_reader)
        error_of(site.client.post("/x/size", content=b"abc"), 429)


def list_body_paths() -> list[str]:
    bodies = (body for offer in make_plugins().dialects().offers for body in offer.spec.bodies.values())
    return sorted(body.path for body in bodies)


@pytest.mark.parametrize("path", list_body_paths())
def test_plugin_rewrites_the_bodies_of_a_route(site: Site, path: str) -> None:
    assert extend(site, one=lambda server: server.rewrite_bodies(path, REWRITER)) == {"one": ""}
    headers = {"Content-Type": "application/json"}
    answer = site.client.post(path, content=b"bad", headers=headers)
    assert (answer.status_code, "the body is bad" in answer.json()["error"]["message"]) == (400, True)


def test_route_reads_the_rewritten_body(site: Site) -> None:
    extend(site, one=lambda server: server.rewrite_bodies("/v1/completions", REWRITER))
    fields = {"model": "toy", "prompt": "hello", "max_tokens": 3}
    plain, warm = (site.client.post("/v1/completions", json={**fields, name: 0}) for name in ("temperature", "warmth"))
    assert (plain.status_code, plain.json()["choices"]) == (200, warm.json()["choices"])
    assert error_of(site.client.post("/v1/completions", json={**fields, "warmth": 9}))["param"] == "temperature"
    assert error_of(site.client.post("/v1/embeddings", json={"input": "hi", "warmth": 0}))["param"] == "warmth"


def test_bodies_are_rewritten_by_one_plugin_where_they_are_read_elsewhere(site: Site) -> None:
    reasons = extend(
        site,
        one=lambda server: server.rewrite_bodies("/v1/completions", REWRITER),
        two=lambda server: server.rewrite_bodies("/v1/completions", REWRITER),
        three=lambda server: server.rewrite_bodies("/v1/cluster/models", REWRITER),
    )
    assert reasons["one"] == ""
    assert "rewritten already" in reasons["two"]
    assert "/v1/cluster/models has no bodies to rewrite" in reasons["three"]


def test_plugin_that_raises_leaves_nothing_behind(site: Site) -> None:
    def fail(server: HttpSurface) -> None:
        server.write_errors("/x", lambda _, message: {"said": message})
        server.rewrite_bodies("/v1/completions", REWRITER)
        raise OSError("too late")

    assert extend(site, one=fail) == {"one": "OSError: too late"}
    assert "message" in error_of(site.client.get("/x/nothing"), 404)
    assert error_of(site.client.post("/v1/completions", json={"prompt": "hi", "warmth": 9}))["param"] == "warmth"


def test_what_is_no_router_is_refused(site: Site) -> None:
    reasons = extend(site, one=lambda server: server.add_router(print))
    assert "is not a fastapi.APIRouter" in reasons["one"]


@pytest.mark.parametrize("kind", ["router", "mount", "websocket"])
def test_router_with_anything_but_routes_is_refused(site: Site, kind: str) -> None:
    """Nothing would ask for the role of what it has: anybody with a key could use an administrator's route."""
    router = APIRouter()
    match kind:
        case "router":
            router.include_router(make_router(), prefix="/inner")
        case "mount":
            router.mount("/inner", make_router())
        case _:
            router.add_api_websocket_route("/inner", print)
    reasons = extend(site, one=lambda server: server.add_router(router))
    assert "HTTP routes only" in reasons["one"]
