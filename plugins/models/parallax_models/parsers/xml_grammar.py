"""Writes the grammar of arguments that are plain text between marks, as `ArgumentWriter` reads them.

A string is written as it is, and all else as JSON. Where an argument may be a string or something else, a text that
reads as the latter is no string; and since the longest lexeme wins, a string does not begin as other JSON does, either.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from parallax_core.api import InvalidRequest
from parallax_grammar_tools.lark import write_pattern
from parallax_grammar_tools.schema_refs import JsonSchema, follow_references, move_references
from parallax_models.parsers.answer_grammar import AnswerGrammar, quote, without
from parallax_models.parsers.schema_leaves import ASSERTING, CHOSEN, TYPED, list_leaves
from parallax_models.parsers.text_patterns import FORMATS, match_whole
from parallax_models.parsers.xml_values import find_kinds, find_property, list_kinds, write_value

WHOLE = frozenset({"additionalProperties", "properties", "required", "type"})
"""The keywords that all arguments together are held to."""
LITERALS = {"boolean": ("true", "false", "True", "False"), "null": ("null", "None")}
"""What reads as a value of these types."""
NUMBERS = {
    "integer": "-?(0|[1-9][0-9]{0,17})",
    "number": r"-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,14})?([eE][+-]?[0-9]{1,2})?",
}
BEGINS = {"integer": "-0-9", "number": "-0-9", "array": r"\[", "object": "{", "string": '"'}
"""The characters with which JSON of a type begins, in a class of a regular expression."""
STRING_LIKE = r'[ \t\r\n]*"([^"\\]|\\(?s:.))*"[ \t\r\n]*'
"""What reads as a string in JSON."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ValueMarks:
    """What stands around a value."""

    begin: str = ""
    """White space before it, which is not read as a part of it."""
    end: str
    """The mark after it."""
    space: str = ""
    """White space before that mark, which is not read as a part of the value."""
    drops_line: bool = False
    """Whether a new line before that mark is never read as a part of the value."""


