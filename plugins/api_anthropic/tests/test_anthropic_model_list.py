"""The list of models comes in pages to Anthropic's clients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from parallax_api_anthropic import plugin
from parallax_core.server.app import make_app
from parallax_core.server.drain import Drain
from parallax_core.server.options import ServerOptions
from parallax_core.server.served_models import ServedModels
from tests.unit.server.dialects import make_core
from tests.unit.server.letters import Site

ANTHROPIC = {"Anthropic-Version": "2023-06-01"}
NAMES = [*(f"name-{number}" for number in range(24)), "toy"]


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site(ServerOptions(aliases=dict.fromkeys(NAMES[:-1], "toy"))) as site:
        yield site


def ask(site: Site, **query: Any) -> tuple[list[str], bool]:
    page = site.client.get("/v1/models", params=query, headers=ANTHROPIC).json()
    ids = [each["id"] for each in page["data"]]
    assert (page["first_id"], page["last_id"]) == ((ids[0], ids[-1]) if ids else (None, None))
    return ids, page["has_more"]


@pytest.mark.parametrize(
    ("query", "ids", "has_more"),
    [
        ({}, NAMES[:20], True),
        ({"limit": 25}, NAMES, False),
        ({"limit": 1}, NAMES[:1], True),
        ({"after_id": "name-2", "limit": 2}, ["name-3", "name-4"], True),
        ({"after_id": "name-22", "limit": 2}, ["name-23", "toy"], False),
        ({"after_id": "toy"}, [], False),
        ({"before_id": "name-4", "limit": 2}, ["name-2", "name-3"], True),
        ({"before_id": "name-2", "limit": 2}, ["name-0", "name-1"], False),
        ({"before_id": "name-0"}, [], False),
        ({"after_id": "", "before_id": "", "limit": 1000}, NAMES, False),
        ({"lifecycle": ["active", "retired"], "limit": 2}, NAMES[:2], True),
        ({"lifecycle[]": "retired"}, [], False),
    ],
)
def test_page_has_what_the_query_asks_for(site: Site, query: dict[str, Any], ids: list[str], *, has_more: bool) -> None:
    assert ask(site, **query) == (ids, has_more)


def test_official_client_reads_all_pages(site: Site) -> None:
    client = anthropic.Anthropic(
        base_url="http://testserver", api_key="x", http_client=site.client, _strict_response_validation=True
    )
    assert [each.id for each in client.models.list(limit=7)] == NAMES
    assert [each.id for each in client.models.list(lifecycle=["deprecated"])] == []
    last = client.models.list(limit=10, before_id="toy")
    assert [each.id for each in last.data] + [each.id for each in last.get_next_page().data] == [
        *NAMES[14:24],
        *NAMES[4:14],
    ]


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ({"limit": 0}, "'limit'"),
        ({"limit": 1001}, "'limit'"),
        ({"limit": "x"}, "'limit'"),
        ({"after_id": "missing"}, "'after_id'"),
        ({"before_id": "missing"}, "'before_id'"),
        ({"after_id": "toy", "before_id": "toy"}, "'before_id'"),
        ({"lifecycle": "old"}, "'lifecycle"),
    ],
)
def test_query_that_cannot_be_answered_is_refused_by_name(site: Site, query: dict[str, Any], named: str) -> None:
    answer = site.client.get("/v1/models", params=query, headers=ANTHROPIC)
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    assert named in answer.json()["error"]["message"]


def test_other_clients_get_all_and_are_told_what_has_no_effect(site: Site) -> None:
    answer = site.client.get("/v1/models", params={"limit": 2, "after_id": "toy"})
    assert [each["id"] for each in answer.json()["data"]] == NAMES
    assert answer.headers["X-Ignored-Fields"] == "limit, after_id"
    assert site.client.get("/v1/models", params={"limit": 0}).headers["X-Ignored-Fields"] == "limit"


def test_list_that_no_other_plugin_has_is_described_alone() -> None:
    app = make_app(ServedModels(), ServerOptions(), Drain(), make_core(messages=plugin))
    answer = app.openapi()["paths"]["/v1/models"]["get"]["responses"]["200"]["content"]["application/json"]
    assert answer["schema"] == {"$ref": "#/components/schemas/MessageModelsReply"}
