"""Every parser holds to the contract, reads transcripts of its family, and survives any text in any pieces."""

# ruff: noqa: RUF001 -- marks of DeepSeek have this character

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_core.api import AnswerInfo, Content, Parser, Piece, Reasoning, ToolCall
from parallax_core.testing.parser import ParserConformance, check_calls, join_pieces
from parallax_models.parsers.formats import FORMATS
from parallax_models.plugin import parallax_register_parsers

MAKERS: dict[str, Callable[[], Parser]] = {spec.name: spec.factory.load() for spec in FORMATS}

THINK_MARKS = ("<think>", "<think>\n", *(f"{a}</think>{b}" for a in ("", "\n", "\n\n") for b in ("", "\n", "\n\n")))
ARGUMENTS = '{"city": "S\\u00e3o \\"Paulo\\" {", "days": [1, {"of": 2}], "at": null}'
WEATHER = json.dumps(
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "parts": {"type": "array", "items": {"type": "string"}},
            "unit": {"type": ["string", "null"]},
            "exact": {"type": "boolean"},
        },
    }
)
TOOLS = {"get_weather": WEATHER, "list_files": "{}"}


def call(name: str = "get_weather", arguments: str = ARGUMENTS) -> str:
    return f'{{"name": "{name}", "arguments": {arguments}}}'


class Kit(ParserConformance):
    """The kit, with a parser that knows the tools."""

    parser = ""
    tools = TOOLS

    def make_parser(self) -> Parser:
        parser: Any = MAKERS[self.parser]()
        parser.begin(AnswerInfo(tools=self.tools))
        return parser  # type: ignore[no-any-return]


class TestThink(Kit):
    parser = "think"
    marks = THINK_MARKS
    samples = (
        ("<think>\nwhy\n\n</think>\n\nbecause", [Reasoning("why"), Content("because")]),
        ("plain </think> <think> text", [Content("plain </think> <think> text")]),
        ("<think>\na\n\nb", [Reasoning("a\n\nb")]),
        ('<tool_call>\n{"name": "x"}', [Content('<tool_call>\n{"name": "x"}')]),
    )


class TestHermes(Kit):
    parser = "hermes"
    marks = (*THINK_MARKS, "<tool_call>")
    samples = (
        (f"<tool_call>\n{call()}\n</tool_call>", [ToolCall(0, "get_weather", ARGUMENTS)]),
        (
            (
                "<think>\nLook it up.\n</think>\n\nOne moment.\n"
                f"<tool_call>\n{call()}\n</tool_call>\n<tool_call>\n{call('list_files', '{}')}\n</tool_call>"
            ),
            [
                Reasoning("Look it up."),
                Content("One moment.\n"),
                ToolCall(0, "get_weather", ARGUMENTS),
                ToolCall(1, "list_files", "{}"),
            ],
        ),
        ('<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', [ToolCall(0, "f", '{"a": 1}')]),
        ('<tool_call>{"name": "f"}</tool_call> done', [ToolCall(0, "f", "{}"), Content("done")]),
        ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}', [ToolCall(0, "f", '{"a": 1}')]),
        ("<tool_call> is a mark", [Content("<tool_call> is a mark")]),
        ('<tool_call>{"a": 1}</tool_call>', [Content('<tool_call>{"a": 1}</tool_call>')]),
    )


