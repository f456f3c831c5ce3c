"""The parser of DSML, in which DeepSeek V3.2 and later write calls."""

# ruff: noqa: RUF001, RUF002 -- marks of DeepSeek have this character

from __future__ import annotations

import json
from typing import Any

from parallax_core.api import InvalidRequest
from parallax_grammar_tools.schema_refs import localize_references
from parallax_models.parsers.answer_grammar import AnswerGrammar, quote, without
from parallax_models.parsers.marks import Marks
from parallax_models.parsers.text_reader import Reading
from parallax_models.parsers.xml_calls import KEY, XmlCallParser
from parallax_models.parsers.xml_values import ArgumentWriter

VALUE_END = "</｜DSML｜parameter>"
IS_TEXT, IS_JSON = ' string="true">', ' string="false">'
FREE = frozenset({"type", "description", "title", "default"})
"""The keywords of a string of any form."""


class DsmlParser(XmlCallParser):
    """DeepSeek V3.2: ``<｜DSML｜invoke name="NAME">`` elements between ``<｜DSML｜function_calls>`` tags.

    Each argument says whether it is text or JSON. Later models name the section ``tool_calls``.
    Source: ``encoding_dsv32.py`` of deepseek-ai/DeepSeek-V3.2.
    """

    openers: tuple[str, ...] = ("<｜DSML｜function_calls>", "<｜DSML｜tool_calls>")
    call, call_end = ('<｜DSML｜invoke name="', '">'), "</｜DSML｜invoke>"
    key = ('<｜DSML｜parameter name="', '"')

    def write_calls(self, grammar: AnswerGrammar, call: str, opener: str) -> str:
        """See `AnswerParser.write_calls`."""
        return grammar.repeat(call, end=(f"</{opener[1:]}",))

    def write_call(self, grammar: AnswerGrammar, name: str) -> str:
        """See `AnswerParser.write_call`: strings of any form are text, all else is JSON."""
        schema = localize_references(json.loads(grammar.allowed.tools[name]))
        fields, needed = schema.get("properties", {}), schema.get("required", ())
        if missing := next((key for key in needed if key not in fields or not KEY.fullmatch(key)), None):
            raise InvalidRequest(f"the argument {missing!r} cannot be written in this format", name)
        shared = {"$defs": schema["$defs"]} if "$defs" in schema else {}
        written = {key: _write_argument(grammar, key, fields[key], shared) for key in fields if KEY.fullmatch(key)}
        parts = [value if key in needed else f"({value})?" for key, value in written.items()]
        return " ".join([quote(f"{self.call[0]}{name}{self.call[1]}"), *parts, grammar.mark(self.call_end)])

    def read_calls(self, mark: str) -> Reading[bool]:
        """See `AnswerParser.read_calls`."""
        return (yield from self.read_section(self.call[0], self.read_call, f"</{mark[1:]}"))

    def read_value(self, writer: ArgumentWriter) -> Reading[bool]:
        """See `XmlCallParser.read_value`."""
        key = yield from self.text.read_match(KEY)
        if not (yield from self.text.expect(self.key[1])):
            return False
        is_text = yield from self.text.expect(IS_TEXT)
        if not is_text and not (yield from self.text.expect(IS_JSON)) and not (yield from self.text.expect(">")):
            return False
        writer.begin_value(key, frozenset({"string"} if is_text else ()))
        while (yield from self.text.pass_until(Marks(VALUE_END), writer.add)):
            if not writer.is_in_json_string:
                writer.end_value()
                return True
            writer.add(VALUE_END)
        return False


class DeepseekV4Parser(DsmlParser):
    """DeepSeek-V4: DSML in a section named ``tool_calls``, whose tag it misspells at times.

    Source: ``vllm/parser/deepseek_v4.py`` and ``vllm/tokenizers/deepseek_v4_encoding.py`` of vLLM 0.32.0.
    """

    openers = ("<｜DSML｜tool_calls>", "<｜DSML｜toolcalls>", "<｜DSML｜tool>")
    written_openers = ("<｜DSML｜tool_calls>",)

    def read_calls(self, mark: str) -> Reading[bool]:
        """See `AnswerParser.read_calls`."""
        has_call = yield from super().read_calls(mark)
        if mark not in self.written_openers:
            yield from self.text.expect_after_space("</｜DSML｜tool_calls>")
        return has_call


def _write_argument(grammar: AnswerGrammar, key: str, schema: Any, shared: dict[str, Any]) -> str:  # noqa: ANN401
    table = schema if isinstance(schema, dict) else {}
    begin = f'<｜DSML｜parameter name="{key}"'
    if table.get("type") == "string" and not table.keys() - FREE:
        return f"space {quote(begin + IS_TEXT)} {grammar.text_before(without(VALUE_END), VALUE_END)}"
    value = grammar.json(json.dumps({**shared, **table}))
    return f"space {quote(begin + IS_JSON)} {value} {quote(VALUE_END)}"
