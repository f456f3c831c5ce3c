"""Random answers under the grammar of strict tools: their calls are read back by the model's own parser, and valid."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest

from parallax_core.api import CallForm, Parser, ToolCall
from parallax_core.models.tokenizer import ModelTokenizer
from parallax_core.server.strict_calls import CallableTools, make_marked_grammar, make_strict_grammar
from parallax_models.parsers.formats import CALL_FORMS, CALL_MARKS, FORMATS
from parallax_models.parsers.json_calls import GraniteParser, HermesParser, Llama3Parser, MinimaxM1Parser
from tests.unit.models.test_grammars import follow, generate
from tests.unit.tinymodel import write_model

LETTER = {
    "type": "object",
    "properties": {"letter": {"$ref": "#/$defs/one"}},
    "required": ["letter"],
    "additionalProperties": False,
    "$defs": {"one": {"enum": ["a", "é"]}},
}
SCHEMAS = {"spell": json.dumps(LETTER), "stop": '{"type": "object", "properties": {"now": {"type": "boolean"}}}'}
PARSERS: dict[str, type[Parser]] = {
    "hermes": HermesParser,
    "llama3_json": Llama3Parser,
    "minimax_m1": MinimaxM1Parser,
    "granite": GraniteParser,
}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> ModelTokenizer:
    return ModelTokenizer(write_model(tmp_path_factory.mktemp("model")))


def compile_form(text: ModelTokenizer, form: CallForm, **changes: Any) -> Any:
    answer = changes.pop("answer", "")
    tools = CallableTools(**{"schemas": SCHEMAS, "strict": {"spell"}, "allows_many": True, **changes})
    return text.grammars.compile(make_strict_grammar(form, tools, text.grammars.find_special, answer))


def read_calls(name: str, answer: str) -> list[tuple[str, Any]]:
    """Return the names and the arguments of the calls in an answer."""
    parser = PARSERS[name]()
    pieces = [*parser.feed(answer), *parser.finish()]
    found: dict[int, list[str]] = {}
    for piece in pieces:
        if isinstance(piece, ToolCall):
            call = found.setdefault(piece.index, ["", ""])
            call[0] += piece.name
            call[1] += piece.arguments
    return [(name, json.loads(arguments)) for name, arguments in found.values()]


def begin(name: str) -> str:
    """Return the text with which the calls of an answer begin."""
    return CALL_FORMS[name].begin or "{"


@pytest.mark.parametrize("name", CALL_FORMS)
def test_calls_follow_their_schemas(text: ModelTokenizer, name: str) -> None:
    compiled, source, num_found = compile_form(text, CALL_FORMS[name]), random.Random(7), 0
    for _ in range(12):
        matcher = compiled.start()
        matcher.advance(text.encode(begin(name)))
        rest = generate(text, matcher, source)
        if rest is not None:
            calls = read_calls(name, begin(name) + rest)
            assert calls
            for tool, arguments in calls:
                jsonschema.validate(arguments, LETTER if tool == "spell" else {"type": "object"})
            num_found += len(calls)
    assert num_found


@pytest.mark.parametrize("name", CALL_FORMS)
@pytest.mark.parametrize("answer", ["", "No.", "I say:\n\n{} and [] < 3"])
def test_answer_without_calls_is_free(text: ModelTokenizer, name: str, answer: str) -> None:
    assert follow(text, compile_form(text, CALL_FORMS[name]).start(), answer) == (True, True)


CALL = '{"name": "spell", "arguments": {"letter": "a"}}'
STOP = '{"name": "stop", "arguments": {"now": 3, "more": []}}'


@pytest.mark.parametrize(
    ("answer", "is_allowed"),
    [
        (f"Well.<tool_call>\n{CALL}\n</tool_call>", True),
        (f"<tool_call>{CALL}</tool_call>\n<tool_call>\n{STOP}\n</tool_call>", True),
        (f"<tool_call>\n{CALL.replace('a', 'b')}\n</tool_call>", False),
        ('<tool_call>\n{"name": "spell", "arguments": {}}\n</tool_call>', False),
        ('<tool_call>\n{"name": "other", "arguments": {}}\n</tool_call>', False),
        ("<tool_call> is a mark", False),
        (f"<tool_call>\n{CALL}\n</tool_call> There.", False),
    ],
)
def test_grammar_of_hermes_holds_after_the_mark(text: ModelTokenizer, answer: str, is_allowed: bool) -> None:
    assert follow(text, compile_form(text, CALL_FORMS["hermes"]).start(), answer) == (is_allowed, is_allowed)


@pytest.mark.parametrize("name", CALL_FORMS)
def test_answer_has_its_form_or_calls_tools(text: ModelTokenizer, name: str) -> None:
    source, num_calls, num_answers = random.Random(3), 0, 0
    compiled = compile_form(text, CALL_FORMS[name], answer=json.dumps(LETTER))
    for wrong in ("No.", '{"letter": "b"}', '{"letter": "a"} <tool_call>', "I call <tool_call>"):
        assert follow(text, compiled.start(), wrong) != (True, True)
    assert follow(text, compiled.start(), '{"letter": "a"}') == (True, True)
    for _ in range(40):
        answer = generate(text, compiled.start(), source)
        if answer is None:
            continue
        if calls := read_calls(name, answer):
            num_calls += 1
            assert all(tool != "spell" or arguments["letter"] in {"a", "é"} for tool, arguments in calls)
        else:
            num_answers += 1
            jsonschema.validate(json.loads(answer), LETTER)
    assert num_calls
    assert num_answers


@pytest.mark.parametrize("name", CALL_MARKS)
def test_answer_has_its_form_or_begins_as_a_call(text: ModelTokenizer, name: str) -> None:
    [spec] = [spec for spec in FORMATS if spec.name == name]
    [mark] = spec.call_marks
    assert mark in spec.factory.load().openers  # type: ignore[attr-defined]
    grammar = make_marked_grammar(spec.call_marks, spec.special_tokens, text.grammars.find_special, json.dumps(LETTER))
    compiled = text.grammars.compile(grammar)
    for answer in ('{"letter": "a"}', f"{mark}any text, {{", f"\n{mark}"):
        assert follow(text, compiled.start(), answer) == (True, True)
    for answer in ("No.", "{}", f'{{"letter": "a"}}{mark}'):
        assert follow(text, compiled.start(), answer) != (True, True)


def test_schema_of_a_tool_that_is_not_strict_does_not_hold(text: ModelTokenizer) -> None:
    answer = f"<tool_call>{STOP}</tool_call>"
    assert follow(text, compile_form(text, CALL_FORMS["hermes"]).start(), answer) == (True, True)
    held = compile_form(text, CALL_FORMS["hermes"], strict={"spell", "stop"})
    assert follow(text, held.start(), answer) == (False, False)


def test_one_call_is_the_last_if_calls_are_not_parallel(text: ModelTokenizer) -> None:
    one = compile_form(text, CALL_FORMS["hermes"], allows_many=False)
    assert follow(text, one.start(), f"<tool_call>{CALL}</tool_call>") == (True, True)
    assert follow(text, one.start(), f"<tool_call>{CALL}</tool_call><tool_call>{CALL}</tool_call>") == (False, False)
