"""Random answers under the grammar of each format: their calls are read back by its parser, and follow the schemas."""

# ruff: noqa: RUF001 -- marks of DeepSeek have this character

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from typing import Any

import jsonschema
import pytest
from tokenizers import AddedToken, Tokenizer

from parallax_core.api import AnswerInfo, Content, Grammar, InvalidRequest, ParserSpec, ToolCall
from parallax_core.api.grammars import AskedAnswer
from parallax_core.contracts.grammar import Matcher
from parallax_core.models.tokenizer import ModelTokenizer
from parallax_grammars.format_grammar import find_writer, write_form
from parallax_grammars.model_grammars import LlguidanceGrammars
from parallax_models.parsers.formats import FORMATS
from tests.support.grammar_walk import follow, list_allowed
from tests.unit.tinymodel import write, write_model

SPECS: dict[str, ParserSpec] = {spec.name: spec for spec in FORMATS if spec.finds_calls}
XML = ("qwen3_coder", "glm4", "minimax")
MARKS = {token for spec in FORMATS for token in spec.special_tokens} | {"<tool_calls>", "</parameter>", "</arg_value>"}
LETTER: dict[str, Any] = {
    "type": "object",
    "properties": {"letter": {"$ref": "#/$defs/one"}},
    "required": ["letter"],
    "additionalProperties": False,
    "$defs": {"one": {"enum": ["a", "é"]}},
}
TRIP: dict[str, Any] = {
    "$id": "https://example.org/trip.json",
    "type": "object",
    "properties": {
        "über": {"type": "string", "minLength": 2, "maxLength": 9},
        "day": {"type": "string", "format": "date"},
        "note": {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}], "default": None},
        "days": {"type": "integer", "minimum": 3, "maximum": 12},
        "kind": {"enum": ["1", 1, "null", None, "true", "a\n", "\nb"]},
        "code": {"type": "string", "pattern": "^[A-Z]{2}/[0-9]+$"},
        "size": {"type": ["string", "integer"], "minimum": 7, "maxLength": 4},
        "is_far": {"type": "boolean"},
        "stops": {"type": "array", "items": {"$ref": "trip.json#/$defs/stop"}, "maxItems": 2},
        "first": {"oneOf": [{"$ref": "#/$defs/stop"}, {"type": "null"}]},
        "all": {"allOf": [{"$ref": "#/$defs/stop"}]},
        "any": {},
    },
    "required": ["über", "days", "kind", "code"],
    "additionalProperties": False,
    "$defs": {"stop": {"type": "object", "properties": {"at": {"enum": ["x", "y"]}}, "additionalProperties": False}},
}
SCHEMAS = {"spell": LETTER, "go.to-it": TRIP, "stop": {"type": "object", "additionalProperties": False}}
TOOLS = {name: json.dumps(schema) for name, schema in SCHEMAS.items()}
PHRASES = [
    "\n",
    " ",
    '"',
    "1",
    "12",
    "null",
    "true",
    "Ab",
    "AB/1",
    "2020-01-31",
    "[",
    "{}",
    "</parameter>",
    "</arg_value>",
    "]<]minimax[>[</",
]


@pytest.fixture(scope="module", params=[False, True], ids=["text", "special"])
def text(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelTokenizer:
    """Return a tokenizer for which marks are text, or special tokens."""
    folder = write_model(tmp_path_factory.mktemp("model"))
    path = str(folder / "tokenizer.json")
    tokenizer = Tokenizer.from_file(path)
    write(folder, "config.json", eos_token_id=tokenizer.token_to_id("<end>"))  # and not a bracket
    if request.param:
        tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in sorted(MARKS)])
        tokenizer.save(path)
    return ModelTokenizer(folder)


def make_asked(name: str, prompt_end: str = "", **changes: Any) -> AskedAnswer:
    fields = {"tools": TOOLS, "strict_tools": tuple(TOOLS), **changes}

    def make_parser() -> Any:
        made: Any = SPECS[name].factory.load()()
        made.begin(AnswerInfo(prompt_end=prompt_end, tools=fields["tools"]))
        return made

    return AskedAnswer(field="tools", tool_fields={}, format=name, make_parser=make_parser, **fields)


def compile_form(text: ModelTokenizer, name: str, asked: Grammar | None = None, **changes: Any) -> Any:
    wanted = make_asked(name, grammar=asked, **changes)
    writer = find_writer(wanted)
    assert writer is not None
    assert isinstance(text.grammars, LlguidanceGrammars)
    return text.grammars.compile(write_form(writer, wanted, text.grammars))