class TestQwen3Coder(Kit):
    parser = "qwen3_coder"
    marks = (*THINK_MARKS, "<tool_call>", "<function=")
    samples = (
        (
            (
                'Let me see.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nSão\n"Paulo"\n</parameter>\n'
                "<parameter=days>\n3\n</parameter>\n<parameter=unit>\nnull\n</parameter>\n</function>\n</tool_call>"
            ),
            [
                Content("Let me see.\n"),
                ToolCall(0, "get_weather", '{"city": "São\\n\\"Paulo\\"", "days": 3, "unit": null}'),
            ],
        ),
        ("<function=list_files>\n</function>", [ToolCall(0, "list_files", "{}")]),
        (
            (
                "<tool_call><function=get_weather><parameter=exact>True</parameter></function></tool_call>\n"
                '<tool_call><function=get_weather><parameter=parts>["a"]</parameter></function></tool_call>'
            ),
            [ToolCall(0, "get_weather", '{"exact": true}'), ToolCall(1, "get_weather", '{"parts": ["a"]}')],
        ),
        (
            "<function=get_weather><parameter=days>soon</parameter><parameter=other>1</parameter></function>",
            [ToolCall(0, "get_weather", '{"days": "soon", "other": "1"}')],
        ),
        (
            (
                '<function=get_weather><parameter=parts>\n["</parameter>", "b"]\n</parameter>'
                '<parameter=city>\n["\n</parameter></function>'
            ),
            [ToolCall(0, "get_weather", '{"parts": ["</parameter>", "b"], "city": "[\\""}')],
        ),
        ("a <function=> b", [Content("a <function=> b")]),
    )


class TestSeedOss(Kit):
    parser = "seed_oss"
    marks = (*(mark.replace("think>", "seed:think>") for mark in THINK_MARKS), "<seed:tool_call>")
    samples = (
        (
            (
                "<seed:think>why</seed:think><seed:tool_call>\n<function=get_weather>\n<parameter=city>Bonn</parameter>\n"
                "<parameter=days>3</parameter>\n</function>\n</seed:tool_call>"
            ),
            [Reasoning("why"), ToolCall(0, "get_weather", '{"city": "Bonn", "days": 3}')],
        ),
        ("a <seed:tool_call> b", [Content("a <seed:tool_call> b")]),
        (  # the template writes values as Python does
            (
                "<seed:tool_call>\n<function=get_weather>\n<parameter=exact>True</parameter>\n"
                "<parameter=parts>['it\\'s', \"ü\", None]</parameter>\n<parameter=city>['a']</parameter>\n"
                "<parameter=days>[1, {2}]</parameter>\n</function>\n</seed:tool_call>"
            ),
            [
                ToolCall(
                    0,
                    "get_weather",
                    '{"exact": true, "parts": ["it\'s", "ü", null], "city": "[\'a\']", "days": "[1, {2}]"}',
                )
            ],
        ),
    )


class TestLfm2(Kit):
    parser = "lfm2"
    marks = (*THINK_MARKS, "<|tool_call_start|>")
    samples = (
        (
            'I look.<|tool_call_start|>[get_weather(city="São \\"P\\"", days=3), list_files()]<|tool_call_end|>Done.',
            [
                Content("I look."),
                ToolCall(0, "get_weather", '{"city": "São \\"P\\"", "days": 3}'),
                ToolCall(1, "list_files", "{}"),
                Content("Done."),
            ],
        ),
        (
            "<|tool_call_start|>[get_weather(parts=['it\\'s', \"b\"], exact=True, unit=None, at={'x': (1, -2.5)})]",
            [
                ToolCall(
                    0, "get_weather", '{"parts": ["it\'s", "b"], "exact": true, "unit": null, "at": {"x": [1, -2.5]}}'
                )
            ],
        ),
        ("<|tool_call_start|> nothing", [Content("<|tool_call_start|> nothing")]),
    )


class TestOlmo3(Kit):
    parser = "olmo3"
    marks = (*THINK_MARKS, "<function_calls>")
    samples = (
        (
            '<function_calls>\nget_weather(city="Bonn\\nRhein")\nlist_files()\n</function_calls>',
            [ToolCall(0, "get_weather", '{"city": "Bonn\\nRhein"}'), ToolCall(1, "list_files", "{}")],
        ),
        ("a <function_calls> b", [Content("a <function_calls> b")]),
    )


