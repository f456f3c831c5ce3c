"""Parsers of calls that are written as Python writes them, such as ``look_up(city="Bonn", days=3)``."""

from __future__ import annotations

import json
import re

from parallax_core.api import InvalidRequest, localize_references
from parallax_models.parsers.answer_grammar import AnswerGrammar, quote
from parallax_models.parsers.answer_parser import AnswerParser
from parallax_models.parsers.marks import Marks
from parallax_models.parsers.text_reader import Reading, Sink

NAME = re.compile(r"[^\s()\[\]{}<>\"'=,]*")
WORD = re.compile(r"[^\s,\[\]{}()=:'\"]*")
ONE = re.compile(r"[\s\S]?")
NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
ESCAPES = {"n": "\\n", "t": "\\t", "r": "\\r", "\n": "", "x": "\\u00", "u": "\\u", '"': '\\"', "\\": "\\\\"}
"""The escapes of Python in JSON, by the character after the backslash; any other stands for itself."""
CLOSERS = {"[": "]", "(": ")", "{": "}"}
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
        values = [f"{quote(f'{key}=')} {grammar.json(json.dumps({**shared, **_table(fields[key])}))}" for key in chosen]
        rest = [
            f'(", " {quote(f"{key}=")} {grammar.json(json.dumps({**shared, **_table(fields[key])}))})?'
            for key in fields
            if key not in chosen and key.isidentifier()
        ]
        inner = " ".join([' ", " '.join(values), *rest])
        return f"{quote(f'{name}(')} {inner if needed else f'({inner})?' if inner else ''} {quote(')')}"

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
        name = yield from self.text.read_match(NAME)
        if not name or not (yield from self.text.expect("(")):
            return False
        self.open_call(name)
        between = "{"
        while not (yield from self.text.expect_after_space(")")):
            yield from self.text.skip_space()
            key = yield from self.text.read_match(NAME)
            if not key or not (yield from self.text.expect_after_space("=")):
                return False
            self.add_arguments(f"{between}{json.dumps(key)}: ")
            if not (yield from self._read_value(self.add_arguments, 0)):
                return False
            between = ", "
            yield from self.text.expect_after_space(",")
        self.add_arguments("{}" if between == "{" else "}")
        return True

    def _read_value(self, sink: Sink, depth: int) -> Reading[bool]:
        """Pass a value to ``sink`` as JSON; return whether it is whole."""
        first = yield from self.text.skip_space()
        if first in {"'", '"'}:
            return (yield from self._read_string(first, sink))
        if first in CLOSERS and depth < DEEPEST:
            return (yield from self._read_parts(first, sink, depth))
        word = yield from self.text.read_match(WORD)
        sink(WORDS.get(word) or (word if NUMBER.fullmatch(word) else json.dumps(word)))
        return bool(word)

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
                if not (yield from self._read_value(sink, DEEPEST)):
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
