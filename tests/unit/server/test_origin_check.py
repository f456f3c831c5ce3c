from __future__ import annotations

import pytest
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from parallax_core.server.origin_check import OriginCheck

OWN = "http://testserver"


def ask(method: str, *origins: str, **headers: str) -> int:
    client = TestClient(OriginCheck(PlainTextResponse("welcome"), origins))
    answer = client.request(method, "/", headers=headers)
    if answer.status_code == 403:
        error = answer.json()["error"]
        assert (error["code"], error["type"]) == ("origin", "permission_error")
        assert "--set cors_origin=ORIGIN" in error["message"]
    return answer.status_code


@pytest.mark.parametrize("origin", [OWN, "https://testserver", "https://friend.example"])
def test_pages_of_the_server_and_those_that_are_allowed_may_post(origin: str) -> None:
    assert ask("POST", "https://friend.example", Origin=origin) == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://testserver:81", "ftp://testserver", ""])
def test_other_pages_may_not_post_but_may_ask(origin: str) -> None:
    assert ask("POST", "https://friend.example", Origin=origin) == 403
    assert ask("GET", "https://friend.example", Origin=origin) == 200
    assert ask("POST", "*", Origin=origin) == 200


def test_programs_send_no_origin() -> None:
    assert ask("POST") == 200