class TestDeepseekV32(Kit):
    parser = "deepseek_v32"
    marks = (*THINK_MARKS, "<｜DSML｜function_calls>", "<｜DSML｜tool_calls>")
    samples = (
        (
            (
                "<think>why</think>\n\n<｜DSML｜function_calls>\n"
                '<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">007\n'
                '</｜DSML｜parameter>\n<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'
                '</｜DSML｜invoke>\n<｜DSML｜invoke name="list_files">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>'
            ),
            [
                Reasoning("why"),
                ToolCall(0, "get_weather", '{"city": "007\\n", "days": 3}'),
                ToolCall(1, "list_files", "{}"),
            ],
        ),
        (
            (
                '<｜DSML｜tool_calls><｜DSML｜invoke name="f"><｜DSML｜parameter name="x" string="false">'
                '["</｜DSML｜parameter>"]</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜tool_calls>'
            ),
            [ToolCall(0, "f", '{"x": ["</｜DSML｜parameter>"]}')],
        ),
        ("a <｜DSML｜function_calls> b", [Content("a <｜DSML｜function_calls> b")]),
    )


class TestDeepseekV4(Kit):
    parser = "deepseek_v4"
    marks = (*THINK_MARKS, "<｜DSML｜tool_calls>", "<｜DSML｜toolcalls>", "<｜DSML｜tool>")
    samples = (
        (
            (
                "<think>why</think>\n\n<｜DSML｜tool_calls>\n"
                '<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">Bonn'
                '</｜DSML｜parameter>\n<｜DSML｜parameter name="days">3</｜DSML｜parameter>\n'
                "</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
            ),
            [Reasoning("why"), ToolCall(0, "get_weather", '{"city": "Bonn", "days": 3}')],
        ),
        (
            '<｜DSML｜toolcalls><｜DSML｜invoke name="f"></｜DSML｜invoke></｜DSML｜tool_calls>',
            [ToolCall(0, "f", "{}")],
        ),
        ("a <｜DSML｜function_calls> b", [Content("a <｜DSML｜function_calls> b")]),
    )


M3 = "]<]minimax[>["
ORDER = json.dumps(
    {
        "type": "object",
        "properties": {
            "user": {"type": "integer"},
            "note": {"type": "string"},
            "items": {"type": "array", "items": {"$ref": "#/$defs/item"}},
            "left": {"type": "array", "items": {"type": "string"}},
        },
        "$defs": {"item": {"type": "object", "properties": {"sku": {"type": "string"}, "count": {"type": "integer"}}}},
    }
)


class TestMinimaxM3(Kit):
    parser = "minimax_m3"
    tools = TOOLS | {"order": ORDER}
    marks = ("<mm:think>", "</mm:think>", f"{M3}<tool_call>", f'{M3}<invoke name="', f"{M3}</invoke>")
    samples = (
        (
            (
                f'<mm:think>why</mm:think>{M3}<tool_call>\n{M3}<invoke name="order">\n{M3}<user>42{M3}</user>\n'
                f"{M3}<note>7{M3}</note>{M3}<items>\n{M3}<item>{M3}<sku>01{M3}</sku>{M3}<count>2{M3}</count>{M3}</item>"
                f'{M3}</items>\n{M3}<left>{M3}</left>{M3}</invoke>\n{M3}<invoke name="list_files">{M3}</invoke>\n'
                f"{M3}</tool_call>"
            ),
            [
                Reasoning("why"),
                ToolCall(0, "order", '{"user": 42, "note": "7", "items": [{"sku": "01", "count": 2}], "left": []}'),
                ToolCall(1, "list_files", "{}"),
            ],
        ),
        (
            (
                f'</mm:think>so{M3}<tool_call>{M3}<invoke name="order">{M3}<items>[{{"sku": "a"}}]{M3}</items>{M3}<x>1'
                f"{M3}</x>{M3}<x>{M3}<y>2{M3}</y>{M3}</x>{M3}</invoke>{M3}</tool_call>"
            ),
            [Content("so"), ToolCall(0, "order", '{"items": [{"sku": "a"}], "x": ["1", {"y": "2"}]}')],
        ),
        (f"a {M3}<tool_call> b", [Content(f"a {M3}<tool_call> b")]),
    )


