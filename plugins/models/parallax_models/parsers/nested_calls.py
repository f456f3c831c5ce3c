"""The parser of calls whose arguments are elements within each other, as MiniMax M3 writes them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from parallax_grammar_tools.schema_refs import JsonSchema, follow_references
from parallax_models.parsers.answer_grammar import AnswerGrammar, quote
from parallax_models.parsers.marks import Marks
from parallax_models.parsers.text_reader import Reading
from parallax_models.parsers.xml_calls import NAME, XmlCallParser
from parallax_models.parsers.xml_grammar import ValueMarks
from parallax_models.parsers.xml_values import find_property, list_kinds, write_value

SPACE = "]<]minimax[>["
"""What stands before every tag."""
TAG = re.compile(re.escape(SPACE) + r"<(/?)([^<>]*)>")
MOST_DEPTH = 64
"""The most elements within each other."""


@dataclass(slots=True)
class Element:
    """An element, or all arguments of a call."""

    name: str
    texts: list[str] = field(default_factory=list)
    inner: list[Element] = field(default_factory=list)


class MinimaxM3Parser(XmlCallParser):
    """MiniMax M3: ``<invoke name="NAME">`` with elements for arguments, and ``]<]minimax[>[`` before every tag.

    An argument that is an object has an element for each member, and one that is an array has ``<item>`` elements; a
    value in JSON is read as well, and is what grammars have in their place. Reasoning stands between ``<mm:think>`` and
    ``</mm:think>``, of which the second alone may begin an answer.
    Source: ``vllm/parser/minimax_m3.py`` and ``vllm/reasoning/minimax_m3_reasoning_parser.py`` of vLLM 0.32.0.
    """

    thinking = ("<mm:think>", "</mm:think>")
    openers = (f"{SPACE}<tool_call>",)
    call, call_end = (f'{SPACE}<invoke name="', '">'), f"{SPACE}</invoke>"
    key = (f"{SPACE}<", ">")
    value_marks = ValueMarks(end=f"{SPACE}</")

    def write_calls(self, grammar: AnswerGrammar, call: str, opener: str) -> str:
        """See `AnswerParser.write_calls`."""
        del opener
        return grammar.repeat(call, end=(f"{SPACE}</tool_call>",))

    def write_key_end(self, key: str) -> str:
        """See `XmlCallParser.write_key_end`."""
        return quote(f"{key}>")

    def read_reasoning(self) -> Reading[None]:
        """Read the reasoning, or the mark alone that would end it."""
        if not self._thinks and (yield from self.text.expect_after_space(self.thinking[1])):
            yield from self.text.skip_space()
        else:
            yield from super().read_reasoning()

    def read_calls(self, mark: str) -> Reading[bool]:
        """See `AnswerParser.read_calls`."""
        del mark
        return (yield from self.read_section(self.call[0], self.read_call, f"{SPACE}</tool_call>"))

    def read_call(self) -> Reading[bool]:
        """Read one call after the text before its name; its arguments are written once it is whole."""
        name = yield from self.text.read_match(NAME)
        if not name or not (yield from self.text.expect_after_space(self.call[1])):
            return False
        self.open_call(name)
        parts: list[str] = []
        if (yield from self.text.pass_until(Marks(self.call_end), parts.append)):
            schema = self.find_schema(name)
            arguments = write_object(read_elements("".join(parts)), schema, schema)
            self.add_arguments(json.dumps(arguments, ensure_ascii=False))
        return True


def read_elements(text: str) -> list[Element]:
    """Return the elements of a text, up to the first that is not closed."""
    stack, place = [Element("")], 0
    for tag in TAG.finditer(text):
        stack[-1].texts.append(text[place : tag.start()])
        place, name = tag.end(), tag[2].strip()
        if not tag[1] and name and len(stack) <= MOST_DEPTH:
            stack.append(Element(name))
        elif tag[1] and len(stack) > 1 and stack[-1].name == name:
            stack[-2].inner.append(stack.pop())
        else:
            break
    return stack[0].inner


def write_object(elements: list[Element], schema: object, root: JsonSchema) -> dict[str, Any]:
    """Return elements as an object; those of one name are a list."""
    found = follow_references(schema, root)
    part: JsonSchema = found if isinstance(found, dict) else {}
    values: dict[str, list[Any]] = {}
    for element in elements:
        values.setdefault(element.name, []).append(write_element(element, find_property(part, element.name), root))
    return {name: given[0] if len(given) == 1 else given for name, given in values.items()}


def write_element(element: Element, schema: object, root: JsonSchema) -> Any:  # noqa: ANN401 -- any JSON
    """Return the value of an element, of the types that its schema allows."""
    kinds, text = list_kinds(schema, root), "".join(element.texts).removeprefix("\n")
    if not element.inner:
        if "string" not in kinds and not text.strip() and kinds & {"array", "object"}:
            return [] if "array" in kinds else {}
        return text if kinds == {"string"} else json.loads(write_value(text, kinds))
    if "array" in kinds:
        found = follow_references(schema, root)
        items = found.get("items", {}) if isinstance(found, dict) else {}
        return [write_element(each, items, root) for each in element.inner]
    return write_object(element.inner, schema if "object" in kinds else {}, root)
