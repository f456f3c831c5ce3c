from __future__ import annotations

import logging
import re

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send

from parallax_core.server.access_log import MOST_LOGGED, REQUEST_ID, AccessLog

LINE = re.compile(r"(?P<asked>\w+ \S+) (?P<status>\w+) \d+ ms id=(?P<name>\S+?)(?: body=(?P<body>.*))?")


class Site:
    """An application that answers with the status in its path, and what the log counts of it."""

    def __init__(self, *, logs_bodies: bool = False) -> None:
        self.counted: list[int] = []
        self.ids: list[str] = []
        self.client = TestClient(AccessLog(self.answer, self.counted.append, logs_bodies=logs_bodies))

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        self.ids.append(request.state.request_id)
        assert request.state.arrived > 0
        content = await request.body()
        status = int(request.query_params.get("status", "200"))
        response: Response = PlainTextResponse(f"{len(content)} bytes", status)
        await response(scope, receive, send)


def read_line(caplog: pytest.LogCaptureFixture) -> dict[str, str | None]:
    [line] = [message for message in caplog.messages if " ms id=" in message]
    caplog.clear()
    found = LINE.fullmatch(line)
    assert found is not None, line
    return found.groupdict()


@pytest.fixture(autouse=True)
def logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "parallax_core.server.access_log")


@pytest.mark.parametrize(
    ("status", "is_counted"), [(200, False), (399, False), (400, True), (404, True), (499, False), (503, True)]
)
def test_errors_are_counted_but_not_those_of_clients_that_are_gone(
    status: int, is_counted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    site = Site()
    assert site.client.get(f"/v1/models?status={status}").status_code == status
    assert site.counted == [status] * is_counted
    line = read_line(caplog)
    assert (line["asked"], line["status"], line["body"]) == ("GET /v1/models", str(status), None)


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_probe_that_is_answered_no_is_no_error(path: str) -> None:
    site = Site()
    site.client.get(f"{path}?status=503")
    assert site.counted == []


@pytest.mark.parametrize("name", ["a", "x" * 128, "a.b:c/d+e=f-g_1"])
def test_sound_id_of_a_client_is_kept_and_sent_back(name: str, caplog: pytest.LogCaptureFixture) -> None:
    site = Site()
    assert site.client.get("/", headers={REQUEST_ID: name}).headers[REQUEST_ID] == name
    assert (site.ids, read_line(caplog)["name"]) == ([name], name)


@pytest.mark.parametrize("name", ["", "x" * 129, "a b", "a\tb"])
def test_other_ids_are_replaced_by_one_of_the_server(name: str, caplog: pytest.LogCaptureFixture) -> None:
    site = Site()
    sent = [site.client.get("/", headers={REQUEST_ID: name}).headers[REQUEST_ID] for _ in range(2)]
    assert sent == site.ids
    assert all(re.fullmatch("[0-9a-f]{16}", each) for each in sent)
    assert len(set(sent)) == 2


def test_body_is_logged_only_where_it_is_asked_for_and_only_its_beginning(caplog: pytest.LogCaptureFixture) -> None:
    body = b"0123456789" * (MOST_LOGGED // 10) + b"and more"
    Site().client.post("/", content=body)
    assert read_line(caplog)["body"] is None
    site = Site(logs_bodies=True)
    assert site.client.post("/", content=body).text == f"{len(body)} bytes"
    assert read_line(caplog)["body"] == repr(body[:MOST_LOGGED])
    site.client.post("/", content=iter([body[:1500], body[1500:]]))
    assert read_line(caplog)["body"] == repr(body[:MOST_LOGGED])


def test_path_is_logged_as_it_was_sent(caplog: pytest.LogCaptureFixture) -> None:
    Site().client.get("/a%0Ab?secret=1")
    assert read_line(caplog)["asked"] == "GET /a%0Ab"


async def test_request_that_is_not_answered_is_logged_as_gone(caplog: pytest.LogCaptureFixture) -> None:
    counted: list[int] = []

    async def leave(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError("nobody is there")

    async def nothing(*_: object) -> object:
        return {}

    app = AccessLog(leave, counted.append)
    scope = {"type": "http", "method": "POST", "headers": [], "raw_path": b"/v1/x"}
    with pytest.raises(RuntimeError):
        await app(scope, nothing, nothing)  # type: ignore[arg-type]  # they are not called
    assert (read_line(caplog)["status"], counted) == ("gone", [])
    with pytest.raises(RuntimeError):
        await app({"type": "lifespan"}, nothing, nothing)  # type: ignore[arg-type]
    assert caplog.messages == []