class ValueGrammar:
    """Writes the grammar of the arguments of one tool."""

    def __init__(self, grammar: AnswerGrammar, schema: JsonSchema, marks: ValueMarks) -> None:
        self._grammar, self._root, self._marks = grammar, schema, marks
        whole = follow_references(schema, schema)
        self._whole: JsonSchema = whole if isinstance(whole, dict) else {"$ref": ""}
        if other := sorted(self._whole.keys() & ASSERTING - WHOLE):
            raise InvalidRequest(f"'{other[0]}' of its parameters cannot be held")
        given = self._whole.get("properties")
        self._properties: JsonSchema = given if isinstance(given, dict) else {}

    def list_arguments(self) -> Iterator[tuple[str, str, bool]]:
        """Yield the name of each argument, its value with the mark after it, and whether it is required.

        Raises:
            InvalidRequest: if a schema cannot be held.
        """
        given = self._whole.get("required")
        required = [name for name in given if isinstance(name, str)] if isinstance(given, list) else []
        others = [name for name in required if name not in self._properties]
        if others and self._whole.get("additionalProperties") is False:
            raise InvalidRequest(f"the argument '{others[0][:100]}' is required, and not allowed")
        for name in [*self._properties, *others]:
            part = find_property(self._root, name)
            if part is not False or name in required:
                try:
                    yield name, self.write(part), name in required
                except InvalidRequest as error:
                    raise InvalidRequest(f"the argument '{name[:100]}': {error.message}") from error

    def write_other(self) -> str | None:
        """Return the value of an argument of any other name, or None if the schema allows no others."""
        has_others = not self._properties and self._whole.get("additionalProperties") is not False
        return self.write(find_property(self._root, "")) if has_others else None

    def write(self, part: Any) -> str:  # noqa: ANN401 -- any JSON
        """Return a value and the mark after it."""
        kinds, leaves = list_kinds(part, self._root), list(list_leaves(part, self._root))
        texts, values = [], []
        is_text = any(leaf.get("type", "string") == "string" for leaf in leaves)
        for leaf in leaves:
            given, keys = leaf.get("type"), leaf.keys() & ASSERTING - {"type"}
            kind = given if isinstance(given, str) else ""
            if keys and keys <= CHOSEN:
                texts += [self._write_literal(value, kinds) for value in _list_chosen(leaf)]
            elif kind in LITERALS and not keys:
                texts += map(quote, LITERALS[kind])
            elif kind in NUMBERS and not keys and is_text:
                texts.append(write_pattern(NUMBERS[kind]))
            elif (kind == "string" and keys <= TYPED["string"]) or not (given or keys):
                texts.append(self._write_string(leaf, kinds))
            elif kinds == {"string"}:
                raise InvalidRequest(f"{' and '.join(map(repr, sorted(keys)))} of a string cannot be held")
            else:
                values.append(self._write_json(leaf))
        return self._mark(texts, values)

    def _mark(self, texts: list[str], values: list[str]) -> str:
        marks, options = self._marks, []
        if values:
            space = f"{quote(marks.space)} " if marks.space else ""
            options.append(f"({' | '.join(values)}) {space}{self._grammar.text(marks.end)}")
        if texts:
            text = f"({' | '.join(texts)})"
            if marks.space and self._grammar.allowed.find_special(marks.end):
                options.append(self._grammar.text_before(f"{text} {quote(marks.space)}", marks.end))
            else:
                options.append(self._grammar.text_before(text, marks.space + marks.end))
        if not options:
            raise InvalidRequest("no value is allowed")
        return f"({' | '.join(options)})"

    def _write_json(self, leaf: JsonSchema) -> str:
        """Return the name of the rule of a value in JSON, whose references hold."""
        own = {name: value for name, value in leaf.items() if name not in {"$defs", "definitions"}}
        if '"$ref"' in json.dumps(own):
            place = "#/$defs/root"
            own = {**move_references(own, place), "$defs": {"root": move_references(self._root, place)}}
        return self._grammar.json(json.dumps(own))

    def _write_string(self, leaf: JsonSchema, kinds: frozenset[str]) -> str:
        """Return the texts that read as a string that follows a schema."""
        parts = [without(self._marks.end)]
        parts += map(write_pattern, _list_limits(leaf))
        if not self._marks.begin:
            parts.append("~" + write_pattern(r"\n(?s:.*)"))
        if self._marks.drops_line and not self._marks.space:
            parts.append("~" + write_pattern(r"(?s:.*)\n"))
        has_limit = len(leaf.keys() & ASSERTING) > ("type" in leaf)
        others = kinds - {"string"} if kinds else BEGINS.keys() | LITERALS.keys()
        if others and (has_limit or "string" in kinds):
            parts += [f"~{write_pattern(each)}" for each in _list_others(others)]
        return f"({' & '.join(parts)})"

    def _write_literal(self, value: Any, kinds: frozenset[str]) -> str:  # noqa: ANN401 -- any JSON
        """Return the text that reads as a value."""
        written = json.dumps(value, ensure_ascii=False)
        for text in (value, written) if isinstance(value, str) else (written,):
            read = json.dumps(text) if kinds == {"string"} else write_value(text, kinds)
            if self._marks.end not in text and json.dumps(json.loads(read)) == json.dumps(value):
                before = "\n" if text.startswith("\n") and not self._marks.begin else ""
                has_line = text.endswith("\n") and self._marks.drops_line and not self._marks.space
                return quote(before + text + ("\n" if has_line else ""))
        raise InvalidRequest(f"the value {written[:100]} cannot be written")


def _list_limits(leaf: JsonSchema) -> Iterator[str]:
    """Yield regular expressions that a string has to match."""
    if "minLength" in leaf or "maxLength" in leaf:
        yield f"(?s:.{{{leaf.get('minLength', 0)},{leaf.get('maxLength', '')}}})"
    if "pattern" in leaf:
        pattern = match_whole(str(leaf["pattern"]))
        if pattern is None:
            raise InvalidRequest(f"the anchors of the pattern {leaf['pattern'][:100]!r} cannot be held")
        yield pattern
    if (form := str(leaf.get("format"))) in FORMATS:
        yield FORMATS[form]


def _list_chosen(leaf: JsonSchema) -> list[Any]:
    """Return the values of a leaf that are of its types."""
    values = leaf["enum"] if isinstance(leaf.get("enum"), list) else []
    if "const" in leaf:
        values = [leaf["const"]] if "enum" not in leaf or leaf["const"] in values else []
    given = leaf.get("type")
    types = {given} if isinstance(given, str) else set(given or ())
    types |= {"integer"} if "number" in types else set()
    return [value for value in values if not types or find_kinds(value) & types]


def _list_others(kinds: frozenset[str] | set[str]) -> Iterator[str]:
    """Yield regular expressions of texts that do not read as strings, or begin as JSON of other types."""
    yield STRING_LIKE
    if words := "|".join(word for kind in kinds for word in LITERALS.get(kind, ())):
        yield rf"[ \t\r\n]*({words})[ \t\r\n]*"
    if begins := "".join(sorted({BEGINS[kind] for kind in kinds if kind in BEGINS})):
        yield rf"[ \t\r\n]*[{begins}](?s:.*)"
