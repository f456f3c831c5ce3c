"""Which key may use which route."""

from __future__ import annotations

from typing import Any

import pytest

from parallax_core.server.api_keys import ApiKeys, KeyFile
from parallax_core.server.options import ServerOptions
from tests.unit.server.letters import Site, error_of

KEYS = ApiKeys({"u": "user", "m": "metrics", "a": "admin"})
NEEDED = {
    "/health": None,
    "/ready": None,
    "/version": None,
    "/metrics": "metrics",
    "/openapi.json": "user",
    "/v1/models": "user",
    "/v1/models/{model_id}": "user",
    "/v1/chat/completions": "user",
    "/v1/completions": "user",
    "/v1/embeddings": "user",
    "/v1/messages": "user",
    "/v1/messages/count_tokens": "user",
    "/v1/responses": "user",
    "/v1/responses/compact": "user",
    "/v1/responses/{response_id}": "user",
    "/v1/responses/{response_id}/cancel": "user",
    "/v1/responses/{response_id}/input_items": "user",
    "/v1/stop_request": "user",
    "/tokenize": "user",
    "/detokenize": "user",
    "/v1/settings": "admin",
    "/v1/catalog": "admin",
    "/v1/catalog/search": "admin",
    "/v1/catalog/formats": "admin",
    "/v1/catalog/downloads": "admin",
    "/v1/catalog/{model}": "admin",
    "/v1/keys": "admin",
    "/v1/keys/{key_id}": "admin",
    "/v1/keys/{key_id}/limits": "admin",
    "/v1/log": "admin",
    "/v1/requests": "admin",
    "/v1/requests/events": "admin",
    "/v1/cluster": "admin",
    "/v1/cluster/models": "admin",
    "/v1/cluster/events": "admin",
    "/v1/cluster/what-if": "admin",
    "/v1/cluster/history": "admin",
    "/v1/cluster/rebalance": "admin",
    "/v1/replicas/{rank}/drain": "admin",
    "/v1/replicas/{rank}/readmit": "admin",
    "/v1/nodes/{node}/drain": "admin",
    "/v1/nodes/{node}/resume": "admin",
    "/v1/nodes/{node}/remove": "admin",
}
"""The role that each route needs. Whoever adds a route decides it here, too."""


ENDLESS = ("/v1/cluster/events", "/v1/requests/events")
"""Streams without an end, which this client cannot leave; tests of their plugins read them."""


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def list_routes(site: Site) -> list[tuple[str, str]]:
    """Return path and method of every route."""
    paths = site.app.openapi()["paths"]
    return [(path, method.upper()) for path, methods in paths.items() for method in methods] + [
        ("/openapi.json", "GET")
    ]


def test_every_route_has_a_role_that_somebody_decided(site: Site) -> None:
    assert {path: site.app.state.roles.find(path, method) for path, method in list_routes(site)} == NEEDED


@pytest.mark.parametrize(("key", "role"), [("u", "user"), ("m", "metrics"), ("a", "admin")])
def test_key_of_another_role_is_a_403_that_names_what_is_needed(key: str, role: str) -> None:
    with Site(ServerOptions(keys=KEYS)) as site:
        for route, method in list_routes(site):
            needed, path = NEEDED[route], route.replace("{rank}", "7").replace("{model_id}", "toy")
            if route in ENDLESS and role == needed:
                continue
            answer = site.client.request(method, path, headers=bearer(key))
            if needed in {None, role} or role == "admin":
                assert answer.status_code not in {401, 403}, (path, answer.text)
                continue
            error = answer.json()["error"] if site.app.state.error_forms.find(path) else error_of(answer, 403)
            assert error["message"] == f"this needs an API key of the role '{needed}', and yours has the role '{role}'"
            assert error["type"] == "permission_error"
            assert error.get("code", "insufficient_permissions") == "insufficient_permissions"


def test_user_cannot_take_the_server_from_others() -> None:
    with Site(ServerOptions(keys=KEYS)) as site:
        error_of(site.client.post("/v1/replicas/0/drain", headers=bearer("u")), 403)
        assert site.client.get("/health").status_code == 200
        assert site.client.post("/v1/replicas/0/drain", headers=bearer("a")).status_code == 200
        assert site.client.get("/health").status_code == 503


@pytest.mark.parametrize(
    "path", ["/v1/cluster/", "/v1/cluster/nodes", "/v1/replicas", "/v1/replicas/", "/v1/replicas/0/drain/"]
)
def test_path_near_one_of_the_cluster_needs_an_administrator(path: str) -> None:
    with Site(ServerOptions(keys=KEYS)) as site:
        error_of(site.client.post(path, headers=bearer("u")), 403)


@pytest.mark.parametrize("path", ["//v1/cluster", "/v1//cluster", "/V1/cluster", "/v1/clusters", "/x/../v1/cluster"])
def test_path_that_only_resembles_one_of_the_cluster_leads_nowhere(path: str) -> None:
    with Site(ServerOptions(keys=KEYS)) as site:
        answer = site.client.request("GET", f"http://testserver{path}", headers=bearer("u"))
        assert answer.status_code in {403, 404}, answer.text


def test_path_is_the_same_however_it_is_written() -> None:
    with Site(ServerOptions(keys=KEYS)) as site:
        error_of(site.client.get("/v1/%63luster", headers=bearer("u")), 403)
        error_of(site.client.get("/%6detrics", headers=bearer("u")), 403)


def test_server_without_keys_takes_everybody_for_its_administrator(site: Site) -> None:
    assert site.client.get("/v1/cluster").status_code == 200
    assert site.client.get("/metrics", headers=bearer("whatever")).status_code == 200


def test_key_file_that_is_edited_counts_while_the_server_runs(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parallax_core.server.api_keys.LOOK_S", 0.0)
    monkeypatch.setattr("parallax_core.server.api_keys.SETTLE_S", 0.0)
    path = tmp_path / "keys"
    path.touch(0o600)
    path.write_text("u\n")
    with Site(ServerOptions(keys=ApiKeys(file=KeyFile(path)))) as site:
        assert site.client.get("/v1/models", headers=bearer("u")).status_code == 200
        error_of(site.client.get("/v1/cluster", headers=bearer("u")), 403)
        path.write_text("u admin\nnew\n")
        assert site.client.get("/v1/cluster", headers=bearer("u")).status_code == 200
        assert site.client.get("/v1/models", headers=bearer("new")).status_code == 200
        path.write_text("new\n")
        error_of(site.client.get("/v1/models", headers=bearer("u")), 401)
