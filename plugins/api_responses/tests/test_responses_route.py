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
from openai.types.responses import Response
from pydantic import BaseModel

from plugins.api_responses.tests.responses_client import (
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
)
from tests.unit.server.letters import Site, answer
from tests.unit.server.scripted import ScriptedSite, write_call
from tests.unit.server.trials import try_few

UNUSED = {
    "access_programs",
    "conversation",
    "image",
    "input_transformations",
    "moderation",
    "prompt",
    "prompt_cache_diagnostics",
    "prompt_cache_options",
    "prompt_cache_retention",
    "tool_usage",
}
"""The fields of OpenAI's responses that ours have as null, for clients whose schemas want them."""

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


@pytest.mark.parametrize("status", ["incomplete", "in_progress", "completed", None])
def test_incomplete_last_message_is_continued(site: ScriptedSite, status: str | None) -> None:
    last = {"role": "assistant", "content": "Once upon", **({"status": status} if status else {})}
    body = ask(site, " a time.", input=[{"role": "user", "content": "Tell."}, last])
    assert body["output"][0]["content"][0]["text"] == " a time."
    assert site.prompt.endswith("<assistant>Once upon") == (status in ("incomplete", "in_progress"))


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
    assert usage["input_tokens_details"] == {"cached_tokens": 32, "cache_write_tokens": 0}
    assert usage["output_tokens_details"] == {"reasoning_tokens": 0}
    assert {name for name in UNUSED if body.pop(name) is None} == UNUSED
    assert body == {
        "object": "response",
        "status": "completed",
        "background": False,
        "error": None,
        "frequency_penalty": 0.0,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "metadata": {"a": "b"},
        "model": "toy",
        "parallel_tool_calls": True,
        "presence_penalty": 0.0,
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


@pytest.mark.parametrize("options", [{}, {"by_alias": True}, {"mode": "json"}])
def test_output_is_accepted_as_the_client_writes_it(site: ScriptedSite, options: dict[str, Any]) -> None:
    tools, given = [FUNCTION, CUSTOM], {"input": "x"}
    script = THOUGHT + "Well." + write_call("look_up", {"word": "é"}) + write_call("apply_patch", given)
    whole = Response.model_validate(ask(site, script, tools=tools))
    site.engine.scripts.append(script)
    with site.openai.responses.stream(model="toy", input="hi", tools=tools) as events:  # type: ignore[arg-type]
        streamed = events.until_done().get_final_response()
    for response in (whole, streamed):
        parts = [part.model_dump(**options) for part in response.output]
        results = [
            {"type": f"{part['type']}_output", "call_id": part["call_id"], "output": "found"}
            for part in parts
            if "call_id" in part
        ]
        assert [part["type"] for part in parts] == ["reasoning", "message", "function_call", "custom_tool_call"]
        ask(site, "Done.", input=[{"role": "user", "content": "hi"}, *parts, *results], tools=tools)


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
