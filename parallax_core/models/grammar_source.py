"""Writes grammars in llguidance's own form, and their JSON schemas so that it compiles them as they are meant."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import TYPE_CHECKING

from parallax_core.base.errors import InvalidRequest
from parallax_core.contracts.grammar import Grammar
from parallax_core.models.schema_keywords import JsonSchema, drop_neutral_keywords, rewrite_schema
from parallax_core.models.schema_names import list_names

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

WHITESPACE = r"(\n[ \t]{0,40}|[ ])"
"""The white space between the parts of JSON: none, one space, or a new line with its indentation. Without a bound, a
model may write white space for ever."""
JSON_OPTIONS: JsonCompileOptions = {"whitespace_pattern": WHITESPACE, "lenient": False, "coerce_one_of": False}
"""How llguidance compiles a JSON schema."""
LARK_TOKEN = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/(?:\\.|[^/\\\n])+/|%json\s*')
"""What may contain the mark of a JSON schema in Lark, or is that mark: a string, a comment, a regular expression."""


def translate_whole(grammar: Grammar) -> str:
    """Return a grammar in llguidance's own form, without its `Grammar.after`.

    Raises:
        InvalidRequest: if its schema is not valid.
    """
    from llguidance import LLMatcher

    match grammar.kind:
        case "regex":
            return LLMatcher.grammar_from_regex(grammar.source)
        case "lark":
            return _wrap(_rewrite_rules(grammar.source))
        case "choice":
            return _wrap("start: " + " | ".join(map(json.dumps, json.loads(grammar.source))))
    source = grammar.source or '{"type": "object"}'
    try:
        with suppress(RecursionError):  # llguidance says that it is too deep
            source = json.dumps(rewrite_schema(json.loads(source), _rewrite_part))
        return LLMatcher.grammar_from_json_schema(source, overrides=JSON_OPTIONS)
    except ValueError as error:
        raise InvalidRequest(f"the schema is not valid: {error}", "grammar") from error


def _rewrite_part(schema: JsonSchema) -> JsonSchema:
    return list_names(drop_neutral_keywords(schema))


def _rewrite_rules(lark: str) -> str:
    """Return a grammar in Lark with its JSON schemas rewritten."""
    parts, place = [], 0
    while found := LARK_TOKEN.search(lark, place):
        parts.append(lark[place : found.end()])
        place = found.end()
        if found[0].startswith("%json"):
            with suppress(ValueError, RecursionError):  # llguidance says what is wrong
                schema, end = json.JSONDecoder().raw_decode(lark, place)
                whole = rewrite_schema({} if schema is True else schema, _rewrite_part)
                parts.append(json.dumps({"x-guidance": JSON_OPTIONS, **whole} if isinstance(whole, dict) else whole))
                place = end
    return "".join([*parts, lark[place:]])


def _wrap(lark: str) -> str:
    return json.dumps({"grammars": [{"lark_grammar": lark}]})
