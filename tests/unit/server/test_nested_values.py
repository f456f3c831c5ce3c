"""Every value at every depth of every body may be anything: the answer is an answer, or a 400 that names a field."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_core.contracts.engine import Request
from tests.unit.server.scripted import ScriptedEngine, ScriptedSite
from tests.unit.server.trials import try_few

FieldPath = tuple[str | int, ...]

LONE = "\ud800"
ANSWER = 'hello <tool_call>\n{"name": "look", "arguments": {"a": "b"}}\n</tool_call>'
STATUSES = {200, 400, 404}
SCHEMA = {
    "type": "object",
    "properties": {
        "a": {"type": "string", "maxLength": 5},
        "b": {"enum": ["x", 1, None]},
        "c": {"type": "array", "items": {"anyOf": [{"type": "integer", "minimum": 0}, {"$ref": "#/$defs/d"}]}},
    },
    "required": ["a"],
    "$defs": {"d": {"type": "object", "properties": {"e": {"const": 1}}}},
}
TOOL = {"type": "function", "function": {"name": "look", "description": "d", "parameters": SCHEMA, "strict": True}}
CALL = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": 'start: "a"'}
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (
        "/v1/chat/completions",
        {
            "messages": [
                {"role": "system", "content": "s", "name": "n"},
                {"role": "user", "content": [{"type": "text", "text": "hi"}]},
                {"role": "assistant", "content": None, "reasoning_content": "r", "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "1", "content": "found"},
            ],
            "tools": [TOOL],
            "tool_choice": {"type": "function", "function": {"name": "look"}},
            "n": 2,
            "logprobs": True,
            "top_logprobs": 2,
            "stop": ["zz"],
            "logit_bias": {"5": 1},
            "stream": True,
            "stream_options": {"include_usage": True},
            "chat_template_kwargs": {"enable_thinking": True},
            "metadata": {"a": "b"},
        },
    ),
    "chat under a schema": (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "go"}],
            "response_format": {"type": "json_schema", "json_schema": {"name": "it", "schema": SCHEMA, "strict": True}},
        },
    ),
    "response": (
        "/v1/responses",
        {
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
                {
                    "type": "message",
                    "role": "assistant",
                    "id": "msg_1",
                    "status": "completed",
                    "content": [{"type": "output_text", "text": "yo", "annotations": [], "logprobs": []}],
                },
                {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "s"}]},
                {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}", "id": "fc_1"},
                {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "o"}]},
                {"type": "custom_tool_call", "call_id": "c2", "name": "write", "input": "x"},
                {"type": "custom_tool_call_output", "call_id": "c2", "output": "x"},
            ],
            "tools": [
                {"type": "function", "name": "look", "description": "d", "parameters": SCHEMA, "strict": True},
                {"type": "custom", "name": "write", "description": "d", "format": GRAMMAR},
                {"type": "namespace", "name": "more", "description": "d", "tools": [{"type": "function", "name": "x"}]},
                {"type": "web_search", "filters": {"allowed_domains": ["a"]}},
            ],
            "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "look"}]},
            "include": ["reasoning.encrypted_content", "message.output_text.logprobs"],
            "reasoning": {"effort": "low", "summary": "auto"},
            "text": {"format": {"type": "text"}, "verbosity": "medium"},
            "stream": True,
        },
    ),
    "message": (
        "/v1/messages",
        {
            "max_tokens": 5,
            "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "hi", "citations": None}]},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "t", "signature": "s"},
                        {"type": "tool_use", "id": "1", "name": "look", "input": {"a": 1}},
                    ],
                },
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "found"}]},
            ],
            "tools": [{"name": "look", "description": "d", "input_schema": SCHEMA, "strict": True}],
            "tool_choice": {"type": "tool", "name": "look", "disable_parallel_tool_use": True},
            "thinking": {"type": "disabled"},
            "metadata": {"user_id": "u"},
            "stream": True,
        },
    ),
    "conversation to tokenize": ("/tokenize", {"messages": [{"role": "user", "content": "x"}], "tools": [TOOL]}),
    "completion": ("/v1/completions", {"prompt": ["a"], "echo": True, "logprobs": 2, "best_of": 3, "stop": "z"}),
}


def nest(depth: int, *, in_lists: bool) -> Any:
    """Return a value within so many lists or objects."""
    value: Any = 1
    for _ in range(depth):
        value = [value] if in_lists else {"a": value}
    return value


ANYTHING: list[Any] = [
    *(None, True, False, 0, -1, 1.5, 1e308, 10**30, math.nan, math.inf),
    *("", LONE, "\x00", "x", "auto", "required", "none", "text", "<|im_end|>", "{{ 1 }}", "a" * 3000),
    *([], [None], [[]], [{}], [LONE], {}, {"": None}, {LONE: 1}, {"type": []}, {"type": "x"}, {"$ref": "#"}),
    *(nest(depth, in_lists=in_lists) for depth in (60, 900) for in_lists in (False, True)),
]


def list_paths(value: Any, path: FieldPath = ()) -> Iterator[FieldPath]:
    """Yield the paths of all values in ``value``."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from list_paths(item, (*path, key))


def replace_at(body: Any, path: FieldPath, value: Any) -> Any:
    if not path:
        return value
    found = copy.copy(body)
    found[path[0]] = replace_at(body[path[0]], path[1:], value)
    return found


class AnsweringEngine(ScriptedEngine):
    """Answers every request alike."""

    def choose(self, request: Request) -> str:
        del request
        return ANSWER


class Answering(ScriptedSite):
    """A server whose engine answers every request alike."""

    def make_script(self, encode: Callable[[str], list[int]], length: int) -> ScriptedEngine:
        return AnsweringEngine(encode, length)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedSite]:
    with Answering(tmp_path_factory.mktemp("model")) as site:
        yield site


def send(site: ScriptedSite, route: str, body: bytes) -> Any:
    return site.http.post(route, content=body, headers={"Content-Type": "application/json"})


@pytest.mark.parametrize("name", BODIES)
def test_any_value_at_any_depth_is_answered_or_refused_by_name(site: ScriptedSite, name: str) -> None:
    route, fields = BODIES[name]
    body = {"model": "toy", "max_tokens" if "response" not in name else "max_output_tokens": 5, **fields}
    if route == "/tokenize":
        del body["max_tokens"]
    assert send(site, route, json.dumps(body).encode()).status_code == 200

    @try_few(30)
    @given(st.sampled_from(list(list_paths(body))), st.sampled_from(ANYTHING))
    def check(path: FieldPath, value: Any) -> None:
        reply = send(site, route, json.dumps(replace_at(body, path, value)).encode())
        assert reply.status_code in STATUSES, (path, reply.text)
        if reply.status_code == 400:
            error = reply.json()["error"]
            assert error["message"]
            assert route == "/v1/messages" or not path or error["param"], (path, reply.text)

    check()
