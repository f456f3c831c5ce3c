"""Responses on the whole way, as OpenAI's reference describes them, read by the official client's strict types."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from parallax_core.server.api_keys import ApiKeys
from parallax_core.server.options import ServerOptions
from tests.unit.server.letters import Site, answer
from tests.unit.server.responses.client import (
    CUSTOM,
    FUNCTION,
    NAMESPACE,
    ROUTE,
    THOUGHT,
    ask,
    check_response,
    error_of,
    kinds,
    post,
    read_events,
    stream,
    write_call,
)
from tests.unit.server.scripted import ScriptedSite, only_reasoning
from tests.unit.server.trials import try_few

LOOK_UP = write_call("look_up", {"word": "é{"})
MESSAGE_EVENTS = [
    "output_item.added",
    "content_part.added",
    "output_text.delta",
    "output_text.done",
    "content_part.done",
    "output_item.done",
]
LARK = 'start: "*** Begin" /[a-z ]+/ "*** End"'


@pytest.fixture
def site(tmp_path: Path) -> Iterator[ScriptedSite]:
    with ScriptedSite(tmp_path) as site:
        yield site


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedSite]:
    with ScriptedSite(tmp_path_factory.mktemp("model")) as site:
        yield site


def test_response_has_every_field_of_the_reference(site: ScriptedSite) -> None:
    body = ask(site, "Hello.", metadata={"a": "b"}, user="me", temperature=0.5)
    identity = body.pop("id")
    assert identity.startswith("resp_")
    assert body.pop("completed_at") >= body.pop("created_at") > 1e9
    [message] = body.pop("output")
    assert message.pop("id") == f"msg_{identity.removeprefix('resp_')}0000"
    text = {"type": "output_text", "text": "Hello.", "annotations": [], "logprobs": []}
    assert message == {"type": "message", "status": "completed", "role": "assistant", "content": [text]}
    usage = body.pop("usage")
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"] > usage["output_tokens"] > 0
    assert usage["input_tokens_details"] == {"cached_tokens": 3, "cache_write_tokens": 0}
    assert usage["output_tokens_details"] == {"reasoning_tokens": 0}
    assert body == {
        "object": "response",
        "status": "completed",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "metadata": {"a": "b"},
        "model": "toy",
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "prompt_cache_key": None,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": None,
        "service_tier": "default",
        "store": True,
        "temperature": 0.5,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": 1.0,
        "truncation": "disabled",
        "user": "me",
    }


def test_events_of_a_message_come_in_the_published_order(site: ScriptedSite) -> None:
    events = stream(site, "Hello there.")
    assert kinds(events) == ["created", "in_progress", *MESSAGE_EVENTS, "completed"]
    assert [events[at]["response"]["status"] for at in (0, 1, -1)] == ["in_progress", "in_progress", "completed"]
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert len(deltas) > 3, "a delta for each token"
    assert "".join(event["delta"] for event in deltas) == "Hello there."
    [message] = events[-1]["response"]["output"]
    assert {event.get("item_id", message["id"]) for event in events} == {message["id"]}
    added, done = (event["item"] for event in events if event["type"].startswith("response.output_item"))
    assert (added["id"], added["status"], added["content"]) == (message["id"], "in_progress", [])
    assert done == message
    assert events[0]["response"]["usage"] is None


def test_reasoning_is_a_part_of_its_own(site: ScriptedSite) -> None:
    events = stream(site, f"{THOUGHT}Hello.")
    assert kinds(events)[2:8] == [
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
    ]
    reasoning, message = events[-1]["response"]["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "Let me think."}]
    assert (reasoning["summary"], reasoning["id"][:3]) == ([], "rs_")
    assert message["content"][0]["text"] == "Hello."
    assert events[-1]["response"]["usage"]["output_tokens_details"]["reasoning_tokens"] > 0


@pytest.mark.parametrize("field", ["summary", "generate_summary"])
def test_reasoning_is_the_summary_on_request(site: ScriptedSite, field: str) -> None:
    events = stream(site, f"{THOUGHT}Hello.", reasoning={field: "auto"})
    assert kinds(events)[2:8] == [
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
    ]
    reasoning = events[-1]["response"]["output"][0]
    assert reasoning["summary"] == [{"type": "summary_text", "text": "Let me think."}]
    assert "content" not in reasoning


def test_encoded_reasoning_can_be_sent_back(site: ScriptedSite) -> None:
    reasoning, message = ask(site, f"{THOUGHT}Hello.", include=["reasoning.encrypted_content"])["output"]
    del reasoning["content"]
    ask(site, "Yes.", input=[reasoning, message, {"role": "user", "content": "Sure?"}])
    assert "<assistant>Hello.(Let me think.)" in site.prompt
    wrong = {**reasoning, "encrypted_content": "gAAAA"}
    error = error_of(post(site, input=[wrong, {"role": "user", "content": "Sure?"}]))
    assert error["param"] == "input.0.encrypted_content"


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
    assert error["param"] == "tools"


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
    assert request.grammar.after == ("<tool_call>",)


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


def test_answer_that_is_cut_is_incomplete(site: ScriptedSite) -> None:
    events = stream(site, "Hello there.", max_output_tokens=4)
    body = events[-1]["response"]
    assert (events[-1]["type"], body["status"]) == ("response.incomplete", "incomplete")
    assert body["incomplete_details"] == {"reason": "max_output_tokens"}
    assert (body["output"][0]["status"], body["completed_at"], body["max_output_tokens"]) == ("incomplete", None, 4)
    assert ask(site, "Hello there.", max_output_tokens=4)["status"] == "incomplete"


def test_answer_without_text_has_an_empty_message(site: ScriptedSite) -> None:
    [message] = ask(site, "<|hidden|>")["output"]
    assert message["content"][0]["text"] == ""


def test_instructions_and_first_system_messages_are_one(site: ScriptedSite) -> None:
    messages = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "two"}]},
        {"role": "system", "content": "three"},
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"role": "developer", "content": "later"},
    ]
    body = ask(site, "Yes.", instructions="one", input=messages)
    assert site.prompt.count("<system>") == 2
    assert "<system>one\n\ntwo\n\nthree" in site.prompt
    assert "<user>a\nb" in site.prompt
    assert "<system>later" in site.prompt
    assert body["instructions"] == "one"


def test_output_of_a_response_is_an_input(site: ScriptedSite) -> None:
    script = f"{THOUGHT}Hello.{LOOK_UP}"
    output = ask(site, script, tools=[FUNCTION, CUSTOM, NAMESPACE])["output"]
    ask(site, "Yes.", tools=[FUNCTION], input=[*output, {"role": "user", "content": "and?"}])
    assert site.prompt.count("<assistant>") == 1, "the parts of one answer are one turn"
    assert "<assistant>Hello.(Let me think.)[" in site.prompt


def test_text_may_have_to_match_a_schema(site: ScriptedSite) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    form = {"type": "json_schema", "name": "thing", "schema": schema, "strict": True}
    body = ask(site, '{"a": 1}', text={"format": form})
    grammar = site.engine.requests[-1].grammar
    assert grammar is not None
    assert (grammar.kind, json.loads(grammar.source)) == ("json_schema", schema)
    assert body["text"]["format"] == form
    ask(site, "{}", text={"format": {"type": "json_object"}})
    assert site.engine.requests[-1].grammar is not None
    ask(site, "any", text={"format": {"type": "text"}, "verbosity": "medium"})
    assert site.engine.requests[-1].grammar is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "file_search", "vector_store_ids": ["a"]}]}, "tools.0.type"),
        ({"tools": [{"type": "web_search_2"}]}, "tools.0.type"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}, "tool_choice"),
        (
            {
                "tools": [{"type": "web_search"}, FUNCTION],
                "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]},
            },
            "tool_choice.tools.0.type",
        ),
        ({"tools": [FUNCTION, {"type": "mcp", "server_label": "a"}]}, "tools.1.type"),
        ({"tools": [{"name": "a"}]}, "tools.0"),
        ({"tools": [{**NAMESPACE, "tools": [{"type": "web_search"}]}]}, "tools.0.tools.0"),
        ({"tools": [FUNCTION, FUNCTION]}, "tools"),
        ({"tools": [{**FUNCTION, "magic": 1}]}, "tools.0.magic"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "other"}}, "tool_choice"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "custom", "name": "look_up"}}, "tool_choice"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "web_search_preview"}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [FUNCTION], "text": {"format": {"type": "json_object"}}}, "text.format"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema"),
        ({"text": {"verbosity": "high"}}, "text.verbosity"),
        ({"input": []}, "input"),
        ({"input": ""}, "input"),
        ({"input": [{"type": "item_reference", "id": ""}]}, "input.0.id"),
        ({"input": [{"type": "item_reference", "id": "msg_1", "role": "user"}]}, "input.0.role"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}, {"id": "msg_1"}]}, "input"),
        ({"input": [{"type": "web_search_call", "id": "ws_1"}]}, "input.0"),
        ({"input": [{"role": "tool", "content": "a"}]}, "input.0.role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input.0.content.0"),
        ({"store": False, "background": True}, "background"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"truncation": "auto"}, "truncation"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"include": ["everything"]}, "include.0"),
        ({"stream_options": {"include_obfuscation": False}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"messages": []}, "messages"),
    ],
)
def test_unsupported_or_invalid_field_is_named(site: ScriptedSite, fields: dict[str, Any], param: str) -> None:
    error = error_of(post(site, **fields))
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"


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


@pytest.mark.parametrize(
    "fields",
    [
        {"store": False, "include": ["reasoning.encrypted_content", "web_search_call.action.sources"]},
        {"prompt_cache_key": "a", "client_metadata": {"x": "y"}, "safety_identifier": "s"},
        {"truncation": "disabled", "service_tier": "auto", "conversation": None, "background": None},
        {"tools": [], "tool_choice": "auto", "parallel_tool_calls": False, "max_tool_calls": 3},
        {"text": {}, "reasoning": None, "stream": False},
        {"top_k": 5, "min_p": 0.1, "seed": 3, "stop": ["x"], "cache_salt": "s", "priority": 1, "timeout": 5.0},
    ],
)
def test_fields_that_ask_for_nothing_more_are_accepted(site: ScriptedSite, fields: dict[str, Any]) -> None:
    assert ask(site, "Yes.", **fields)["status"] == "completed"


def test_request_of_codex_is_served(site: ScriptedSite) -> None:
    """The fields are those of Codex 0.169 with its defaults."""
    text = {"type": "input_text", "text": "You are a coding agent."}
    function = {**FUNCTION, "strict": False}
    events = stream(
        site,
        f"{THOUGHT}{write_call('multi_agent_v1__wait_agent', {})}",
        input=[
            {"type": "message", "id": "msg_1", "role": "developer", "content": [text]},
            {"type": "message", "id": "msg_2", "role": "developer", "content": [text, text]},
            {"type": "message", "id": "msg_3", "role": "user", "content": [text]},
        ],
        tools=[
            function,
            {**NAMESPACE, "name": "multi_agent_v1", "tools": [{**function, "name": "wait_agent"}]},
            {"type": "web_search", "external_web_access": False},
        ],
        tool_choice="auto",
        parallel_tool_calls=True,
        reasoning={"summary": "auto"},
        store=False,
        include=["reasoning.encrypted_content"],
        prompt_cache_key="01a20528",
        client_metadata={"session_id": "01a20528", "x-codex-turn-metadata": "{}"},
    )
    reasoning, call = events[-1]["response"]["output"]
    assert reasoning["encrypted_content"]
    assert (call["name"], call["namespace"]) == ("wait_agent", "multi_agent_v1")


def test_long_prompt_is_refused(site: ScriptedSite) -> None:
    error = error_of(post(site, input="word " * 5000))
    assert error["param"] == "input"
    assert "this model can hold 4000" in error["message"]


def test_unknown_model_gets_a_404(site: ScriptedSite) -> None:
    assert error_of(post(site, model="gpt"), 404)["code"] == "model_not_found"


def test_tools_of_a_model_without_calls_are_refused(tmp_path: Path) -> None:
    with ScriptedSite(tmp_path, only_reasoning()) as site:
        assert error_of(post(site, tools=[CUSTOM]))["param"] == "tools"


def test_key_is_required(tmp_path: Path) -> None:
    with ScriptedSite(tmp_path, options=ServerOptions(keys=ApiKeys({"secret": "user"}))) as site:
        assert error_of(post(site), 401)["code"] == "invalid_api_key"


class Thing(BaseModel):
    a: int


def test_official_client_parses_its_own_type(site: ScriptedSite) -> None:
    site.engine.scripts.append('{"a": 5}')
    parsed = site.openai.responses.parse(model="toy", input="hi", text_format=Thing)
    assert parsed.output_parsed == Thing(a=5)
    assert parsed.output_text == '{"a": 5}'


def test_official_client_accumulates_a_stream(site: ScriptedSite) -> None:
    site.engine.scripts.append(f"{THOUGHT}Well.{LOOK_UP}{write_call('apply_patch', {'input': 'x'})}")
    tools: Any = [{**FUNCTION, "strict": False}, CUSTOM]
    with site.openai.responses.stream(model="toy", input="hi", tools=tools) as events:
        names = [event.type for event in events]
        final = events.get_final_response()
    assert names[-1] == "response.completed"
    assert [part.type for part in final.output] == ["reasoning", "message", "function_call", "custom_tool_call"]
    assert final.output_text == "Well."


def test_official_client_raises_its_own_errors(site: ScriptedSite) -> None:
    with pytest.raises(openai.BadRequestError, match="file_search"):
        site.openai.responses.create(
            model="toy", input="hi", tools=[{"type": "file_search", "vector_store_ids": ["a"]}]
        )


def test_stream_that_breaks_ends_with_failed() -> None:
    with Site() as toy:

        def fail(batch: object) -> None:
            raise RuntimeError("no more")

        toy.stage.before_step = fail
        body = {"model": "toy", "input": "hello", "stream": True}
        events = read_events(toy.client.post(ROUTE, json=body).text)
        assert kinds(events) == ["created", "in_progress", "failed"]
        failed = events[-1]["response"]
        assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")


def test_logprobs_belong_to_the_tokens_of_the_text() -> None:
    with Site() as toy:
        body = {"model": "toy", "input": "hello", "max_output_tokens": 5, "top_logprobs": 2, "stream": True}
        events = read_events(toy.client.post(ROUTE, json=body).text)
        entries = events[-1]["response"]["output"][0]["content"][0]["logprobs"]
        text = answer("hello", 5)
        assert "".join(entry["token"] for entry in entries) == text
        assert all(len(entry["top_logprobs"]) == 2 for entry in entries)
        deltas = [event for event in events if event["type"] == "response.output_text.delta"]
        assert [entry for event in deltas for entry in event["logprobs"]] == entries
        body = {**body, "top_logprobs": None, "include": ["message.output_text.logprobs"], "stream": False}
        whole = check_response(toy.client.post(ROUTE, json=body).text)
        assert len(whole["output"][0]["content"][0]["logprobs"]) == 5


PIECES = st.sampled_from(
    [
        "Hello.",
        " é 😀 ",
        "<tool",
        THOUGHT,
        LOOK_UP,
        write_call("apply_patch", {"input": 'a "b" \\ \n 😀'}),
        write_call("apply_patch", {"other": 1}),
        write_call("mcp__files__read", {}),
        write_call("unknown", {"a": [1, {"b": "}"}]}),
        '<tool_call>\n{"name": "apply_patch", "arguments": {"input": "cut',
    ]
)


def strip_ids(response: dict[str, Any]) -> dict[str, Any]:
    """Return a response without what is different in every one."""
    parts = [
        {name: value for name, value in part.items() if name not in {"id", "call_id"}} for part in response["output"]
    ]
    return {**response, "output": parts, "id": "", "created_at": 0, "completed_at": 0}


@try_few(15)
@given(st.lists(PIECES, min_size=1, max_size=6), st.none() | st.integers(1, 60), st.booleans())
def test_stream_says_what_the_whole_response_says(
    shared: ScriptedSite, pieces: list[str], most: int | None, summarizes: bool
) -> None:
    fields: dict[str, Any] = {"tools": [FUNCTION, CUSTOM, NAMESPACE], "max_output_tokens": most}
    fields["reasoning"] = {"summary": "auto"} if summarizes else None
    whole, events = ask(shared, "".join(pieces), **fields), stream(shared, "".join(pieces), **fields)
    final = events[-1]["response"]
    assert strip_ids(final) == strip_ids(whole)
    told = ["" for _ in final["output"]]
    for event in events:
        if event["type"].endswith(".delta"):
            told[event["output_index"]] += event["delta"]
    assert told == [read_part(part) for part in final["output"]]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == final["output"]


def read_part(part: dict[str, Any]) -> str:
    """Return the text of a part of the output."""
    texts = part.get("summary") or part.get("content")
    return str(texts[0]["text"] if texts else part.get("arguments", part.get("input", "")))
