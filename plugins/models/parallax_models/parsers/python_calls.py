"""Parsers of calls that are written as Python writes them, such as ``look_up(city="Bonn", days=3)``."""

from __future__ import annotations

import json
import re
from typing import ClassVar

from parallax_core.api import InvalidRequest
from parallax_grammar_tools.schema_refs import localize_references
from parallax_models.parsers.answer_grammar import AnswerGrammar, not_after_space, quote, without
from parallax_models.parsers.answer_parser import AnswerParser
from parallax_models.parsers.marks import Marks
from parallax_models.parsers.text_reader import MAX_NAME, Reading, Sink

NAME = re.compile(r"[^\s()\[\]{}<>\"'=,]*")
WORD = re.compile(r"[^\s,\[\]{}()=:'\"]*")
ONE = re.compile(r"[\s\S]?")
NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
ESCAPES = {
    "b": "\\b",
    "f": "\\f",
    "n": "\\n",
    "t": "\\t",
    "r": "\\r",
    "\n": "",
    "x": "\\u00",
    "u": "\\u",
    '"': '\\"',
    "\\": "\\\\",
}
"""The escapes of Python in JSON, by the character after the backslash; any other stands for itself."""
CLOSERS = {"[": "]", "(": ")", "{": "}"}
NO_LIST = r"/[ \n]*[^\[ \n](.|\n)*/"
"""A text that does not begin as a list of calls."""
DEEPEST = 32
"""The most lists and tables within each other."""


class PythonCallParser(AnswerParser):
    """Reads calls as Python writes them; a subclass says what is around them."""

    begin_mark, end_mark = "", ""
    """The marks around the calls."""
    brackets = ("", "")
    """The brackets around all calls."""
    separator = ""
    """What is between two calls."""
    must_be_known: ClassVar[bool] = False
    """Whether a name is that of a call only if a tool has it."""
    call_begin = ""
    """The text before a name."""
    round, assigns = ("(", ")"), "="
    """The brackets around the arguments, and what is between the name of one and its value."""
    string_mark = ""
    """The mark before and after a string, if the format has one beside quotes."""

    def write_calls(self, grammar: AnswerGrammar, call: str, opener: str) -> str:
        """See `AnswerParser.write_calls`."""
        del opener
        first, last = self.brackets
        between = [self.separator] if self.separator.strip() else []
        ends = [last, self.end_mark] if last else [self.end_mark]
        return grammar.repeat(call, opening=[first] if first else [], between=between, end=ends)

    def write_call(self, grammar: AnswerGrammar, name: str) -> str:
        """See `AnswerParser.write_call`: values are JSON, which Python's strings, numbers and lists can be."""
        schema = localize_references(json.loads(grammar.allowed.tools[name]))
        fields, needed = schema.get("properties", {}), schema.get("required", ())
        if missing := next((key for key in needed if key not in fields or not key.isidentifier()), None):
            raise InvalidRequest(f"the argument {missing!r} cannot be written in this format", name)
        chosen = [key for key in fields if key in needed] or [key for key in fields if key.isidentifier()][:1]
        shared = {"$defs": schema["$defs"]} if "$defs" in schema else {}
        written = {
            key: f"{quote(f'{key}{self.assigns}')} {self.write_value(grammar, _table(fields[key]), shared)}"
            for key in fields
            if key.isidentifier()
        }
        rest = [f'(", " {value})?' for key, value in written.items() if key not in chosen]
        inner = " ".join([' ", " '.join(written[key] for key in chosen), *rest])
        begin, end = quote(f"{self.call_begin}{name}{self.round[0]}"), quote(self.round[1])
        return f"{begin} {inner if needed else f'({inner})?' if inner else ''} {end}"

    def write_value(self, grammar: AnswerGrammar, schema: dict[str, object], shared: dict[str, object]) -> str:
        """Return the grammar of a value, given its schema and the definitions that it may refer to."""
        return grammar.json(json.dumps({**shared, **schema}))

    def read_calls(self, mark: str) -> Reading[bool]:
        """See `AnswerParser.read_calls`."""
        del mark
        first, last = self.brackets
        if first and not (yield from self.text.expect_after_space(first)):
            return False
        has_call = False
        while (yield from self._read_call()):
            has_call = True
            yield from self.text.expect_after_space(",")
        if has_call and last:
            yield from self.text.expect_after_space(last)
        if has_call:
            yield from self.text.expect_after_space(self.end_mark)
        return has_call

    def _read_call(self) -> Reading[bool]:
        yield from self.text.skip_space()
        yield from self.text.expect(self.call_begin)
        name = yield from self.text.read_match(NAME)
        if not name or not self._may_call(name) or not (yield from self.text.expect(self.round[0])):
            return False
        self.open_call(name)
        between = "{"
        while not (yield from self.text.expect_after_space(self.round[1])):
            yield from self.text.skip_space()
            key = yield from self.text.read_match(WORD)
            if not key or not (yield from self.text.expect_after_space(self.assigns)):
                return False
            self.add_arguments(f"{between}{json.dumps(key)}: ")
            if not (yield from self._read_value(self.add_arguments, 0)):
                return False
            between = ", "
            yield from self.text.expect_after_space(",")
        self.add_arguments("{}" if between == "{" else "}")
        return True

    def _may_call(self, name: str) -> bool:
        return not self.must_be_known or self.tools is None or name in self.tools

    def _read_value(self, sink: Sink, depth: int, *, is_key: bool = False) -> Reading[bool]:
        """Pass a value to ``sink`` as JSON, a key as a string; return whether it is whole."""
        first = yield from self.text.skip_space()
        if self.string_mark and (yield from self.text.expect(self.string_mark)):
            sink('"')
            is_whole = yield from self.text.pass_until(Marks(self.string_mark), lambda text: sink(_escape(text)))
            sink('"')
            return bool(is_whole)
        if first in {"'", '"'}:
            return (yield from self._read_string(first, sink))
        if first in CLOSERS and depth < DEEPEST:
            return (yield from self._read_parts(first, sink, depth))
        word = yield from self._read_word()
        is_plain = not is_key and (word in WORDS or NUMBER.fullmatch(word))
        sink(WORDS.get(word, word) if is_plain else json.dumps(word, ensure_ascii=False))
        return bool(word)

    def _read_word(self) -> Reading[str]:
        """Read a number or a name of any length."""
        parts = [(yield from self.text.read_match(WORD))]
        while len(parts[-1]) == MAX_NAME:
            parts.append((yield from self.text.read_match(WORD)))
        return "".join(parts)

    def _read_string(self, mark: str, sink: Sink) -> Reading[bool]:
        yield from self.text.expect(mark)
        sink('"')
        while found := (yield from self.text.pass_until(Marks(mark, "\\"), lambda text: sink(_escape(text)))):
            if found == mark:
                sink('"')
                return True
            after = yield from self.text.read_match(ONE)
            sink(ESCAPES.get(after, _escape(after)))
        return False

    def _read_parts(self, opener: str, sink: Sink, depth: int) -> Reading[bool]:
        yield from self.text.expect(opener)
        sink("{" if opener == "{" else "[")
        between = ""
        while not (yield from self.text.expect_after_space(CLOSERS[opener])):
            sink(between)
            if opener == "{":
                if not (yield from self._read_value(sink, DEEPEST, is_key=True)):
                    return False
                yield from self.text.expect_after_space(":")
                sink(": ")
            if not (yield from self._read_value(sink, depth + 1)):
                return False
            between = ", "
            yield from self.text.expect_after_space(",")
        sink("}" if opener == "{" else "]")
        return True


