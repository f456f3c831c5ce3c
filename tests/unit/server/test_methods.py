"""HEAD, OPTIONS, and methods that are not served."""

from __future__ import annotations

import fastapi
import pytest

from tests.unit.server.letters import Site, error_of
from tests.unit.server.listening import Listening, until


def test_head_is_served_wherever_get_is_without_a_body(site: Site) -> None:
    paths = [path for path, methods in site.app.openapi()["paths"].items() if "get" in methods]
    assert len(paths) > 8
    for path in (each for each in [*paths, "/openapi.json", "/v1/models/toy"] if not each.endswith("/events")):
        found, asked = site.client.head(path), site.client.get(path)
        assert (found.status_code, found.content) == (asked.status_code, b""), path
        assert found.headers["content-type"] == asked.headers["content-type"]


def test_head_of_a_wrong_path_is_a_404(site: Site) -> None:
    assert site.client.head("/nowhere").status_code == 404


def test_route_of_its_own_for_head_answers_head(site: Site) -> None:
    router = fastapi.APIRouter()

    @router.head("/own")
    async def own() -> fastapi.Response:
        return fastapi.Response(headers={"X-Own": "yes"})

    site.app.include_router(router)
    assert site.client.head("/own").headers["X-Own"] == "yes"


async def test_head_of_a_stream_ends_at_once_and_so_does_the_stream() -> None:
    async with Listening() as server:
        client = await server.connect()
        for _ in range(2):
            client.send(b"HEAD /v1/cluster/events HTTP/1.1\r\nHost: toy\r\n\r\n")
            head = await client.reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
        client.send(b"GET /version HTTP/1.1\r\nHost: toy\r\n\r\n")
        assert (await client.read())[0] == 200
        await until(lambda: not server.server.server_state.tasks)


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/v1/chat/completions", "POST, OPTIONS"),
        ("/health", "GET, HEAD, OPTIONS"),
        ("/v1/cluster/models", "GET, POST, HEAD, OPTIONS"),
        ("/v1/responses/resp_1", "GET, DELETE, HEAD, OPTIONS"),
    ],
)
def test_method_that_is_not_served_is_told_which_are(site: Site, path: str, allowed: str) -> None:
    asked = site.client.options(path)
    assert (asked.status_code, asked.headers["Allow"], asked.content) == (204, allowed, b"")
    refused = site.client.put(path)
    assert refused.headers["Allow"] == allowed
    message = error_of(refused, 405)["message"]
    assert path in message
    assert "PUT" in message


def test_method_that_a_messages_route_does_not_serve_is_refused_in_its_form(site: Site) -> None:
    assert site.client.get("/v1/messages").json()["type"] == "error"