def write_hy(suffix: str) -> str:
    tags = ("think", "tool_calls", "tool_call", "arg_key", "arg_value")
    text = (
        "<think>why</think>\n<tool_calls>\n<tool_call>get_weather<arg_key>city</arg_key><arg_value>Bonn</arg_value>"
        "<arg_key>days</arg_key><arg_value>3</arg_value></tool_call>\n<tool_call>list_files</tool_call>\n</tool_calls>"
    )
    for tag in tags:
        text = text.replace(f"<{tag}>", f"<{tag}{suffix}>").replace(f"</{tag}>", f"</{tag}{suffix}>")
    return text


HY_CALLS = [ToolCall(0, "get_weather", '{"city": "Bonn", "days": 3}'), ToolCall(1, "list_files", "{}")]


SUFFIXED_THINK = tuple(mark.replace("think>", "think:6124c78e>") for mark in THINK_MARKS)


class TestHyV4(Kit):
    parser = "hy_v4"
    marks = (*THINK_MARKS, *SUFFIXED_THINK, "<tool_calls>", "<tool_calls:6124c78e>")
    samples = (
        (write_hy(""), [Reasoning("why"), *HY_CALLS]),
        (write_hy(":6124c78e"), [Reasoning("why"), *HY_CALLS]),
        ("<think not", [Content("<think not")]),
        ("a <tool_calls:1f> b", [Content("a <tool_calls:1f> b")]),
    )

    def test_suffix_of_the_prompt_is_that_of_the_answer(self) -> None:
        for end, thinks in (("<think:6124c78e>", True), ("<think:6124c78e></think:6124c78e>", False)):
            parser: Any = MAKERS["hy_v4"]()
            parser.begin(AnswerInfo(tools=TOOLS, prompt_end=f"user: hi{end}"))
            text = write_hy(":6124c78e").removeprefix("<think:6124c78e>")
            text = text if thinks else text.removeprefix("why</think:6124c78e>\n")
            found = join_pieces([*parser.feed(f"{text}"), *parser.finish()])
            assert found == [*([Reasoning("why")] if thinks else []), *HY_CALLS]

    def test_tags_of_another_suffix_are_content(self) -> None:
        parser: Any = MAKERS["hy_v4"]()
        parser.begin(AnswerInfo(tools=TOOLS, prompt_end="<think:1f></think:1f>"))
        text = "<tool_calls:2e><tool_call:2e>list_files</tool_call:2e></tool_calls:2e>"
        assert join_pieces([*parser.feed(text), *parser.finish()]) == [Content(text)]


class TestNemotron(Kit):
    parser = "nemotron"
    marks = (*THINK_MARKS, "<TOOLCALL>")
    samples = (
        (
            f"<think>\nwhy\n</think>\n<TOOLCALL>[{call()}, {call('list_files', '{}')}]</TOOLCALL>",
            [Reasoning("why"), ToolCall(0, "get_weather", ARGUMENTS), ToolCall(1, "list_files", "{}")],
        ),
        ("the <TOOLCALL> mark", [Content("the <TOOLCALL> mark")]),
    )


class TestPhi4Mini(Kit):
    parser = "phi4_mini"
    marks = (*THINK_MARKS, "<|tool_call|>", "functools[")
    samples = (
        (f"functools[{call()}]", [ToolCall(0, "get_weather", ARGUMENTS)]),
        (
            f"Look.<|tool_call|>[{call('list_files', '{}')}, {call()}]<|/tool_call|>",
            [Content("Look."), ToolCall(0, "list_files", "{}"), ToolCall(1, "get_weather", ARGUMENTS)],
        ),
        ("Use functools[0] or functools.", [Content("Use functools[0] or functools.")]),
    )


