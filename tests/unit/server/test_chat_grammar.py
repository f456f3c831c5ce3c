"""Forced calls on the whole way to the official client; a toy model draws at random what the grammar leaves it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import openai
import pytest

from parallax_core.api import LayerRange, Ref, Stage
from parallax_core.base.errors import BackendFailed
from parallax_core.node.executor.local import LocalExecutor
from parallax_core.node.pipeline.engine import PipelineEngine
from parallax_core.node.pipeline.options import PipelineOptions
from parallax_core.testing.fault import Fault, FaultStage
from parallax_core.testing.toy import Toy
from parallax_grammars.model_grammars import TokenMatcher
from parallax_models.parsers.formats import FORMATS
from tests.unit.server.scripted import HERMES, ScriptedSite

LETTER: dict[str, Any] = {"type": "object", "properties": {"letter": {"$ref": "#/$defs/one"}}, "required": ["letter"]}
LETTER |= {"additionalProperties": False, "$defs": {"one": {"enum": ["a", "é"]}}}
TOOLS: Any = [
    {"type": "function", "function": {"name": "spell", "parameters": LETTER, "strict": True}},
    {"type": "function", "function": {"name": "stop", "parameters": {"type": "object", "additionalProperties": False}}},
]
NAMED: Any = {"type": "function", "function": {"name": "spell"}}
NO_GRAMMAR = replace(HERMES, factory=Ref("tests.conformance.parsers:ThinkParser"))
OTHERS = {spec.name: spec for spec in FORMATS}
HARMONY = "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}<|start|>assistant"
"""A chat template that ends as that of gpt-oss does."""
ASK: dict[str, Any] = {"model": "toy", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 300}


class ToySite(ScriptedSite):
    """The server of `ScriptedSite` with a pipeline of a toy, which follows grammars and nothing else."""

    def make_engine(self) -> Any:
        toy = Toy(("full",), vocab=self.text.vocab_size)
        options = PipelineOptions(grammars=self.text.grammars)
        executor = LocalExecutor([lambda: toy.open(num_pages=300, context=1000, max_batch_tokens=64)])
        return PipelineEngine(executor, self.text.decode, options)


class LossySite(ToySite):
    """The same with two stages; the last one is lost before each step of `losses`, counted by the new stage."""

    def __init__(self, folder: Path, losses: Iterable[int] = ()) -> None:
        self.losses = iter(losses)
        self.num_opened = 0
        super().__init__(folder)

    def make_engine(self) -> Any:
        toy = Toy(("full", "full"), vocab=self.text.vocab_size)

        def open_part(layer: int) -> Stage:
            stage = toy.open(LayerRange(layer, layer + 1), num_pages=300, context=1000, max_batch_tokens=64)
            if layer == 0:
                return stage
            self.num_opened += 1
            return FaultStage(stage, *(Fault("die", at=at) for at in islice(self.losses, 1)))

        options = PipelineOptions(grammars=self.text.grammars)
        return PipelineEngine(LocalExecutor([lambda: open_part(0), lambda: open_part(1)]), self.text.decode, options)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[ToySite]:
    with ToySite(tmp_path) as site:
        yield site


@pytest.mark.parametrize("seed", range(6))
def test_required_call_is_valid(site: ToySite, seed: int) -> None:
    answer = site.openai.chat.completions.create(**ASK, tools=TOOLS, tool_choice="required", seed=seed)
    [choice] = answer.choices
    if choice.finish_reason == "length":
        return
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    assert choice.message.tool_calls
    for call in choice.message.tool_calls:
        arguments, name = json.loads(call.function.arguments), call.function.name
        assert (arguments.get("letter") in {"a", "é"} and name == "spell") or (arguments, name) == ({}, "stop")


@pytest.mark.parametrize("streams", [False, True])
def test_grammar_that_becomes_too_complex_is_the_fault_of_its_field(
    site: ToySite, monkeypatch: pytest.MonkeyPatch, *, streams: bool
) -> None:
    def fail(_: TokenMatcher, tokens: Sequence[int]) -> None:
        if tokens:
            raise BackendFailed("the grammar cannot be followed: it is too complex")

    monkeypatch.setattr(TokenMatcher, "advance", fail)
    fields: dict[str, Any] = {**ASK, "stream": streams, "extra_body": {"guided_regex": "[ab]{9}"}}
    with pytest.raises(openai.APIError, match="too complex") as caught:
        list(site.openai.chat.completions.create(**fields))
    assert caught.value.param == "guided_regex"
    assert isinstance(caught.value, openai.BadRequestError) != streams


@pytest.mark.parametrize("seed", range(4))
def test_named_call_is_valid_and_streamed(site: ToySite, seed: int) -> None:
    with site.openai.chat.completions.stream(**ASK, tools=TOOLS, tool_choice=NAMED, seed=seed) as stream:
        names = [event.name for event in stream if event.type == "tool_calls.function.arguments.delta"]
        [choice] = stream.get_final_completion().choices
    assert choice.message.tool_calls
    [call] = choice.message.tool_calls
    assert (choice.finish_reason, call.function.name) == ("tool_calls", "spell")
    assert json.loads(call.function.arguments)["letter"] in {"a", "é"}
    assert len(names) > 3


@pytest.mark.parametrize("choice", ["required", NAMED])
@pytest.mark.parametrize("most", [1, 4, 9, 14])
def test_forced_call_that_is_cut_off_is_no_text_and_says_so(site: ToySite, choice: Any, most: int) -> None:
    fields: Any = {**ASK, "tools": TOOLS, "tool_choice": choice, "max_tokens": most, "seed": 1}
    [whole] = site.openai.chat.completions.create(**fields).choices
    assert not whole.message.content
    assert whole.finish_reason == "length"
    chunks = list(site.openai.chat.completions.create(**fields, stream=True))
    assert not "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "length"


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_stop_string_does_not_break_a_forced_call(site: ToySite, choice: Any) -> None:
    fields: Any = {**ASK, "tools": TOOLS, "tool_choice": choice, "seed": 1}
    [answer] = site.openai.chat.completions.create(**fields, stop=["a", "{", '"', "e"]).choices
    assert answer.finish_reason == "tool_calls"
    for call in answer.message.tool_calls or ():
        assert call.type == "function"
        json.loads(call.function.arguments)


def test_one_call_is_enough_if_calls_are_not_parallel(site: ToySite) -> None:
    fields = {**ASK, "tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
    for seed in range(3):
        [choice] = site.openai.chat.completions.create(**fields, seed=seed).choices
        assert len(choice.message.tool_calls or ()) == 1


def test_grammar_begins_after_reasoning_that_the_prompt_opened(site: ToySite) -> None:
    kwargs = {"chat_template_kwargs": {"enable_thinking": True}}
    fields: dict[str, Any] = {
        "response_format": {"type": "json_object"},
        "extra_body": kwargs,
        "max_reasoning_tokens": 5,
    }
    fields["extra_body"] |= {"max_reasoning_tokens": fields.pop("max_reasoning_tokens")}
    message = site.openai.chat.completions.create(**ASK, **fields, seed=3).choices[0].message
    assert message.reasoning
    assert (message.content or "").startswith("{")


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("tool_choice", {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "other"}}}),
        ("tool_choice", {"tool_choice": "required"}),
        ("guided_choice", {"tools": TOOLS[1:], "extra_body": {"guided_choice": ["a"]}}),
    ],
)
def test_contradiction_is_refused_by_name(site: ToySite, param: str, fields: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        site.openai.chat.completions.create(**ASK, **fields)
    assert caught.value.param == param


def test_schema_that_cannot_be_met_is_refused(site: ToySite) -> None:
    never: Any = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "not": {}}}}]
    with pytest.raises(openai.BadRequestError) as caught:
        site.openai.chat.completions.create(**ASK, tools=never, tool_choice="required")
    assert caught.value.param == "tools.0.function.parameters"


def test_format_without_bare_json_cannot_be_forced(tmp_path: Path) -> None:
    with ToySite(tmp_path, replace(HERMES, reasoning_marks=None)) as site:
        with pytest.raises(openai.BadRequestError, match="format of this model") as caught:
            site.openai.chat.completions.create(**ASK, tools=TOOLS, tool_choice="required")
        assert caught.value.param == "tool_choice"


@pytest.mark.parametrize("choice", [{}, {"tool_choice": "auto"}])
def test_strict_tool_is_called_as_its_schema_says_if_the_model_calls_it(site: ToySite, choice: Any) -> None:
    fields: Any = {**ASK, **choice, "tools": TOOLS, "parallel_tool_calls": False, "seed": 3}
    [mark] = site.text.encode("<tool_call>")
    [answer] = site.openai.chat.completions.create(**fields, logit_bias={str(mark): 100}).choices
    assert answer.message.tool_calls
    [call] = answer.message.tool_calls
    assert call.type == "function"
    arguments = json.loads(call.function.arguments)
    assert (call.function.name, arguments) == ("stop", {}) or arguments["letter"] in {"a", "é"}


FORMS = ["a", "é"]
FORM: dict[str, Any] = {"type": "json_schema", "json_schema": {"name": "it", "schema": {"enum": FORMS}}}


@pytest.mark.parametrize("calls", [False, True])
@pytest.mark.parametrize("streams", [False, True])
def test_answer_with_tools_and_a_form_calls_or_has_the_form(site: ToySite, *, calls: bool, streams: bool) -> None:
    [mark] = site.text.encode("<tool_call>")
    fields: Any = {**ASK, "tools": TOOLS, "response_format": FORM, "seed": 3}
    fields |= {"logit_bias": {str(mark): 100 if calls else -100}, "parallel_tool_calls": False}
    if streams:
        with site.openai.chat.completions.stream(**fields) as stream:
            choice: Any = stream.get_final_completion().choices[0]
    else:
        choice = site.openai.chat.completions.create(**fields).choices[0]
    if not calls:
        assert (choice.finish_reason, json.loads(choice.message.content or "") in FORMS) == ("stop", True)
        return
    assert (choice.finish_reason, choice.message.content or "") == ("tool_calls", "")
    assert [call.type for call in choice.message.tool_calls or ()] == ["function"]


def test_mark_of_a_call_in_an_answer_of_a_form_is_text(tmp_path: Path) -> None:
    text = "<tool_call><function=stop></function></tool_call>"
    form = {"type": "json_schema", "json_schema": {"name": "it", "schema": {"const": text}}}
    with ToySite(tmp_path, OTHERS["qwen3_coder"]) as site:
        bias = {str(site.text.encode("<tool_call>")[0]): -100}
        fields: Any = {**ASK, "tools": TOOLS, "response_format": form, "seed": 3, "logit_bias": bias}
        choice: Any = site.openai.chat.completions.create(**fields).choices[0]
    assert (choice.finish_reason, json.loads(choice.message.content)) == ("stop", text)


def test_form_and_tools_begin_after_the_reasoning_that_the_prompt_opened(site: ToySite) -> None:
    extra = {"chat_template_kwargs": {"enable_thinking": True}, "max_reasoning_tokens": 5}
    for seed in range(4):
        fields: Any = {**ASK, "tools": TOOLS, "response_format": FORM, "extra_body": extra, "seed": seed}
        choice: Any = site.openai.chat.completions.create(**fields).choices[0]
        assert choice.message.reasoning
        assert (
            choice.finish_reason == "length" or choice.message.tool_calls or json.loads(choice.message.content) in FORMS
        )


def test_form_is_refused_beside_tools_in_a_format_without_a_grammar(tmp_path: Path) -> None:
    with ToySite(tmp_path, NO_GRAMMAR) as site:
        with pytest.raises(openai.BadRequestError, match="no room for tool calls in the format of this") as caught:
            site.openai.chat.completions.create(**ASK, tools=TOOLS, extra_body={"response_format": FORM})
        assert caught.value.param == "response_format"


def test_strict_tool_may_be_left_alone(site: ToySite) -> None:
    bias = {str(end): 100 for end in site.text.stop_ids}
    [choice] = site.openai.chat.completions.create(**ASK, tools=TOOLS, seed=1, logit_bias=bias).choices
    assert choice.finish_reason == "stop"
    assert not choice.message.tool_calls


def test_format_without_a_grammar_cannot_be_strict(tmp_path: Path) -> None:
    with ToySite(tmp_path, NO_GRAMMAR) as site:
        with pytest.raises(openai.BadRequestError, match="'spell' cannot be strict in the format of this") as caught:
            site.openai.chat.completions.create(**ASK, tools=TOOLS)
        assert caught.value.param == "tools"


@pytest.mark.parametrize("name", ["qwen3_coder", "glm4", "mistral", "deepseek", "kimi_k2", "minimax"])
def test_strict_tool_is_called_in_the_format_of_the_model(tmp_path: Path, name: str) -> None:
    factory: Any = OTHERS[name].factory.load()
    with ToySite(tmp_path, OTHERS[name]) as site:
        bias = {str(token): 100 for mark in factory.openers[:1] for token in site.text.encode(mark)}
        fields: Any = {**ASK, "tools": TOOLS[:1], "parallel_tool_calls": False, "seed": 3, "logit_bias": bias}
        [choice] = site.openai.chat.completions.create(**fields).choices
    check_spelling(choice)


def check_spelling(choice: Any) -> None:
    """Check that an answer calls the first tool by its schema."""
    assert (choice.finish_reason, (choice.message.content or "").strip()) == ("tool_calls", "")
    [call] = choice.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)["letter"] in {"a", "é"}) == ("spell", True)


@pytest.fixture
def oss(tmp_path: Path) -> Iterator[ToySite]:
    with ToySite(tmp_path, OTHERS["harmony"], template="{# {{ tools }} #}" + HARMONY) as site:
        yield site


def bias_tokens(site: ToySite, **texts: int) -> dict[str, int]:
    """Return a bias for marks of harmony by name, and for letters."""
    names = {name: name if len(name) == 1 else f"<|{name}|>" for name in texts}
    return {str(site.text.encode(names[name])[0]): bias for name, bias in texts.items()}


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_call_is_forced_in_harmony(oss: ToySite, choice: Any) -> None:
    bias = bias_tokens(oss, end=100)  # the reasoning is short
    for seed in range(3):
        fields: Any = {**ASK, "tools": TOOLS[:1], "tool_choice": choice, "logit_bias": bias, "seed": seed}
        with oss.openai.chat.completions.stream(**fields) as stream:
            check_spelling(stream.get_final_completion().choices[0])


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_call_is_forced_in_harmony_without_tools_in_the_template(tmp_path: Path, choice: Any) -> None:
    with ToySite(tmp_path, OTHERS["harmony"], template=HARMONY) as site:
        fields: Any = {**ASK, "tools": TOOLS[:1], "logit_bias": bias_tokens(site, end=100), "seed": 1}
        found = site.openai.chat.completions.create(**fields, tool_choice=choice)
        asked = {"messages": ASK["messages"], "tools": TOOLS[:1]}
        shown = site.http.post("/detokenize", json={"tokens": site.http.post("/tokenize", json=asked).json()["tokens"]})
    check_spelling(found.choices[0])
    assert '{"name": "spell", "parameters": {' in shown.json()["prompt"]
    assert "a list in JSON" not in shown.json()["prompt"]


@pytest.mark.parametrize("calls", [False, True])
def test_harmony_calls_strict_tools_or_has_the_form(oss: ToySite, *, calls: bool) -> None:
    bias = bias_tokens(oss, c=100) if calls else bias_tokens(oss, f=100)  # the first letter of the channel
    fields: Any = {**ASK, "tools": TOOLS[:1], "response_format": FORM, "logit_bias": bias, "seed": 3}
    choice: Any = oss.openai.chat.completions.create(**fields).choices[0]
    if calls:
        check_spelling(choice)
    else:
        assert (choice.finish_reason, json.loads(choice.message.content) in FORMS) == ("stop", True)


def test_form_is_in_the_final_message_of_harmony(oss: ToySite) -> None:
    for seed in range(4):
        fields: Any = {**ASK, "response_format": FORM, "logit_bias": bias_tokens(oss, end=100), "seed": seed}
        choice: Any = oss.openai.chat.completions.create(**fields).choices[0]
        assert (choice.finish_reason, json.loads(choice.message.content) in FORMS) == ("stop", True)


def test_limit_of_the_reasoning_of_harmony_leads_to_the_form_and_to_no_forced_call(oss: ToySite) -> None:
    fields: Any = {**ASK, "extra_body": {"max_reasoning_tokens": 5}, "logit_bias": bias_tokens(oss, end=-100)}
    for seed in range(4):
        asked = {**fields, "response_format": FORM, "seed": seed}
        choice: Any = oss.openai.chat.completions.create(**asked).choices[0]
        assert (choice.finish_reason, json.loads(choice.message.content) in FORMS) == ("stop", True)
    with pytest.raises(openai.BadRequestError) as caught:
        oss.openai.chat.completions.create(**fields, tools=TOOLS, tool_choice="required")
    assert caught.value.param == "max_reasoning_tokens"


PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "size": {"enum": [1, 2]}, "is_old": {"type": "boolean"}},
    "required": ["name", "size", "is_old"],
    "additionalProperties": False,
}
PERSON_TOOLS: Any = [{"type": "function", "function": {"name": "describe", "parameters": PERSON}}]


def stream_answer(site: ScriptedSite, fields: dict[str, Any]) -> tuple[str, str, str | None]:
    """Return the content and the arguments of a streamed answer, and why it ended."""
    content, arguments, reason = "", "", None
    for chunk in site.openai.chat.completions.create(**ASK, **fields, stream=True, seed=2):
        for choice in chunk.choices:
            content += choice.delta.content or ""
            arguments += "".join(call.function.arguments for call in choice.delta.tool_calls or ())
            reason = choice.finish_reason or reason
    return content, arguments, reason


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "it", "schema": PERSON}}},
        {"tools": PERSON_TOOLS, "tool_choice": "required", "parallel_tool_calls": False},
    ],
    ids=["JSON", "arguments of a call"],
)
def test_stream_goes_on_with_the_same_text_when_stages_are_lost(tmp_path: Path, fields: dict[str, Any]) -> None:
    with LossySite(tmp_path) as whole:
        expected = stream_answer(whole, fields)
    assert expected[2] in {"stop", "tool_calls"}
    assert set(json.loads(expected[0] or expected[1])) == set(PERSON["required"])
    losses = [1, 2, 5, 3, 8, 4, 7]
    with LossySite(tmp_path, losses) as site:
        assert stream_answer(site, fields) == expected
        assert site.num_opened == len(losses) + 1
