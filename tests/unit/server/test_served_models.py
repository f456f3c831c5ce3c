"""Which model answers a request: the one that it names, by whatever name, or the first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from parallax_core.server.options import ServerOptions
from plugins.cluster.tests.server.several import SeveralSite, answer_of
from tests.unit.server.letters import Site, error_of

TURNS = [{"role": "user", "content": "hello"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": TURNS, "max_tokens": 2},
    "/v1/completions": {"prompt": "hello", "max_tokens": 2},
    "/v1/messages": {"messages": TURNS, "max_tokens": 2},
    "/v1/messages/count_tokens": {"messages": TURNS},
    "/v1/responses": {"input": "hello", "max_output_tokens": 2},
    "/v1/responses/compact": {"input": "hello"},
    "/v1/embeddings": {"input": "hello"},
    "/tokenize": {"prompt": "hello"},
    "/detokenize": {"tokens": [1]},
}
NAMED = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")
"""The routes whose answers have the model."""


@pytest.fixture
def named_site() -> Iterator[Site]:
    with Site(ServerOptions(aliases={"gpt-4o": "toy", "claude": "toy"})) as site:
        yield site


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("named", [{}, {"model": None}, {"model": ""}, {"model": "toy"}])
def test_only_model_answers_requests_that_name_none(site: Site, path: str, named: dict[str, Any]) -> None:
    response = site.client.post(path, json=BODIES[path] | named)
    if path not in {"/v1/embeddings", "/v1/responses/compact"}:  # which the toy cannot do
        assert response.status_code == 200, response.text
    assert "model" not in str(response.json().get("error"))[:40]
    assert response.json().get("model", "toy") == "toy"


@pytest.mark.parametrize("path", BODIES)
def test_wrong_model_is_a_404_and_no_text_a_400_on_every_route(named_site: Site, path: str) -> None:
    wrong = named_site.client.post(path, json=BODIES[path] | {"model": "wrong"})
    assert wrong.status_code == 404
    assert "this server has 'gpt-4o', 'claude', 'toy'" in wrong.json()["error"]["message"]
    assert named_site.client.post(path, json=BODIES[path] | {"model": 5}).status_code == 400


@pytest.mark.parametrize("path", NAMED)
def test_answer_has_the_name_that_its_request_used(named_site: Site, path: str) -> None:
    for name in ("toy", "gpt-4o", "claude"):
        assert named_site.client.post(path, json=BODIES[path] | {"model": name}).json()["model"] == name
    assert named_site.client.post(path, json=BODIES[path]).json()["model"] == "gpt-4o"


def test_list_of_models_has_every_name(named_site: Site) -> None:
    found = named_site.client.get("/v1/models").json()["data"]
    assert [(each["id"], each["root"]) for each in found] == [("gpt-4o", "toy"), ("claude", "toy"), ("toy", "toy")]
    for each in found:
        assert named_site.client.get(f"/v1/models/{each['id']}").json() == each


def test_first_model_that_was_loaded_answers_requests_that_name_none() -> None:
    with SeveralSite() as site:
        site.change("load", "other")
        site.finish()
        body = {"prompt": "hello", "max_tokens": 6}
        assert site.client.post("/v1/completions", json=body).json()["model"] == "toy"
        site.change("unload", "toy", drain_seconds=0)
        site.finish()
        assert site.client.post("/v1/completions", json=body).json()["model"] == "other"


def test_request_that_names_none_while_none_of_several_is_loaded_is_told_their_names() -> None:
    with SeveralSite() as site:
        site.change("load", "other")
        site.finish()
        for model in ("toy", "other"):
            site.change("unload", model, drain_seconds=0)
            site.finish()
        error = error_of(site.client.post("/v1/completions", json={"prompt": "hello"}))
        assert error["param"] == "model"
        assert "'toy'" in error["message"]
        assert "'other'" in error["message"]


def test_other_names_mean_their_model_among_several() -> None:
    with SeveralSite(ServerOptions(aliases={"gpt-4o": "toy"})) as site:
        site.change("load", "other")
        site.finish()
        assert site.complete_with("gpt-4o").json()["choices"][0]["text"] == answer_of("toy", "hello", 6)
        assert site.complete_with("other").json()["choices"][0]["text"] == answer_of("other", "hello", 6)
        ids = [each["id"] for each in site.client.get("/v1/models").json()["data"]]
        assert ids == ["gpt-4o", "toy", "other"]
        site.change("unload", "toy", drain_seconds=0)
        site.finish()
        assert error_of(site.complete_with("gpt-4o"), 503)["code"] == "model_not_loaded"


def test_status_has_each_model_with_its_names_and_replicas(named_site: Site) -> None:
    status = named_site.models.describe()
    [model] = status.models
    assert (model.id, model.names, model.state) == ("toy", ("gpt-4o", "claude", "toy"), "loading")
    assert [replica.health.state for replica in model.replicas] == ["ready"]
    assert (status.health.state, status.nodes, status.plan) == ("ready", (), None)
