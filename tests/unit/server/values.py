"""Values for every field of a request: valid ones with limits, invalid ones, and two that must differ in effect."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

Strategy = st.SearchStrategy[Any]

HUGE = 2**31 - 1
LONE = "\ud800"
NO_NUMBER = ["1", "", True, [], {}, [1], LONE, math.nan, math.inf, -math.inf]
NO_TEXT = [1, 0.5, True, {}, [1], LONE]
NO_FLAG = [0, 1, "true", [], {}]
NO_LIST = [1, True, {}, [[]], [{}], [None], [LONE, 1.5]]
NO_OBJECT = [1, True, "x", [], [1], {LONE: 1}, {"x": LONE}]


@dataclass(frozen=True)
class Values:
    """Values for one field."""

    good: Strategy
    bad: Strategy
    pair: tuple[Any, Any]
    """Two values that must lead to different requests or answers; equal values mark the field as a label."""
    beside: dict[str, Any] = field(default_factory=dict)
    """Other fields that it requires."""


def numbers(low: float, high: float, pair: tuple[Any, Any], *, is_open: bool = False) -> Values:
    """Return values of a number field with limits ``low`` (excluded if ``is_open``) and ``high``."""
    least = [math.ulp(0.0), 1e-300, 1e-38, 1e-7] if low == 0 else [low]
    good = st.one_of(st.sampled_from([high, *least]), st.floats(low, high, exclude_min=is_open))
    outside = [low - 0.001, high + 0.001, -1e300, 1e300] + ([low] if is_open else [])
    return Values(good, st.sampled_from([*NO_NUMBER, *outside]), pair)


def integers(low: int, high: int, pair: tuple[Any, Any], most: int | None = None, **beside: Any) -> Values:
    """Return values of an integer field; ``most`` is the largest valid value to try, if below ``high``."""
    good = st.one_of(st.sampled_from([low, high if most is None else most]), st.integers(low, most or high))
    return Values(good, st.sampled_from([*NO_NUMBER, low - 1, high + 1, 0.5, 10**400]), pair, beside)


def flags(pair: tuple[Any, Any] = (False, True), **beside: Any) -> Values:
    """Return values of a boolean field."""
    return Values(st.booleans(), st.sampled_from(NO_FLAG), pair, beside)


def make_tools(names: list[str]) -> list[dict[str, Any]]:
    """Return a tool for each name."""
    return [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in names]


TEXT = st.text(max_size=20).filter(lambda text: not any(0xD800 <= ord(letter) < 0xE000 for letter in text))
TOKENS = st.lists(st.integers(0, 30), min_size=1, max_size=5)
STOPS = st.text("abc", min_size=1, max_size=3)
TURNS = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "developer", "user", "assistant"]), "content": TEXT}),
    min_size=1,
    max_size=3,
).filter(lambda turns: any(turn["content"] for turn in turns))

BAD_STOPS = st.sampled_from([1, True, {}, LONE, [LONE], ["a"] * 17, "a" * 1025, [1]])
BAD_BIASES = st.sampled_from(
    [
        1,
        "x",
        [],
        {"x": 1},
        {"-1": 1},
        {"1": 101},
        {"1": "1"},
        {"1": math.nan},
        {"31": 1},
        {"99999999999": 1},
        {"1": True},
    ]
)
BAD_TURNS: Strategy = st.sampled_from(
    [None, 1, "x", {}, [], [1], [{}], [{"role": "user"}], [{"role": "robot", "content": "x"}]]
    + [[{"role": "user", "content": bad}] for bad in (None, 1, [1], [{"type": "image_url"}], LONE, {"text": "x"})]
)
BAD_PROMPTS: Strategy = st.sampled_from(
    [None, 1, True, {}, [], [[]], [1, "a"], ["a", 1], [31], [[31]], [-1], LONE, [LONE], ""]
)

NULL, FLAG = {"type": "null"}, {"type": "boolean"}
"""Schemas that letters alone can match."""


def make_format(schema: Any) -> dict[str, Any]:
    """Return the ``response_format`` for a JSON schema."""
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}}


STRUCTURED = {
    "response_format": Values(
        st.sampled_from([{"type": "text"}, make_format(NULL), make_format(FLAG)]),
        st.sampled_from(
            [*NO_OBJECT, {"type": "xml"}, {"type": "json_schema"}, make_format(1), make_format({"not": {}})]
        ),
        (make_format(NULL), make_format(FLAG)),
    ),
    "structured_outputs": Values(
        st.sampled_from(
            [{}, {"regex": "[a-m]{2}"}, {"choice": ["a b", "c"]}, {"json": FLAG}, {"grammar": 'start: "a"'}]
        ),
        st.sampled_from([*NO_OBJECT, {"regex": "("}, {"choice": []}, {"json": NULL, "regex": "a"}, {"grammar": "a"}]),
        ({"choice": ["a"]}, {"regex": "b"}),
    ),
    "guided_json": Values(
        st.sampled_from([NULL, FLAG, '{"type": "null"}']),
        st.sampled_from([1, True, "{", [], {"not": {}}]),
        (NULL, FLAG),
    ),
    "guided_regex": Values(st.sampled_from(["a+", "[b-d]{3}"]), st.sampled_from([*NO_TEXT, "(", "a(?=b)"]), ("a", "b")),
    "guided_choice": Values(
        st.lists(st.text("abc ", min_size=1), min_size=1, max_size=4),
        st.sampled_from([*NO_LIST, [], [LONE], "a"]),
        (["a"], ["b"]),
    ),
    "guided_grammar": Values(
        st.sampled_from(['start: "a" | "b"', 'root ::= "a" | "b"']),
        st.sampled_from([*NO_TEXT, "start: x", "root ::= ("]),
        ('start: "a"', 'start: "b"'),
    ),
}

COMMON = STRUCTURED | {
    "model": Values(st.just("toy"), st.sampled_from(NO_TEXT), ("toy", "other")),
    "min_tokens": integers(0, HUGE, (0, 6), most=6, stop=["a", "e", "i", "o", "u"]),
    "n": integers(1, 128, (1, 3), most=4),
    "temperature": numbers(0, 2, (0, 1.5)),
    "top_p": numbers(0, 1, (0.1, 1)),
    "top_k": integers(-1, HUGE, (1, 0)),
    "min_p": numbers(0, 1, (0, 0.9)),
    "seed": integers(-(2**63), 2**63 - 1, (1, 2)),
    "presence_penalty": numbers(-2, 2, (-2, 2)),
    "frequency_penalty": numbers(-2, 2, (-2, 2)),
    "repetition_penalty": numbers(0.01, 10, (0.5, 3)),
    "logit_bias": Values(
        st.dictionaries(st.integers(0, 30).map(str), st.floats(-100, 100), max_size=5),
        BAD_BIASES,
        ({"3": 100}, {"4": 100}),
    ),
    "stop": Values(st.one_of(STOPS, st.lists(STOPS, max_size=16)), BAD_STOPS, (None, ["a", "e", "i", "o", "u", "t"])),
    "stop_token_ids": Values(
        st.lists(st.integers(0, 30), max_size=64),
        st.sampled_from([*NO_LIST, [-1], [31], [0.5], [0] * 65]),
        ([], list(range(15))),
    ),
    "ignore_eos": flags(),
    "stream": flags(),
    "stream_options": Values(
        st.fixed_dictionaries({}, optional={"include_usage": st.booleans()}),
        st.sampled_from([*NO_OBJECT, {"include_usage": 1}, {"other": True}]),
        ({"include_usage": False}, {"include_usage": True}),
        {"stream": True},
    ),
    "priority": integers(-(2**31), HUGE, (0, 5)),
    "timeout": numbers(0, 86400, (100, 200), is_open=True),
    "cache_salt": Values(
        st.text("abc", min_size=1, max_size=9), st.sampled_from([*NO_TEXT, "", "a" * 257]), ("a", "b")
    ),
    "user": Values(TEXT, st.sampled_from(NO_TEXT), ("a", "a")),
}

CHAT = COMMON | {
    "messages": Values(TURNS, BAD_TURNS, ([{"role": "user", "content": "a"}], [{"role": "user", "content": "b"}])),
    "max_tokens": integers(1, HUGE, (3, 5), most=9),
    "max_completion_tokens": integers(1, HUGE, (3, 5), most=9, max_tokens=None),
    "logprobs": Values(st.booleans(), st.sampled_from([1, "true", [], {}]), (False, True)),
    "top_logprobs": integers(0, 20, (1, 3), logprobs=True),
    "chat_template_kwargs": Values(
        st.dictionaries(
            TEXT.filter(lambda name: name not in {"suffix", "forbidden"}), st.integers() | TEXT, max_size=3
        ),
        st.sampled_from(NO_OBJECT),
        ({"suffix": "a"}, {"suffix": "b"}),
    ),
    "tools": Values(
        st.lists(st.from_regex(r"[a-zA-Z0-9_.-]{1,9}", fullmatch=True), max_size=3, unique=True).map(make_tools),
        st.sampled_from([*NO_LIST[:3], [1], [{}], [{"type": "custom"}], make_tools(["a b"]), make_tools(["a"] * 2)]),
        ([], make_tools(["look"])),
    ),
    "tool_choice": Values(
        st.sampled_from(["none", "auto"]),
        st.sampled_from(["required", "x", 1, [], {}, {"type": "function", "function": {"name": "look"}}]),
        ("none", "auto"),
        {"tools": make_tools(["look"])},
    ),
    "parallel_tool_calls": flags(),
    "reasoning_effort": Values(
        st.sampled_from(["none", "minimal", "low", "medium", "high", "xhigh"]),
        st.sampled_from([*NO_TEXT, "", "most"]),
        ("low", "high"),
    ),
    "max_reasoning_tokens": integers(1, HUGE, (2, 4), n=1),
    "metadata": Values(
        st.dictionaries(TEXT, TEXT, max_size=3), st.sampled_from([*NO_OBJECT, {"a": 1}]), ({"a": "b"}, {"a": "b"})
    ),
    "safety_identifier": Values(TEXT, st.sampled_from(NO_TEXT), ("a", "b")),
    "prompt_cache_key": Values(TEXT, st.sampled_from(NO_TEXT), ("a", "b")),
}

COMPLETION = COMMON | {
    "prompt": Values(
        st.one_of(
            TEXT.filter(bool),
            TOKENS,
            st.lists(TEXT.filter(bool), min_size=1, max_size=3),
            st.lists(TOKENS, min_size=1, max_size=3),
        ),
        BAD_PROMPTS,
        ("ab", [0, 2]),
    ),
    "max_tokens": integers(0, HUGE, (3, 5), most=9, echo=True),
    "echo": flags(),
    "best_of": integers(0, 128, (1, 6), most=6, n=1, stream=False),
    "logprobs": integers(0, 20, (None, 2)),
}
