from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from parallax_core.server.body_limit import BodyLimit

LIMIT = 10


async def count(request: Request) -> Response:
    return PlainTextResponse(str(len(await request.body())))


def make_client() -> TestClient:
    return TestClient(BodyLimit(Starlette(routes=[Route("/", count, methods=["POST"])]), LIMIT))


def send_in_parts(size: int) -> Iterator[bytes]:
    """Yield a body in parts, whose size is not stated before."""
    yield b"x" * (size // 2)
    yield b"x" * (size - size // 2)


@pytest.mark.parametrize("size", [0, LIMIT - 1, LIMIT])
def test_body_up_to_the_limit_is_passed_on(size: int) -> None:
    client = make_client()
    assert client.post("/", content=b"x" * size).text == str(size)
    assert client.post("/", content=send_in_parts(size)).text == str(size)


@pytest.mark.parametrize("size", [LIMIT + 1, 100 * LIMIT])
def test_larger_body_is_refused_whether_it_says_its_size_or_not(size: int) -> None:
    client = make_client()
    stated = client.post("/", content=b"x" * size)
    assert stated.status_code == 413
    assert stated.json()["error"]["message"] == "the body has more than 10 bytes; the server's max_body limits it"
    assert client.post("/", content=send_in_parts(size)).status_code == 413


def test_body_with_two_lengths_is_refused_and_its_connection_closed() -> None:
    headers = {"Content-Length": "4", "Transfer-Encoding": "chunked"}
    answer = make_client().post("/", content=b"1234", headers=headers)
    assert (answer.status_code, answer.headers["connection"]) == (400, "close")
    assert "both Content-Length and Transfer-Encoding" in answer.json()["error"]["message"]
