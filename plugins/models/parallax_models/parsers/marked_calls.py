"""Parsers of calls with the name between marks and arguments in JSON."""

# ruff: noqa: RUF001 -- marks of DeepSeek have this character

from __future__ import annotations

import re

from parallax_models.parsers.answer_grammar import AnswerGrammar, quote
from parallax_models.parsers.answer_parser import AnswerParser
from parallax_models.parsers.text_reader import Reading

NAME = re.compile(r"[^\s<>{}\"`]*")
FENCE, FENCE_END = "\n```json\n", "\n```"
"""What DeepSeek V3 and R1 write before and after the arguments."""


class DeepseekParser(AnswerParser):
    """DeepSeek V3, R1 and V3.1. In V3 and R1 the type of the call, ``function``, stands before its name.

    Source: the chat templates of deepseek-ai/DeepSeek-V3-0324, DeepSeek-R1 and DeepSeek-V3.1.
    """

    openers = ("<｜tool▁calls▁begin｜>",)

    def write_calls(self, grammar: AnswerGrammar, call: str, opener: str) -> str:
        """See `AnswerParser.write_calls`."""
        del opener
        return grammar.repeat(call, end=("<｜tool▁calls▁end｜>",))

    def write_call(self, grammar: AnswerGrammar, name: str) -> str:
        """See `AnswerParser.write_call`."""
        separator, arguments = grammar.text("<｜tool▁sep｜>"), grammar.json(grammar.allowed.tools[name])
        plain = f"{quote(name)} {separator} {arguments}"
        fenced = f"{quote('function')} {separator} {quote(f'{name}{FENCE}')} {arguments} {quote(FENCE_END)}"
        begin, end = grammar.text("<｜tool▁call▁begin｜>"), grammar.text("<｜tool▁call▁end｜>")
        return f"{begin} ({plain} | {fenced}) {end}"

    def read_calls(self, mark: str) -> Reading[bool]:
        """See `AnswerParser.read_calls`."""
        del mark
        return (yield from self.read_section("<｜tool▁call▁begin｜>", self._read_call, "<｜tool▁calls▁end｜>"))

    def _read_call(self) -> Reading[bool]:
        yield from self.text.skip_space()
        name = yield from self.text.read_match(NAME)
        if not (yield from self.text.expect_after_space("<｜tool▁sep｜>")):
            return False
        is_fenced = (yield from self.text.skip_space()) != "{"
        if is_fenced:
            name = yield from self.text.read_match(NAME)
            yield from self.text.expect_after_space("```json")
        if not name or (yield from self.text.skip_space()) != "{":
            return False
        self.open_call(name)
        yield from self.text.pass_json(self.add_arguments)
        if is_fenced:
            yield from self.text.expect_after_space("```")
        yield from self.text.expect_after_space("<｜tool▁call▁end｜>")
        return True


class KimiParser(AnswerParser):
    """Kimi K2. The id of a call, such as ``functions.look_up:0``, contains the name of its tool.

    Source: the tool call guidance of moonshotai/Kimi-K2-Instruct.
    """

    openers = ("<|tool_calls_section_begin|>",)

    def write_calls(self, grammar: AnswerGrammar, call: str, opener: str) -> str:
        """See `AnswerParser.write_calls`."""
        del opener
        return grammar.repeat(call, end=("<|tool_calls_section_end|>",))

    def write_call(self, grammar: AnswerGrammar, name: str) -> str:
        """See `AnswerParser.write_call`."""
        begin, between, end = map(
            grammar.text, ("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>")
        )
        arguments = grammar.json(grammar.allowed.tools[name])
        return f"{begin} {quote(f'functions.{name}:')} /[0-9]{{1,2}}/ {between} {arguments} {end}"

    def read_calls(self, mark: str) -> Reading[bool]:
        """See `AnswerParser.read_calls`."""
        del mark
        return (yield from self.read_section("<|tool_call_begin|>", self._read_call, "<|tool_calls_section_end|>"))

    def _read_call(self) -> Reading[bool]:
        yield from self.text.skip_space()
        call_id = yield from self.text.read_match(NAME)
        name = re.sub(r":\d+$", "", call_id.removeprefix("functions."))
        if not name or not (yield from self.text.expect_after_space("<|tool_call_argument_begin|>")):
            return False
        if (yield from self.text.skip_space()) != "{":
            return False
        self.open_call(name, call_id)
        yield from self.text.pass_json(self.add_arguments)
        yield from self.text.expect_after_space("<|tool_call_end|>")
        return True
