"""Masks of llguidance over real vocabularies: no token outside the grammar passes, and finished texts are valid."""

# ruff: noqa: RUF001 -- marks of DeepSeek have this character

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import llguidance
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from parallax_core.api import BackendFailed, InvalidRequest
from parallax_core.api.grammars import Grammar
from parallax_core.contracts.grammar import Matcher
from parallax_core.models.tokenizer import ModelTokenizer
from parallax_grammars.model_grammars import LlguidanceGrammars
from tests.support.grammar_walk import MOST_TOKENS, follow, generate, list_allowed
from tests.unit.tinymodel import write_model


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> ModelTokenizer:
    return ModelTokenizer(write_model(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def grammars(text: ModelTokenizer) -> LlguidanceGrammars:
    assert isinstance(text.grammars, LlguidanceGrammars)
    return text.grammars


PERSON = (
    '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false}'
)


@pytest.mark.parametrize("after", [(), ("</think>",)])
@pytest.mark.parametrize(
    ("kind", "source", "answer"),
    [
        ("json_schema", '{"enum": ["<end>", "<｜é｜>"]}', '"<end>"'),
        ("json_schema", '{"enum": ["a", "<\\uff5c\\u00e9\\uff5c>"]}', '"<｜é｜>"'),
        ("choice", '["a <end> b"]', "a <end> b"),
        ("lark", 'start: "a<end>" %json {"const": "<end>"}', 'a<end>"<end>"'),
        ("regex", "a<end>b", "a<end>b"),
    ],
)
def test_text_of_a_special_token_is_written_as_text(
    tmp_path: Path, kind: Any, source: str, answer: str, after: tuple[str, ...]
) -> None:
    """llguidance allowed nothing but the special token, and then refused it."""
    folder = write_model(tmp_path)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken("<｜é｜>", special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    text = ModelTokenizer(folder)
    matcher = text.grammars.compile(Grammar(kind=kind, source=source, after=after)).start()
    letters = [token for letter in "".join(after) + answer for token in text.encode(letter)]
    for token in letters:
        assert token in list_allowed(matcher.find_mask(text.stop_ids, may_end=True))
        matcher.advance([token])
    assert not text.stop_ids.isdisjoint(list_allowed(matcher.find_mask(text.stop_ids, may_end=True)))


@pytest.mark.parametrize(
    ("kind", "source", "right", "wrong"),
    [
        ("json_object", "", ['{"a": [1, "b"]}', "{}"], ["[1]", '{"a" 1}', "x"]),
        ("json_schema", PERSON, ['{"a":1}', '{"a": -20}'], ['{"b":1}', '{"a":"1"}', "{}", "{  }"]),
        ("regex", r"\d{3}-\d{4}", ["555-1234"], ["5555", "abc", "555-12345"]),
        ("choice", '["yes", "no, \\"never\\""]', ["yes", 'no, "never"'], ["maybe", "yess"]),
        ("lark", 'start: "a" b\nb: /[0-9]+/', ["a1", "a42"], ["b", "a"]),
    ],
)
def test_grammar_lets_through_what_it_matches_only(
    text: ModelTokenizer, kind: Any, source: str, right: list[str], wrong: list[str]
) -> None:
    compiled = text.grammars.compile(Grammar(kind=kind, source=source))
    assert [answer for answer in right if follow(text, compiled.start(), answer) != (True, True)] == []
    assert [answer for answer in wrong if follow(text, compiled.start(), answer) == (True, True)] == []


@pytest.mark.parametrize("trigger", ["</think>", "CALL: "])
def test_grammar_holds_only_after_its_trigger(text: ModelTokenizer, grammars: LlguidanceGrammars, trigger: str) -> None:
    compiled = grammars.compile(Grammar(kind="json_schema", source=PERSON, after=("~~", trigger)))
    assert follow(text, compiled.start(), "anything, 1 2 3") == (True, True)
    assert follow(text, compiled.start(), f"let me see{trigger}" + '{"a": 5}') == (True, True)
    assert follow(text, compiled.start(), f"let me see{trigger}no") == (False, False)
    assert follow(text, compiled.start(), 'x~~{"a": 5}') == (True, True)


@pytest.mark.parametrize("trigger", ["</think>", "CALL: "])
def test_answer_that_must_begin_does_not_end_before_its_trigger(
    text: ModelTokenizer, grammars: LlguidanceGrammars, trigger: str
) -> None:
    grammar = Grammar(kind="json_schema", source=PERSON, after=("~~", trigger), must_begin=True)
    compiled = grammars.compile(grammar)
    assert follow(text, compiled.start(), "anything, 1 2 3") == (True, False)
    assert follow(text, compiled.start(), "") == (True, False)
    assert follow(text, compiled.start(), f"let me see{trigger}" + '{"a": 5}') == (True, True)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "array", "items": {"type": "integer"}, "uniqueItems": False},
        {
            "type": ["string", "array"],
            "format": "path",
            "title": None,
            "items": {"format": "binary", "type": "integer"},
        },
        {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "string", "format": "password"}]}},
    ],
)
def test_keyword_that_asks_for_nothing_is_no_reason_to_refuse(
    text: ModelTokenizer, grammars: LlguidanceGrammars, part: dict[str, Any]
) -> None:
    schema = {"type": "object", "properties": {"a": part}, "required": ["a"], "additionalProperties": False}
    compiled = grammars.compile(Grammar(kind="json_schema", source=json.dumps(schema)))
    assert follow(text, compiled.start(), '{"a": [1, 1]}') == (True, True)


