"""Requests of clients whose base URL is not this server's."""

from __future__ import annotations

import fastapi
import pytest

from parallax_core.server.api_keys import ApiKeys
from parallax_core.server.options import ServerOptions
from tests.unit.server.letters import Site, error_of

CHAT = {"model": "toy", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}


@pytest.mark.parametrize(
    "path",
    [
        "/chat/completions",
        "/v1/chat/completions/",
        "/v1/v1/chat/completions",
        "/v1/v1/v1/chat/completions",
        "/v1//chat/completions",
        "//v1/chat//completions//",
        "/messages",
        "/v1/v1/messages",
        "/messages/",
    ],
)
def test_path_that_can_mean_one_route_only_is_served(site: Site, path: str) -> None:
    response = site.client.post(f"http://testserver{path}", json=CHAT)
    assert response.status_code == 200, response.text
    assert response.json()["model"] == "toy"


@pytest.mark.parametrize("path", ["/models", "/v1/models/", "/v1/health", "/health/", "/models/toy", "/v1/models/toy/"])
def test_other_routes_are_found_the_same_way(site: Site, path: str) -> None:
    assert site.client.get(path).status_code == 200


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/api/v1/chat/completions", "/v1/chat/completions"),
        ("/openai/chat/completions", "/v1/chat/completions"),
        ("/v1/chat/completions/chat/completions", "/v1/chat/completions"),
        ("/V1/Chat/Completions", "/v1/chat/completions"),
        ("/v1beta/tokenize", "/tokenize"),
    ],
)
def test_other_path_is_a_404_that_says_where_the_route_is(site: Site, path: str, meant: str) -> None:
    error = error_of(site.client.post(path, json=CHAT), 404)
    assert f"at {meant}:" in error["message"]


def test_path_with_no_route_at_all_is_a_404_that_says_where_the_routes_are(site: Site) -> None:
    assert "/openapi.json" in error_of(site.client.get("/nowhere"), 404)["message"]
    assert "/openapi.json" in error_of(site.client.get("/" + "x/" * 30_000), 404)["message"]


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/anthropic/v1/messages", {}),
        ("/v1/complete", {"Anthropic-Version": "2023-06-01"}),
        ("/v1/messages/batches", {}),
    ],
)
def test_404_of_a_messages_client_has_its_form(site: Site, path: str, headers: dict[str, str]) -> None:
    response = site.client.post(path, json=CHAT, headers=headers)
    assert response.status_code == 404
    assert (response.json()["type"], response.json()["error"]["type"]) == ("error", "not_found_error")
    assert path in response.json()["error"]["message"]


def test_error_at_a_corrected_path_has_the_form_of_its_route(site: Site) -> None:
    assert site.client.post("/messages", json={}).json()["type"] == "error"


def test_corrected_path_needs_the_role_of_its_route() -> None:
    with Site(ServerOptions(keys=ApiKeys({"secret": "user"}))) as site:
        for path in ("/cluster", "//v1/cluster", "/v1/v1/cluster", "/v1/cluster/"):
            url = f"http://testserver{path}"
            assert site.client.get(url).status_code == 401
            assert site.client.get(url, headers={"Authorization": "Bearer secret"}).status_code == 403


def test_id_of_a_model_keeps_its_slashes(site: Site) -> None:
    assert "'hf://org/name'" in error_of(site.client.get("/v1/models/hf://org/name"), 404)["message"]


def test_404_of_a_route_keeps_its_own_reason(site: Site) -> None:
    router = fastapi.APIRouter()

    @router.get("/own/{name}")
    async def own(name: str) -> None:
        raise fastapi.HTTPException(404, f"no {name}")

    site.app.include_router(router)
    assert error_of(site.client.get("/own/thing"), 404)["message"] == "no thing"


def test_many_wrong_paths_leave_right_ones_right(site: Site) -> None:
    for number in range(600):
        assert site.client.get(f"/nowhere/{number}").status_code == 404
    assert site.client.get("/models").status_code == 200
