"""Tools and reasoning in Anthropic's Messages, read by the official client; the answers come from a script."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import msgspec
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from parallax_api_anthropic.content import open_part, read_input, sign
from parallax_api_anthropic.replies import MessageReply
from parallax_core.contracts.parser import Content, Reasoning, ToolCall
from parallax_core.server.answer_parsing import continues
from tests.unit.server.scripted import ScriptedSite
from tests.unit.server.sdkfields import list_missing

TOOL: Any = {
    "name": "look_up",
    "description": "Looks up a word.",
    "input_schema": {"type": "object", "properties": {"word": {"type": "string"}}},
    "cache_control": {"type": "ephemeral"},
}
CALL = '<tool_call>\n{"name": "look_up", "arguments": {"word": "é{"}}\n</tool_call>'
SECOND = '<tool_call>\n{"name": "look_up", "arguments": {}}\n</tool_call>'
THOUGHT = "<think>\nLet me think.\n</think>\n\n"
EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[ScriptedSite]:
    with ScriptedSite(tmp_path) as site:
        yield site


def make_client(site: ScriptedSite) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url="http://testserver", api_key="x", max_retries=0, http_client=site.http)


def ask(site: ScriptedSite, script: str, **fields: Any) -> Any:
    """Return the whole answer, checked against our schema and the client's strict types."""
    site.engine.scripts.append(script)
    given = {"model": "toy", "max_tokens": 500, "messages": [{"role": "user", "content": "hi"}], "tools": [TOOL]}
    response = site.http.post("/v1/messages", json={**given, **fields})
    assert response.status_code == 200, response.text
    msgspec.json.decode(response.content, type=MessageReply)
    parsed = Message.model_validate_json(response.content, strict=True)
    assert list(list_missing(parsed, response.json())) == []
    return parsed


def stream(site: ScriptedSite, script: str, **fields: Any) -> tuple[Any, list[Any]]:
    """Return what the client's own accumulator makes of a stream, and the raw events."""
    site.engine.scripts.append(script)
    given: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "tools": [TOOL], **fields}
    with make_client(site).messages.stream(model="toy", max_tokens=500, **given) as events:
        raw = [event for event in events if event.type in {"content_block_start", "content_block_delta"}]
        final = events.get_final_message()
    return final, raw


def test_thinking_text_and_calls_are_parts_in_order(site: ScriptedSite) -> None:
    answer = ask(site, THOUGHT + "Well." + CALL + SECOND)
    thinking, text, call, second = answer.content
    assert (thinking.type, thinking.thinking.strip(), text.text) == ("thinking", "Let me think.", "Well.")
    assert thinking.signature == sign(thinking.thinking)
    assert (call.type, call.name, call.input, second.input) == ("tool_use", "look_up", {"word": "é{"}, {})
    assert call.id != second.id
    assert answer.stop_reason == "tool_use"


def test_stream_adds_up_to_the_whole_answer(site: ScriptedSite) -> None:
    script = THOUGHT + "Well." + CALL + SECOND
    final, raw = stream(site, script)
    whole = ask(site, script)
    without_ids = [part.model_dump(exclude={"id"}) for part in whole.content]
    assert [part.model_dump(exclude={"id", "parsed_output"}) for part in final.content] == without_ids
    assert final.stop_reason == whole.stop_reason == "tool_use"
    kinds = {event.delta.type for event in raw if event.type == "content_block_delta"}
    assert kinds == {"thinking_delta", "signature_delta", "text_delta", "input_json_delta"}


def test_results_of_tools_reach_the_template(site: ScriptedSite) -> None:
    first = ask(site, THOUGHT + CALL)
    call = first.content[-1]
    results = [
        {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "a letter"}]},
        {"type": "text", "text": "Go on."},
    ]
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [part.model_dump(exclude_none=True) for part in first.content]},
        {"role": "user", "content": results},
    ]
    ask(site, "Done.", messages=messages)
    prompt = site.text.show(site.engine.requests[-1].prompt)
    assert f'[{call.id} look_up {{"word": "é{{"}}]' in prompt
    assert "Let me think." in prompt
    assert f"<tool>a letter#{call.id}" in prompt
    assert "<user>Go on." in prompt