def test_grammar_begins_after_a_special_token(text: ModelTokenizer, tmp_path: Path) -> None:
    grammars = LlguidanceGrammars(write_model(tmp_path) / "tokenizer.json", text.vocab_size, {7})
    compiled = grammars.compile(Grammar(kind="choice", source='["yes"]', after=("<end>",)))
    [special] = text.encode("<end>")
    matcher = compiled.start()
    matcher.advance([*text.encode("so"), special])
    assert text.decode(list_allowed(matcher.find_mask({7}, may_end=True))) == "y"


def test_answer_ends_by_any_stop_token_where_the_grammar_does(
    text: ModelTokenizer, grammars: LlguidanceGrammars
) -> None:
    matcher = grammars.compile(Grammar(kind="regex", source="a+")).start()
    matcher.advance(text.encode("a"))
    a = text.encode("a")[0]
    assert list_allowed(matcher.find_mask({7, 200}, may_end=True)) == sorted([7, 200, a])
    assert list_allowed(matcher.find_mask({7, 200}, may_end=False)) == [a]
    whole = grammars.compile(Grammar(kind="choice", source='["a"]')).start()
    whole.advance([a])
    assert list_allowed(whole.find_mask({200}, may_end=False)) == [200], "nothing else is allowed"


def test_stop_token_that_the_grammar_allows_ends_no_answer_that_is_not_complete(
    text: ModelTokenizer, grammars: LlguidanceGrammars
) -> None:
    """It was drawn before ``min_tokens``, and in the middle of what the grammar says."""
    matcher = grammars.compile(Grammar(kind="regex", source="[ab]c[ab]+")).start()
    a, b, c = (text.encode(letter)[0] for letter in "abc")
    assert list_allowed(matcher.find_mask({7, b}, may_end=True)) == [a], "the answer would not match"
    matcher.advance([a, c, a])
    assert list_allowed(matcher.find_mask({7, b}, may_end=True)) == sorted([7, a, b])
    assert list_allowed(matcher.find_mask({7, b}, may_end=False)) == [a]


def test_grammar_that_needs_a_stop_token_cannot_be_followed(text: ModelTokenizer, grammars: LlguidanceGrammars) -> None:
    matcher = grammars.compile(Grammar(kind="regex", source="ab")).start()
    matcher.find_mask({7}, may_end=True)
    with pytest.raises(BackendFailed, match="no token here that does not end the answer"):
        matcher.find_mask({7, text.encode("a")[0]}, may_end=True)


def test_token_that_is_not_allowed_ends_the_answer(text: ModelTokenizer, grammars: LlguidanceGrammars) -> None:
    with pytest.raises(BackendFailed, match="cannot be followed"):
        grammars.compile(Grammar(kind="choice", source='["a"]')).start().advance(text.encode("b"))


def test_other_threads_go_on_while_an_ambiguous_grammar_takes_tokens(
    text: ModelTokenizer, grammars: LlguidanceGrammars
) -> None:
    """The event loop stood still: the library holds the interpreter lock while one matcher takes a token."""
    grammar = grammars.compile(Grammar(kind="lark", source='start: a\na: a a | a a a | "x"'))
    turns = (count_turns(grammar.start(), text.encode("x" * 60)) for _ in range(5))  # a busy machine gives it none
    assert any(number > 100 for number in turns), "the lock was held"


def count_turns(matcher: Matcher, tokens: Sequence[int]) -> int:
    """Return how often another thread runs while a matcher takes tokens."""
    is_over, num_turns = False, 0

    def turn() -> None:
        nonlocal num_turns
        while not is_over:
            num_turns += 1
            time.sleep(0)

    thread = threading.Thread(target=turn)
    thread.start()
    before = num_turns
    matcher.advance(tokens)
    found = num_turns - before
    is_over = True
    thread.join()
    return found


def test_matchers_of_one_grammar_are_independent(text: ModelTokenizer, grammars: LlguidanceGrammars) -> None:
    compiled = grammars.compile(Grammar(kind="choice", source='["ab", "cd"]'))
    first, second = compiled.start(), compiled.start()
    first.advance(text.encode("a"))
    assert text.decode(list_allowed(first.find_mask({7}, may_end=True))) == "b"
    assert sorted(text.decode(list_allowed(second.find_mask({7}, may_end=True)))) == ["a", "c"]


