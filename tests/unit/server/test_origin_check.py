from __future__ import annotations

import pytest
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from parallax_core.server.options import ServerOptions
from parallax_core.server.origin_check import OriginCheck
from parallax_core.server.route_roles import RouteRoles
from tests.unit.server.letters import Site

OWN = "http://testserver"


def ask(method: str, *origins: str, **headers: str) -> int:
    options = ServerOptions(cors_origins=origins)
    client = TestClient(OriginCheck(PlainTextResponse("welcome"), options, RouteRoles()))
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


@pytest.mark.parametrize("is_exposed", [False, True])
def test_pages_change_no_cluster_that_others_reach_without_a_key(is_exposed: bool) -> None:
    refused = 403 if is_exposed else None
    with Site(options=ServerOptions(is_exposed=is_exposed)) as site:
        for method, path in (("POST", "/v1/keys?name=x"), ("DELETE", "/v1/keys/x"), ("POST", "/v1/nodes/x/drain")):
            of_page = site.client.request(method, path, headers={"Origin": OWN})
            assert of_page.status_code == (refused or of_page.status_code)
            if is_exposed:
                assert of_page.json()["error"]["code"] == "read_only"
            assert site.client.request(method, path).status_code in {404, 409}, "a program"
        assert site.client.get("/v1/keys", headers={"Origin": OWN}).status_code == 200
        assert site.ask("hello", max_tokens=1).status_code == 200
        body = {"model": "toy", "prompt": "hello", "max_tokens": 1}
        assert site.client.post("/v1/completions", json=body, headers={"Origin": OWN}).status_code == 200