def draw(text: ModelTokenizer, matcher: Matcher, source: random.Random, begin: str = "") -> str | None:
    """Return a random answer; what is allowed of some phrases and the marks is likelier. None: it is endless."""
    tokens: list[int] = []
    plans = [text.encode(phrase) for phrase in [*PHRASES, *sorted(MARKS), *TOOLS]]
    plan: list[int] = list(text.encode(begin))
    for _ in range(600):
        allowed = list_allowed(matcher.find_mask(text.stop_ids, may_end=True))
        if not plan or plan[0] not in allowed:
            plan = list(source.choice([plan for plan in plans if plan[0] in allowed] or [[source.choice(allowed)]]))
            plan = plan if source.random() < 0.9 else [source.choice(allowed)]
        if not begin and not text.stop_ids.isdisjoint(allowed) and source.random() < 0.5:
            return text.show(tokens)
        token = plan.pop(0)
        begin = "" if not plan else begin
        if token in text.stop_ids:
            return text.show(tokens)
        tokens.append(token)
        matcher.advance([token])
    return None


def find_begin(name: str) -> str:
    """Return the text with which the calls of an answer begin."""
    factory: Any = SPECS[name].factory.load()
    return {"llama3_json": '{"name"', "llama4_json": '{"name"', "harmony": "<|channel|>commentary to="}.get(
        name
    ) or str(factory.openers[0])


def read(name: str, answer: str, prompt_end: str = "") -> tuple[str, list[tuple[str, Any]]]:
    """Return the content of an answer, and the names and the arguments of its calls."""
    parser: Any = SPECS[name].factory.load()()
    parser.begin(AnswerInfo(tools=TOOLS, prompt_end=prompt_end))
    pieces = [*parser.feed(answer), *parser.finish()]
    found: dict[int, list[str]] = {}
    for piece in pieces:
        if isinstance(piece, ToolCall):
            call = found.setdefault(piece.index, ["", ""])
            call[0] += piece.name
            call[1] += piece.arguments
    content = "".join(piece.text for piece in pieces if isinstance(piece, Content))
    return content, [(name, json.loads(arguments)) for name, arguments in found.values()]


def check(calls: Sequence[tuple[str, Any]]) -> None:
    for tool, arguments in calls:
        jsonschema.validate(arguments, SCHEMAS[tool], format_checker=jsonschema.FormatChecker())


@pytest.mark.parametrize("name", SPECS)
def test_forced_calls_follow_their_schemas(text: ModelTokenizer, name: str) -> None:
    compiled, source, found = compile_form(text, name, forced=""), random.Random(name), set()
    for _ in range(40):
        answer = draw(text, compiled.start(), source)
        if answer is not None:
            content, calls = read(name, answer)
            assert (content, bool(calls)) == ("", True), answer
            check(calls)
            found |= {tool for tool, _ in calls}
    assert found == set(TOOLS)


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("prompt_end", ["", "<think>\n"])
def test_strict_calls_may_follow_text_and_reasoning(text: ModelTokenizer, name: str, prompt_end: str) -> None:
    compiled, source, found = compile_form(text, name, prompt_end=prompt_end), random.Random(name), set()
    for _ in range(6):
        answer = draw(text, compiled.start(), source)
        if answer is not None:
            _, calls = read(name, answer, prompt_end)
            check(calls)
            found |= {bool(calls)}
    assert found


ASKED = (
    Grammar(kind="json_schema", source=json.dumps(LETTER)),
    Grammar(kind="choice", source='["a", "b/\\n"]'),
    Grammar(kind="regex", source="[ab]/c{1,3}"),
    Grammar(kind="lark", source="start: item+\nitem: /[xy]/ /\\d/"),
)
"""Forms of an answer that calls nothing."""
WANTED = (['{"letter": "a"}', '{"letter":"é"}'], ["a", "b/\n"], ["a/c", "b/ccc"], ["x1", "x1y2"])


