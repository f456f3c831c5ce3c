"""A server speaks the API dialects of plugins: what they bring is found, and what is at fault is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import APIRouter
from starlette.testclient import TestClient

from parallax_core.api import BodySpec, Dialect, DialectSpec, ErrorForm, ParallaxError, Ref, hookimpl, needs_role
from parallax_core.base.errors import PluginConflict
from parallax_core.plugins.host import PluginHost
from parallax_core.server.app import make_app
from parallax_core.server.body_messages import BodyRequest, DirectAnswer, RefusedBody
from parallax_core.server.body_reader import BodyReader, load_bodies, write_answer
from parallax_core.server.dialects import list_bodies
from parallax_core.server.drain import Drain
from parallax_core.server.options import ServerOptions
from parallax_core.server.plugin_routes import list_notes
from parallax_core.server.served_models import ServedModels
from tests.unit.server.dialects import TARGETS, make_core, make_plugins
from tests.unit.server.letters import Letters

HERE = "tests.unit.server.test_dialects"
CLOSED: list[str] = []


def make_plain(path: str, method: str = "GET") -> APIRouter:
    router = APIRouter()

    @router.api_route(path, methods=[method])
    async def say() -> dict[str, str]:
        return {"say": path}

    return router


def open_mine(models: object, options: object) -> Dialect:
    del models, options

    async def close() -> None:
        CLOSED.append("mine")

    return Dialect(
        routers=(make_plain("/v1/mine"),),
        errors=ErrorForm(paths=("/v1/mine",), write=lambda status, error, _: (status, {"fault": error["message"]})),
        close=close,
    )


def open_hidden(models: object, options: object) -> Dialect:
    del models, options
    return Dialect(routers=(make_plain("/health"),))


def open_hiding(models: object, options: object) -> Dialect:
    del models, options
    return Dialect(routers=(make_plain("/{name}"),))


def open_faulty(models: object, options: object) -> Dialect:
    raise ZeroDivisionError


def open_refused(models: object, options: object) -> Dialect:
    raise ParallaxError("the file is locked", "close it")


def count_words(reader: BodyReader, body: Any, ask: BodyRequest) -> DirectAnswer:
    del reader, ask
    return write_answer(words=len(body.prompt.split()))


def offer(name: str = "mine", target: str = "open_mine", **given: Any) -> Any:
    """Return a plugin that offers a dialect."""
    spec = DialectSpec(name=name, summary="", open=Ref(f"{HERE}:{target}"), **given)
    return SimpleNamespace(parallax_register_dialects=hookimpl(specname="parallax_register_dialects")(lambda: [spec]))


@contextmanager
def serving(plugins: PluginHost) -> Iterator[TestClient]:
    models, options = ServedModels(), ServerOptions()
    app = make_app(models, options, Drain(), plugins)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client
        client.portal.call(app.state.dialects.close)  # type: ignore[union-attr]


def test_routes_and_errors_of_a_dialect_are_served_and_it_is_closed() -> None:
    CLOSED.clear()
    with serving(make_plugins(mine=offer())) as client:
        assert client.get("/v1/mine").json() == {"say": "/v1/mine"}
        assert list(client.put("/v1/mine").json()) == ["fault"]
        assert "/v1/mine" in client.get("/openapi.json").json()["paths"]
    assert CLOSED == ["mine"]


@pytest.mark.parametrize("target", ["open_hidden", "open_hiding", "open_faulty", "open_missing"])
def test_dialect_that_cannot_be_served_is_left_out_and_its_plugin_broken(target: str) -> None:
    plugins = make_plugins(bad=offer("bad", target), mine=offer())
    with serving(plugins) as client:
        assert client.get("/v1/mine").status_code == 200
        assert client.get("/health").json()["status"] == "starting"
        assert client.get("/v1/models").json()["data"] == []
    assert {record.name: record.state for record in plugins.records}["bad"] == "broken"


def test_error_that_a_dialect_raises_for_the_user_ends_the_start() -> None:
    plugins = make_plugins(bad=offer("bad", "open_refused"))
    with pytest.raises(ParallaxError, match="the file is locked"), serving(plugins):
        pass


def test_two_dialects_of_one_name_are_a_conflict() -> None:
    with pytest.raises(PluginConflict, match="API dialect 'mine'"), serving(make_plugins(a=offer(), b=offer())):
        pass


def spec_words(read: str = f"{HERE}:count_words") -> BodySpec:
    schema: Ref[Any] = Ref("parallax_api_openai.completion_request:CompletionRequest")
    return BodySpec(path="/v1/mine", schema=schema, read=Ref(read))


def test_kind_of_body_belongs_to_one_dialect() -> None:
    plugins = make_plugins(mine=offer(bodies={"chat": spec_words()}))
    with pytest.raises(PluginConflict, match="'chat' and 'mine' both have bodies of the kind 'chat'"):
        list_bodies(plugins)


def read_words(**bodies: BodySpec) -> Callable[[str], object]:
    targets = list_bodies(make_plugins(mine=offer(bodies=bodies)))
    reader = BodyReader(Letters(), "toy", load_bodies(targets))  # type: ignore[arg-type]
    return lambda kind: reader.answer(BodyRequest(kind=kind, body=b'{"prompt": "a b c"}')).content


def test_body_is_read_by_the_dialect() -> None:
    assert read_words(words=spec_words())("words") == DirectAnswer(b'{"words":3}')


def test_reader_that_cannot_be_imported_fails_its_own_bodies_alone(caplog: pytest.LogCaptureFixture) -> None:
    read = read_words(words=spec_words("no_such_module:read"))
    refused = read("words")
    assert isinstance(refused, RefusedBody)
    assert (refused.kind, "cannot be imported" in refused.message) == ("failed", True)
    assert "No module named 'no_such_module'" in caplog.text
    assert not isinstance(read("completion"), RefusedBody)


def test_bodies_of_all_dialects_are_known_by_their_targets() -> None:
    assert TARGETS["chat"] == (
        "parallax_chat_requests.request_models:ChatRequest",
        "parallax_api_openai.request:read_chat_body",
    )


def test_role_is_the_routes_own_and_the_administrators_for_a_post_that_states_none() -> None:
    router = make_plain("/v1/mine", "POST")

    @router.post("/v1/open")
    @needs_role("user")
    async def answer() -> None:
        """Answer nothing."""

    global open_roles  # noqa: PLW0603 -- found by its target
    open_roles = lambda models, options: Dialect(routers=(router,))  # noqa: E731
    with serving(make_plugins(mine=offer(target="open_roles"))) as client:
        roles: Any = client.app
        assert roles.state.roles.find("/v1/mine", "POST") == "admin"
        assert roles.state.roles.find("/v1/open", "POST") == "user"


open_roles: Callable[[object, object], Dialect]


@pytest.mark.parametrize(
    ("method", "path", "distribution"),
    [
        ("POST", "/v1/responses", "parallax-api-responses"),
        ("GET", "/v1/responses/resp_1", "parallax-api-responses"),
        ("POST", "/v1/messages", "parallax-api-anthropic"),
        ("POST", "/v1/messages/count_tokens", "parallax-api-anthropic"),
        ("POST", "/v1/chat/completions", "parallax-api-openai"),
        ("POST", "/v1/completions", "parallax-api-openai"),
        ("GET", "/v1/models", "parallax-api-openai"),
        ("GET", "/v1/models/toy", "parallax-api-openai"),
        ("POST", "/v1/stop_request", "parallax-api-openai"),
        ("POST", "/v1/embeddings", "parallax-api-embeddings"),
    ],
)
def test_path_of_a_dialect_that_is_not_installed_names_its_distribution(
    method: str, path: str, distribution: str
) -> None:
    with serving(make_core()) as client:
        answer = client.request(method, path, json={})
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
        assert f"pip install {distribution}" in answer.json()["error"]["message"]
        app: Any = client.app
        [hint] = list_notes(app, None, "http://testserver/v1")
        assert hint.startswith("hint: /v1/chat/completions is not served here: it comes with parallax-api-openai")
