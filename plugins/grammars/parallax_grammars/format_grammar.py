"""The grammar of answers in the format of the model, as its parser writes it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from parallax_core.api import AllowedAnswers, GrammarWriter, InvalidRequest
from parallax_core.api.grammars import AskedAnswer, Grammar
from parallax_grammar_tools.lark import write_pattern
from parallax_grammar_tools.schema_refs import JsonSchema
from parallax_grammars.call_forms import CallFormWriter
from parallax_grammars.json_calls import MAX_CALLS, write_json_rule

ANY_OBJECT = '{"type": "object"}'
"""The schema of the arguments of a tool that is not strict."""


class Dialect(Protocol):
    """What the grammar of a format depends on in the model."""

    def find_special(self, text: str) -> str:
        """See `AllowedAnswers.find_special`."""

    def simplify_schema(self, schema: JsonSchema) -> JsonSchema:
        """Return a schema with local references, without what asks for nothing."""


def find_writer(asked: AskedAnswer) -> GrammarWriter | None:
    """Return what writes the grammar of an answer; None: the parser cannot."""
    made: object = asked.make_parser() if asked.make_parser is not None else None
    if isinstance(made, GrammarWriter):
        return made
    return CallFormWriter(asked.call_form) if asked.call_form is not None else None


def write_form(writer: GrammarWriter, asked: AskedAnswer, model: Dialect) -> Grammar:
    """Return the grammar of an answer that may call tools, strict ones by their schemas.

    Raises:
        InvalidRequest: if the format cannot hold a tool to its schema.
    """
    is_forced, form = asked.forced is not None, asked.grammar if asked.forced is None else None
    allowed = AllowedAnswers(
        tools={
            name: _read_schema(schema, model.simplify_schema) if is_forced or name in asked.strict_tools else ANY_OBJECT
            for name, schema in _list_tools(asked).items()
        },
        most_calls=MAX_CALLS if asked.allows_many_calls else 1,
        must_call=is_forced,
        answer=_write_rule(form) if form is not None else "",
        find_special=model.find_special,
    )
    try:
        source = writer.write_grammar(allowed)
    except InvalidRequest as error:
        name = "" if error.param is None else f" the tool '{error.param[:100]}' cannot be strict:"
        message = f"'tools':{name} {error.message} (format {asked.format})"
        hint = error.hint or "send 'strict': false, or a 'tool_choice' that forces a call"
        raise InvalidRequest(message, "tools", hint) from error
    return Grammar(kind="lark", source=source, whitespace=form.whitespace if form is not None else None)


def _list_tools(asked: AskedAnswer) -> Mapping[str, str]:
    """Return the schemas of the tools that may be called, by name."""
    return {asked.forced: asked.tools[asked.forced]} if asked.forced else asked.tools


def _read_schema(schema: str, simplify: Callable[[JsonSchema], JsonSchema]) -> str:
    """Return the schema that the arguments of a tool have to follow, without what asks for nothing."""
    given = {name: value for name, value in json.loads(schema).items() if name != "x-guidance"}
    return json.dumps({**simplify(given), "type": "object"})


def _write_rule(asked: Grammar) -> str:
    """Return the rule for an answer of the form that a client asks for."""
    match asked.kind:
        case "lark":
            return f"answer: %lark {{\n{asked.source}\n}}"
        case "choice":
            return "answer: " + " | ".join(map(json.dumps, msgspec.json.decode(asked.source)))
        case "regex":
            return f"answer: {write_pattern(asked.source)}"
    try:
        return write_json_rule(asked.source or ANY_OBJECT)
    except ValueError as error:
        raise InvalidRequest(f"the schema is not valid: {error}", "grammar") from error
