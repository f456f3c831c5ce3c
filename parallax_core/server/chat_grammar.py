"""Fits the grammar of a chat's answers to the reasoning and the calls of its model."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from parallax_core.base.errors import InvalidRequest
from parallax_core.contracts.engine import Request
from parallax_core.contracts.grammar import Grammar
from parallax_core.contracts.parser import GrammarWriter
from parallax_core.models.tokenizer import ModelTokenizer
from parallax_core.server.body_messages import ParserTraits, ResponseForm
from parallax_core.server.forced_calls import make_grammar
from parallax_core.server.format_grammar import find_writer, write_form
from parallax_core.server.listed_calls import make_list_grammar


def set_grammar(
    text: ModelTokenizer, parser: ParserTraits, form: ResponseForm, request: Request
) -> tuple[ResponseForm, Request]:
    """Return the form and the request with the grammar of the answer, if it has one.

    The grammar that the client asks for begins after the reasoning, if the prompt opens one; where there are tools, the
    answer calls some or has that form. A ``tool_choice`` that forces a call has a grammar of its own, and so have
    strict tools. Where the answer proper cannot be JSON alone, all of it has a grammar, the reasoning too.

    Raises:
        InvalidRequest: if the format of the model does not allow that.
    """
    if not parser.may_force_calls and not form.lists_calls and (writer := find_writer(parser, form)):
        return _set_whole(text, parser, form, request, writer)
    is_answer = request.grammar is not None and form.grammar_field != "response_format"
    if form.forced_call is None and form.lists_calls and not is_answer:
        form, request = _allow_list(form, request)
    elif form.forced_call is None and request.grammar is None:
        return _set_strict(text, parser, form, request) if form.strict_tools else (form, request)
    elif form.forced_call is None and form.tools and not is_answer:
        request = _allow_calls(text, parser, form, request)
        form = msgspec.structs.replace(form, calls_come_first=True)
    marks = request.reasoning_marks
    after = (marks[1],) if marks is not None and not marks[0] else ()
    if after and form.reasoning_end:  # what follows the mark has to match the grammar
        form = msgspec.structs.replace(form, reasoning_end=text.encode(after[0], special=False))
    if form.forced_call is None:
        grammar = request.grammar
        assert grammar is not None
        is_free = form.lists_calls and form.grammar_field == "tools"
        later = msgspec.structs.replace(grammar, after=after, must_begin=not is_free)
        return form, replace(request, grammar=later) if after else request
    if not parser.may_force_calls or (marks is None and not form.lists_calls):
        message = "'tool_choice' cannot force a call in the format of this model"
        raise InvalidRequest(message, "tool_choice", "leave it out, or send 'auto' or 'none'")
    forced = make_grammar(form.tools, form.forced_call, allows_many=form.allows_many_calls, after=after)
    return _use(form, replace(request, stop=()), forced, "tool_choice")  # a stop string would break the call


def _allow_list(form: ResponseForm, request: Request) -> tuple[ResponseForm, Request]:
    """Return both with the grammar of a list of calls, or else of text, or of the form that is asked for."""
    asked = request.grammar
    answer = "" if asked is None else asked.source or '{"type": "object"}'
    grammar = make_list_grammar(form.tools, allows_many=form.allows_many_calls, answer=answer)
    if asked is None:
        return _use(form, request, grammar, "tools")
    return form, replace(request, grammar=msgspec.structs.replace(grammar, whitespace=asked.whitespace))


def _allow_calls(text: ModelTokenizer, parser: ParserTraits, form: ResponseForm, request: Request) -> Request:
    """Return the request with the grammar of an answer that calls tools, or else has the form that is asked for."""
    writer, field = find_writer(parser, form), form.grammar_field
    if writer is None:
        message = f"'{field}' leaves no room for tool calls in the format of this model"
        raise InvalidRequest(message, field, "leave it out, or send 'tool_choice': 'none'")
    either = write_form(writer, parser, form, text.grammars, request.grammar)
    return replace(request, grammar=either)


def _set_strict(
    text: ModelTokenizer, parser: ParserTraits, form: ResponseForm, request: Request
) -> tuple[ResponseForm, Request]:
    """Return the form and the request with a grammar that holds calls of strict tools to their schemas."""
    writer = find_writer(parser, form)
    if writer is None:
        message = f"'tools': the tool '{form.strict_tools[0][:100]}' cannot be strict in the format of this model"
        raise InvalidRequest(message, "tools", "send 'strict': false, or a 'tool_choice' that forces a call")
    return _use(form, request, write_form(writer, parser, form, text.grammars), "tools")


def _set_whole(
    text: ModelTokenizer, parser: ParserTraits, form: ResponseForm, request: Request, writer: GrammarWriter
) -> tuple[ResponseForm, Request]:
    """Return the form and the request with a grammar in the model's own format, if the answer has any grammar."""
    asked = request.grammar
    if form.forced_call is None:
        if asked is None and not form.strict_tools:
            return form, request
        field = "tools" if asked is None else form.grammar_field
        return _use(form, request, write_form(writer, parser, form, text.grammars, asked), field)
    if form.reasoning_end:
        message = "'max_reasoning_tokens' cannot end the reasoning before a forced call in the format of this model"
        raise InvalidRequest(message, "max_reasoning_tokens", "leave it out")
    tools = {name: form.tools[name] for name in ((form.forced_call,) if form.forced_call else form.tools)}
    form = msgspec.structs.replace(form, tools=tools, strict_tools=tuple(tools))
    grammar = write_form(writer, parser, form, text.grammars)
    form = msgspec.structs.replace(form, forced_call=None)  # the model's own parser reads the call
    return _use(form, replace(request, stop=()), grammar, "tool_choice")


def _use(form: ResponseForm, request: Request, grammar: Grammar, field: str) -> tuple[ResponseForm, Request]:
    return msgspec.structs.replace(form, grammar_field=field), replace(request, grammar=grammar)
