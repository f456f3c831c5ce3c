"""The names of LoRA adapters mean their model with the adapter, on every route, beside other names of the model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from parallax_core.server.body_messages import BodyRequest, BodyResult
from parallax_core.server.options import ServerOptions
from parallax_core.server.served_adapters import ServedAdapter
from plugins.cluster.tests.server.several import SeveralSite
from tests.unit.server.letters import Site, error_of
from tests.unit.server.test_served_models import BODIES, NAMED

KEY = "0123456789abcdef" * 2


def add(site: Site, name: str, model: str = "toy") -> None:
    site.service.adapters[name] = ServedAdapter(name=name, model_id=model, key=KEY, root="/adapters/sql")


@pytest.fixture
def site() -> Iterator[Site]:
    with Site(ServerOptions(aliases={"gpt-4o": "toy"})) as made:
        add(made, "sql")
        add(made, "law")  # another name of the same adapter
        add(made, "other's", "other")
        yield made


@pytest.mark.parametrize("path", NAMED)
def test_each_dialect_asks_the_engine_for_the_adapter(site: Site, path: str) -> None:
    for name in ("sql", "law"):
        error = site.client.post(path, json=BODIES[path] | {"model": name}).json()["error"]
        assert f"the adapter '{KEY}' cannot be used" in error["message"], "which the engine says, as it takes none"
    assert site.service.adapters["sql"].last_used > 0
    for name in ("toy", "gpt-4o"):
        assert site.client.post(path, json=BODIES[path] | {"model": name}).json()["model"] == name
    assert site.client.post(path, json=BODIES[path]).json()["model"] == "gpt-4o"
    assert site.client.post(path, json=BODIES[path] | {"model": "other's"}).status_code == 404


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize", "/v1/messages/count_tokens"])
def test_routes_without_an_engine_take_the_name_too(site: Site, path: str) -> None:
    assert site.client.post(path, json=BODIES[path] | {"model": "sql"}).status_code == 200


def test_both_lists_of_models_have_the_adapters(site: Site) -> None:
    found = site.client.get("/v1/models").json()["data"]
    assert [(each["id"], each.get("parent")) for each in found] == [
        *(("gpt-4o", None), ("toy", None)),
        *(("sql", "toy"), ("law", "toy")),
    ]
    header = {"anthropic-version": "2023-06-01"}
    assert [each["id"] for each in site.client.get("/v1/models", headers=header).json()["data"]] == [
        *("gpt-4o", "toy", "sql", "law")
    ]
    assert site.client.get("/v1/models/sql", headers=header).json()["id"] == "sql"


def test_adapter_that_is_unloaded_while_a_request_is_read_is_not_its_model() -> None:
    with Site() as site:
        add(site, "sql")
        read = site.reader.read

        async def unload(ask: BodyRequest) -> BodyResult:
            result = await read(ask)
            site.service.adapters.clear()
            return result

        site.reader.read = unload  # type: ignore[method-assign]
        error = error_of(site.post("/v1/completions", model="sql", prompt="hello"), 404)
        assert error["message"] == "the model 'sql' does not exist; GET /v1/models lists those that do"


def test_changes_of_models_refuse_the_name_of_an_adapter() -> None:
    with SeveralSite() as site:
        add(site, "other")
        for action, fields in (("unload", {}), ("load", {}), ("forget", {}), ("switch", {"replaces": "other"})):
            answer = site.change(action, "third" if fields else "other", **fields)
            assert answer.status_code == 409
            assert "'other' is a LoRA adapter, not a model" in answer.json()["error"]["message"]
        assert site.states == {"toy": "ready"}