@pytest.mark.parametrize(
    ("name", "asked", "wanted"),
    [
        *((name, ASKED[0], WANTED[0]) for name in SPECS),
        *(("harmony", *each) for each in zip(ASKED, WANTED, strict=True)),
    ],
)
def test_answer_has_its_form_or_calls_tools(text: ModelTokenizer, name: str, asked: Grammar, wanted: list[str]) -> None:
    compiled, source, found = compile_form(text, name, asked), random.Random(name), set()
    frame = "<|channel|>final<|message|>" if name == "harmony" else ""
    for right in wanted:
        assert follow(text, compiled.start(), frame + right) == (True, True)
        assert follow(text, compiled.start(), f"{frame}{right}<") != (True, True)
        assert follow(text, compiled.start(), f"{frame}No.") != (True, True)
    for number in range(12):
        answer = draw(text, compiled.start(), source, find_begin(name) if number % 2 else "")
        if answer is not None:
            content, calls = read(name, answer)
            check(calls)
            assert bool(calls) != bool(content.strip()), answer
            found |= {bool(calls)}
    assert found


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("answer", ["", "No.", "I say:\n\n{} and [] < 3"])
def test_answer_without_calls_is_free(text: ModelTokenizer, name: str, answer: str) -> None:
    frame = "<|channel|>final<|message|>" if name == "harmony" else ""
    assert follow(text, compile_form(text, name).start(), frame + answer) == (True, True)


CALL = '{"name": "spell", "arguments": {"letter": "a"}}'
WRONG = CALL.replace('"a"', '"b"')
STOP = '{"name": "stop", "arguments": {}}'


@pytest.mark.parametrize(
    ("answer", "is_allowed"),
    [
        (f"Well.<tool_call>\n{CALL}\n</tool_call>", True),
        (f"<think>Hm <tool_call> hm</think>Well.<tool_call>\n{CALL}\n</tool_call>", True),
        (f"<tool_call>{CALL}</tool_call>\n<tool_call>\n{STOP}\n</tool_call>", True),
        (f"<tool_call>\n{WRONG}\n</tool_call>", False),
        ('<tool_call>\n{"name": "spell", "arguments": {}}\n</tool_call>', False),
        ('<tool_call>\n{"name": "other", "arguments": {}}\n</tool_call>', False),
        ("<tool_call> is a mark", False),
        (f"<tool_call>\n{CALL}\n</tool_call> There.", False),
    ],
)
def test_grammar_of_hermes_holds_after_the_mark(text: ModelTokenizer, answer: str, is_allowed: bool) -> None:
    if "Hm <tool_call> hm" in answer and len(text.encode("<tool_call>")) == 1:
        answer = answer.replace("Hm <tool_call> hm", "")  # a special token is no text
    assert follow(text, compile_form(text, "hermes").start(), answer) == (is_allowed, is_allowed)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("mistral", f"[TOOL_CALLS] [{CALL}, {STOP}]"),
        ("mistral", '[TOOL_CALLS]spell[CALL_ID]abcdefgh9[ARGS]{"letter": "a"}[TOOL_CALLS]stop[ARGS]{}'),
        (
            "deepseek",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>stop<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ),
        (
            "deepseek",
            (
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>stop\n```json\n{}\n```<｜tool▁call▁end｜>"
                "<｜tool▁calls▁end｜>"
            ),
        ),
        (
            "kimi_k2",
            (
                "<|tool_calls_section_begin|><|tool_call_begin|>functions.stop:0<|tool_call_argument_begin|>{}"
                "<|tool_call_end|><|tool_calls_section_end|>"
            ),
        ),
        ("gemma4", '<|tool_call>call:spell{letter:"a"}<tool_call|><|tool_call>call:stop{}<tool_call|>'),
        ("llama4_json", '{"name": "stop", "parameters": {}}{"name": "stop", "parameters": {}}'),
        ("llama4_pythonic", '[spell(letter="a"), stop()]'),
        ("nemotron", f"<TOOLCALL>[{CALL}, {STOP}]</TOOLCALL>"),
        ("phi4_mini", f"functools[{CALL}, {STOP}]"),
        ("hunyuan", f"<tool_calls>[{CALL}]</tool_calls>"),
        (
            "deepseek_v32",
            (
                '<｜DSML｜function_calls>\n<｜DSML｜invoke name="spell">\n<｜DSML｜parameter name="letter" '
                'string="false">"a"</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>'
            ),
        ),
        ("llama3_json", '<|python_tag|>{"name": "stop", "parameters": {}}; {"name": "stop", "parameters": {}}'),
        ("granite", f"<tool_call>[{CALL}]</tool_call>"),
        ("glm4", "<tool_call>spell<arg_key>letter</arg_key><arg_value>é</arg_value></tool_call>"),
        (
            "minimax",
            (
                '<minimax:tool_call>\n<invoke name="spell">\n<parameter name="letter">a</parameter>\n</invoke>\n'
                '<invoke name="stop">\n</invoke>\n</minimax:tool_call>'
            ),
        ),
        ("harmony", " to=functions.stop<|channel|>commentary json<|message|>{}"),
        (
            "harmony",
            (
                "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary<|message|>Now.<|end|>"
                "<|start|>assistant<|channel|>commentary to=functions.stop <|constrain|>json<|message|>{}"
            ),
        ),
    ],
)
def test_calls_as_models_write_them_are_allowed(text: ModelTokenizer, name: str, answer: str) -> None:
    if "[ARGS]" in answer and len(text.encode("[ARGS]")) > 1:
        return  # older models have no such token, and list their calls
    assert follow(text, compile_form(text, name).start(), answer) == (True, True)
    assert read(name, answer)[1]