@pytest.mark.parametrize("mode", ["python", "json"])
def test_parts_are_accepted_as_the_client_writes_them(site: ScriptedSite, mode: Any) -> None:
    script = THOUGHT + "Well." + CALL + SECOND
    for answer in (ask(site, script), stream(site, script)[0]):
        parts = [part.model_dump(mode=mode) for part in answer.content]
        results = [
            {"type": "tool_result", "tool_use_id": part["id"], "content": "x", "is_error": None, "toolset_name": None}
            for part in parts
            if part["type"] == "tool_use"
        ]
        turns = [{"role": "assistant", "content": parts}, {"role": "user", "content": results}]
        ask(site, "Done.", messages=[{"role": "user", "content": "hi"}, *turns])
        assert "Well.(Let me think.)[toolu" in site.text.show(site.engine.requests[-1].prompt)


def test_fields_of_tools_that_ask_for_nothing_are_accepted(site: ScriptedSite) -> None:
    for value in (None, False, [], ["direct"]):
        names = {None: "type", False: "defer_loading", "[]": "input_examples", "['direct']": "allowed_callers"}
        name = names[value if value in (None, False) else str(value)]
        ask(site, "Done.", tools=[{**TOOL, name: value}])
    message = "'tools.0.defer_loading' is not supported yet; leave it out or send false"
    body = {"model": "toy", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
    response = site.http.post("/v1/messages", json={**body, "tools": [{**TOOL, "defer_loading": True}]})
    assert (response.status_code, response.json()["error"]["message"]) == (400, message)


def test_choice_none_hides_the_tools(site: ScriptedSite) -> None:
    ask(site, "Well.", tool_choice={"type": "none"})
    assert "look_up" not in site.text.show(site.engine.requests[-1].prompt)


def test_only_the_first_call_is_kept_if_calls_are_not_parallel(site: ScriptedSite) -> None:
    answer = ask(site, CALL + SECOND, tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    assert [part.input for part in answer.content] == [{"word": "é{"}]


@pytest.mark.parametrize(("kind", "opens"), [("disabled", False), ("adaptive", False)])
def test_thinking_is_switched_by_the_template(site: ScriptedSite, kind: str, *, opens: bool) -> None:
    ask(site, "Well.", thinking={"type": kind})
    assert site.text.show(site.engine.requests[-1].prompt).endswith("<think>\n") == opens


def test_budget_needs_an_engine_that_can_continue_an_answer(site: ScriptedSite) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "thinking": {"type": "enabled", "budget_tokens": 10}}
    response = site.http.post("/v1/messages", json={"model": "toy", "max_tokens": 500, **body})
    error = response.json()["error"]["message"]
    assert (response.status_code, "cannot continue an answer" in error) == (400, True)


def test_tokens_are_counted_with_the_tools(site: ScriptedSite) -> None:
    site.engine.scripts.append("Well.")
    given: Any = {"model": "toy", "messages": [{"role": "user", "content": "hi"}], "tools": [TOOL]}
    counted = make_client(site).messages.count_tokens(**given).input_tokens
    usage = make_client(site).messages.create(max_tokens=5, **given).usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == counted


@pytest.mark.parametrize(("arguments", "found"), [("", {}), ('{"a": 1}', {"a": 1}), ('{"a', {}), ("[1]", {})])
def test_arguments_that_are_cut_off_or_no_object_are_empty(arguments: str, found: Any) -> None:
    assert read_input(arguments) == found


def test_part_takes_pieces_of_its_kind_until_the_next_call() -> None:
    assert continues(Content("b"), open_part(Content("a")).kind)
    assert not continues(Reasoning("b"), open_part(Content("a")).kind)
    call = open_part(ToolCall(0, "look_up"))
    assert continues(ToolCall(0, "", "{"), call.kind)
    assert not continues(ToolCall(1, "look_up"), call.kind)


def test_reasoning_that_another_service_has_redacted_is_left_out(site: ScriptedSite) -> None:
    parts = [{"type": "redacted_thinking", "data": "xyz"}, {"type": "text", "text": "Well."}]
    user = {"role": "user", "content": "hi"}
    ask(site, "Done.", messages=[user, {"role": "assistant", "content": parts}, user])
    prompt = site.text.show(site.engine.requests[-1].prompt)
    assert "<assistant>Well." in prompt
    assert "xyz" not in prompt
