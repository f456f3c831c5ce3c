"""Writes grammars in llguidance's form, with JSON schemas in forms that it compiles correctly."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from parallax_core.api import InvalidRequest
from parallax_core.api.grammars import Grammar
from parallax_grammar_tools.schema_refs import JsonSchema, localize_references
from parallax_grammars.schema_choices import join_choices
from parallax_grammars.schema_integers import bound_integers, share_integers
from parallax_grammars.schema_keywords import drop_neutral, rewrite_schema
from parallax_grammars.schema_names import list_names

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

COMPACT: JsonCompileOptions = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
"""The white space of JSON unless a request asks for other: models write more of it than anyone reads."""
LARK_TOKEN = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/(?:\\.|[^/\\\n])+/|%json\s*')
"""What may contain the mark of a JSON schema in Lark, or is that mark: a string, a comment, a regular expression."""


def translate_whole(grammar: Grammar) -> str:
    """Return a grammar in llguidance's own form, without its `Grammar.after`.

    Raises:
        InvalidRequest: if its schema is not valid.
    """
    from llguidance import LLMatcher

    options = _make_options(grammar.whitespace)
    match grammar.kind:
        case "regex":
            return LLMatcher.grammar_from_regex(grammar.source)
        case "lark":
            return _wrap(_rewrite_rules(grammar.source, options))
        case "choice":
            return _wrap("start: " + " | ".join(map(json.dumps, json.loads(grammar.source))))
    source = grammar.source or '{"type": "object"}'
    try:
        with suppress(RecursionError):  # llguidance says that it is too deep
            source = json.dumps(_rewrite_schema(json.loads(source)))
        return LLMatcher.grammar_from_json_schema(source, overrides=options)
    except ValueError as error:
        raise InvalidRequest(f"the schema is not valid: {error}", "grammar") from error


def _make_options(whitespace: str | None) -> JsonCompileOptions:
    """Return how llguidance compiles a JSON schema; ``whitespace``: see `Grammar.whitespace`."""
    spaces: JsonCompileOptions = {"whitespace_pattern": whitespace} if whitespace else {"whitespace_flexible": False}
    return {"lenient": False, "coerce_one_of": False, **(COMPACT if whitespace is None else spaces)}


def _rewrite_schema(schema: Any) -> Any:  # noqa: ANN401 -- any JSON; what is no schema is left for llguidance to refuse
    if not isinstance(schema, dict):
        return schema
    local = localize_references(schema)

    def rewrite(part: JsonSchema) -> JsonSchema:
        return bound_integers(list_names(join_choices(drop_neutral(part), local)))

    return share_integers(rewrite_schema(local, rewrite))


def _rewrite_rules(lark: str, options: JsonCompileOptions) -> str:
    """Return a grammar in Lark with its JSON schemas rewritten; one with options of its own keeps them."""
    parts, place = [], 0
    while found := LARK_TOKEN.search(lark, place):
        parts.append(lark[place : found.end()])
        place = found.end()
        if found[0].startswith("%json"):
            with suppress(ValueError, RecursionError):  # llguidance says what is wrong
                schema, end = json.JSONDecoder().raw_decode(lark, place)
                whole = _rewrite_schema({} if schema is True else schema)
                parts.append(json.dumps({"x-guidance": options, **whole} if isinstance(whole, dict) else whole))
                place = end
    return "".join([*parts, lark[place:]])


def unforce(whole: str) -> str:
    """Return a grammar in llguidance's own form whose only possible texts are not tokenized beforehand.

    llguidance takes the text of a special token for that token then, which it refuses as the next one.
    """
    [part] = json.loads(whole)["grammars"]
    lark = part.get("lark_grammar") or f"start: %json {json.dumps(part['json_schema'])}"
    return whole if "%llguidance" in lark else _wrap(f'%llguidance {{"no_forcing": true}}\n{lark}')


def _wrap(lark: str) -> str:
    return json.dumps({"grammars": [{"lark_grammar": lark}]})
