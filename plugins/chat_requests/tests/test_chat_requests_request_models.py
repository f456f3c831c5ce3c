"""The ranges of fields, values that ask for nothing, and the words of refusals."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.server.letters import Site, answer, error_of


@pytest.mark.parametrize(
    "fields",
    [
        {"top_p": 0},
        {"top_p": 1, "top_k": -1},
        {"stop": ""},
        {"stop": ["", ""]},
        {"stream_options": {"include_usage": False}},
        {"stream_options": {"include_usage": None}},
        {"structured_outputs": {}},
        {"structured_outputs": {"json": None, "regex": None, "json_object": False}},
        {"logprobs": 0},
        {"logprobs": False, "top_logprobs": 0},
        {"logprobs": None, "top_logprobs": None},
    ],
)
def test_value_at_the_edge_of_the_api_or_without_effect_is_accepted(site: Site, fields: dict[str, Any]) -> None:
    response = site.ask(max_tokens=4, **fields)
    assert response.status_code == 200, response.text
    assert response.json()["choices"][0]["message"]["content"] == answer("hello", 4)


def test_top_p_of_0_takes_the_most_probable_token_whatever_the_temperature(site: Site) -> None:
    found = site.ask(max_tokens=4, top_p=0, temperature=2, seed=5).json()
    assert found["choices"][0]["message"]["content"] == answer("hello", 4)


@pytest.mark.parametrize("fields", [{"logprobs": False}, {"structured_outputs": {}}, {"stop": ""}, {"top_p": 0}])
def test_completions_accept_the_same(site: Site, fields: dict[str, Any]) -> None:
    found = site.complete(max_tokens=4, **fields).json()["choices"][0]
    assert (found["text"], found["logprobs"]) == (answer("hello", 4), None)


@pytest.mark.parametrize("refusal", [None, "I cannot do that."])
def test_turn_of_an_answer_that_was_refused_is_accepted(site: Site, refusal: str | None) -> None:
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "refusal": refusal}]
    response = site.post(model="toy", messages=[*turns, turns[0]], max_tokens=2)
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"tool_choice": {"type": "function"}}, "tool_choice.function", "'tool_choice.function' is missing"),
        ({"tool_choice": {"type": "function", "function": 5}}, "tool_choice.function", "must be an object"),
        ({"messages": ["hi"]}, "messages.0", "'messages.0' must be an object"),
        ({"messages": "hi"}, "messages", "'messages' must be a list"),
        ({"response_format": "json"}, "response_format", "must be an object"),
        ({"temperature": 3}, "temperature", "'temperature' must be at most 2"),
        ({"temperature": "1"}, "temperature", "must be a number"),
        ({"top_p": -1}, "top_p", "must be at least 0"),
        ({"n": 0}, "n", "must be at least 1"),
        ({"n": 1.5}, "n", "must be an integer"),
        ({"stream": "yes"}, "stream", "must be true or false"),
    ],
)
def test_refusal_is_in_the_words_of_the_api(site: Site, fields: dict[str, Any], param: str, message: str) -> None:
    error = error_of(site.post(**{"model": "toy", "messages": [{"role": "user", "content": "a"}], **fields}))
    assert error["param"] == param
    assert message in error["message"]
    for word in ("NamedTool", "instance of", "Input should", "ChatRequestMessage", "dictionary"):
        assert word not in error["message"]


@pytest.mark.parametrize(
    "schema", [{"type": "string"}, {"type": ["array"]}, {"properties": []}, {"required": "a"}, {"type": 5}]
)
def test_parameters_of_a_tool_that_are_no_object_are_refused_on_every_route(site: Site, schema: dict[str, Any]) -> None:
    good = {"type": "object", "properties": {"a": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": f"f{n}", "parameters": p}} for n, p in enumerate((good, schema))]
    assert error_of(site.ask(tools=tools))["param"] == "tools.1.function.parameters"
    flat = [{"name": "f", "input_schema": schema}]
    body = {"model": "toy", "messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
    refused = site.client.post("/v1/messages", json={**body, "tools": flat})
    assert refused.status_code == 400
    assert "tools.0.input_schema" in refused.json()["error"]["message"]
    other = [{"type": "function", "name": "f", "parameters": schema}]
    error = error_of(site.client.post("/v1/responses", json={"input": "a", "tools": other}))
    assert error["param"] == "tools.0.parameters"
