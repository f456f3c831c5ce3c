"""The grammar of answers in the format of the model, as its parser writes it."""

from __future__ import annotations

import json
from collections.abc import Callable

import msgspec

from parallax_core.base.errors import InvalidRequest
from parallax_core.base.lark import write_pattern
from parallax_core.base.refs import Ref
from parallax_core.contracts.grammar import Grammar, ModelGrammars
from parallax_core.contracts.parser import AllowedAnswers, AnswerInfo, GrammarWriter, Informed, Parser
from parallax_core.server.body_messages import ParserTraits, ResponseForm
from parallax_core.server.forced_calls import MAX_CALLS
from parallax_core.server.listed_calls import write_answer
from parallax_core.server.strict_calls import CallFormWriter

ANY_OBJECT = '{"type": "object"}'
"""The schema of the arguments of a tool that is not strict."""


def find_writer(parser: ParserTraits, form: ResponseForm) -> GrammarWriter | None:
    """Return what writes the grammar of an answer; None: the parser cannot."""
    if parser.factory:
        make: Ref[Callable[[], Parser]] = Ref(parser.factory)
        made: object = make.load()()
        if isinstance(made, Informed):
            made.begin(AnswerInfo(prompt_end=form.prompt_end, tools=form.tools))
        if isinstance(made, GrammarWriter):
            return made
    return CallFormWriter(parser.call_form) if parser.call_form is not None else None


def write_form(
    writer: GrammarWriter,
    parser: ParserTraits,
    form: ResponseForm,
    grammars: ModelGrammars,
    asked: Grammar | None = None,
) -> Grammar:
    """Return the grammar of an answer that may call tools, strict ones by their schemas, and else is ``asked``.

    Raises:
        InvalidRequest: if the format cannot hold a tool to its schema.
    """
    allowed = AllowedAnswers(
        tools={
            name: _read_schema(schema, grammars) if name in form.strict_tools else ANY_OBJECT
            for name, schema in form.tools.items()
        },
        most_calls=MAX_CALLS if form.allows_many_calls else 1,
        must_call=form.forced_call is not None,
        answer=_write_rule(asked) if asked is not None else "",
        find_special=grammars.find_special,
    )
    try:
        source = writer.write_grammar(allowed)
    except InvalidRequest as error:
        name = "" if error.param is None else f" the tool '{error.param[:100]}' cannot be strict:"
        message = f"'tools':{name} {error.message} (format {parser.name})"
        hint = error.hint or "send 'strict': false, or a 'tool_choice' that forces a call"
        raise InvalidRequest(message, "tools", hint) from error
    return Grammar(kind="lark", source=source, whitespace=asked.whitespace if asked is not None else None)


def _read_schema(schema: str, grammars: ModelGrammars) -> str:
    """Return the schema that the arguments of a tool have to follow, without what asks for nothing."""
    given = {name: value for name, value in json.loads(schema).items() if name != "x-guidance"}
    return json.dumps({**grammars.simplify_schema(given), "type": "object"})


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
        return write_answer(asked.source or ANY_OBJECT)
    except ValueError as error:
        raise InvalidRequest(f"the schema is not valid: {error}", "grammar") from error