def write_coder(**arguments: str) -> str:
    values = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function=go.to-it>\n{values}</function>\n</tool_call>"


RIGHT = {"über": "</p>", "days": "3", "kind": "null", "code": "AB/1"}


@pytest.mark.parametrize(
    ("changes", "is_allowed"),
    [
        ({}, True),
        ({"über": "x"}, False),
        ({"über": "a</parameter>"}, False),
        ({"days": "13"}, False),
        ({"days": "soon"}, False),
        ({"kind": '"null"'}, True),
        ({"kind": "2"}, False),
        ({"kind": "a\n"}, True),
        ({"code": "ab/1"}, False),
    ],
)
def test_plain_arguments_follow_their_schemas(text: ModelTokenizer, changes: dict[str, str], is_allowed: bool) -> None:
    answer = write_coder(**{**RIGHT, **changes})
    assert follow(text, compile_form(text, "qwen3_coder").start(), answer) == (is_allowed, is_allowed)


def test_plain_argument_may_have_a_large_limit(text: ModelTokenizer) -> None:
    """The lexer of llguidance became too large where the text could end."""
    tools = {"go.to-it": json.dumps({"properties": {"text": {"type": "string", "maxLength": 60000}}})}
    compiled = compile_form(text, "qwen3_coder", tools=tools, strict_tools=("go.to-it",))
    assert follow(text, compiled.start(), write_coder(text="line < 3\n" * 30)) == (True, True)


def test_schema_of_a_tool_that_is_not_strict_does_not_hold(text: ModelTokenizer) -> None:
    wrong = {"hermes": f"<tool_call>{WRONG}</tool_call>", "qwen3_coder": write_coder(other="7")}
    for name, answer in wrong.items():
        assert follow(text, compile_form(text, name, strict_tools=("stop",)).start(), answer) == (True, True)
        assert follow(text, compile_form(text, name).start(), answer) == (False, False)


@pytest.mark.parametrize("name", SPECS)
def test_one_call_is_the_last_if_calls_are_not_parallel(text: ModelTokenizer, name: str) -> None:
    compiled = compile_form(text, name, allows_many_calls=False, forced="")
    for seed in range(5):
        if (answer := draw(text, compiled.start(), random.Random(seed))) is not None:
            assert len(read(name, answer)[1]) == 1


class Plain:
    """A model without special tokens."""

    def find_special(self, text: str) -> str:
        del text
        return ""

    def simplify_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        return schema


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"anyOf": [{"properties": {"a": {}}}]}, "'anyOf' of its parameters"),
        ({"properties": {"a": {"type": "string", "pattern": "a|b$"}}}, "the anchors of the pattern 'a|b$'"),
        ({"properties": {"a": {"type": "string", "not": {"const": "a"}}}}, "the argument 'a': 'not' of a string"),
        ({"properties": {"a": {"const": "</parameter>"}}}, 'the value "</parameter>" cannot be written'),
        ({"properties": {"a": {"$ref": "#/$defs/b"}}}, "leads nowhere"),
        ({"properties": {"a<b": {}}, "required": ["a<b"]}, "the argument 'a<b' cannot be named"),
    ],
)
def test_schema_that_plain_arguments_cannot_follow_is_refused(schema: dict[str, Any], reason: str) -> None:
    asked = make_asked("qwen3_coder", tools={"f": json.dumps(schema)}, strict_tools=("f",))
    writer = find_writer(asked)
    assert writer is not None
    with pytest.raises(
        InvalidRequest, match=rf"the tool 'f' cannot be strict: .*{re.escape(reason)}.*qwen3_coder"
    ) as caught:
        write_form(writer, asked, Plain())
    assert caught.value.param == "tools"


def test_format_without_a_grammar_has_no_writer() -> None:
    assert find_writer(AskedAnswer(field="tools", tools=TOOLS, tool_fields={}, strict_tools=["spell"])) is None
