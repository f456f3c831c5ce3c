from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.testclient import TestClient

from parallax_core.base.errors import (
    BackendFailed,
    InvalidRequest,
    Overloaded,
    ParallaxError,
    RequestTimeout,
    Unavailable,
    UnknownName,
)
from parallax_core.server.body_messages import UnknownModel, UnknownPart
from parallax_core.server.error_forms import ErrorForms
from parallax_core.server.errors import DISTRIBUTIONS, ClientGone, add_handlers
from parallax_core.server.model_errors import ChangeRefused, ModelNotLoaded
from parallax_core.server.strict_json import MOST_QUOTED


def make_client(error: Exception | None = None, *, writes_own: bool = False) -> TestClient:
    """Return the client of an application whose one route raises an error."""
    app = FastAPI()
    add_handlers(app)
    app.state.error_forms = ErrorForms()
    if writes_own:
        app.state.error_forms.add("/own", lambda status, message: {"wrong": [status, message]})

    async def fail() -> None:
        if error is not None:
            raise error

    for path in ("/v1/echo", "/own/echo"):
        app.get(path)(fail)
    return TestClient(app, raise_server_exceptions=False)


@pytest.mark.parametrize(
    ("error", "status", "shown"),
    [
        (
            InvalidRequest("bad", "n", "less"),
            400,
            {"param": "n", "message": "bad; less", "type": "invalid_request_error"},
        ),
        (UnknownModel("which?"), 404, {"param": "model", "code": "model_not_found", "type": "not_found_error"}),
        (UnknownPart("which?"), 404, {"param": "input", "code": "not_found"}),
        (UnknownName("which?"), 404, {"param": None, "code": "not_found"}),
        (RequestTimeout("late"), 408, {"param": "timeout", "code": "timeout", "type": "timeout_error"}),
        (ChangeRefused("not now"), 409, {"param": None, "code": "conflict", "type": "conflict_error"}),
        (Overloaded("full"), 429, {"code": "overloaded", "type": "rate_limit_error"}),
        (ModelNotLoaded("asleep"), 503, {"param": "model", "code": "model_not_loaded"}),
        (Unavailable("starting", "wait"), 503, {"code": None, "message": "starting; wait"}),
        (BackendFailed("broken"), 500, {"type": "server_error", "message": "broken"}),
        (ParallaxError("something"), 500, {"param": None, "message": "something"}),
        (HTTPException(413, "too large"), 413, {"message": "too large"}),
        (ZeroDivisionError("secret"), 500, {"message": "internal error; the server's log has the details"}),
    ],
)
def test_error_has_its_status_and_names_its_field(error: Exception, status: int, shown: Mapping[str, Any]) -> None:
    answer = make_client(error).get("/v1/echo")
    assert answer.status_code == status
    found = answer.json()["error"]
    assert {name: found[name] for name in shown} == shown


@pytest.mark.parametrize(
    ("error", "after"),
    [(Unavailable("x"), "1"), (Overloaded("x", "", 7), "7"), (ModelNotLoaded("x"), "10"), (BackendFailed("x"), None)],
)
def test_client_is_told_when_to_ask_again(error: Exception, after: str | None) -> None:
    assert make_client(error).get("/v1/echo").headers.get("Retry-After") == after


@pytest.mark.parametrize("error", [ClientGone(), ClientDisconnect()])
def test_client_that_is_gone_gets_nothing(error: Exception) -> None:
    answer = make_client(error).get("/v1/echo")
    assert (answer.status_code, answer.content) == (499, b"")


def test_headers_of_an_error_are_kept() -> None:
    error = HTTPException(503, "going down", {"Connection": "close"})
    assert make_client(error).get("/v1/echo").headers["Connection"] == "close"


@pytest.mark.parametrize("path", DISTRIBUTIONS)
def test_path_of_a_distribution_that_is_not_installed_names_it(path: str) -> None:
    for asked in (path, f"{path}/more"):
        error = make_client().post(asked).json()["error"]
        assert error["code"] == "not_found"
        assert error["message"].startswith(f"{asked} is not served here: it comes with parallax-api-")
        assert f"pip install {DISTRIBUTIONS[path]}" in error["message"]
    assert "comes with" not in make_client().post(f"{path}more").json()["error"]["message"]


def test_path_that_is_not_there_names_the_one_that_may_be_meant() -> None:
    client = make_client()
    assert "but at /v1/echo: the base URL" in client.get("/api/echo").json()["error"]["message"]
    plain = client.get("/" + "x" * MOST_QUOTED).json()["error"]
    assert plain["message"].startswith(f"there is nothing at /{'x' * (MOST_QUOTED - 1)}...; the API is below /v1")
    assert "..." not in client.get("/" + "x" * (MOST_QUOTED - 1)).json()["error"]["message"]


def test_method_that_is_not_served_names_those_that_are() -> None:
    client = make_client()
    answer = client.post("/v1/echo")
    assert (answer.status_code, answer.headers["Allow"]) == (405, "GET, HEAD, OPTIONS")
    assert answer.json()["error"]["message"] == "POST is not served at /v1/echo: send GET or HEAD or OPTIONS"
    assert client.options("/v1/echo").status_code < 300


@pytest.mark.parametrize("path", ["/own/echo", "/api/own/echo"])
def test_error_has_the_form_of_the_api_below_whose_path_it_happens(path: str) -> None:
    client = make_client(ZeroDivisionError("secret"), writes_own=True)
    status, message = client.get(path).json()["wrong"]
    expected = (500, "internal error") if path == "/own/echo" else (404, "there is nothing at /api/own/echo, but at")
    assert (status, message[: len(expected[1])]) == expected


def test_parameter_that_is_wrong_is_named_without_where_it_was() -> None:
    app = FastAPI()
    add_handlers(app)
    app.state.error_forms = ErrorForms()

    @app.get("/v1/count")
    async def count(since: int) -> int:
        return since

    client = TestClient(app)
    assert client.get("/v1/count?since=3").json() == 3
    answer = client.get("/v1/count?since=soon")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "since")


def test_method_that_the_root_lacks_says_where_the_api_is() -> None:
    app = FastAPI()
    add_handlers(app)
    app.state.error_forms = ErrorForms()

    @app.get("/")
    async def front() -> str:
        return "front"

    message = TestClient(app).post("/").json()["error"]["message"]
    assert message.startswith("POST is not served at /: send ")
    assert message.endswith("; the API is below /v1, such as /v1/chat/completions")
