"""Parsers of calls whose arguments are plain text between tags."""

from __future__ import annotations

import re

from parallax_models.parsers.answer_parser import AnswerParser
from parallax_models.parsers.marks import Marks
from parallax_models.parsers.text_reader import Reading
from parallax_models.parsers.xml_values import ArgumentWriter

NAME = re.compile(r"[^\s<>\"'=]*")
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

    def read_call(self) -> Reading[bool]:
        """Read one call after the text before its name."""
        name = yield from self.text.read_match(NAME)
        if not name or not (yield from self.text.expect_after_space(self.call[1])):
            return False
        self.open_call(name)
        writer = ArgumentWriter(self.find_schema(name), self.add_arguments)
        while (yield from self.text.expect_after_space(self.key[0])):
            if not (yield from self._read_value(writer)):
                return True
        if (yield from self.text.expect_after_space(self.call_end)):
            writer.end()
        return True

    def _read_value(self, writer: ArgumentWriter) -> Reading[bool]:
        key = yield from self.text.read_match(KEY)
        if not (yield from self.text.expect_after_space(self.key[1])):
            return False
        if self.value_begin and not (yield from self.text.expect_after_space(self.value_begin)):
            return False
        yield from self.text.expect("\n")
        writer.begin_value(key.strip())
        has_end = bool((yield from self.text.pass_until(Marks(*self.value_ends), writer.add)))
        if has_end:
            writer.end_value()
        return has_end


class Qwen3CoderParser(XmlCallParser):
    """Qwen3-Coder: ``<function=NAME>`` with ``<parameter=KEY>VALUE</parameter>``, between ``<tool_call>`` tags.

    Source: the chat template of Qwen/Qwen3-Coder-30B-A3B-Instruct.
    """

    openers = ("<tool_call>", "<function=")
    call, call_end = ("<function=", ">"), "</function>"
    key = ("<parameter=", ">")
    value_ends = ("\n</parameter>", "</parameter>")

    def read_calls(self, mark: str) -> Reading[bool]:
        """See `AnswerParser.read_calls`."""
        if mark == "<tool_call>" and not (yield from self.text.expect_after_space("<function=")):
            return False
        if not (yield from self.read_call()):
            return False
        yield from self.text.expect_after_space("</tool_call>")
        return True


class MinimaxParser(XmlCallParser):
    """MiniMax M2: ``<invoke name="NAME">`` elements between ``<minimax:tool_call>`` tags.

    Source: the tool calling guide of MiniMaxAI/MiniMax-M2.
    """

    openers = ("<minimax:tool_call>",)
    call, call_end = ('<invoke name="', '">'), "</invoke>"
    key = ('<parameter name="', '">')
    value_ends = ("\n</parameter>", "</parameter>")

    def read_calls(self, mark: str) -> Reading[bool]:
        """See `AnswerParser.read_calls`."""
        del mark
        return (yield from self.read_section(self.call[0], self.read_call, "</minimax:tool_call>"))


class Glm4Parser(XmlCallParser):
    """GLM-4.5 to 4.7: ``<tool_call>NAME``, then ``<arg_key>`` and ``<arg_value>`` elements, and ``</tool_call>``.

    Source: the chat template of zai-org/GLM-4.5.
    """

    openers = ("<tool_call>",)
    call, call_end = ("<tool_call>", ""), "</tool_call>"
    key = ("<arg_key>", "</arg_key>")
    value_begin, value_ends = "<arg_value>", ("</arg_value>",)

    def read_calls(self, mark: str) -> Reading[bool]:
        """See `AnswerParser.read_calls`."""
        del mark
        yield from self.text.skip_space()
        return (yield from self.read_call())
