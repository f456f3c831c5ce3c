"""Grammars that are sure to compile are compiled once, by the head; others are tried out before."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from parallax_core.api.grammars import AskedAnswer, Grammar, GrammarKind
from parallax_grammars.library import LlguidanceLibrary
from parallax_grammars.model_grammars import LlguidanceGrammars
from parallax_grammars.plain import MOST_PARTS, is_plain
from tests.unit.tinymodel import write_model

QUICK_S = 0.05
TEXT, WHOLE = {"type": "string"}, {"type": "integer"}


def nest(depth: int) -> dict[str, Any]:
    return {"type": "array", "items": nest(depth - 1)} if depth > 1 else TEXT


def make_object(*names: str, **keywords: Any) -> dict[str, Any]:
    return {"type": "object", "properties": dict.fromkeys(names, WHOLE), **keywords}


NAMES = [f"property {number}" for number in range(MOST_PARTS - 1)]
PLAIN: list[Any] = [
    TEXT,
    make_object("a", "b", required=["b"], additionalProperties=False),
    {"title": "T", "description": "d", "anyOf": [TEXT, {"type": "null"}]},
    {"type": "array", "items": make_object("a", title="A")},
    {"type": "string", "enum": ["a", "b"]},
    nest(8),
    make_object(*NAMES),
    make_object(*NAMES, required=NAMES, additionalProperties=False),
    {"anyOf": [make_object(name, required=[name]) for name in NAMES[: MOST_PARTS // 2 - 1]]},
    {"enum": [f"{'text' * 8} {number}" for number in range(MOST_PARTS)]},
]
TRIED: list[Any] = [
    {"type": "integer", "multipleOf": 3_999_971},
    {"type": "string", "pattern": "("},
    {"type": "string", "maxLength": 9},
    {"type": "object", "required": ["a"], "additionalProperties": False},
    make_object("a", required=["a", "a"]),
    make_object("a", required="a"),
    make_object("a", additionalProperties={"type": "text"}),
    make_object(*NAMES, "one more"),
    {"type": "object", "properties": {"a": {"type": "text"}}},
    {"type": "object", "properties": [TEXT]},
    {"type": ["string", "null"]},
    {"type": "integer", "enum": ["a"]},
    {"enum": []},
    {"enum": [1]},
    {"anyOf": []},
    {"anyOf": [TEXT], "type": "integer"},
    {"$ref": "#/$defs/a", "$defs": {"a": TEXT}},
    {"type": "string", "title": 3},
    nest(9),
    {},
    True,
    [],
]


class CountedGrammars(LlguidanceGrammars):
    """Counts what it compiles."""

    count = 0

    def compile(self, grammar: Grammar) -> Any:
        self.count += 1
        return super().compile(grammar)


@pytest.fixture(scope="module")
def grammars(tmp_path_factory: pytest.TempPathFactory) -> CountedGrammars:
    folder = write_model(tmp_path_factory.mktemp("model"))
    found = CountedGrammars(folder / "tokenizer.json", 300, [0])
    found.prepare()
    return found


async def count_compilations(grammars: CountedGrammars, grammar: Grammar) -> int:
    """Return how often a grammar is compiled until an answer begins."""

    async def check(tried: Grammar) -> None:
        grammars.compile(tried)

    before = grammars.count
    asked = AskedAnswer(field="response_format", tools={}, tool_fields={}, grammar=grammar)
    found, left_out = await LlguidanceLibrary().check_answer(asked, check)
    assert (found, left_out) == (grammar, ())
    grammars.compile(found)
    return grammars.count - before


@pytest.mark.parametrize("schema", PLAIN)
async def test_plain_schema_is_compiled_once_and_quickly(grammars: CountedGrammars, schema: Any) -> None:
    grammar = Grammar(kind="json_schema", source=json.dumps(schema))
    assert await count_compilations(grammars, grammar) == 1
    times = []
    for _ in range(3):
        begun = time.process_time()
        grammars.compile(grammar)
        times.append(time.process_time() - begun)
    assert min(times) < QUICK_S


@pytest.mark.parametrize(
    ("kind", "source", "count"),
    [
        ("json_object", "", 1),
        ("choice", '["a", "b"]', 1),
        ("regex", "[ab]{3}", 2),
        ("lark", 'start: "a"', 2),
        ("json_schema", '{"type": "string", "maxLength": 9}', 2),
        ("json_schema", json.dumps(make_object("n" * 4096)), 2),
    ],
)
async def test_what_is_sure_to_compile_is_not_tried_out(
    grammars: CountedGrammars, kind: GrammarKind, source: str, count: int
) -> None:
    assert await count_compilations(grammars, Grammar(kind=kind, source=source)) == count


@pytest.mark.parametrize("schema", TRIED)
def test_schema_that_may_fail_or_take_long_is_tried_out(schema: Any) -> None:
    assert not is_plain(Grammar(kind="json_schema", source=json.dumps(schema)))


@pytest.mark.parametrize("source", ["", "{", "[" * 2000])
def test_what_is_no_schema_is_tried_out(source: str) -> None:
    assert not is_plain(Grammar(kind="json_schema", source=source))


def test_grammar_with_further_conditions_is_tried_out() -> None:
    source = json.dumps(TEXT)
    assert is_plain(Grammar(kind="json_schema", source=source, whitespace=""))
    assert not is_plain(Grammar(kind="json_schema", source=source, after=("</think>",)))
    assert not is_plain(Grammar(kind="json_schema", source=source, whitespace="[ ]{0,9}"))
    assert not is_plain(Grammar(kind="choice", source='["a", "a"]'))
