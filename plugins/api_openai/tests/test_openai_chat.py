"""``/v1/chat/completions``: the shapes of answers and chunks, and fields without effect."""

from __future__ import annotations

from typing import Any

import pytest

from parallax_api_openai.completion_request import NEUTRAL_COMPLETION, CompletionRequest
from parallax_chat_requests.request_models import ChatRequest
from tests.unit.server.letters import Site, answer, error_of, events

USAGE = {
    "prompt_tokens": 5,
    "completion_tokens": 5,
    "total_tokens": 10,
    "prompt_tokens_details": {"audio_tokens": 0, "cached_tokens": 0},
    "completion_tokens_details": {
        "accepted_prediction_tokens": 0,
        "audio_tokens": 0,
        "reasoning_tokens": 0,
        "rejected_prediction_tokens": 0,
    },
}

NO_EXTRAS: dict[str, Any] = {"refusal": None, "annotations": []}


def test_answer_has_openai_shape(site: Site) -> None:
    body = site.ask(max_tokens=5).json()
    assert body["object"] == "chat.completion"
    assert body["model"] == "toy"
    [choice] = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": answer("hello", 5), **NO_EXTRAS}
    assert choice["finish_reason"] == "length"
    assert body["usage"] == USAGE


def test_streamed_pieces_join_to_the_answer(site: Site) -> None:
    response = site.ask(max_tokens=5, stream=True)
    assert (response.headers["Cache-Control"], response.headers["X-Accel-Buffering"]) == ("no-cache", "no")
    first, *middle, last, done = events(response)
    assert done == "[DONE]"
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": answer("hello", 1)}
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in (first, *middle)) == answer("hello", 5)
    assert last["choices"][0]["finish_reason"] == "length"
    assert len({chunk["id"] for chunk in (first, *middle, last)}) == 1


def test_role_of_each_answer_comes_with_its_first_token_and_never_again(site: Site) -> None:
    *chunks, _ = events(site.ask(max_tokens=4, n=3, stream=True, temperature=1, seed=7))
    opened = [chunk["choices"][0]["index"] for chunk in chunks if "role" in chunk["choices"][0]["delta"]]
    assert sorted(opened) == [0, 1, 2]
    for index in range(3):
        first = next(chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"][0]["index"] == index)
        assert first["role"] == "assistant"
        assert len(first["content"]) == 1


def test_answer_without_text_still_opens_with_its_role(site: Site) -> None:
    site.text.stop_ids = frozenset(range(31))
    first, last, _ = events(site.ask(max_tokens=4, stream=True))
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert last["choices"][0]["finish_reason"] == "stop"


def test_stream_ends_with_usage_when_asked(site: Site) -> None:
    *chunks, last, _ = events(site.ask(max_tokens=5, stream=True, stream_options={"include_usage": True}))
    assert last["choices"] == []
    assert last["usage"] == USAGE
    assert {chunk["usage"] for chunk in chunks} == {None}
    assert not any("usage" in chunk for chunk in events(site.ask(max_tokens=5, stream=True))[:-1])


def test_content_may_come_in_parts(site: Site) -> None:
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    assert site.ask(parts, max_completion_tokens=5).json()["choices"][0]["message"]["content"] == answer("hello", 5)


def test_fields_that_are_not_supported_are_refused_by_name(site: Site) -> None:
    for field in ChatRequest.neutral:
        error = error_of(site.ask(**{field: {"some": ["thing"]}}))
        assert error["param"] == field
        assert f"'{field}' is not supported yet" in error["message"]
        assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"store": True}, "'store' is not supported yet; leave it out or send false"),
        ({"modalities": ["audio"]}, "'modalities' is not supported yet; leave it out or send [\"text\"]"),
        ({"verbosity": "low"}, "'verbosity' is not supported yet; leave it out or send 'medium'"),
        (
            {"stream": True, "stream_options": {"include_obfuscation": True}},
            "'stream_options.include_obfuscation' is not supported yet; leave it out or send false",
        ),
        (
            {"content": [{"type": "image_url"}]},
            "'messages.0.content.0.type' must be 'text', not 'image_url'",
        ),
        ({"response_format": {"type": "x" * 65}}, "must be 'text', 'json_object' or 'json_schema'"),
    ],
)
def test_refusal_says_what_may_be_sent_as_json(site: Site, fields: dict[str, Any], message: str) -> None:
    assert error_of(site.ask(**fields))["message"].endswith(message)


def test_values_that_ask_for_nothing_are_accepted(site: Site) -> None:
    for fields in ({name: value} for name, values in ChatRequest.neutral.items() for value in (*values, None)):
        assert site.ask(max_tokens=1, **fields).status_code == 200, fields


def test_options_of_a_stream_that_ask_for_nothing_are_accepted(site: Site) -> None:
    options = {"include_obfuscation": False, "continuous_usage_stats": False}
    assert site.ask(max_tokens=1, stream=True, stream_options=options).status_code == 200


def test_every_field_is_honoured_or_refused_but_none_is_both() -> None:
    assert not set(ChatRequest.model_fields) & set(ChatRequest.neutral)
    assert not set(CompletionRequest.model_fields) & set(NEUTRAL_COMPLETION)