class TestHunyuan(Kit):
    parser = "hunyuan"
    marks = (*THINK_MARKS, "<tool_calls>", "<answer>", "<answer>\n", "</answer>", "\n</answer>")
    samples = (
        (
            "<think>\nwhy\n</think>\n<answer>\nbecause\n</answer>",
            [Reasoning("why"), Content("because")],
        ),
        (
            f"<think>\nwhy\n</think>\n<answer>\n<tool_calls>[{call()}]</tool_calls>\n</answer>",
            [Reasoning("why"), ToolCall(0, "get_weather", ARGUMENTS)],
        ),
        ("plain </answer> text", [Content("plain </answer> text")]),
    )


class TestLlama4(Kit):
    parser = "llama4_pythonic"
    marks = (*THINK_MARKS, "<|python_start|>")
    samples = (
        (
            '[get_weather(city="Bonn", days=3), list_files()]',
            [ToolCall(0, "get_weather", '{"city": "Bonn", "days": 3}'), ToolCall(1, "list_files", "{}")],
        ),
        ("<|python_start|>[list_files()]<|python_end|>", [ToolCall(0, "list_files", "{}")]),
        ("[see(below)] and [list_files()]", [Content("[see(below)] and [list_files()]")]),
        ("[1, 2]", [Content("[1, 2]")]),
    )


class TestGemma4(Kit):
    parser = "gemma4"
    marks = ("<|channel>", "<|channel>thought", "<|channel>thought\n", "<channel|>", "\n<channel|>", "<|tool_call>")
    samples = (
        (
            (
                '<|channel>thought\nwhy\n<channel|>I look.<|tool_call>call:get_weather{city:<|"|>São "P"<|"|>,days:3,'
                'exact:true,at:{x:[1,<|"|>b<|"|>],1:null}}<tool_call|><|tool_call>call:list_files{}<tool_call|>'
            ),
            [
                Reasoning("why"),
                Content("I look."),
                ToolCall(
                    0,
                    "get_weather",
                    '{"city": "São \\"P\\"", "days": 3, "exact": true, "at": {"x": [1, "b"], "1": null}}',
                ),
                ToolCall(1, "list_files", "{}"),
            ],
        ),
        ("a <|tool_call> b", [Content("a <|tool_call> b")]),
    )


class TestGlm4(Kit):
    parser = "glm4"
    marks = (*THINK_MARKS, "<tool_call>")
    samples = (
        (
            (
                "<think>hm</think>\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Beijing</arg_value>\n"
                "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>"
            ),
            [Reasoning("hm"), ToolCall(0, "get_weather", '{"city": "Beijing", "days": 2}')],
        ),
        (
            (
                "<tool_call>list_files</tool_call><tool_call>get_weather<arg_key>city</arg_key>"
                "<arg_value>1</arg_value></tool_call>"
            ),
            [ToolCall(0, "list_files", "{}"), ToolCall(1, "get_weather", '{"city": "1"}')],
        ),
    )


class TestLlama3(Kit):
    parser = "llama3_json"
    marks = THINK_MARKS
    samples = (
        (
            f'{{"name": "get_weather", "parameters": {ARGUMENTS}}}',
            [ToolCall(0, "get_weather", ARGUMENTS)],
        ),
        (
            (
                '<|python_tag|>{"type": "function", "name": "list_files", "parameters": {}}; '
                '{"name": "get_weather", "parameters": {"city": "Bonn"}}'
            ),
            [ToolCall(0, "list_files", "{}"), ToolCall(1, "get_weather", '{"city": "Bonn"}')],
        ),
        ('{"name": "Ada", "age": 36}', [Content('{"name": "Ada", "age": 36}')]),
        ('{"name": "unknown", "parameters": {}}', [Content('{"name": "unknown", "parameters": {}}')]),
        ("It is {sunny}.", [Content("It is {sunny}.")]),
    )


