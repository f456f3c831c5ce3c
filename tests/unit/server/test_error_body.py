from __future__ import annotations

import json

import pytest

from parallax_core.server.error_body import MAX_MESSAGE, error_body, write_unavailable


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (405, "invalid_request_error"),
        (408, "timeout_error"),
        (409, "conflict_error"),
        (413, "invalid_request_error"),
        (415, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "server_error"),
        (503, "service_unavailable_error"),
        (418, "server_error"),
    ],
)
def test_each_status_has_the_type_that_clients_of_openai_know(status: int, kind: str) -> None:
    assert error_body(status, "no", "model", "c") == {
        "error": {"message": "no", "type": kind, "param": "model", "code": "c"}
    }


def test_remedy_is_in_the_message_and_apart() -> None:
    assert error_body(400, "it is too long", hint="shorten it") == {
        "error": {
            "message": "it is too long; shorten it",
            "type": "invalid_request_error",
            "param": None,
            "code": None,
            "hint": "shorten it",
        }
    }


def test_what_a_client_sent_is_quoted_up_to_a_bound_and_as_text() -> None:
    for length in (MAX_MESSAGE, MAX_MESSAGE + 1):
        error = error_body(400, "x" * length, "y" * length)["error"]
        assert (len(error["message"]), len(error["param"])) == (MAX_MESSAGE, MAX_MESSAGE)
    assert error_body(400, "\ud800", "\ud800")["error"]["message"] == "?"


def test_refusal_of_a_connection_is_a_whole_answer() -> None:
    head, _, body = write_unavailable("too many connections", "overloaded", 3).partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    assert status == "HTTP/1.1 503 Service Unavailable"
    fields = dict(line.split(": ") for line in lines)
    assert (fields["Content-Length"], fields["Retry-After"], fields["Connection"]) == (str(len(body)), "3", "close")
    assert json.loads(body) == error_body(503, "too many connections", code="overloaded")