@pytest.mark.parametrize(
    ("kind", "source", "reason"),
    [
        ("json_schema", '{"not": {"type": "string"}}', "Unimplemented keys"),
        ("json_schema", '{"x-guidance": {"lenient": true}, "not": {}}', "Unimplemented keys"),
        (
            "json_schema",
            '{"patternProperties": {"^a": {}, "b$": false}}',
            "'patternProperties' /.a/ and /b./ are not disjoint",
        ),
        ("json_schema", '{"properties": {"a": {"patternProperties": {"^(?!a)": {}}}}}', "of 'patternProperties'"),
        ("json_schema", '{"$ref": "#"}', "no text can match it"),
        ("json_schema", "{bad", "not valid"),
        ("json_schema", "[]", "not valid"),
        ("json_schema", '{"enum": []}', "empty"),
        ("json_schema", '{"type": "strong"}', "strong"),
        ("json_schema", '{"type":"array","items":' * 5000 + "{}" + "}" * 5000, "recursion limit"),
        ("regex", "(", "invalid regex"),
        ("regex", "a(?=x)", "look-around"),
        ("lark", "start: x", "unknown name"),
        ("lark", '{"grammars": []}', "expecting rule"),
    ],
)
def test_grammar_that_cannot_be_followed_is_refused(
    grammars: LlguidanceGrammars, kind: Any, source: str, reason: str
) -> None:
    with pytest.raises(InvalidRequest, match=reason) as refused:
        grammars.compile(Grammar(kind=kind, source=source))
    assert refused.value.param == "grammar"
    assert len(refused.value.message) < 400


names = st.sampled_from(["a", "b", "name", "x y", 'q"', "é"])
bounds = st.integers(0, 4)
leaves = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.builds(
        lambda low, width: {"type": "integer", "minimum": low, "maximum": low + width}, st.integers(-9, 9), bounds
    ),
    st.builds(lambda low, width: {"type": "string", "minLength": low, "maxLength": low + width}, bounds, bounds),
    st.builds(lambda values: {"enum": values}, st.lists(st.integers(-5, 5) | names, min_size=1, max_size=3)),
    st.just({"type": "string", "pattern": "^[a-c]{1,3}$"}),
)


def nest(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    arrays = st.builds(lambda items, most: {"type": "array", "items": items, "maxItems": most}, inner, bounds)
    unions = st.builds(lambda parts: {"anyOf": parts}, st.lists(inner, min_size=1, max_size=3))
    return arrays | unions | st.dictionaries(names, inner, max_size=3).flatmap(make_object)


def make_object(properties: dict[str, Any]) -> st.SearchStrategy[Any]:
    required = st.lists(st.sampled_from(sorted(properties)), unique=True) if properties else st.just([])
    return required.map(
        lambda some: {"type": "object", "properties": properties, "required": some, "additionalProperties": False}
    )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schema=st.recursive(leaves, nest, max_leaves=6), seed=st.integers(0, 2**32))
def test_text_of_allowed_tokens_matches_its_schema(
    text: ModelTokenizer, grammars: LlguidanceGrammars, schema: Any, seed: int
) -> None:
    compiled = grammars.compile(Grammar(kind="json_schema", source=json.dumps(schema)))
    for number in range(3):
        answer = generate(text, compiled.start(), random.Random(seed + number))
        assert answer is not None, f"no end within {MOST_TOKENS} tokens"
        jsonschema.validate(json.loads(answer), schema)


def test_vocabulary_is_prepared_once_by_many_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from concurrent.futures import ThreadPoolExecutor

    made, plain = list[str](), llguidance.LLTokenizer

    def make(source: str, **given: Any) -> Any:
        made.append(source)
        return plain(source, **given)

    monkeypatch.setattr(llguidance, "LLTokenizer", make)
    grammars = ModelTokenizer(write_model(tmp_path)).grammars
    assert isinstance(grammars, LlguidanceGrammars)
    with ThreadPoolExecutor(4) as pool:
        for _ in pool.map(lambda _: grammars.prepare(), range(8)):
            pass
    assert len(made) == 1


def test_tokenizer_that_puts_a_space_in_front_is_followed(tmp_path: Path) -> None:
    """llguidance allowed only a space at first, which matches nothing."""
    file = write_model(tmp_path) / "tokenizer.json"
    content = json.loads(file.read_text())
    content["pre_tokenizer"]["pretokenizers"][-1]["add_prefix_space"] = True
    file.write_text(json.dumps(content))
    text = ModelTokenizer(tmp_path)
    compiled = text.grammars.compile(Grammar(kind="regex", source="a+"))
    assert text.decode(list_allowed(compiled.start().find_mask(text.stop_ids, may_end=True))) == "a"
