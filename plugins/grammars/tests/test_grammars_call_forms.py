"""Random answers of parsers that say how calls are written, under the grammar that follows from it."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest

from parallax_core.api import AllowedAnswers, CallForm, Grammar, ToolCall
from parallax_core.models.tokenizer import ModelTokenizer
from parallax_grammars.call_forms import CallFormWriter
from parallax_grammars.model_grammars import LlguidanceGrammars
from parallax_models.parsers.json_calls import HermesParser, Llama3Parser
from tests.support.grammar_walk import follow, generate
from tests.unit.tinymodel import write_model

LETTER = {"properties": {"letter": {"enum": ["a", "é"]}}, "required": ["letter"], "additionalProperties": False}
TOOLS = {"spell": json.dumps({"type": "object", **LETTER}), "stop": '{"type": "object"}'}
FORMS = {
    "hermes": CallForm(begin="<tool_call>", between=("</tool_call>", "<tool_call>"), end=("</tool_call>",)),
    "special": CallForm(begin="<end>", between=(",",)),
    "llama3_json": CallForm(between=(";",), arguments="parameters"),
}
CALL = '{"name": "spell", "arguments": {"letter": "a"}}'


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> ModelTokenizer:
    return ModelTokenizer(write_model(tmp_path_factory.mktemp("model")))


def compile_form(text: ModelTokenizer, name: str, **changes: Any) -> Any:
    assert isinstance(text.grammars, LlguidanceGrammars)
    fields = {"tools": TOOLS, "most_calls": 2, "find_special": text.grammars.find_special, **changes}
    grammar = CallFormWriter(FORMS[name]).write_grammar(AllowedAnswers(**fields))
    return text.grammars.compile(Grammar(kind="lark", source=grammar))


@pytest.mark.parametrize(("name", "parser"), [("hermes", HermesParser), ("llama3_json", Llama3Parser)])
def test_calls_follow_their_schemas(text: ModelTokenizer, name: str, parser: Any) -> None:
    compiled, source, num_found = compile_form(text, name, must_call=True), random.Random(7), 0
    for _ in range(8):
        if (answer := generate(text, compiled.start(), source)) is not None:
            reader = parser()
            pieces = [piece for piece in [*reader.feed(answer), *reader.finish()] if isinstance(piece, ToolCall)]
            arguments = "".join(piece.arguments for piece in pieces if not piece.index)
            jsonschema.validate(json.loads(arguments), json.loads(TOOLS[pieces[0].name]))
            num_found += 1
    assert num_found


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("answer", ["", "No.", "I say:\n\n{} and [] < 3"])
def test_answer_without_calls_is_free(text: ModelTokenizer, name: str, answer: str) -> None:
    assert follow(text, compile_form(text, name).start(), answer) == (True, True)


@pytest.mark.parametrize(
    ("answer", "is_allowed"),
    [
        (f"Well.<tool_call>\n{CALL}\n</tool_call>", True),
        (f"<tool_call>{CALL}</tool_call>\n<tool_call>{CALL}</tool_call>", True),
        (f"<tool_call>{CALL}</tool_call><tool_call>{CALL}</tool_call><tool_call>{CALL}</tool_call>", False),
        ('<tool_call>{"name": "spell", "arguments": {}}</tool_call>', False),
        ("<tool_call> is a mark", False),
    ],
)
def test_grammar_holds_after_the_mark(text: ModelTokenizer, answer: str, is_allowed: bool) -> None:
    assert follow(text, compile_form(text, "hermes").start(), answer) == (is_allowed, is_allowed)


def test_answer_has_its_form_or_calls_tools(text: ModelTokenizer) -> None:
    compiled = compile_form(text, "hermes", answer='answer: "yes" | "no"')
    for answer, is_allowed in (("yes", True), (f"<tool_call>{CALL}</tool_call>", True), ("maybe", False)):
        assert follow(text, compiled.start(), answer) == (is_allowed, is_allowed)
