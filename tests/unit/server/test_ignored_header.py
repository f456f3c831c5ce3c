from __future__ import annotations

import logging

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send

from parallax_core.server.ignored_header import HEADER, MOST_LOGGED, IgnoredFieldsHeader
from parallax_core.server.unknown_fields import IGNORED, LEFT_OUT, MOST_NAMED


async def ignore(scope: Scope, receive: Receive, send: Send) -> None:
    """Ignore the fields that the query names."""
    names = dict.fromkeys(Request(scope).query_params.getlist("name"))
    noted = IGNORED.get()
    (LEFT_OUT.get() if noted is None else noted).update(names)
    await PlainTextResponse("strict" if noted is None else "lenient")(scope, receive, send)


def make_client(*, is_lenient: bool = True) -> TestClient:
    return TestClient(IgnoredFieldsHeader(ignore, is_lenient=is_lenient))


def list_warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@pytest.mark.parametrize(("is_lenient", "text"), [(True, "lenient"), (False, "strict")])
def test_what_was_left_out_is_named_whether_unknown_fields_are_refused_or_not(is_lenient: bool, text: str) -> None:
    client = make_client(is_lenient=is_lenient)
    answer = client.get("/", params={"name": ["one", "two.three"]})
    assert (answer.text, answer.headers[HEADER]) == (text, "one, two.three")
    assert HEADER not in client.get("/").headers


def test_names_are_made_safe_and_no_more_than_some_are_told() -> None:
    client = make_client()
    names = ["a b\u00fc", "x" * 70, *(f"field{number}" for number in range(MOST_NAMED))]
    found = client.get("/", params={"name": names}).headers[HEADER].split(", ")
    assert found == ["a?b?", "x" * 64, *names[2:MOST_NAMED]]


def test_the_same_fields_are_a_warning_once_and_only_so_many_are(caplog: pytest.LogCaptureFixture) -> None:
    client = make_client()
    for _ in range(2):
        client.get("/", params={"name": "top_a"})
    assert list_warnings(caplog) == ["ignored fields: top_a"]
    for number in range(MOST_LOGGED + 1):
        client.get("/", params={"name": f"field{number}"})
    assert len(list_warnings(caplog)) == MOST_LOGGED
