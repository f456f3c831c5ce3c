from __future__ import annotations

from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from parallax_core.base.errors import InvalidRequest, ParallaxError
from parallax_core.models.chat_template import Arguments, ChatTemplate, PromptEnding
from tests.support.conversations import CONVERSATIONS, USER

LONGEST = 100_000
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
ALL = "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}\n{% endfor %}"
TEMPLATES = {
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}\n{% endfor %}",
    "generation with space": "{%- for m in messages -%}{%- generation -%}\n{{ m.role }} {%- endgeneration -%}"
    " | {% endfor %}",
    "nested generation": "{% if messages %}{% generation %}{% set x = 1 %}{{ x }}{% endgeneration %}{{ x }}{% endif %}",
    "json": "{{ messages | tojson }}{{ tools | tojson(ensure_ascii=True) }}{{ tools | tojson(indent=2) }}",
    "json by position": "{{ messages | tojson(true, 4) }}",
    "json separators": "{{ messages | tojson(separators=(',', ':'), sort_keys=True) }}",
    "tools are none": "{{ tools is none }}{{ tools is defined }}{% if tools %}{{ tools | length }}{% endif %}",
    "documents are none": "{{ documents is none }} {{ documents is defined }}",
    "special": "{{ bos_token }}{{ pad_token }}[{{ unk_token }}]{{ unk_token is defined }}" + ALL,
    "namespace": "{% set ns = namespace(self=1, found='') %}{% for m in messages %}{% set ns.found = m.role %}"
    "{% endfor %}"
    "{{ ns.found }}{{ ns.self }}",
    "dict": "{% set d = dict(a=1, **{'b': 2}) %}{{ d | tojson }}{{ dict.fromkeys(['x'], 3) }}{{ dict([('k', 'v')]) }}",
    "loop control": "{% for m in messages %}{% if loop.index0 > 1 %}{% break %}{% endif %}{% continue %}x{% endfor %}",
    "macro": "{% macro show(m) %}{{ m.content | trim }}{% endmacro %}{% for m in messages %}{{ show(m) }}{% endfor %}",
    "prompt": "{% if add_generation_prompt %}assistant:{% endif %}{{ add_generation_prompt }}",
    "arguments": "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}"
    "{% for k, v in c.function.arguments | items %}{{ k }}={{ v }};{% endfor %}{% endfor %}{% endfor %}",
    "strings": "{% for m in messages %}{{ (m.content or '').strip().split(' ')[-1] | upper }}{{ loop.last }}"
    "{% endfor %}",
    "reasoning": "{% for m in messages %}{{ m.reasoning_content }}{{ 'content' in m }}{{ m.tool_calls is defined }}"
    "{{ m.thinking }}{% endfor %}",
}


def render(source: str, turns: list[dict[str, Any]], tools: list[dict[str, Any]], **settings: Any) -> str:
    return ChatTemplate(source, SPECIAL, LONGEST).render(turns, settings, tools=tools)


def render_reference(source: str, turns: list[dict[str, Any]], tools: list[dict[str, Any]], **settings: Any) -> str:
    rendered, _ = render_jinja_template(
        [turns], tools or None, chat_template=source, add_generation_prompt=True, **(SPECIAL | settings)
    )
    text: str = rendered[0]
    return text


@pytest.mark.parametrize("name", TEMPLATES)
def test_template_renders_as_in_transformers(name: str) -> None:
    source = TEMPLATES[name] + "{# tools #}"
    for turns, tools in CONVERSATIONS:
        assert render(source, turns, tools) == render_reference(source, turns, tools)


def test_date_is_the_local_one_without_a_time_zone() -> None:
    source = "{{ strftime_now('%d %b %Y%z') }}"
    assert render(source, [USER], []) == render_reference(source, [USER], [])


def test_template_that_takes_tools_by_another_name_gets_them() -> None:
    source = "{% for tool in xml_tools or [] %}<tools>{{ tool | string }}</tools>{% endfor %}"
    tools = [{"type": "function", "function": {"name": "look_up"}}]
    assert render(source, [USER], tools) == render_reference(source, [USER], [], xml_tools=tools) != ""
    assert render(source, [USER], tools, xml_tools=["own"]) == "<tools>own</tools>"
    assert render(source, [USER], []) == ""


def test_settings_of_a_request_win_over_the_names_of_tokens_and_absent_values() -> None:
    source = "{{ pad_token }}{{ documents[0].text }}"
    settings = {"pad_token": "[PAD]", "documents": [{"title": "a", "text": "b"}]}
    assert render(source, [USER], [], **settings) == render_reference(source, [USER], [], **settings) == "[PAD]b"


def test_fields_without_a_value_are_absent() -> None:
    turn = {"role": "assistant", "content": None, "tool_calls": None}
    assert render("{{ 'content' in messages[0] }}", [turn], []) == "False"


def test_template_that_needs_a_content_gets_an_empty_one() -> None:
    turn = {"role": "assistant", "content": None}
    assert render("{{ '>' + messages[0]['content'] + '<' }}", [turn], []) == "><"
    source = "{{ '>' + (messages[0].nothing.at_all or '') if messages[0]['content'] is not none else 'null' }}"
    assert render(source, [turn], []) == "null"


@pytest.mark.parametrize(
    "source",
    [
        "{% set ns = namespace(_x=1) %}",
        "{% set ns = namespace() %}{% set ns._x = 1 %}{{ ns }}",
        "{{ dict.__class__.__mro__ }}",
        "{{ dict.mro() }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ raise_exception.__globals__.keys() }}",
    ],
)
def test_global_of_the_environment_opens_no_way_out(source: str) -> None:
    with pytest.raises(InvalidRequest, match="refuses these messages"):
        render(source, [USER], [])


def test_generation_without_its_end_is_told() -> None:
    with pytest.raises(ParallaxError, match="endgeneration"):
        ChatTemplate("{% generation %}x", SPECIAL, LONGEST)


@pytest.mark.parametrize("content", ["s", "turn", " a ", "end\n", ""])
@pytest.mark.parametrize(
    "source", [ALL, "{% for m in messages %}<turn>{{ m.content | trim }}<end of turn>{% endfor %}"]
)
def test_last_message_is_continued_at_its_end_as_in_transformers(source: str, content: str) -> None:
    turns = [USER, {"role": "assistant", "content": content}]
    ending = PromptEnding(opens_answer=False, continues_last=True)
    expected, _ = render_jinja_template([turns], chat_template=source, continue_final_message=True, **SPECIAL)
    assert ChatTemplate(source, SPECIAL, LONGEST).render(turns, ending=ending) == expected[0]


def test_arguments_of_a_call_are_text_beside_text() -> None:
    found = Arguments({"city": "Oslo"})
    assert (found + "!", "call " + found) == ('{"city": "Oslo"}!', 'call {"city": "Oslo"}')