class TestLlama4Json(Kit):
    parser = "llama4_json"
    marks = (*THINK_MARKS, "<|python_start|>", "<|python_end|>")
    samples = (
        (f'{{"name": "get_weather", "parameters": {ARGUMENTS}}}', [ToolCall(0, "get_weather", ARGUMENTS)]),
        (
            (
                '<|python_start|><|python_end|>{"name": "list_files", "parameters": {}}'
                '{"name": "get_weather", "parameters": {}}'
            ),
            [ToolCall(0, "list_files", "{}"), ToolCall(1, "get_weather", "{}")],
        ),
        (
            '<|python_start|>{"name": "list_files", "parameters": {}}<|python_end|>',
            [ToolCall(0, "list_files", "{}")],
        ),
        ("<|python_start|>print(1)<|python_end|>", [Content("<|python_start|>print(1)<|python_end|>")]),
    )


class TestMistral(Kit):
    parser = "mistral"
    marks = ("[THINK]", "[/THINK]", "[TOOL_CALLS]")
    samples = (
        (
            f'[TOOL_CALLS] [{call()}, {{"name": "list_files", "arguments": {{}}, "id": "abcdefghi"}}]',
            [ToolCall(0, "get_weather", ARGUMENTS), ToolCall(1, "list_files", "{}")],
        ),
        (
            "[THINK]hm[/THINK]Well.[TOOL_CALLS]get_weather[ARGS]" + ARGUMENTS + "[TOOL_CALLS]list_files[ARGS]{}",
            [
                Reasoning("hm"),
                Content("Well."),
                ToolCall(0, "get_weather", ARGUMENTS),
                ToolCall(1, "list_files", "{}"),
            ],
        ),
        ('[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{"a": 1}', [ToolCall(0, "f", '{"a": 1}', "123456789")]),
        ("[TOOL_CALLS] are marks", [Content("[TOOL_CALLS] are marks")]),
    )


class TestDeepseek(Kit):
    parser = "deepseek"
    marks = (*THINK_MARKS, "<｜tool▁calls▁begin｜>")
    samples = (
        (
            "Wait.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
            + ARGUMENTS
            + "\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>list_files\n```json\n{}\n```"
            "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            [Content("Wait."), ToolCall(0, "get_weather", ARGUMENTS), ToolCall(1, "list_files", "{}")],
        ),
        (
            "<think>hm</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
            + ARGUMENTS
            + "<｜tool▁call▁end｜><｜tool▁call▁begin｜>list_files<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
            + "<｜tool▁calls▁end｜>",
            [Reasoning("hm"), ToolCall(0, "get_weather", ARGUMENTS), ToolCall(1, "list_files", "{}")],
        ),
    )


class TestKimi(Kit):
    parser = "kimi_k2"
    marks = (*THINK_MARKS, "<|tool_calls_section_begin|>")
    samples = (
        (
            (
                "I look.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
                f"<|tool_call_argument_begin|>{ARGUMENTS}<|tool_call_end|><|tool_call_begin|>functions.list_files:1 "
                "<|tool_call_argument_begin|> {}<|tool_call_end|><|tool_calls_section_end|>"
            ),
            [
                Content("I look."),
                ToolCall(0, "get_weather", ARGUMENTS, "functions.get_weather:0"),
                ToolCall(1, "list_files", "{}", "functions.list_files:1"),
            ],
        ),
    )


class TestMinimax(Kit):
    parser = "minimax"
    marks = (*THINK_MARKS, "<minimax:tool_call>")
    samples = (
        (
            (
                '<think>\nhm\n</think>\n\n<minimax:tool_call>\n<invoke name="get_weather">\n'
                '<parameter name="city">Bonn</parameter>\n<parameter name="parts">["a", "b"]</parameter>\n</invoke>\n'
                '<invoke name="list_files">\n</invoke>\n</minimax:tool_call>'
            ),
            [
                Reasoning("hm"),
                ToolCall(0, "get_weather", '{"city": "Bonn", "parts": ["a", "b"]}'),
                ToolCall(1, "list_files", "{}"),
            ],
        ),
    )