def _escape(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _table(schema: object) -> dict[str, object]:
    return schema if isinstance(schema, dict) else {}


class Lfm2Parser(PythonCallParser):
    """LFM2: a list of calls between ``<|tool_call_start|>`` and ``<|tool_call_end|>``.

    Source: the guide on tool use of LiquidAI/LFM2-1.2B.
    """

    openers = ("<|tool_call_start|>",)
    end_mark = "<|tool_call_end|>"
    brackets = ("[", "]")
    separator = ","


class Olmo3Parser(PythonCallParser):
    """OLMo 3: a call on each line between ``<function_calls>`` tags.

    Source: the chat template of allenai/Olmo-3-7B-Instruct.
    """

    openers = ("<function_calls>",)
    end_mark = "</function_calls>"


class Llama4Parser(PythonCallParser):
    """Llama 4: an answer that is a list of calls, or has one between ``<|python_start|>`` and ``<|python_end|>``.

    Source: the prompt format of meta-llama/Llama-4-Scout-17B-16E-Instruct.
    """

    openers = ("<|python_start|>",)
    end_mark = "<|python_end|>"
    brackets = ("[", "]")
    separator = ","
    must_be_known = True

    def write_content(self, grammar: AnswerGrammar, call: str, text: str) -> str:
        """See `AnswerParser.write_content`."""
        begin, end = map(grammar.text, (self.openers[0], self.end_mark))
        calls = grammar.repeat(call, opening="[", between=",", end="]")
        calls = f"space ({calls} | {begin} {calls} space {end})"
        if not text:
            return calls
        free = f"{text} & {NO_LIST} & {not_after_space(self.openers[0])}"
        return f"{grammar.terminal(free)} | space | {calls}"

    def read_content(self) -> Reading[None]:
        """See `AnswerParser.read_content`."""
        if self.finds_calls:
            self.text.begin_record("")
            yield from self.text.expect_after_space(self.openers[0])
            if (yield from self.text.skip_space()) != "[" or not (yield from self.read_calls("")):
                self.add_content(self.text.end_record())
        yield from super().read_content()


class Gemma4Parser(PythonCallParser):
    """Gemma 4: ``call:NAME{KEY:VALUE}`` after ``<|tool_call>``, with strings between two ``<|"|>``.

    Source: the chat template of google/gemma-4-31B-it.
    """

    thinking, thought_label = ("<|channel>", "<channel|>"), "thought"
    openers = ("<|tool_call>",)
    end_mark = "<tool_call|>"
    call_begin = "call:"
    round, assigns = ("{", "}"), ":"
    string_mark = '<|"|>'

    def write_calls(self, grammar: AnswerGrammar, call: str, opener: str) -> str:
        """See `AnswerParser.write_calls`."""
        return grammar.repeat(call, between=(self.end_mark, opener), end=(self.end_mark,))

    def write_value(self, grammar: AnswerGrammar, schema: dict[str, object], shared: dict[str, object]) -> str:
        """See `PythonCallParser.write_value`: strings of any form have the mark of the format."""
        if schema.get("type") == "string" and not schema.keys() - {"type", "description", "title", "default"}:
            return (
                f"{grammar.text(self.string_mark)} {grammar.text_before(without(self.string_mark), self.string_mark)}"
            )
        return super().write_value(grammar, schema, shared)
