"""Tools and reasoning on the whole way from a request to the official client, with an engine that follows a script."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.unit.server.scripted import ScriptedSite

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks up a word.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}},
    },
}
CALL = '<tool_call>\n{"name": "look_up", "arguments": {"word": "é{"}}\n</tool_call>'
SECOND = '<tool_call>\n{"name": "look_up", "arguments": {}}\n</tool_call>'
THOUGHT = "<think>\nLet me think.\n</think>\n\n"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[ScriptedSite]:
    with ScriptedSite(tmp_path) as site:
        yield site


def accumulate(site: ScriptedSite, script: str, **fields: Any) -> tuple[ChatCompletion, list[ChatCompletionChunk]]:
    """Return what the client's own accumulator makes of a stream, and the chunks."""
    site.engine.scripts.append(script)
    given: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], **fields}
    with site.openai.chat.completions.stream(model="toy", **given) as stream:
        chunks = [event.chunk for event in stream if event.type == "chunk"]
        return stream.get_final_completion(), chunks


def test_call_reaches_the_client_whole(site: ScriptedSite) -> None:
    answer = site.ask(f"One moment.{CALL}", tools=[TOOL])
    [choice] = answer.choices
    [call] = choice.message.tool_calls
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "One moment.")
    assert (call.type, call.function.name, json.loads(call.function.arguments)) == (
        "function",
        "look_up",
        {"word": "é{"},
    )
    assert len(call.id) == 9
    assert call.id.isalnum()


@pytest.mark.parametrize("script", [CALL, THOUGHT + "Well." + CALL, THOUGHT, "Well."])
def test_turn_is_accepted_as_the_client_writes_it(site: ScriptedSite, script: str) -> None:
    whole, streamed = site.ask(script, tools=[TOOL]), accumulate(site, script, tools=[TOOL])[0]
    for message in (whole.choices[0].message, streamed.choices[0].message):
        for turn in (message.model_dump(), message.model_dump(mode="json", exclude_none=True)):
            results = [
                {"role": "tool", "tool_call_id": call["id"], "content": "found"}
                for call in turn.get("tool_calls") or ()
            ]
            site.ask("Done.", messages=[{"role": "user", "content": "hi"}, turn, *results], tools=[TOOL])


def test_turn_without_content_is_empty(site: ScriptedSite) -> None:
    fields: tuple[dict[str, Any], ...] = (
        {"content": None, "reasoning_content": "hm"},
        {"content": None, "tool_calls": []},
        {"reasoning": "hm", "provider_specific_fields": {}, "thinking_blocks": None},
        {"content": "", "parsed": {"a": 1}},
    )
    for turn in fields:
        messages = [{"role": "user", "content": "hi"}, {"role": "assistant", **turn}, {"role": "user", "content": "go"}]
        site.ask("Done.", messages=messages)
        prompt = site.text.show(site.engine.requests[-1].prompt)
        assert "<assistant>" in prompt
        assert "None" not in prompt


def test_refusal_of_an_earlier_answer_is_its_text(site: ScriptedSite) -> None:
    part = {"type": "refusal", "refusal": "I would rather not."}
    for turn in ({"content": [part]}, {"content": [{"type": "text", "text": ""}, part]}, {"refusal": part["refusal"]}):
        site.ask("Done.", messages=[{"role": "user", "content": "hi"}, {"role": "assistant", **turn}])
        assert "<assistant>I would rather not." in site.text.show(site.engine.requests[-1].prompt)


def test_content_of_an_answer_with_calls_only_is_null(site: ScriptedSite) -> None:
    message = site.ask(CALL + SECOND, tools=[TOOL]).choices[0].message
    assert message.content is None
    assert [call.function.arguments for call in message.tool_calls] == ['{"word": "é{"}', "{}"]
    assert len({call.id for call in message.tool_calls}) == 2


def test_arguments_are_streamed_in_deltas(site: ScriptedSite) -> None:
    final, chunks = accumulate(site, THOUGHT + "Well." + CALL + SECOND, tools=[TOOL])
    [choice] = final.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Well.")
    calls = choice.message.tool_calls
    assert calls is not None
    assert [(call.function.name, call.function.arguments) for call in calls] == [  # type: ignore[union-attr]
        ("look_up", '{"word": "é{"}'),
        ("look_up", "{}"),
    ]
    parts = [each for chunk in chunks for each in chunk.choices[0].delta.tool_calls or ()]
    assert len([part for part in parts if part.index == 0]) > 10, "a chunk for each token of the arguments"
    assert [part.index for part in parts if part.id] == [0, 1]
    assert all(part.function and part.function.name is None for part in parts if not part.id)
    assert chunks[0].choices[0].delta.role == "assistant"