class TestMinimaxM1(Kit):
    parser = "minimax_m1"
    marks = (*THINK_MARKS, "<tool_calls>")
    samples = (
        (
            f"<tool_calls>\n{call()}\n{call('list_files', '{}')}\n</tool_calls>",
            [ToolCall(0, "get_weather", ARGUMENTS), ToolCall(1, "list_files", "{}")],
        ),
    )


class TestGranite(Kit):
    parser = "granite"
    marks = (*THINK_MARKS, "<|tool_call|>", "<tool_call>")
    samples = (
        (f"<|tool_call|>[{call()}]", [ToolCall(0, "get_weather", ARGUMENTS)]),
        (
            f"<tool_call>[{call()}, {call('list_files', '{}')}]</tool_call>",
            [ToolCall(0, "get_weather", ARGUMENTS), ToolCall(1, "list_files", "{}")],
        ),
    )


ANALYSIS, FINAL = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
COMMENTARY = "<|channel|>commentary<|message|>"


class TestHarmony(Kit):
    parser = "harmony"
    marks = (ANALYSIS, FINAL, COMMENTARY, "<|end|>", "<|start|>assistant" + FINAL, "<|channel|>", "<|start|>")
    samples = (
        (f"{ANALYSIS}hm<|end|><|start|>assistant{FINAL}Hello.", [Reasoning("hm"), Content("Hello.")]),
        (
            (
                f"{ANALYSIS}hm<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather "
                f"<|constrain|>json<|message|>{ARGUMENTS}<|call|>"
            ),
            [Reasoning("hm"), ToolCall(0, "get_weather", ARGUMENTS)],
        ),
        (
            (
                "<|channel|>commentary<|message|>First.<|end|><|start|>assistant to=functions.list_files"
                "<|channel|>commentary json<|message|><|call|>"
            ),
            [Content("First."), ToolCall(0, "list_files", "{}")],
        ),
        (
            ' to=functions.get_weather<|channel|>commentary json<|message|>{"city": "<|end|>"}<|call|>',
            [ToolCall(0, "get_weather", '{"city": "<|end|>"}')],
        ),
        (" to=nobody is text", [Content(" to=nobody is text")]),
        ("<|channel|> is a mark", [Content("<|channel|> is a mark")]),
    )


KITS: dict[str, type[Kit]] = {kit.parser: kit for kit in Kit.__subclasses__()}
PARTS = ["<", ">", "\n", " ", '"', "{", "}", "[", "]", ":", ",", "a", "name", '"name"', '"arguments"', "\\", "é", "</"]


def list_fragments(name: str) -> list[str]:
    """Return pieces of the transcripts of a format, from which texts that nearly make sense are made."""
    texts = [text for text, _ in KITS[name].samples]
    cuts = [text[start : start + size] for text in texts for start in range(0, len(text), 7) for size in (3, 11, 40)]
    return [*PARTS, *KITS[name].marks, *cuts]


def parse(parser: Any, parts: Sequence[str]) -> list[Piece]:
    pieces = [piece for part in parts for piece in parser.feed(part)]
    return join_pieces([*pieces, *parser.finish()])


def test_every_parser_that_is_offered_has_transcripts() -> None:
    assert {spec.name for spec in parallax_register_parsers()} == set(KITS)


