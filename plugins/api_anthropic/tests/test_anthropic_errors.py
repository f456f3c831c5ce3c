from __future__ import annotations

import pytest

from parallax_api_anthropic.errors import convert_error
from tests.unit.server.letters import Site


@pytest.mark.parametrize(
    ("status", "converted", "kind"),
    [
        (400, 400, "invalid_request_error"),
        (401, 401, "authentication_error"),
        (403, 403, "permission_error"),
        (404, 404, "not_found_error"),
        (405, 405, "invalid_request_error"),
        (408, 408, "timeout_error"),
        (413, 413, "request_too_large"),
        (429, 429, "rate_limit_error"),
        (500, 500, "api_error"),
        (503, 529, "overloaded_error"),
    ],
)
def test_error_gets_anthropics_status_and_type(status: int, converted: int, kind: str) -> None:
    body = {"type": "error", "error": {"type": kind, "message": "why"}, "request_id": "abc"}
    assert convert_error(status, {"message": "why"}, "abc") == (converted, body)


def test_message_names_the_field() -> None:
    _, unnamed = convert_error(400, {"message": "too long", "param": "messages"}, "abc")
    _, named = convert_error(400, {"message": "'messages' is missing", "param": "messages"}, "abc")
    assert unnamed["error"] == {"type": "invalid_request_error", "message": "messages: too long"}
    assert named["error"] == {"type": "invalid_request_error", "message": "'messages' is missing"}


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/batches"])
def test_errors_below_the_route_have_its_form(site: Site, path: str) -> None:
    assert site.app.state.error_forms.find(path).write is convert_error
    response = site.client.put(path)
    assert response.json()["type"] == "error"
    assert int(response.headers["content-length"]) == len(response.content)


def test_errors_of_other_routes_stay_as_they_are(site: Site) -> None:
    assert site.app.state.error_forms.find("/v1/messagesx") is None
    assert set(site.client.get("/v1/nothing").json()) == {"error"}


def test_bug_is_told_in_anthropics_form(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(site.service), "read", None)
    response = site.client.post("/v1/messages", json={})
    assert (response.status_code, response.json()["error"]["type"]) == (500, "api_error")