def test_reasoning_has_both_names_and_is_counted(site: ScriptedSite) -> None:
    answer = site.ask(THOUGHT + "Yes.")
    message = answer.choices[0].message
    assert (message.content, message.reasoning_content, message.reasoning) == ("Yes.", "Let me think.", "Let me think.")
    assert answer.usage.completion_tokens_details.reasoning_tokens == len("<\nLet me think.")
    assert answer.usage.completion_tokens == len("<\nLet me think.\n<\n\nYes.")
    assert answer.usage.prompt_tokens_details.cached_tokens == 32


def test_streamed_reasoning_comes_before_the_content(site: ScriptedSite) -> None:
    _, chunks = accumulate(site, THOUGHT + "Yes.", stream_options={"include_usage": True})
    deltas: list[Any] = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == "Let me think."
    assert "".join(getattr(delta, "reasoning", None) or "" for delta in deltas) == "Let me think."
    assert "".join(delta.content or "" for delta in deltas) == "Yes."
    assert chunks[-1].usage is not None
    details = chunks[-1].usage.completion_tokens_details
    assert details is not None
    assert details.reasoning_tokens == len("<\nLet me think.")


def test_reasoning_that_the_template_opens_is_reasoning(site: ScriptedSite) -> None:
    answer = site.ask("why\n</think>\n\nso", extra_body={"chat_template_kwargs": {"enable_thinking": True}})
    assert (answer.choices[0].message.reasoning, answer.choices[0].message.content) == ("why", "so")
    assert site.prompt.endswith("<think>\n")


@pytest.mark.parametrize("opens", [False, True])
@pytest.mark.parametrize("stop", ["think", "\n", "</think>", "\n\n"])
def test_stop_strings_wait_for_the_answer(site: ScriptedSite, stop: str, *, opens: bool) -> None:
    extra = {"chat_template_kwargs": {"enable_thinking": opens}}
    script = THOUGHT.removeprefix("<think>" if opens else "") + "Yes.\nI think\n\n</think>"
    [choice] = site.ask(script, stop=stop, extra_body=extra).choices
    answer = "Yes.\nI think\n\n</think>".partition(stop)[0]
    assert (choice.message.reasoning, choice.message.content) == ("Let me think.", answer)
    assert choice.finish_reason == "stop"


@pytest.mark.parametrize(("effort", "opens"), [("none", False), ("low", True), ("high", True)])
def test_effort_turns_reasoning_on_and_off(site: ScriptedSite, effort: Any, *, opens: bool) -> None:
    site.ask("x", reasoning_effort=effort)
    assert site.prompt.endswith("<think>\n") == opens