@pytest.mark.parametrize("name", KITS)
@given(data=st.data())
def test_pieces_do_not_depend_on_the_cuts_whatever_the_text(name: str, data: st.DataObject) -> None:
    fragments = st.lists(st.sampled_from(list_fragments(name)) | st.text(max_size=5), max_size=12)
    text = "".join(data.draw(fragments))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    info = AnswerInfo(
        tools=data.draw(st.sampled_from([{}, TOOLS])), prompt_end=data.draw(st.sampled_from(["", "<think>\n"]))
    )
    found = []
    for parts in ([text], list(text), [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]):
        parser: Any = MAKERS[name]()
        parser.begin(info)
        found.append(parse(parser, parts))
        calls = [piece for piece in found[-1] if isinstance(piece, ToolCall)]
        assert not calls or info.tools
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("name", KITS)
def test_order_of_calls_holds_whatever_the_text(name: str) -> None:
    for text, _ in KITS[name].samples:
        parser = MAKERS[name]()
        pieces = [piece for letter in text * 2 for piece in parser.feed(letter)]
        check_calls([piece for piece in [*pieces, *parser.finish()] if isinstance(piece, ToolCall)])


@pytest.mark.parametrize("name", sorted(set(KITS) - {"think"}))
def test_calls_are_content_without_tools(name: str) -> None:
    for text, pieces in KITS[name].samples:
        if any(isinstance(piece, ToolCall) for piece in pieces):
            parser: Any = MAKERS[name]()
            parser.begin(AnswerInfo())
            found = parse(parser, [text])
            assert not any(isinstance(piece, ToolCall) for piece in found)


@pytest.mark.parametrize("name", sorted(set(KITS) - {"gemma4", "harmony", "minimax_m3", "mistral", "seed_oss"}))
def test_reasoning_that_the_prompt_opens_is_reasoning(name: str) -> None:
    parser: Any = MAKERS[name]()
    parser.begin(AnswerInfo(prompt_end="<|im_start|>assistant\n<think>\n"))
    assert parse(parser, ["why\n</think>\n\nso"]) == [Reasoning("why"), Content("so")]


def test_number_of_any_length_is_read() -> None:
    digits = "12" * 600
    parser: Any = MAKERS["lfm2"]()
    parser.begin(AnswerInfo(tools=TOOLS))
    found = parse(parser, list(f"<|tool_call_start|>[list_files(n={digits}, m=1)]<|tool_call_end|>"))
    assert found == [ToolCall(0, "list_files", f'{{"n": {digits}, "m": 1}}')]


@pytest.mark.parametrize("prompt_end", ["<|turn>model\n<|channel>thought\n", "<|turn>model\n<|channel>"])
def test_reasoning_that_the_prompt_of_gemma4_opens_is_reasoning(prompt_end: str) -> None:
    parser: Any = MAKERS["gemma4"]()
    parser.begin(AnswerInfo(prompt_end=prompt_end))
    assert parse(parser, ["why\n<channel|>so"]) == [Reasoning("why"), Content("so")]


@pytest.mark.parametrize("name", KITS)
def test_text_is_read_in_time_that_grows_with_the_text_alone(name: str) -> None:
    """A count of the characters that are copied, instead of a clock."""
    for opener in (*KITS[name].marks, '<tool_call>{"name": "f", "arguments": {"a": "', "<function=f><parameter=a>"):
        parser: Any = MAKERS[name]()
        longest = 0
        parser.feed(opener)
        for _ in range(3000):
            parser.feed("ab\n ")
            longest = max(longest, len(parser.text._text) - parser.text._at)
        assert longest <= 1024


@pytest.mark.parametrize("parts", [0, 1])
def test_mark_in_a_text_of_a_form_is_text_where_calls_come_first(parts: int) -> None:
    for name in ("hermes", "mistral"):
        mark = "<tool_call>" if name == "hermes" else "[TOOL_CALLS]"
        end = "</tool_call>" if name == "hermes" else ""
        answer, calls = f'{{"a": "{mark}{call()}{end}"}}', f" {mark}{call()}{end}{mark}{call()}{end}"
        found = []
        for text in (answer, calls):
            parser: Any = MAKERS[name]()
            parser.begin(AnswerInfo(tools=TOOLS, calls_come_first=True))
            found.append(parse(parser, list(text) if parts else [text]))
        assert found[0] == [Content(answer)]
        assert [type(piece) for piece in found[1]] == [ToolCall, ToolCall]
