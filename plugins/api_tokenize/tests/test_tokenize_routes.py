"""``/tokenize`` and ``/detokenize`` take and give what vLLM's do."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.server.letters import Site, error_of

TURNS = [{"role": "user", "content": "abc"}]


def test_tokens_of_a_prompt_come_in_the_shape_of_vllm(site: Site) -> None:
    reply = site.post("/tokenize", model="toy", prompt="cab").json()
    assert reply == {"count": 3, "max_model_len": 400, "tokens": [2, 0, 1], "token_strs": None}


def test_model_need_not_be_named(site: Site) -> None:
    assert site.post("/tokenize", prompt="cab").json()["tokens"] == [2, 0, 1]
    assert site.post("/detokenize", tokens=[2, 0, 1]).json() == {"prompt": "cab"}


def test_tokens_come_as_the_vocabulary_has_them_when_asked_for(site: Site) -> None:
    for fields in ({"prompt": "cab"}, {"messages": [{"role": "user", "content": "cab"}]}):
        assert site.post("/tokenize", return_token_strs=True, **fields).json()["token_strs"] == ["<c>", "<a>", "<b>"]


def test_conversation_is_what_the_chat_route_sees(site: Site) -> None:
    assert site.post("/tokenize", messages=TURNS).json()["tokens"] == [0, 1, 2]
    variables = {"suffix": "d"}
    assert site.post("/tokenize", messages=TURNS, chat_template_kwargs=variables).json()["tokens"] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("fields", "opens"),
    [
        ({}, True),
        ({"add_generation_prompt": True}, True),
        ({"add_generation_prompt": True, "continue_final_message": False}, True),
        ({"add_generation_prompt": False}, False),
        ({"continue_final_message": True}, False),
        ({"add_generation_prompt": False, "continue_final_message": True}, False),
    ],
)
def test_prompt_opens_an_answer_unless_told_otherwise(site: Site, fields: dict[str, Any], opens: bool) -> None:
    body = {"messages": TURNS, "chat_template_kwargs": {"opening": "?"}, **fields}
    assert site.post("/tokenize", **body).json()["count"] == 3 + opens


@pytest.mark.parametrize(
    ("fields", "special"),
    [
        ({"prompt": "a"}, True),
        ({"prompt": "a", "add_special_tokens": True}, True),
        ({"prompt": "a", "add_special_tokens": False}, False),
        ({"messages": TURNS}, False),
        ({"messages": TURNS, "add_special_tokens": True}, True),
    ],
)
def test_special_tokens_are_put_around_a_prompt_and_not_around_a_conversation_unless_told_otherwise(
    site: Site, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], special: bool
) -> None:
    asked: list[bool] = []

    def encode(text: str, param: str = "prompt", *, special: bool = True) -> tuple[int, ...]:
        asked.append(special)
        return (1,)

    monkeypatch.setattr(site.text, "encode", encode)
    assert site.post("/tokenize", **fields).json()["tokens"] == [1]
    assert asked == [special]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": "a", "messages": TURNS}, "prompt"),
        ({"prompt": ["a"]}, "prompt"),
        ({"prompt": "a", "add_generation_prompt": False}, "add_generation_prompt"),
        ({"prompt": "a", "continue_final_message": True}, "continue_final_message"),
        ({"prompt": "a", "chat_template_kwargs": {}}, "chat_template_kwargs"),
        ({"messages": TURNS, "add_generation_prompt": True, "continue_final_message": True}, "add_generation_prompt"),
        ({"messages": TURNS, "chat_template": "{{ messages }}"}, "chat_template"),
        ({"messages": TURNS, "tools": [{"type": "function"}]}, "tools.0.function"),
        ({"prompt": "a", "tools": []}, "tools"),
        ({"messages": TURNS, "mm_processor_kwargs": {"num_crops": 4}}, "mm_processor_kwargs"),
        ({"messages": TURNS, "media_io_kwargs": {"video": {"num_frames": 2}}}, "media_io_kwargs"),
        ({"prompt": "a", "add_special_tokens": 1}, "add_special_tokens"),
        ({"prompt": "a", "colour": "red"}, "colour"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(site: Site, fields: dict[str, Any], param: str) -> None:
    error = error_of(site.post("/tokenize", **fields))
    assert error["param"] == param
    assert param in error["message"] or "answer" in error["message"]


@pytest.mark.parametrize("field", ["chat_template", "tools", "mm_processor_kwargs", "media_io_kwargs"])
def test_fields_that_ask_for_nothing_are_accepted(site: Site, field: str) -> None:
    assert site.post("/tokenize", messages=TURNS, **{field: None}).status_code == 200


def test_another_model_is_a_404_and_a_token_beyond_the_vocabulary_a_400(site: Site) -> None:
    error_of(site.post("/tokenize", model="other", prompt="a"), 404)
    error_of(site.post("/detokenize", model="other", tokens=[1]), 404)
    assert error_of(site.post("/detokenize", tokens=[99]))["param"] == "tokens"