def test_conversation_with_tools_is_rendered(site: ScriptedSite) -> None:
    message = site.ask(CALL, tools=[TOOL]).choices[0].message
    turns = [
        {"role": "user", "content": "hi"},
        message.model_dump(),
        {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": [{"type": "text", "text": "a letter"}]},
    ]
    site.ask("fine", messages=turns, tools=[TOOL])
    call_id = message.tool_calls[0].id
    assert f'[{call_id} look_up {{"word": "é{{"}}]' in site.prompt
    assert f"<tool>a letter#{call_id}" in site.prompt
    assert site.prompt.startswith('[{"type": "function", "function": {"name": "look_up", "description"')


def test_reasoning_of_an_earlier_answer_reaches_the_template(site: ScriptedSite) -> None:
    turns = [{"role": "assistant", "content": "a", "reasoning": "because"}, {"role": "user", "content": "b"}]
    site.ask("fine", messages=turns)
    assert "<assistant>a(because)" in site.prompt


def test_arguments_that_are_no_json_reach_the_template_as_they_are(site: ScriptedSite) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{oops"}}
    site.ask("fine", messages=[{"role": "assistant", "tool_calls": [call]}])
    assert '[1 f "{oops"]' in site.prompt


def test_choice_none_hides_the_tools(site: ScriptedSite) -> None:
    answer = site.ask(CALL, tools=[TOOL], tool_choice="none")
    assert answer.choices[0].message.content == CALL
    assert answer.choices[0].finish_reason == "stop"
    assert "look_up" not in site.prompt


def allow(*names: str, mode: str = "auto") -> dict[str, Any]:
    picks = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": picks}}


def test_choice_of_allowed_tools_shows_these_alone(site: ScriptedSite) -> None:
    other = {"type": "function", "function": {"name": "other"}}
    site.ask(CALL, tools=[other, TOOL], tool_choice=allow("look_up"))
    assert "look_up" in site.prompt
    assert "other" not in site.prompt
    site.ask(
        '[{"name": "look_up", "arguments": {"word": "a"}}]', tools=[TOOL], tool_choice=allow("look_up", mode="required")
    )
    assert site.engine.requests[-1].grammar is not None


def test_allowed_tools_are_among_the_tools(site: ScriptedSite) -> None:
    for choice, match in (
        (allow("gone"), "allows a function that is not in 'tools'"),
        ({"type": "all"}, "supported are the types"),
    ):
        with pytest.raises(openai.BadRequestError, match=match) as caught:
            site.ask(CALL, tools=[TOOL], tool_choice=choice)
        assert caught.value.param == "tool_choice"


def test_only_the_first_call_is_kept_if_calls_are_not_parallel(site: ScriptedSite) -> None:
    answer = site.ask(CALL + "and" + SECOND, tools=[TOOL], parallel_tool_calls=False)
    [call] = answer.choices[0].message.tool_calls
    assert call.function.arguments == '{"word": "é{"}'
    final, _ = accumulate(site, CALL + SECOND, tools=[TOOL], parallel_tool_calls=False)
    assert len(final.choices[0].message.tool_calls or ()) == 1


def test_call_that_is_cut_off_ends_with_length(site: ScriptedSite) -> None:
    [choice] = site.ask(CALL, tools=[TOOL], max_tokens=42).choices
    assert choice.finish_reason == "length"
    assert choice.message.tool_calls[0].function.arguments == '{"word"'


def test_several_answers_are_parsed_each_for_itself(site: ScriptedSite) -> None:
    answer = site.ask(THOUGHT + CALL, tools=[TOOL], n=3)
    assert [choice.message.reasoning for choice in answer.choices] == ["Let me think."] * 3
    assert [choice.message.tool_calls[0].function.name for choice in answer.choices] == ["look_up"] * 3


def test_special_tokens_other_than_the_marks_have_no_text(site: ScriptedSite) -> None:
    assert site.ask("a<|hidden|>b").choices[0].message.content == "ab"


def test_completions_show_no_special_tokens(site: ScriptedSite) -> None:
    site.engine.scripts.append("<think>a</think>b")
    assert site.openai.completions.create(model="toy", prompt="x", max_tokens=99).choices[0].text == "ab"


def test_every_field_of_the_published_schema_is_there(site: ScriptedSite) -> None:
    answer = site.ask("fine")
    assert set(answer.model_fields_set) >= {"id", "object", "created", "model", "choices", "usage", "service_tier"}
    assert answer.system_fingerprint.startswith("fp_")
    assert {"role", "content", "refusal", "annotations"} == answer.choices[0].message.model_fields_set
    assert answer.usage.completion_tokens_details.model_dump(exclude_none=True) == {
        "accepted_prediction_tokens": 0,
        "audio_tokens": 0,
        "reasoning_tokens": 0,
        "rejected_prediction_tokens": 0,
    }


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("tools", {"tools": [TOOL, TOOL]}),
        ("tools.0.function.name", {"tools": [{"type": "function", "function": {"name": "a b"}}]}),
        ("tools.0.type", {"tools": [{"type": "custom", "custom": {"name": "x"}}]}),
        ("messages.0.tool_call_id", {"messages": [{"role": "tool", "content": "x"}]}),
        ("messages.0.tool_calls", {"messages": [{"role": "user", "content": "x", "tool_calls": []}]}),
        ("messages.0.content", {"messages": [{"role": "user"}]}),
        ("reasoning_effort", {"reasoning_effort": "most"}),
    ],
)
def test_field_that_cannot_be_honoured_is_named(site: ScriptedSite, param: str, fields: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        site.ask("unused", **fields)
    assert caught.value.param == param


def test_text_is_as_the_model_wrote_it_without_a_parser(tmp_path: Path) -> None:
    with ScriptedSite(tmp_path, None) as site:
        assert site.ask("a <b> c").choices[0].message.content == "a <b> c"


def test_tokenize_renders_tools(site: ScriptedSite) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "tools": [TOOL]}
    tokens = site.http.post("/tokenize", json=body).json()["tokens"]
    assert "look_up" in site.text.show(tokens)
