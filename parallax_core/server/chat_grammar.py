"""Asks the library of grammars for that of a chat's answers, and for a check of it."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from parallax_core.base.errors import InvalidRequest
from parallax_core.base.refs import Ref
from parallax_core.contracts.engine import Request
from parallax_core.contracts.grammar import AskedAnswer, GrammarCheck
from parallax_core.contracts.parser import AnswerInfo, Informed, Parser
from parallax_core.models.grammars import find_library
from parallax_core.models.tokenizer import ModelTokenizer
from parallax_core.server.body_messages import BodyResult, ParsedBody, ParserTraits, RefusedBody, ResponseForm


def set_grammar(
    text: ModelTokenizer, parser: ParserTraits, form: ResponseForm, request: Request
) -> tuple[ResponseForm, Request]:
    """Return the form and the request with the grammar of the answer, if it has one.

    Raises:
        InvalidRequest: if the format of the model does not allow what is asked for; it names the field.
    """
    is_forced, asks_form = form.forced_call is not None, request.grammar is not None
    if not (is_forced or asks_form or form.lists_calls or form.strict_tools):
        return form, request
    field = "tool_choice" if is_forced else form.grammar_field if asks_form else "tools"
    asked = replace(
        _describe(form, request, field),
        is_whole=asks_form and form.grammar_field != "response_format",
        format=parser.name,
        make_parser=(lambda: _make_parser(parser.factory, form)) if parser.factory else None,
        call_form=parser.call_form,
        may_force_calls=parser.may_force_calls,
    )
    written = text.grammars.write_answer(asked)
    form = msgspec.structs.replace(form, grammar_field=field, calls_come_first=written.calls_come_first)
    if form.reasoning_end and written.grammar.after:  # what follows the mark has to match the grammar
        form = msgspec.structs.replace(form, reasoning_end=text.encode(written.grammar.after[0], special=False))
    if is_forced and written.calls_in_format:
        tools = {name: form.tools[name] for name in ((form.forced_call,) if form.forced_call else form.tools)}
        form = msgspec.structs.replace(form, tools=tools, strict_tools=tuple(tools), forced_call=None)
    stop = () if is_forced else request.stop  # a stop string would break the call
    return form, replace(request, grammar=written.grammar, stop=stop)


async def check_answer(result: BodyResult, check: GrammarCheck, *, is_able: bool) -> BodyResult:
    """Return the result if the grammar of the answers can be compiled, and a refusal otherwise.

    `BodyResult.ignored` names the schemas that had to be left out of it. ``is_able``: whether any can be compiled.
    """
    content = result.content
    if not isinstance(content, ParsedBody) or content.request.grammar is None:
        return result
    asked = _describe(content.form, content.request, content.form.grammar_field)
    try:
        if not is_able:  # the library may be sure of a grammar without a check
            await check(content.request.grammar)
        grammar, left_out = await find_library().check_answer(asked, check)
    except InvalidRequest as error:
        return msgspec.structs.replace(result, content=RefusedBody.of(error))
    content = msgspec.structs.replace(content, request=replace(content.request, grammar=grammar))
    return msgspec.structs.replace(result, content=content, ignored=(*result.ignored, *left_out))


def _describe(form: ResponseForm, request: Request, field: str) -> AskedAnswer:
    return AskedAnswer(
        field=field,
        grammar=request.grammar,
        tools=form.tools,
        tool_fields=form.tool_fields,
        strict_tools=form.strict_tools,
        forced=form.forced_call,
        lists_calls=form.lists_calls,
        allows_many_calls=form.allows_many_calls,
        reasoning_marks=request.reasoning_marks,
        limits_reasoning=bool(form.reasoning_end),
    )


def _make_parser(factory: str, form: ResponseForm) -> Parser:
    """Return a parser of the model's answers, told of the request if it asks for that."""
    make: Ref[type[Parser]] = Ref(factory)
    made = make.load()()
    optional: object = made
    if isinstance(optional, Informed):
        optional.begin(AnswerInfo(prompt_end=form.prompt_end, tools=form.tools))
    return made
