"""The ranges of fields: what the published schemas allow is accepted, and what is just outside of ours is refused.

The ranges are those of OpenAI's and Anthropic's references and of the types of their SDKs; some of ours are wider.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from starlette.testclient import TestClient

from parallax_core.models.output_parser import OutputParser
from tests.unit.server.letters import Site
from tests.unit.server.scripted import ScriptedSite
from tests.unit.server.test_reasoning_limit import SPEC, PipeParser

CHAT, COMPLETION, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MESSAGES, EMBEDDINGS = "/v1/messages", "/v1/embeddings"
TURNS = [{"role": "user", "content": "hello"}]
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": TURNS, "max_tokens": 2},
    COMPLETION: {"prompt": "hello", "max_tokens": 2},
    RESPONSES: {"input": "hello", "max_output_tokens": 2},
    MESSAGES: {"messages": TURNS, "max_tokens": 2},
    EMBEDDINGS: {"input": "hello"},
}


def make_tools(route: str, count: int, name: str = "f") -> list[dict[str, Any]]:
    """Return tools in the form of a route; the first has the name."""
    names = [name, *(f"f{number}" for number in range(1, count))]
    schema = {"type": "object"}
    if route == CHAT:
        return [{"type": "function", "function": {"name": each, "parameters": schema}} for each in names]
    if route == RESPONSES:
        return [{"type": "function", "name": each, "parameters": schema, "strict": False} for each in names]
    return [{"name": each, "input_schema": schema} for each in names]


def make_format(route: str, name: str) -> dict[str, Any]:
    """Return the value of the field that asks for a schema of that name."""
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    if route == CHAT:
        return {"type": "json_schema", "json_schema": {"name": name, "schema": schema}}
    return {"format": {"type": "json_schema", "name": name, "schema": schema}}


@dataclass(frozen=True)
class Range:
    """The values of a field."""

    field: str
    good: list[Any]
    """At the borders of the published range, and within it."""
    bad: list[Any]
    """Just outside of ours."""
    routes: tuple[str, ...] = (CHAT,)
    beside: tuple[tuple[str, Any], ...] = ()
    """Other fields that it needs."""


OPENAI = (CHAT, COMPLETION, RESPONSES)
GENERATED = (CHAT, COMPLETION)
TOP = [0, 1, 20]
LABELS = {f"{number}": "x" for number in range(16)}
RANGES = [
    Range("temperature", [0, 0.0, 1, 2, 2.0], [-0.001, 2.001, "1", True], (*OPENAI, MESSAGES)),
    Range("top_p", [0, 0.0, 0.5, 1, 1.0], [-0.001, 1.001, "1"], (*OPENAI, MESSAGES)),
    Range("top_k", [0, 1, 500], [-2, 2**31, 0.5], (CHAT, COMPLETION)),
    Range("top_k", [0, 1, 500], [-1, 2**31, 0.5], (MESSAGES,)),
    Range("presence_penalty", [-2, -2.0, 0, 2, 2.0], [-2.001, 2.001], OPENAI),
    Range("frequency_penalty", [-2, -2.0, 0, 2, 2.0], [-2.001, 2.001], OPENAI),
    Range("n", [1, 2, 128], [0, 129, 1.5], GENERATED),
    Range("best_of", [0, 1, 20], [-1, 129], (COMPLETION,)),
    Range("seed", [-(2**63), -1, 0, 2**63 - 1], [-(2**63) - 1, 2**63, 0.5], GENERATED),
    Range("logit_bias", [{}, {"1": -100}, {"1": 100}, {"1": 0.5}], [{"1": -101}, {"1": 101}, {"a": 1}], GENERATED),
    Range(
        "stop",
        [None, "a", "", [], ["a"], list("abcd"), list("abcdefghijklmnop")],
        [list("abcdefghijklmnopq"), 1],
        GENERATED,
    ),
    Range(
        "stop_sequences", [[], ["a"], [f"stop{number}" for number in range(64)]], [["a"] * 65, [1], "a"], (MESSAGES,)
    ),
    Range("logprobs", [True, False], [2, "true"]),
    Range("logprobs", [0, 1, 5, 20], [-1, 21], (COMPLETION,)),
    Range("top_logprobs", TOP, [-1, 21, 0.5], (CHAT,), (("logprobs", True),)),
    Range("top_logprobs", TOP, [-1, 21, 0.5], (RESPONSES,)),
    Range("max_tokens", [1, 390], [-1, 2**31, 1.5], (CHAT, COMPLETION, MESSAGES)),
    Range("max_tokens", [0], [], (COMPLETION, MESSAGES)),
    Range("max_completion_tokens", [1, 390], [0, -1, 2**31], (CHAT,), (("max_tokens", None),)),
    Range("max_output_tokens", [16, 390, None], [0, -1, 2**31], (RESPONSES,)),
    Range("max_tool_calls", [1, 100], [0, -1], (RESPONSES,)),
    Range(
        "metadata",
        [{}, LABELS, {"a" * 64: "b" * 512}],
        [{**LABELS, "17": "x"}, {"a" * 65: "b"}, {"a": "b" * 513}, {"a": 1}],
        (CHAT, RESPONSES),
    ),
    Range("metadata", [{}, {"user_id": None}, {"user_id": "a" * 512}], [{"user_id": 1}], (MESSAGES,)),
    Range("user", ["", "a" * 512], [1], (*OPENAI, EMBEDDINGS)),
    Range("safety_identifier", ["", "a" * 128], ["a" * 129, 1], (CHAT, RESPONSES)),
    Range("prompt_cache_key", ["", "a" * 512], [1], (CHAT, RESPONSES)),
    Range(
        "thinking",
        [{"type": "enabled", "budget_tokens": 1024}, {"type": "adaptive"}, {"type": "disabled"}],
        [{"type": "enabled", "budget_tokens": 0}, {"type": "enabled"}],
        (MESSAGES,),
        (("max_tokens", 2000),),
    ),
    Range(
        "input",
        ["a", ["a"], ["a"] * 2048, [1], [[1]], [1] * 390],
        [[], "", [""], ["a"] * 2049, [[1]] * 2049, [-1]],
        (EMBEDDINGS,),
    ),
    Range("encoding_format", ["float", "base64"], ["int8", 1], (EMBEDDINGS,)),
    Range("dimensions", [None], [0, -1, 0.5], (EMBEDDINGS,)),
]
SCRIPTED = [
    *(
        Range(
            "tools",
            [make_tools(route, 1, "a" * 64), make_tools(route, 128), make_tools(route, 1, "a-Z_0")],
            [make_tools(route, 129), make_tools(route, 1, ""), make_tools(route, 1, "a b")],
            (route,),
        )
        for route in (CHAT, RESPONSES)
    ),
    Range(
        "tools",
        [make_tools(MESSAGES, 1, "a" * 128), make_tools(MESSAGES, 1024)],
        [make_tools(MESSAGES, 1025), make_tools(MESSAGES, 1, "a" * 129), make_tools(MESSAGES, 1, "")],
        (MESSAGES,),
    ),
    *(
        Range(
            field,
            [make_format(route, "a" * 64), make_format(route, "a-Z_0")],
            [make_format(route, "a" * 65), make_format(route, "a b")],
            (route,),
        )
        for route, field in ((CHAT, "response_format"), (RESPONSES, "text"))
    ),
]
"""Ranges that need a model with a real vocabulary and a long context."""


def list_cases(ranges: list[Range]) -> list[tuple[str, Range]]:
    return [(route, each) for each in ranges for route in each.routes]


def name_case(part: Any) -> str:
    return part.field if isinstance(part, Range) else str(part)


@pytest.fixture(scope="module")
def server() -> Iterator[Site]:
    with Site(parser=OutputParser(SPEC, PipeParser)) as site:
        site.text.stop_ids = frozenset({25})
        yield site


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedSite]:
    with ScriptedSite(tmp_path_factory.mktemp("model"), length=10**6) as site:
        yield site


def check_range(http: TestClient, route: str, each: Range) -> None:
    for status, values in ((200, each.good), (400, each.bad)):
        for value in values:
            answer = http.post(route, json={"model": "toy", **BODIES[route], **dict(each.beside), each.field: value})
            assert answer.status_code == status, (value, answer.text)
            if status != 200:
                error = answer.json()["error"]
                named = error.get("param", error["message"].lstrip("'"))  # Anthropic's form has a message only
                assert re.match(rf"{each.field}\b", named), (value, error)


@pytest.mark.parametrize(("route", "each"), list_cases(RANGES), ids=name_case)
def test_published_range_is_accepted_and_what_is_outside_is_refused_by_name(
    server: Site, route: str, each: Range
) -> None:
    check_range(server.client, route, each)


@pytest.mark.parametrize(("route", "each"), list_cases(SCRIPTED), ids=name_case)
def test_ranges_of_tools_and_forms_are_those_of_the_api(scripted: ScriptedSite, route: str, each: Range) -> None:
    scripted.engine.scripts += ["{}"] * len(each.good)
    check_range(scripted.http, route, each)
