"""A bad schema of a tool is refused by the name that its field has in the API."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from parallax_core.base.errors import InvalidRequest
from parallax_core.contracts.grammar import Grammar
from parallax_core.server.body_messages import BodyRequest, ParserTraits, RefusedBody
from parallax_core.server.body_reader import BodyReader
from parallax_core.server.chat_grammar import check_answer
from parallax_core.server.tokenizer_pool import PoolLimits, TokenizerPool
from tests.support.grammar_walk import follow
from tests.unit.server.dialects import BODIES, make_setup
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
def test_schema_in_a_list_of_calls_is_treated_as_in_a_trained_format(tmp_path: Path, route: str) -> None:
    make, field, required = ROUTES[route]
    with ScriptedSite(tmp_path, None) as site:
        for schema in NOT_HELD:
            check_refused(site, route, make(GOOD, schema, strict=True))
            check_refused(site, route, {**make(GOOD, schema), "tool_choice": required})
            site.engine.scripts.append("Well.")
            answer = site.http.post(route, json={"model": "toy", **make(GOOD, schema, GOOD)})
            assert (answer.status_code, answer.headers["X-Ignored-Fields"]) == (200, field)
            grammar = site.engine.requests[-1].grammar
            assert grammar is not None
            [good, loose] = [follows(site, grammar, name, '{"a": 5}') for name in ("f0", "f1")]
            assert (good, loose) == (False, True)
            assert not follows(site, grammar, "f1", "[]"), "arguments are an object"


def follows(site: ScriptedSite, grammar: Grammar, name: str, arguments: str) -> bool:
    """Return whether a call follows a grammar."""
    call = f'[{{"name": "{name}", "arguments": {arguments}}}]'
    return follow(site.text, site.text.grammars.compile(grammar).start(), call)[1]


def test_refusal_names_the_tool_and_the_keyword(tmp_path: Path) -> None:
    with ScriptedSite(tmp_path, None) as site:
        body = make_chat(GOOD, NOT_HELD[0], strict=True)
        message = site.http.post("/v1/chat/completions", json={"model": "toy", **body}).json()["error"]["message"]
    assert "the schema of the tool 'f1' cannot be compiled: Unimplemented keys: [\"not\"]" in message


def test_form_of_the_answer_is_refused_even_if_tools_are_not_held(tmp_path: Path) -> None:
    with ScriptedSite(tmp_path, None) as site:
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": NOT_HELD[0]}}
        for schema in (GOOD, NOT_HELD[1]):
            body = {"model": "toy", **make_chat(schema), "response_format": form}
            assert site.http.post("/v1/chat/completions", json=body).json()["error"]["param"] == "response_format"


async def test_schemas_that_are_too_large_together_are_left_out(tmp_path: Path) -> None:
    with ScriptedSite(tmp_path, None) as site:
        body = json.dumps({"model": "toy", **make_chat(GOOD, GOOD)}).encode()
        result = BodyReader(site.text, "toy", BODIES).answer(BodyRequest(kind="chat", body=body))

        async def check(grammar: Grammar) -> None:
            if grammar.source.count('"string"') > 1:
                raise InvalidRequest("the grammar is too large", "grammar")

        mended = await check_answer(result, check, is_able=True)
        assert mended.ignored == tuple(f"tools.{number}.function.parameters" for number in range(2))


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
    pool = TokenizerPool(
        make_setup(folder, parser=ParserTraits.of(HERMES)),
        PoolLimits(num_processes=1),
    )
    try:
        await pool.start()
        pool.start_others()
        body = {**make_chat(GOOD, NOT_HELD[0], GOOD), "tool_choice": "required"}
        content = (await pool.read(BodyRequest(kind="chat", body=json.dumps(body).encode()))).content
        assert isinstance(content, RefusedBody)
        assert content.param == "tools.1.function.parameters"
    finally:
        await pool.stop()
