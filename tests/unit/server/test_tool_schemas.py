"""A bad schema of a tool is refused by the name that its field has in the API."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from parallax_core.server.body_messages import BodyRequest, ParserTraits, RefusedBody
from parallax_core.server.tokenizer_pool import PoolLimits, TokenizerPool
from tests.unit.server.scripted import HERMES, TEMPLATE, ScriptedSite
from tests.unit.tinymodel import write_model

GOOD = {"type": "object", "properties": {"a": {"type": "string"}}}
NO_OBJECT: list[Any] = [
    {"type": "array"},
    {"type": ["string", "null"]},
    {"type": "object", "properties": []},
    {"type": "object", "required": "a"},
    [],
    "object",
]
"""Schemas that are refused whatever the choice is."""
NOT_HELD: list[Any] = [
    {"type": "object", "properties": {"a": {"not": {"type": "string"}}}},
    {"type": "object", "properties": {"a": {"type": "text"}}},
    {"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}},
    {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}},
    {"type": "object", "properties": {"a": {"enum": []}}, "required": ["a"]},
    {"type": "object", "properties": {"a": 5}},
    {"type": "object", "properties": {"a": {"type": "integer", "minimum": 3, "maximum": 2}}, "required": ["a"]},
]
"""Schemas that no grammar can follow."""


def make_chat(*schemas: Any, strict: bool = False) -> dict[str, Any]:
    tools = [
        {"type": "function", "function": {"name": f"f{number}", "parameters": schema, "strict": strict}}
        for number, schema in enumerate(schemas)
    ]
    return {"messages": [{"role": "user", "content": "hi"}], "tools": tools}


def make_responses(*schemas: Any, strict: bool = False) -> dict[str, Any]:
    tools = [
        {"type": "function", "name": f"f{number}", "parameters": schema, "strict": strict}
        for number, schema in enumerate(schemas)
    ]
    return {"input": "hi", "tools": tools}


def make_messages(*schemas: Any, strict: bool = False) -> dict[str, Any]:
    tools = [{"name": f"f{number}", "input_schema": schema, "strict": strict} for number, schema in enumerate(schemas)]
    return {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9, "tools": tools}


ROUTES: dict[str, Any] = {
    "/v1/chat/completions": (make_chat, "tools.1.function.parameters", "required"),
    "/v1/responses": (make_responses, "tools.1.parameters", "required"),
    "/v1/messages": (make_messages, "tools.1.input_schema", {"type": "any"}),
}
NAMED: dict[str, Any] = {
    "/v1/chat/completions": {"type": "function", "function": {"name": "f1"}},
    "/v1/responses": {"type": "function", "name": "f1"},
    "/v1/messages": {"type": "tool", "name": "f1"},
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with ScriptedSite(tmp_path_factory.mktemp("model"), HERMES) as site:
        yield site


def check_refused(site: ScriptedSite, route: str, body: dict[str, Any]) -> None:
    answer = site.http.post(route, json={"model": "toy", **body})
    error, field = answer.json()["error"], ROUTES[route][1]
    assert answer.status_code == 400, (body, answer.text)
    assert error.get("param", field) == field, error
    assert error["message"].startswith(f"'{field}'"), error


@pytest.mark.parametrize("route", ROUTES)
def test_schema_of_no_object_is_refused_by_its_name(site: ScriptedSite, route: str) -> None:
    make = ROUTES[route][0]
    for schema in NO_OBJECT:
        check_refused(site, route, make(GOOD, schema))


@pytest.mark.parametrize("route", ROUTES)
def test_schema_that_no_grammar_follows_is_refused_by_its_name(site: ScriptedSite, route: str) -> None:
    make, _, required = ROUTES[route]
    for schema in NOT_HELD:
        check_refused(site, route, {**make(GOOD, schema), "tool_choice": required})
        check_refused(site, route, {**make(GOOD, schema), "tool_choice": NAMED[route]})
        check_refused(site, route, make(GOOD, schema, strict=True))


@pytest.mark.parametrize("route", ROUTES)
def test_schema_that_the_answer_need_not_follow_is_accepted(site: ScriptedSite, route: str) -> None:
    for schema in NOT_HELD:
        site.engine.scripts.append("Well.")
        answer = site.http.post(route, json={"model": "toy", **ROUTES[route][0](GOOD, schema)})
        assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("route", ROUTES)
def test_schema_in_a_list_of_calls_is_refused_by_its_name(tmp_path: Path, route: str) -> None:
    with ScriptedSite(tmp_path, None) as site:
        for schema in NOT_HELD:
            check_refused(site, route, ROUTES[route][0](GOOD, schema))


def test_tool_of_a_namespace_and_a_custom_tool_have_their_own_paths(site: ScriptedSite) -> None:
    function = {"type": "function", "name": "f", "parameters": NOT_HELD[0]}
    custom = {"type": "custom", "name": "c", "format": {"type": "grammar", "syntax": "regex", "definition": "("}}
    for tool, choice, field in (
        ({"type": "namespace", "name": "n", "tools": [function]}, "required", "tools.1.tools.0.parameters"),
        (custom, {"type": "custom", "name": "c"}, "tools.1.format"),
        (
            {**custom, "format": {**custom["format"], "syntax": "lark"}},  # type: ignore[dict-item]
            {"type": "custom", "name": "c"},
            "tools.1.format",
        ),
    ):
        body = {**make_responses(GOOD), "tool_choice": choice}
        body["tools"].append(tool)
        error = site.http.post("/v1/responses", json={"model": "toy", **body}).json()["error"]
        assert error["param"] == field, error


async def test_processes_find_the_tool_too(tmp_path: Path) -> None:
    folder = str(write_model(tmp_path, TEMPLATE))
    pool = TokenizerPool(folder, "tiny", PoolLimits(num_processes=1), parser=ParserTraits.of(HERMES))
    try:
        await pool.start()
        pool.start_others()
        body = {**make_chat(GOOD, NOT_HELD[0], GOOD), "tool_choice": "required"}
        content = (await pool.read(BodyRequest(kind="chat", body=json.dumps(body).encode()))).content
        assert isinstance(content, RefusedBody)
        assert content.param == "tools.1.function.parameters"
    finally:
        await pool.stop()
