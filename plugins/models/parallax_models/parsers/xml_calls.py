"""Parsers of calls whose arguments are plain text between tags."""

from __future__ import annotations

import json
import re
from typing import ClassVar

from parallax_core.api import InvalidRequest
from parallax_models.parsers.answer_grammar import AnswerGrammar, quote
from parallax_models.parsers.answer_parser import AnswerParser
from parallax_models.parsers.marks import Marks
from parallax_models.parsers.text_reader import MAX_NAME, Reading
from parallax_models.parsers.xml_grammar import ValueGrammar, ValueMarks
from parallax_models.parsers.xml_values import ArgumentWriter

NAME = re.compile(r"[^\s<>\"'=]*")
ANY_KEY = "/[a-zA-Z_][a-zA-Z0-9_-]{0,63}/"
MOST_KEYS = 16
"""The most arguments of a call whose names are free."""
KEY = re.compile(r"[^<>\"'\n]*")


class XmlCallParser(AnswerParser):
    """Reads the values of a call; a subclass says which tags are around them."""

    call = ("", "")
    """The texts before and after the name of the tool."""
    call_end = ""
    key = ("", "")
    """The texts before and after the name of an argument."""
    value_begin = ""
    """The mark between the name of an argument and its value, if there is one."""
    value_ends: tuple[str, ...] = ()
    """The marks that end a value."""
    value_marks: ValueMarks
    """What a grammar has around a value."""

    def write_call(self, grammar: AnswerGrammar, name: str) -> str:
        """See `AnswerParser.write_call`."""
        try:
            values = ValueGrammar(grammar, json.loads(grammar.allowed.tools[name]), self.value_marks)
            arguments = list(values.list_arguments())
            other = values.write_other()
        except InvalidRequest as error:
            raise InvalidRequest(error.message, name) from error
        parts = [
            *([] if self.call[0] in self.written_openers else [f"space {grammar.text(self.call[0])}"]),
            quote(name),
        ]
        parts += [grammar.text(self.call[1])] if self.call[1] else []
        for key, value, is_required in arguments:
            argument = " ".join([self._write_key(grammar, quote(key)), value, *filter(None, [self.write_key_end(key)])])
            if _can_read(key):
                parts.append(argument if is_required else f"({argument})?")
            elif is_required:
                raise InvalidRequest(f"the argument {key[:100]!r} cannot be named", name)
        if other and not self.write_key_end("x"):
            parts.append(f"({self._write_key(grammar, ANY_KEY)} {other}){{0,{MOST_KEYS}}}")
        return " ".join([*parts, grammar.mark(self.call_end)])

    def write_key_end(self, key: str) -> str:  # noqa: ARG002 -- for formats that have one
        """Return the grammar of the name of an argument after its value, in formats that repeat it; empty: none."""
        return ""

    def _write_key(self, grammar: AnswerGrammar, key: str) -> str:
        begin, end = self.key
        value = f" {grammar.mark(self.value_begin)}" if self.value_begin else ""
        line = f" {quote(self.value_marks.begin)}" if self.value_marks.begin else ""
        return f"{grammar.mark(begin)} {key} {grammar.text(end)}{value}{line}"

    def read_call(self) -> Reading[bool]:
        """Read one call after the text before its name."""
        name = yield from self.text.read_match(NAME)
        if not name or not (yield from self.text.expect_after_space(self.call[1])):
            return False
        self.open_call(name)
        writer = ArgumentWriter(self.find_schema(name), self.add_arguments)
        while (yield from self.text.expect_after_space(self.key[0])):
            if not (yield from self.read_value(writer)):
                return True
        if (yield from self.text.expect_after_space(self.call_end)):
            writer.end()
        return True

    def read_value(self, writer: ArgumentWriter) -> Reading[bool]:
        """Read an argument after the text before its name; return whether it is whole."""
        key = yield from self.text.read_match(KEY)
        if not (yield from self.text.expect_after_space(self.key[1])):
            return False
        if self.value_begin and not (yield from self.text.expect_after_space(self.value_begin)):
            return False
        yield from self.text.expect("\n")
        writer.begin_value(key.strip())
        while mark := (yield from self.text.pass_until(Marks(*self.value_ends), writer.add)):
            if mark.startswith("\n") or not writer.is_in_json_string:
                writer.end_value()
                return True
            writer.add(mark)
        return False


