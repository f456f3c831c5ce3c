"""Every field of a request for a response: a good value is taken, and a bad one is refused by its name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_api_responses.body_models import NEUTRAL_RESPONSES, ResponsesRequest
from parallax_core.base.errors import InvalidRequest
from parallax_core.server.strict_json import read_body
from plugins.api_responses.tests.responses_client import CUSTOM, FUNCTION, NAMESPACE, ROUTE
from tests.unit.server.scripted import ScriptedSite
from tests.unit.server.trials import try_few
from tests.unit.server.values import CHAT, HUGE, NO_LIST, NO_OBJECT, NO_TEXT, TEXT, Values, flags, integers

LABEL = Values(TEXT, st.sampled_from(NO_TEXT), ("a", "a"))
CALL = {"type": "function_call", "call_id": "c", "name": "look_up", "arguments": "{}"}
PARTS = st.sampled_from(
    [
        {"role": "user", "content": "a"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a", "annotations": []}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "a"}], "encrypted_content": None},
        CALL,
        {**CALL, "namespace": "files", "status": "completed", "id": "fc_1", "caller": {"type": "direct"}},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "a"}]},
        {"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": "a"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "a"},
    ]
)
BAD_PARTS = [
    {"type": "web_search_call"},
    {**CALL, "arguments": {}},
    {**CALL, "more": 1},
    {"type": "function_call_output", "call_id": "c", "output": 1},
    {"role": "user", "content": [{"type": "input_image", "image_url": "x"}]},
    {"role": "user"},
    {"type": "reasoning", "summary": "a"},
    1,
    None,
    {},
    {"type": []},
    {"type": {}},
]
MINE: dict[str, Values] = {
    "input": Values(
        TEXT.filter(bool) | st.lists(PARTS, min_size=1, max_size=4),
        st.sampled_from([None, 1, "", [], {}, *([part] for part in BAD_PARTS)]),
        ("a", "b"),
    ),
    "instructions": Values(TEXT, st.sampled_from(NO_TEXT), ("a", "b")),
    "max_output_tokens": integers(1, HUGE, (3, 5), most=9),
    "include": Values(
        st.lists(st.sampled_from(["reasoning.encrypted_content", "web_search_call.results"]), max_size=4),
        st.sampled_from([*NO_LIST, ["all"], "a"]),
        ([], []),
    ),
    "stream_options": Values(
        st.sampled_from([{}, {"include_obfuscation": False}]),
        st.sampled_from([*NO_OBJECT, {"include_usage": True}, {"include_obfuscation": True}]),
        ({}, {}),
        {"stream": True},
    ),
    "text": Values(
        st.sampled_from([{}, {"format": None}, {"format": {"type": "json_object"}}, {"verbosity": "medium"}]),
        st.sampled_from([*NO_OBJECT, {"format": {"type": "xml"}}, {"format": {"type": "json_schema"}}, {"format": 1}]),
        ({}, {}),
    ),
    "tools": Values(
        st.lists(st.sampled_from([FUNCTION, CUSTOM, NAMESPACE]), max_size=3, unique_by=lambda tool: str(tool["name"])),
        st.sampled_from(
            [*NO_LIST, [1], [{}], [{"type": 1}], [{"type": "mcp"}], [FUNCTION] * 2, [{**CUSTOM, "format": "text"}]]
        ),
        ([], []),
    ),
    "tool_choice": Values(
        st.sampled_from(["none", "auto", "required", {"type": "function", "name": "look_up"}]),
        st.sampled_from(["x", 1, [], {}, {"type": "function"}, {"type": "custom", "name": "look_up"}, {"type": "mcp"}]),
        ("none", "auto"),
        {"tools": [FUNCTION]},
    ),
    "max_tool_calls": integers(1, HUGE, (3, 3)),
    "reasoning": Values(
        st.sampled_from([{}, {"effort": "low"}, {"summary": "auto"}, {"generate_summary": "concise", "mode": None}]),
        st.sampled_from([*NO_OBJECT, {"effort": "most"}, {"summary": True}, {"mode": "pro"}]),
        ({}, {}),
    ),
    "client_metadata": CHAT["metadata"],
    "safety_identifier": LABEL,
    "prompt_cache_key": LABEL,
    "previous_response_id": Values(st.just("resp_1"), st.sampled_from([*NO_TEXT, "", "a" * 257]), ("resp_1", "resp_2")),
    "store": flags(),
    "background": flags(),
    "top_logprobs": integers(0, 20, (1, 3)),
    "max_reasoning_tokens": integers(1, HUGE, (2, 4)),
}
FIELDS = {name: MINE.get(name) or CHAT[name] for name in ResponsesRequest.model_fields}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedSite]:
    with ScriptedSite(tmp_path_factory.mktemp("model")) as site:
        yield site


def read(name: str, value: Any) -> ResponsesRequest:
    """Read a request with one field set."""
    body = {"model": "toy", "input": "hi", **FIELDS[name].beside, name: value}
    return read_body(json.dumps(body).encode(), ResponsesRequest)


@pytest.mark.parametrize("name", FIELDS)
def test_good_value_is_taken(name: str) -> None:
    @try_few(15)
    @given(FIELDS[name].good)
    def check(value: Any) -> None:
        read(name, value)

    check()


@pytest.mark.parametrize("name", FIELDS)
def test_bad_value_is_refused_by_name(name: str) -> None:
    @try_few(30)
    @given(FIELDS[name].bad)
    def check(value: Any) -> None:
        with pytest.raises(InvalidRequest) as refused:
            read(name, value)
        assert (refused.value.param or "").partition(".")[0] == name, value

    check()


@pytest.mark.parametrize("name", NEUTRAL_RESPONSES)
def test_unsupported_field_is_refused_unless_it_means_nothing(name: str) -> None:
    for value in (None, *NEUTRAL_RESPONSES[name]):
        read_body(json.dumps({"model": "toy", "input": "hi", name: value}).encode(), ResponsesRequest)
    with pytest.raises(InvalidRequest) as refused:
        read_body(json.dumps({"model": "toy", "input": "hi", name: "other"}).encode(), ResponsesRequest)
    assert refused.value.param == name


def test_no_mixture_of_fields_is_a_fault_of_the_server(shared: ScriptedSite) -> None:
    optional: dict[str, Any] = {name: values.good | values.bad for name, values in FIELDS.items()}
    optional |= {name: FIELDS[name].good for name in ("store", "instructions", "metadata", "user")}
    for name in ("model", "input"):
        del optional[name]

    @try_few(60)
    @given(st.fixed_dictionaries({"model": st.just("toy"), "input": FIELDS["input"].good}, optional=optional))
    def check(body: dict[str, Any]) -> None:
        shared.engine.scripts = ["Hello."] * (len(shared.engine.requests) + 1)
        answer = shared.http.post(ROUTE, content=json.dumps(body), headers={"Content-Type": "application/json"})
        assert answer.status_code in {200, 400, 408, 429}, answer.text
        if answer.status_code == 400:
            assert answer.json()["error"]["param"].partition(".")[0] in body

    check()
