"""Fits the grammar of answers to the reasoning and the calls of the model."""

from __future__ import annotations

import msgspec

from parallax_core.api import GrammarWriter, InvalidRequest
from parallax_core.api.grammars import AskedAnswer, Grammar, WrittenGrammar
from parallax_grammars.format_grammar import Dialect, find_writer, write_form
from parallax_grammars.json_calls import make_forced_grammar, make_list_grammar


def write_answer(asked: AskedAnswer, model: Dialect) -> WrittenGrammar:
    """Return the grammar of an answer; see `ModelGrammars.write_answer`.

    The grammar that the client asks for begins after the reasoning, if the prompt opens one; where there are tools, the
    answer calls some or has that form. A call that is forced has a grammar of its own, and so have strict tools. Where
    the answer proper cannot be JSON alone, all of it has a grammar, the reasoning too.

    Raises:
        InvalidRequest: if the format of the model does not allow that.
    """
    if not asked.may_force_calls and not asked.lists_calls and (writer := find_writer(asked)):
        return _write_whole(asked, model, writer)
    marks = asked.reasoning_marks
    after = (marks[1],) if marks is not None and not marks[0] else ()
    if asked.forced is not None:
        return _force(asked, asked.forced, after)
    lists = asked.lists_calls and not asked.is_whole
    if not lists and asked.grammar is None:
        return WrittenGrammar(grammar=_write_strict(asked, model))
    allows_calls = not lists and bool(asked.tools) and not asked.is_whole
    grammar = _write_list(asked) if lists else _write_calls(asked, model) if allows_calls else asked.grammar
    assert grammar is not None
    if after:
        is_free = lists and asked.grammar is None
        grammar = msgspec.structs.replace(grammar, after=after, must_begin=not is_free)
    return WrittenGrammar(grammar=grammar, calls_come_first=allows_calls)


def _force(asked: AskedAnswer, tool: str, after: tuple[str, ...]) -> WrittenGrammar:
    """Return the grammar of a call in JSON."""
    if not asked.may_force_calls or (asked.reasoning_marks is None and not asked.lists_calls):
        message = "'tool_choice' cannot force a call in the format of this model"
        raise InvalidRequest(message, "tool_choice", "leave it out, or send 'auto' or 'none'")
    return WrittenGrammar(
        grammar=make_forced_grammar(asked.tools, tool, allows_many=asked.allows_many_calls, after=after)
    )


def _write_list(asked: AskedAnswer) -> Grammar:
    """Return the grammar of a list of calls, or else of text, or of the form that is asked for."""
    form = asked.grammar
    answer = "" if form is None else form.source or '{"type": "object"}'
    grammar = make_list_grammar(asked.tools, allows_many=asked.allows_many_calls, answer=answer)
    return grammar if form is None else msgspec.structs.replace(grammar, whitespace=form.whitespace)


def _write_calls(asked: AskedAnswer, model: Dialect) -> Grammar:
    """Return the grammar of an answer that calls tools, or else has the form that is asked for."""
    if (writer := find_writer(asked)) is None:
        message = f"'{asked.field}' leaves no room for tool calls in the format of this model"
        raise InvalidRequest(message, asked.field, "leave it out, or send 'tool_choice': 'none'")
    return write_form(writer, asked, model)


def _write_strict(asked: AskedAnswer, model: Dialect) -> Grammar:
    """Return a grammar that holds calls of strict tools to their schemas."""
    if (writer := find_writer(asked)) is None:
        name = next(iter(asked.strict_tools))[:100]
        message = f"'tools': the tool '{name}' cannot be strict in the format of this model"
        raise InvalidRequest(message, "tools", "send 'strict': false, or a 'tool_choice' that forces a call")
    return write_form(writer, asked, model)


def _write_whole(asked: AskedAnswer, model: Dialect, writer: GrammarWriter) -> WrittenGrammar:
    """Return a grammar in the model's own format, with the reasoning."""
    if asked.forced is not None and asked.limits_reasoning:
        message = "'max_reasoning_tokens' cannot end the reasoning before a forced call in the format of this model"
        raise InvalidRequest(message, "max_reasoning_tokens", "leave it out")
    return WrittenGrammar(grammar=write_form(writer, asked, model), calls_in_format=True)