def _can_read(key: str) -> bool:
    return bool(key) and key == key.strip() and len(key) <= MAX_NAME and KEY.fullmatch(key) is not None


class Qwen3CoderParser(XmlCallParser):
    """Qwen3-Coder: ``<function=NAME>`` with ``<parameter=KEY>VALUE</parameter>``, between ``<tool_call>`` tags.

    Source: the chat template of Qwen/Qwen3-Coder-30B-A3B-Instruct.
    """

    openers: tuple[str, ...] = ("<tool_call>", "<function=")
    written_openers: tuple[str, ...] = ("<tool_call>",)
    call, call_end = ("<function=", ">"), "</function>"
    key = ("<parameter=", ">")
    value_ends = ("\n</parameter>", "</parameter>")
    value_marks = ValueMarks(begin="\n", end="</parameter>", space="\n", drops_line=True)
    section_end: ClassVar[str] = "</tool_call>"

    def write_calls(self, grammar: AnswerGrammar, call: str, opener: str) -> str:
        """See `AnswerParser.write_calls`."""
        return grammar.repeat(call, between=(self.section_end, opener), end=(self.section_end,))

    def read_calls(self, mark: str) -> Reading[bool]:
        """See `AnswerParser.read_calls`."""
        if mark != "<function=" and not (yield from self.text.expect_after_space("<function=")):
            return False
        if not (yield from self.read_call()):
            return False
        yield from self.text.expect_after_space(self.section_end)
        return True


class SeedParser(Qwen3CoderParser):
    """Seed-OSS: the calls of Qwen3-Coder, one between ``<seed:tool_call>`` tags, and reasoning in ``<seed:think>``.

    Source: the chat template of ByteDance-Seed/Seed-OSS-36B-Instruct.
    """

    thinking = ("<seed:think>", "</seed:think>")
    openers = written_openers = ("<seed:tool_call>",)
    section_end = "</seed:tool_call>"


class MinimaxParser(XmlCallParser):
    """MiniMax M2: ``<invoke name="NAME">`` elements between ``<minimax:tool_call>`` tags.

    Source: the tool calling guide of MiniMaxAI/MiniMax-M2.
    """

    openers = ("<minimax:tool_call>",)
    call, call_end = ('<invoke name="', '">'), "</invoke>"
    key = ('<parameter name="', '">')
    value_ends = ("\n</parameter>", "</parameter>")
    value_marks = ValueMarks(end="</parameter>", drops_line=True)

    def write_calls(self, grammar: AnswerGrammar, call: str, opener: str) -> str:
        """See `AnswerParser.write_calls`."""
        del opener
        return grammar.repeat(call, end=("</minimax:tool_call>",))

    def read_calls(self, mark: str) -> Reading[bool]:
        """See `AnswerParser.read_calls`."""
        del mark
        return (yield from self.read_section(self.call[0], self.read_call, "</minimax:tool_call>"))


class Glm4Parser(XmlCallParser):
    """GLM-4.5 to 4.7: ``<tool_call>NAME``, then ``<arg_key>`` and ``<arg_value>`` elements, and ``</tool_call>``.

    Source: the chat template of zai-org/GLM-4.5.
    """

    openers = written_openers = ("<tool_call>",)
    call, call_end = ("<tool_call>", ""), "</tool_call>"
    key = ("<arg_key>", "</arg_key>")
    value_begin, value_ends = "<arg_value>", ("</arg_value>",)
    value_marks = ValueMarks(end="</arg_value>")

    def write_calls(self, grammar: AnswerGrammar, call: str, opener: str) -> str:
        """See `AnswerParser.write_calls`."""
        return grammar.repeat(call, between=(opener,))

    def read_calls(self, mark: str) -> Reading[bool]:
        """See `AnswerParser.read_calls`."""
        del mark
        yield from self.text.skip_space()
        return (yield from self.read_call())
