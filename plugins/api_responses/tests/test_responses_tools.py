"""Tools of the Responses API: functions, custom tools, namespaces and hosted tools."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from parallax_core.server.options import ServerOptions
from plugins.api_responses.tests.responses_client import (
    CUSTOM,
    FUNCTION,
    NAMESPACE,
    THOUGHT,
    ask,
    check_response,
    error_of,
    kinds,
    post,
    stream,
)
from tests.unit.server.scripted import ScriptedSite, only_reasoning, write_call

LOOK_UP = write_call("look_up", {"word": "é{"})
LARK = 'start: "*** Begin" /[a-z ]+/ "*** End"'


@pytest.fixture
def site(tmp_path: Path) -> Iterator[ScriptedSite]:
    with ScriptedSite(tmp_path) as site:
        yield site


def test_events_of_a_function_call_come_in_the_published_order(site: ScriptedSite) -> None:
    events = stream(site, f"One moment.{LOOK_UP}", tools=[FUNCTION])
    assert kinds(events)[8:] == [
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    _, call = events[-1]["response"]["output"]
    assert (call["type"], call["name"], json.loads(call["arguments"])) == ("function_call", "look_up", {"word": "é{"})
    added, done = [event["item"] for event in events if event["type"].startswith("response.output_item")][2:]
    assert (added["id"], added["call_id"], added["arguments"]) == (call["id"], call["call_id"], "")
    assert done == call
    deltas = [event["delta"] for event in events if event["type"] == "response.function_call_arguments.delta"]
    assert len(deltas) > 3
    assert "".join(deltas) == call["arguments"]


def test_result_of_a_call_is_sent_back(site: ScriptedSite) -> None:
    [call] = ask(site, LOOK_UP, tools=[FUNCTION])["output"]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "a letter"}
    ask(site, "A letter.", tools=[FUNCTION], input=[{"role": "user", "content": "what?"}, call, result])
    number = call["call_id"]
    assert f"[{number} look_up " in site.prompt
    assert f"<tool>a letter#{number}" in site.prompt


def test_result_may_be_a_list_of_texts(site: ScriptedSite) -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "look_up", "arguments": "{}"}
    texts = [{"type": "input_text", "text": "one"}, {"type": "input_text", "text": "two"}]
    result = {"type": "function_call_output", "call_id": "c1", "output": texts}
    ask(site, "Yes.", tools=[FUNCTION], input=[call, result])
    assert "<tool>one\ntwo#c1" in site.prompt


def test_several_calls_have_ids_of_their_own(site: ScriptedSite) -> None:
    calls = ask(site, LOOK_UP * 3, tools=[FUNCTION])["output"]
    assert len({call["id"] for call in calls}) == len({call["call_id"] for call in calls}) == 3


def test_only_the_first_call_is_kept_without_parallel_calls(site: ScriptedSite) -> None:
    [call] = ask(site, LOOK_UP * 3, tools=[FUNCTION], parallel_tool_calls=False)["output"]
    assert call["name"] == "look_up"


def test_tools_are_repeated_with_numbers_of_any_size(site: ScriptedSite) -> None:
    bounds = {"minimum": -(2**64), "maximum": 2**70, "multipleOf": 1e-7}
    tool = {**FUNCTION, "parameters": {"type": "object", "properties": {"n": {"type": "number", **bounds}}}}
    assert ask(site, "No.", tools=[tool])["tools"][0]["parameters"] == tool["parameters"]
    assert stream(site, "No.", tools=[tool])[-1]["response"]["tools"][0]["parameters"] == tool["parameters"]


def test_input_of_a_custom_tool_is_text(site: ScriptedSite) -> None:
    patch = '*** Begin Patch\n+ "é" \\ 😀\n*** End Patch'
    events = stream(site, write_call("apply_patch", {"input": patch}), tools=[CUSTOM])
    assert kinds(events)[2:] == [
        "output_item.added",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
        "output_item.done",
        "completed",
    ]
    [call] = events[-1]["response"]["output"]
    assert (call["type"], call["name"], call["input"]) == ("custom_tool_call", "apply_patch", patch)
    deltas = [event["delta"] for event in events if event["type"] == "response.custom_tool_call_input.delta"]
    assert len(deltas) > 3
    assert "".join(deltas) == patch


def test_model_is_shown_the_grammar_of_a_custom_tool(site: ScriptedSite) -> None:
    ask(site, "No.", tools=[{**CUSTOM, "format": {"type": "grammar", "syntax": "lark", "definition": "start: X"}}])
    assert "It must match this grammar (lark):\\nstart: X" in site.prompt


def test_result_of_a_custom_tool_is_sent_back(site: ScriptedSite) -> None:
    call = {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "a b"}
    result = {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"}
    ask(site, "Yes.", tools=[CUSTOM], input=[call, result])
    assert '[c1 apply_patch {"input": "a b"}]' in site.prompt
    assert "<tool>done#c1" in site.prompt


@pytest.mark.parametrize(
    ("form", "kind", "source"),
    [
        ({"type": "grammar", "syntax": "lark", "definition": LARK}, "lark", LARK),
        ({"type": "grammar", "syntax": "regex", "definition": "[a-z]+"}, "regex", "[a-z]+"),
    ],
)
def test_forced_custom_tool_follows_its_grammar(site: ScriptedSite, form: Any, kind: str, source: str) -> None:
    tool, choice = {**CUSTOM, "format": form}, {"type": "custom", "name": "apply_patch"}
    body = ask(site, f"{THOUGHT}*** Begin\nabc*** End", tools=[tool], tool_choice=choice)
    grammar = site.engine.requests[-1].grammar
    assert grammar is not None
    assert (grammar.kind, grammar.source) == (kind, source)
    assert body["output"][-1]["input"] == "*** Begin\nabc*** End"
    assert body["tool_choice"] == choice
    assert body["tools"] == [tool]


def test_grammar_that_is_not_valid_is_refused(site: ScriptedSite) -> None:
    form = {"type": "grammar", "syntax": "lark", "definition": "start: ((("}
    choice = {"type": "custom", "name": "apply_patch"}
    error = error_of(post(site, tools=[{**CUSTOM, "format": form}], tool_choice=choice))
    assert error["param"] == "tools.0.format"


def test_forced_function_follows_its_schema(site: ScriptedSite) -> None:
    choice = {"type": "function", "name": "look_up"}
    [call] = ask(site, '{"word": "a"}', tools=[FUNCTION], tool_choice=choice)["output"]
    grammar = site.engine.requests[-1].grammar
    assert grammar is not None
    assert json.loads(grammar.source) == FUNCTION["parameters"]
    assert call["arguments"] == '{"word": "a"}'


def test_strict_function_has_a_grammar_without_being_forced(site: ScriptedSite) -> None:
    body = ask(site, LOOK_UP, tools=[{**FUNCTION, "strict": True}])
    assert json.loads(body["output"][0]["arguments"]) == {"word": "é{"}
    [request] = site.engine.requests
    assert request.grammar is not None
    assert "<tool_call>" in request.grammar.source or "<[" in request.grammar.source


def test_required_call_may_be_of_any_kind(site: ScriptedSite) -> None:
    script = json.dumps([{"name": "apply_patch", "arguments": {"input": "x"}}])
    [call] = ask(site, script, tools=[FUNCTION, CUSTOM], tool_choice="required")["output"]
    assert (call["type"], call["input"]) == ("custom_tool_call", "x")


def test_tool_of_a_namespace_is_called_by_both_names(site: ScriptedSite) -> None:
    script = write_call("mcp__files__read", {"path": "a"})
    [call] = ask(site, script, tools=[NAMESPACE])["output"]
    assert (call["type"], call["name"], call["namespace"]) == ("function_call", "read", "mcp__files")
    assert '"name": "mcp__files__read"' in site.prompt
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "text"}
    ask(site, "Yes.", tools=[NAMESPACE], input=[call, result])
    assert f"[{call['call_id']} mcp__files__read " in site.prompt


def test_allowed_tools_are_the_only_ones_shown(site: ScriptedSite) -> None:
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "custom", "name": "apply_patch"}]}
    body = ask(site, "No.", tools=[FUNCTION, CUSTOM], tool_choice=choice)
    assert "look_up" not in site.prompt
    assert "apply_patch" in site.prompt
    assert body["tool_choice"] == choice


def test_tools_are_hidden_on_request(site: ScriptedSite) -> None:
    ask(site, "No.", tools=[FUNCTION], tool_choice="none")
    assert "look_up" not in site.prompt


def test_hosted_tool_is_refused_by_its_name(site: ScriptedSite) -> None:
    message = error_of(post(site, tools=[{"type": "file_search"}]))["message"]
    assert "'file_search'" in message
    assert "it has 'function' and 'custom' and 'namespace'" in message


@pytest.mark.parametrize(
    "kind", ["web_search", "web_search_preview", "web_search_2025_08_26", "web_search_preview_2025_03_11"]
)
def test_search_that_is_only_offered_is_left_out_and_named(site: ScriptedSite, kind: str) -> None:
    tools = [{"type": kind, "external_web_access": False}, FUNCTION, {"type": "image_generation"}]
    answer = post(site, "Yes.", tools=tools)
    assert [tool["name"] for tool in check_response(answer.text)["tools"]] == ["look_up"]
    assert answer.headers["x-ignored-fields"] == f"tools.{kind}, tools.image_generation"
    assert kind not in site.prompt
    assert "x-ignored-fields" not in post(site, "Yes.", tools=[FUNCTION]).headers
    events = stream(site, "Yes.", tools=[{"type": kind}])
    assert events[-1]["response"]["tools"] == []


def test_other_hosted_tool_is_dropped_and_named_by_a_lenient_server(tmp_path: Path) -> None:
    with ScriptedSite(tmp_path, options=ServerOptions(is_lenient=True)) as site:
        answer = post(site, "Yes.", tools=[{"type": "file_search"}, FUNCTION])
        assert check_response(answer.text)["tools"][0]["name"] == "look_up"
        assert answer.headers["x-ignored-fields"] == "tools.file_search"


def test_model_without_a_format_for_calls_calls_custom_tools(tmp_path: Path) -> None:
    with ScriptedSite(tmp_path, only_reasoning()) as site:
        script = '[{"name": "apply_patch", "arguments": {"input": "x"}}]'
        [call] = post(site, script, tools=[CUSTOM]).json()["output"]
    assert (call["type"], call["name"], call["input"]) == ("custom_tool_call", "apply_patch", "x")
