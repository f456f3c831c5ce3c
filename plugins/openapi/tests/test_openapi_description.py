"""The description of the API names every status that the server answers with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from parallax_core.server.api_keys import ApiKeys
from parallax_core.server.options import ServerOptions
from tests.unit.server.letters import Site

KEY = {"Authorization": "Bearer key"}
JSON = {"Content-Type": "application/json"}
LARGE = 2**20


@pytest.fixture(scope="module")
def limited() -> Iterator[Site]:
    """A server with all of its limits."""
    keys = ApiKeys({"key": "admin", "metrics": "metrics"})
    options = ServerOptions(
        keys=keys, max_body_bytes=LARGE, max_per_minute=100_000, cors_origins=("http://mine",), hosts=("testserver",)
    )
    with Site(options) as site:
        yield site


def list_operations(site: Site, method: str = "") -> list[tuple[str, str, dict[str, Any]]]:
    paths = site.client.get("/openapi.json", headers=KEY).json()["paths"].items()
    found = [(name, path, operation) for path, methods in paths for name, operation in methods.items()]
    return [each for each in found if each[0] == method or not method]


REFUSED: list[tuple[int, dict[str, Any]]] = [
    (415, {"headers": {"Content-Encoding": "br"}}),
    (413, {"content": b"{" + b" " * LARGE}),
    (400, {"headers": {"Content-Encoding": "gzip"}, "content": b"{}"}),
    (400, {"headers": {"Content-Length": "2", "Transfer-Encoding": "chunked"}}),
    (403, {"headers": {"Origin": "http://other"}}),
    (403, {"headers": {"Host": "other"}}),
    (401, {"headers": {"Authorization": "Bearer none"}}),
    (403, {"headers": {"Authorization": "Bearer metrics"}}),
]


@pytest.mark.parametrize(("status", "sent"), REFUSED)
def test_refusal_of_any_post_is_described(limited: Site, status: int, sent: dict[str, Any]) -> None:
    found = set()
    for method, path, operation in list_operations(limited, "post"):
        given = {"content": b"{}", **sent, "headers": {**JSON, **KEY, **sent.get("headers", {})}}
        answer = limited.client.request(method, path.replace("{rank}", "9").replace("{response_id}", "x"), **given)
        assert str(answer.status_code) in operation["responses"], (path, answer.text)
        found.add(answer.status_code)
    assert status in found


def test_refusal_of_a_server_that_stops_is_described(limited: Site) -> None:
    limited.drain.is_closed = True
    try:
        for method, path, operation in list_operations(limited, "post"):
            answer = limited.client.request(method, path.replace("{rank}", "0"), content=b"{}", headers={**JSON, **KEY})
            assert answer.status_code in {503, 529}
            assert str(answer.status_code) in operation["responses"], path
    finally:
        limited.drain.is_closed = False


def test_refusals_of_a_key_are_described_wherever_one_is_needed(limited: Site) -> None:
    for _, path, operation in list_operations(limited):
        has_refusals = {"401", "403"} <= set(operation["responses"])
        assert has_refusals == (operation.get("security") != []), path


def find_shapes(path: str) -> set[str]:
    if path.startswith("/v1/models"):  # clients of both APIs ask there
        return {"ErrorReply", "MessageErrorReply"}
    return {"MessageErrorReply" if path.startswith("/v1/messages") else "ErrorReply"}


def test_every_error_has_the_form_of_its_route(limited: Site) -> None:
    for _, path, operation in list_operations(limited):
        for status, response in operation["responses"].items():
            if status >= "400" and path not in {"/health", "/ready"}:
                [schema] = [content["schema"] for content in response["content"].values()]
                shapes = {each["$ref"].rpartition("/")[2] for each in schema.get("anyOf", [schema])}
                assert shapes == find_shapes(path), path
                assert response["description"]
