"""What the Responses API refuses, and how; and fields that ask for nothing more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parallax_core.server.api_keys import ApiKeys
from parallax_core.server.options import ServerOptions
from plugins.api_responses.tests.responses_client import (
    FUNCTION,
    NAMESPACE,
    ROUTE,
    ask,
    error_of,
    kinds,
    post,
    read_events,
)
from tests.unit.server.letters import Site
from tests.unit.server.scripted import ScriptedSite

LEFT = {"role": "assistant", "content": "Once", "status": "incomplete"}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[ScriptedSite]:
    with ScriptedSite(tmp_path) as site:
        yield site


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "file_search", "vector_store_ids": ["a"]}]}, "tools.0.type"),
        ({"tools": [{"type": "web_search_2"}]}, "tools.0.type"),
        ({"input": [LEFT], "text": {"format": {"type": "json_object"}}}, "input"),
        ({"input": [LEFT], "tools": [FUNCTION], "tool_choice": "required"}, "input"),
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


def test_unsupported_value_within_an_object_is_no_unknown_field(site: ScriptedSite) -> None:
    message = error_of(post(site, text={"verbosity": "high"}))["message"]
    assert message == "'text.verbosity' is not supported yet; leave it out or send 'medium'"


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


def test_long_prompt_is_refused(site: ScriptedSite) -> None:
    error = error_of(post(site, input="word " * 5000))
    assert error["param"] == "input"
    assert "this model can hold 4000" in error["message"]


def test_unknown_model_gets_a_404(site: ScriptedSite) -> None:
    assert error_of(post(site, model="gpt"), 404)["code"] == "model_not_found"


def test_key_is_required(tmp_path: Path) -> None:
    with ScriptedSite(tmp_path, options=ServerOptions(keys=ApiKeys({"secret": "user"}))) as site:
        assert error_of(post(site), 401)["code"] == "invalid_api_key"


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


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{**FUNCTION, "strict": True}]}, "tools"),
        ({"tools": [FUNCTION], "tool_choice": "required"}, "tool_choice"),
        ({"text": {"format": {"type": "json_object"}}}, "text.format"),
    ],
)
def test_engine_without_grammars_refuses_the_field_that_needs_one(
    site: ScriptedSite, fields: dict[str, Any], param: str
) -> None:
    site.engine.info = replace(site.engine.info, honours=site.engine.info.honours - {"grammar"})
    assert error_of(post(site, "unused", **fields))["param"] == param
