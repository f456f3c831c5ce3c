"""Fits the grammar of a chat's answers to the reasoning and the forced calls of its model."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from parallax_core.base.errors import InvalidRequest
from parallax_core.contracts.engine import Request
from parallax_core.models.tokenizer import ModelTokenizer
from parallax_core.server.body_messages import ParserTraits, ResponseForm
from parallax_core.server.forced_calls import make_grammar
from parallax_core.server.grammar_check import check_grammar


def set_grammar(
    text: ModelTokenizer, parser: ParserTraits, form: ResponseForm, request: Request
) -> tuple[ResponseForm, Request]:
    """Return the form and the request with a grammar that begins after the reasoning, if the prompt opens one.

    A ``tool_choice`` that forces a call has a grammar of its own.

    Raises:
        InvalidRequest: if the format of the model does not allow that, or the grammar cannot be compiled.
    """
    if form.forced_call is None and request.grammar is None:
        return form, request
    marks = parser.reasoning_marks
    opened = marks is not None and form.prompt_end.rstrip().endswith(marks[0])
    after = (marks[1],) if marks is not None and opened else ()
    if after and form.reasoning_end:  # what follows the mark has to match the grammar
        form = msgspec.structs.replace(form, reasoning_end=text.encode(after[0], special=False))
    if form.forced_call is None:
        grammar = request.grammar
        assert grammar is not None
        return form, replace(request, grammar=msgspec.structs.replace(grammar, after=after)) if after else request
    if marks is None:
        message = "'tool_choice' cannot force a call in the format of this model"
        raise InvalidRequest(message, "tool_choice", "leave it out, or send 'auto' or 'none'")
    named, allows_many = form.forced_call, form.allows_many_calls
    forced = make_grammar(form.tools, named, allows_many=allows_many, after=after)
    check_grammar(text.grammars, forced, "tool_choice")
    form = msgspec.structs.replace(form, grammar_field="tool_choice")
    return form, replace(request, grammar=forced)
